"""Coverage-guided fuzzing, where atheris is installed: `python -m tests.fuzz.atheris_all CORPUS [-max_total_time=600]`.

The first byte of an input chooses what the rest is for; checksums are put right. What is no error of the library is
reported, and the input that makes it is kept. Inputs to begin with are put into the folder CORPUS if it is empty. Only
Python code is measured: Arrow's own is tried, not guided.
"""

import importlib
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["persist"]):
    import msgspec
    import xxhash

    from persist.codecs import CollectionSchema, decode_groups, decode_part, footer_range, read_index
    from persist.codecs.part.part import Footer, checksum_of
    from persist.codecs.types.codec import BUILT_IN
    from persist.errors import PersistError
    from persist.log.envelope import decode_framed
    from persist.log.part_lists import PartList
    from persist.log.records import Record
    from persist.replica.checkpoint import Checkpoint, StateObject
    from persist.replica.directory import DirectoryObject
    from tests.fuzz.part_cases import SCHEMAS, believable, believable_index, described, genuine, rows_of

KINDS = (Record, Checkpoint, StateObject, PartList, DirectoryObject)
GOLDEN = Path(__file__).parent.parent / "golden" / "format-1" / "location"
ROWS_MAX = 256 // len(SCHEMAS)
LIKE = [
    [described(rows_of(random.Random(1), schema, 1 + n), 1 << 16) for n in range(ROWS_MAX + 1)] for schema in SCHEMAS
]


def one_input(data: bytes) -> None:
    """Give an input to what it is for; let nothing but errors of the library pass."""
    if len(data) < 2:
        return
    with suppress(PersistError):
        TARGETS[data[0] % len(TARGETS)](data[1], data[2:])


def part(which: int, data: bytes) -> None:
    like = LIKE[which % len(SCHEMAS)][which // len(SCHEMAS)]
    decode_part(data, believable(data, like), SCHEMAS[which % len(SCHEMAS)])


def pieces(which: int, data: bytes) -> None:
    like, of = LIKE[which % len(SCHEMAS)][which // len(SCHEMAS)], SCHEMAS[which % len(SCHEMAS)]
    believed = believable(data, like)
    index = believable_index(data, believed, of)
    for number, group in enumerate(index.groups):
        decode_groups([(number, data[group.start : group.end])], index, believed, of)


def footer(which: int, data: bytes) -> None:
    like, of = LIKE[which % len(SCHEMAS)][which // len(SCHEMAS)], SCHEMAS[which % len(SCHEMAS)]
    size = len(data) + 1000
    believed = msgspec.structs.replace(like, bytes=size, footer=Footer(len(data), checksum_of(data)))
    read_index(data, believed, of)


def framed(which: int, body: bytes) -> None:
    data = body + b',"checksum":"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n'
    decode_framed(data, KINDS[which % len(KINDS)], "a key")


def schema(which: int, data: bytes) -> None:
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        CollectionSchema.from_json(msgspec.json.decode(data))


def json_codec(which: int, data: bytes) -> None:
    BUILT_IN["json"]().decode(data.decode(errors="replace"))


TARGETS = (part, framed, schema, json_codec, pieces, footer)


def seed(corpus: Path) -> None:
    """Put genuine parts and objects into a corpus."""
    rng = random.Random(1)
    for n in range(40):
        data, made, of = genuine(rng)
        if made.rows <= ROWS_MAX:
            which = SCHEMAS.index(of) + len(SCHEMAS) * (made.rows - 1)
            (corpus / f"part-{n}").write_bytes(bytes([0, which]) + data)
            (corpus / f"pieces-{n}").write_bytes(bytes([4, which]) + data)
            (corpus / f"footer-{n}").write_bytes(bytes([5, which]) + data[footer_range(made)[0] :])
    for which, folder in enumerate(("log", "checkpoint", "state", "list", "directory")):
        for path in sorted((GOLDEN / folder).rglob("*"))[:12]:
            if path.is_file():
                body = path.read_bytes().rpartition(b',"checksum":')[0]
                (corpus / f"{folder}-{path.name}").write_bytes(bytes([1, which]) + body)
    (corpus / "schema").write_bytes(b'\2\0{"key":{"fields":[["k",{"list":"int64"}]]},"value":null}')
    (corpus / "json").write_bytes(b'\3\0{"a":[1,2.5,null,"x"]}')


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        seed(folder)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
