"""Coverage-guided fuzzing, where atheris is installed: `python -m tests.rules.fuzz.atheris_all CORPUS
[-max_total_time=600]`.

The first byte of an input chooses what the rest is for; checksums are put right. What is not an error of the library is
reported, and the input that makes it is kept. Inputs to begin with are put into the folder CORPUS if it is empty. Only
Python code is measured: Arrow's own is tried, not guided.
"""

import importlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["persist"]):
    import msgspec
    import xxhash

    from persist.codecs.types.codec import BUILT_IN
    from persist.codecs.types.schema import CollectionSchema
    from persist.core.log.framing import FORMAT, decode_framed
    from persist.core.log.records import PartList, Record
    from persist.engine.follow.checkpoint import Checkpoint
    from persist.engine.follow.directory import DirectoryObject
    from persist.engine.follow.state_objects import StateObject
    from persist.errors import PersistError

KINDS = (Record, Checkpoint, StateObject, PartList, DirectoryObject)
GOLDEN = Path(__file__).parent.parent / "golden" / f"format-{FORMAT}" / "location"


def one_input(data: bytes) -> None:
    """Give an input to what it is for; let nothing but errors of the library pass."""
    if len(data) < 2:
        return
    with suppress(PersistError):
        TARGETS[data[0] % len(TARGETS)](data[1], data[2:])


def framed(which: int, body: bytes) -> None:
    data = body + b',"checksum":"' + xxhash.xxh3_128_hexdigest(body).encode() + b'"}\n'
    decode_framed(data, KINDS[which % len(KINDS)], "a key")


def schema(which: int, data: bytes) -> None:
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):
        CollectionSchema.from_json(msgspec.json.decode(data))


def json_codec(which: int, data: bytes) -> None:
    BUILT_IN["json"]().decode(data.decode(errors="replace"))


TARGETS = (framed, schema, json_codec)


def seed(corpus: Path) -> None:
    """Put genuine objects into a corpus."""
    for which, folder in enumerate(("log", "checkpoint", "state", "list", "directory")):
        for path in sorted((GOLDEN / folder).rglob("*"))[:12]:
            if path.is_file():
                body = path.read_bytes().rpartition(b',"checksum":')[0]
                (corpus / f"{folder}-{path.name}").write_bytes(bytes([0, which]) + body)
    (corpus / "schema").write_bytes(b'\1\0{"key":{"fields":[["k",{"list":"int64"}]]},"value":null}')
    (corpus / "json").write_bytes(b'\2\0{"a":[1,2.5,null,"x"]}')


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        seed(folder)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
