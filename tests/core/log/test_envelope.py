"""The checksummed frame: whatever happens to the bytes, nothing wrong is believed."""

import json
import subprocess
import sys

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from persist.blob.errors import CorruptBlob, IncompatibleVersion, PersistError
from persist.core.log import kinds
from persist.core.log.framing import FORMAT, Framed, decode_framed, encode_framed, read_intact_kind
from persist.core.log.records import PartList, Record
from persist.engine.follow.checkpoint import Checkpoint
from persist.engine.follow.directory import DirectoryObject
from persist.engine.follow.state_objects import StateObject
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

RECORD = Record(
    location="0" * 32,
    seqno=7,
    commit="1" * 32,
    previous="3" * 32,
    writer="a test",
    epoch=None,
    written_ms=1,
    mutations=(kinds.Create("2" * 32, "orders", {"key": None, "value": None}), kinds.Seal("2" * 32, (11,))),
)
DATA = encode_framed(RECORD)


def resealed(body: dict[str, object]) -> bytes:
    """Return body under a right checksum, as an attacker or another implementation could write it."""
    body.pop("checksum", None)
    raw = json.dumps(body).encode()[:-1]
    return raw + b',"checksum":"' + xxhash.xxh3_128_hexdigest(raw).encode() + b'"}\n'


def test_it_is_one_line_of_json_that_any_tool_reads() -> None:
    assert DATA.startswith(b'{"persist":"record","format":14,"location":')
    assert DATA.endswith(b"\n")
    assert DATA.count(b"\n") == 1
    assert json.loads(DATA)["mutations"][1] == {"kind": "seal", "collection": "2" * 32, "upper": [11]}
    assert decode_framed(DATA, Record, "log/7") == RECORD


def test_every_truncation_and_extension_is_found() -> None:
    for length in range(len(DATA)):
        with pytest.raises(CorruptBlob):
            decode_framed(DATA[:length], Record, "log/7")
    with pytest.raises(CorruptBlob):
        decode_framed(DATA + b"\n", Record, "log/7")


@pytest.mark.parametrize(
    "change",
    [
        {"seqno": "7"},
        {"persist": "checkpoint"},
        {"mutations": [{"kind": "seal", "collection": "x", "upper": [1.5]}]},
        {"format": 0},
        {"format": -1},
    ],
)
def test_well_formed_nonsense_under_a_right_checksum_is_corrupt(change: dict[str, object]) -> None:
    with pytest.raises(CorruptBlob):
        decode_framed(resealed({**json.loads(DATA), **change}), Record, "log/7")


@pytest.mark.parametrize(
    "change",
    [
        {"of_the_future": 1},
        {"mutations": [{"kind": "explode", "collection": "x"}]},
        {"mutations": [{"kind": "seal", "collection": "x", "upper": [1], "of_the_future": 2}]},
    ],
)
def test_a_kind_or_a_member_that_is_not_known_under_a_right_checksum_is_of_another_version(
    change: dict[str, object],
) -> None:
    with pytest.raises(IncompatibleVersion, match="does not know") as caught:
        decode_framed(resealed({**json.loads(DATA), **change}), Record, "log/7")
    assert "estore" not in str(caught.value)


def test_an_older_format_is_read_and_the_kind_of_what_is_intact_is_known_whatever_its_version() -> None:
    assert decode_framed(resealed({**json.loads(DATA), "format": 1}), Record, "log/7").mutations == RECORD.mutations
    assert read_intact_kind(DATA) == read_intact_kind(resealed({**json.loads(DATA), "format": FORMAT + 1})) == "record"
    for data in (b"", DATA[:-1], resealed({"persist": 7}), resealed({"format": 1})):
        assert read_intact_kind(data) is None


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_our_errors(data: bytes) -> None:
    sealed = data + b',"checksum":"' + xxhash.xxh3_128_hexdigest(data).encode() + b'"}\n'
    for candidate in (data, sealed):
        with pytest.raises(PersistError):
            decode_framed(candidate, Record, "log/7")


MANY_THREADS_DECODE_A_NEW_KIND = """
import sys, threading
import msgspec
from persist.core.log.framing import Framed, decode_framed, encode_framed

sys.setswitchinterval(1e-7)

def new_kind():
    class Inner(msgspec.Struct, frozen=True):
        number: int
    class One(msgspec.Struct, frozen=True, tag="one"):
        inners: tuple[Inner, ...] = ()
    class Other(msgspec.Struct, frozen=True, tag="other"):
        inners: dict[str, Inner] = {}
    class Kind(Framed, frozen=True, kw_only=True, tag="kind"):
        both: tuple[One | Other, ...] = ()
    return Kind, encode_framed(Kind(both=(One((Inner(1),)), Other({"a": Inner(2)}))))

def decode(kind, data, ready):
    ready.wait()
    decode_framed(data, kind, "key")

for _ in range(200):
    arguments = (*new_kind(), threading.Barrier(4))
    threads = [threading.Thread(target=decode, args=arguments) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("alive")
"""


def test_threads_that_decode_the_first_object_of_a_kind_together_do_not_crash_the_process() -> None:
    command = [sys.executable, "-c", MANY_THREADS_DECODE_A_NEW_KIND]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)

    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


@pytest.mark.parametrize("kind", [Record, PartList, Checkpoint, DirectoryObject, StateObject])
def test_an_object_of_a_newer_format_is_refused_by_its_number_whatever_is_in_it(kind: type[Framed]) -> None:
    body: dict[str, object] = {"persist": kind.__struct_config__.tag, "format": FORMAT + 1}
    body |= {"mutations": [{"kind": "not known yet"}], "parts": [{"not known yet": 1}]}
    with pytest.raises(IncompatibleVersion, match=f"format version {FORMAT + 1}") as caught:
        decode_framed(resealed(body), kind, "a blob")
    assert (caught.value.key, caught.value.found, caught.value.supported) == ("a blob", FORMAT + 1, FORMAT)
