"""The number of a location's format: newer releases keep it, a deliberate act raises it, older ones stop at it.

What a release does with the future is rehearsed: the next record is one that only a later release would write.
"""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.file import FileBlob
from persist.core.log import kinds
from persist.core.log.framing import FORMAT, encode_framed
from persist.core.log.keys import CHECKPOINTS, DIRECTORIES, LISTS, LOG, STATES, make_record_key
from persist.core.log.kinds import KINDS
from persist.core.log.records import Record
from persist.core.state_rules.state import State, apply_record
from persist.errors import CorruptBlob, IncompatibleVersion
from persist.tools.cli.dispatch import run
from tests.rules.golden.make import HERE

OLD = HERE / "format-6" / "location"
QUIET = persist.Settings(background=False)
FRAMED = (LOG, CHECKPOINTS, DIRECTORIES, STATES, LISTS)


def numbers(blob: Blob) -> dict[str, int]:
    """Return the format number of each object in a frame."""
    keys = [entry.key for prefix in FRAMED for entry in blob.list(prefix)]
    return {key: json.loads(blob.get(key) or b"")["format"] for key in keys}


def stored(blob: Blob) -> dict[str, bytes | None]:
    return {entry.key: blob.get(entry.key) for entry in blob.list("")}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A location that a release of format 6 has left."""
    shutil.copytree(OLD, tmp_path / "old")
    return tmp_path / "old"


def test_a_location_keeps_its_number_while_a_newer_release_writes_there(old: Path) -> None:
    before = numbers(FileBlob(old))
    with persist.open(old, settings=QUIET) as client:
        large = client.create_or_load("new here", key={"k": int}, value={"v": str})
        for n in range(40):  # Checkpoints, state objects, part lists are made meanwhile.
            large.write([(n, "x")]).result()
        large.compact()
        client.maintain()
        client.gc()
    after = numbers(FileBlob(old))
    new = {key: number for key, number in after.items() if key not in before}
    assert {key.split("/")[0] for key in new} >= {"log", "checkpoint", "state"}
    assert set(new.values()) == {6}


def test_a_new_location_has_the_newest_number() -> None:
    blob = MemoryBlob()
    with persist.open(blob, settings=QUIET) as client:
        assert client.upgrade(dry_run=True).before == FORMAT
        client.create_or_load("c", key={"k": int}, value=None)
    assert set(numbers(blob).values()) == {FORMAT}


def test_an_upgrade_raises_the_number_once_and_says_so_first(old: Path) -> None:
    with persist.open(old, settings=QUIET) as client:
        seqno = client.seqno
        plan = client.upgrade(dry_run=True)
        assert (plan.before, plan.after, plan.seqno, client.seqno) == (6, FORMAT, None, seqno)
        assert "would be raised from 6" in str(plan)
        done = client.upgrade()
        assert (done.before, done.after, done.seqno) == (6, FORMAT, seqno + 1)
        again = client.upgrade()
        assert (again.before, again.seqno, client.seqno) == (FORMAT, None, seqno + 1)
        client.create_or_load("later", key={"k": int}, value=None)
    records = {key: number for key, number in numbers(FileBlob(old)).items() if key.startswith("log/")}
    assert all(number == FORMAT for key, number in records.items() if key > make_record_key(seqno))
    with persist.open(old, mode="read") as client:  # Of what it held, nothing is lost.
        assert client.load("kinds").snapshot().count() == 2


def test_the_command_says_what_an_upgrade_changes_and_does_it_once(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*more: str) -> str:
        assert run(["upgrade", str(old), *more]) == 0
        return capsys.readouterr().out

    plan = json.loads(said("--dry-run", "--json"))
    assert (plan["before"], plan["after"], plan["seqno"]) == (6, FORMAT, None)
    assert "was raised from 6 to" in said()
    assert "nothing to do" in said()


def test_two_upgrades_at_once_are_as_one(old: Path) -> None:
    barrier, reports = threading.Barrier(2), []

    def upgrade() -> None:
        with persist.open(old, settings=QUIET) as client:
            barrier.wait()
            reports.append(client.upgrade())

    threads = [threading.Thread(target=upgrade) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {report.after for report in reports} == {FORMAT}
    with persist.open(old, settings=QUIET) as client:
        assert client.upgrade().seqno is None
        assert client.fsck().problems == ()


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.NOT_HAPPENED_DOUBTFUL, Fault.HAPPENED_BUT_FAILED])
def test_an_upgrade_that_is_cut_off_is_done_or_not_and_may_be_asked_for_again(old: Path, fault: Fault) -> None:
    store = UnreliableBlob(FileBlob(old))
    with persist.open(store, settings=persist.Settings(background=False, retry_s=0.01)) as client:
        store.script_faults("create", *[fault] * 9)
        with suppress(persist.PersistError):
            client.upgrade()
    with persist.open(old, settings=QUIET) as client:
        client.upgrade()
        assert client.upgrade(dry_run=True).before == FORMAT


def test_the_number_never_goes_back_and_a_kind_is_only_written_where_its_number_is() -> None:
    def record(state: State, number: int, *mutations: Any) -> Record:
        made: dict[str, Any] = {
            "location": "a" * 32,
            "commit": f"{state.seqno + 2:032x}",
            "writer": "",
            "epoch": None,
            "written_ms": 0,
        }
        return Record(format=number, seqno=state.seqno + 1, previous=state.commit, mutations=mutations, **made)

    six = apply_record(State(), record(State(), 6))
    assert six.format == 6
    with pytest.raises(ValueError, match="it has format 6, and 8 is needed"):
        apply_record(six, record(six, 6, kinds.Upgrade(8)))
    eight = apply_record(six, record(six, 8, kinds.Upgrade(8)))
    assert eight.format == 8
    with pytest.raises(ValueError, match="it has format 6, and 8 is needed"):
        apply_record(eight, record(eight, 6))
    assert apply_record(State(), record(State(), 3)).format == 6  # What is below is written as 6 from then on.


def test_each_kind_says_with_which_number_it_came() -> None:
    """A kind that an earlier number did not have may not be written into a location of that number."""
    for number in range(6, FORMAT + 1):
        known = json.loads((HERE / f"format-{number}" / "members.json").read_text())
        for tag, kind in KINDS.items():
            assert (kind.__name__ in known) == (kind.came_with <= number), tag


Plant = Callable[[dict[str, Any]], dict[str, Any]]
FUTURES: dict[str, Plant] = {
    "a higher number": lambda body: body | {"format": FORMAT + 1},
    "a higher number, and what nobody knows": lambda body: (
        body | {"format": FORMAT + 7, "mutations": [{"kind": "explode"}], "more": 1}
    ),
    "an unknown kind of record": lambda body: body | {"mutations": [{"kind": "explode", "collection": "f" * 32}]},
    "an unknown member": lambda body: body | {"of_the_future": True},
}


def next_record(client: persist.Client, plant: Plant) -> bytes:
    """Return a record that a later release might write now."""
    state = client.engine.follower.refresh()
    assert state.location is not None
    made: dict[str, Any] = {"writer": "the future", "epoch": None, "written_ms": 0, "mutations": ()}
    follows: dict[str, Any] = {
        "location": state.location,
        "seqno": state.seqno + 1,
        "commit": "f" * 32,
        "previous": state.commit,
    }
    raw = json.dumps(plant(json.loads(encode_framed(Record(**made, **follows))) | {})).encode()
    body = json.loads(raw)
    body.pop("checksum")
    raw = json.dumps(body, separators=(",", ":")).encode()[:-1]
    return raw + b',"checksum":"' + xxhash.xxh3_128_hexdigest(raw).encode() + b'"}\n'


@pytest.fixture
def location() -> Iterator[tuple[MemoryBlob, persist.Client]]:
    blob = MemoryBlob()
    client = persist.open(blob, settings=QUIET)
    orders = client.create_or_load("orders", key={"k": int}, value={"v": str})
    orders.write([(n, "x") for n in range(3)]).result()
    yield blob, client
    client.close()


@pytest.mark.parametrize("future", FUTURES.values(), ids=FUTURES.keys())
def test_a_running_client_that_meets_a_record_of_the_future_stops_and_changes_nothing(
    location: tuple[MemoryBlob, persist.Client], future: Plant
) -> None:
    blob, client = location
    orders = client.load("orders")
    blob.create(make_record_key(client.seqno + 1), next_record(client, future))
    before = stored(blob)
    calls: dict[str, Callable[[], Any]] = {
        "write": lambda: orders.write([(9, "late")]).result(),
        "seal": lambda: orders.seal(99).result(),
        "snapshot": lambda: orders.snapshot().to_arrow(),
        "changes": lambda: orders.changes(start=0).to_arrow(),
        "listen": lambda: next(iter(orders.subscribe())),
        "create": lambda: client.create_or_load("other", key={"k": int}, value=None),
        "drop": lambda: orders.drop().result(),
        "compact": lambda: orders.compact(),
        "gc": lambda: client.gc(),
        "maintain": lambda: client.maintain(),
        "upgrade": lambda: client.upgrade(),
        "open": lambda: persist.open(blob, mode="read", settings=QUIET).load("orders").snapshot().to_arrow(),
    }
    for name, call in calls.items():
        with pytest.raises(IncompatibleVersion) as caught:
            call()
            pytest.fail(f"{name} went on")
        assert "estore" not in str(caught.value), name
    assert stored(blob) == before


def test_a_checkpoint_of_the_future_is_refused_and_no_earlier_one_is_taken_instead(
    location: tuple[MemoryBlob, persist.Client],
) -> None:
    blob, client = location
    orders = client.load("orders")
    for n in range(20):
        orders.write([(n, "y")]).result()
    client.close()
    newest = next(iter(blob.list(CHECKPOINTS))).key
    body = json.loads(blob.get(newest) or b"") | {"format": FORMAT + 1, "levels_of_the_future": []}
    body.pop("checksum")
    raw = json.dumps(body).encode()[:-1]
    blob.set(newest, raw + b',"checksum":"' + xxhash.xxh3_128_hexdigest(raw).encode() + b'"}\n')
    before = stored(blob)
    for mode in ("read", "shared"):
        with pytest.raises(IncompatibleVersion, match=f"format version {FORMAT + 1}"):
            persist.open(blob, mode=mode, settings=QUIET).load("orders").snapshot().to_arrow()
    assert stored(blob) == before
    report = persist.fsck(blob)
    assert {problem.kind for problem in report.problems} == {"incompatible"}


def test_damage_is_still_called_damage(location: tuple[MemoryBlob, persist.Client]) -> None:
    blob, client = location
    data = next_record(client, FUTURES["a higher number"])
    blob.create(make_record_key(client.seqno + 1), data.replace(b"future", b"futurf", 1))
    with pytest.raises(CorruptBlob):
        client.load("orders").snapshot().to_arrow()


def test_a_codec_that_is_not_known_is_named_and_nothing_else_is_kept_from_its_readers() -> None:
    class Later(persist.Codec[str]):
        name, version = "later", 2
        arrow_type = pa.string()

        def encode(self, value: str) -> str:
            return value

        def decode(self, stored: str) -> str:
            return stored

    blob = MemoryBlob()
    with persist.open(blob, settings=QUIET) as client:
        client.create_or_load("later", key={"k": int}, value=Later()).write([(1, "x")]).result()
        client.create_or_load("known", key={"k": int}, value={"v": str}).write([(1, "x")]).result()
    with persist.open(blob, settings=QUIET) as client:
        assert client.load("known").snapshot().count() == 1
        later = client.load("later")
        assert later.snapshot().to_arrow().to_pylist() == [{"k": 1, "value": "x"}]
        with pytest.raises(persist.InvalidUsage, match="later"):
            list(later.snapshot().rows())
        with pytest.raises(persist.InvalidUsage, match="later"):
            later.write([(2, "y")]).result()
