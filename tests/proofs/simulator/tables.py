"""Published tables as records say they are, and as programs find them that know nothing but Delta.

Reads deletion vectors and the table's log by the text of the Delta protocol and shares no code with the library. The
tables here are small, so vectors have no containers but arrays.
"""

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import pyarrow.parquet as pq

from persist.blob.protocol import Blob

MAGIC, COOKIE = 1681511377, 12346
LAST_FIRST = str.maketrans(
    {
        digit: chr(at)
        for at, digit in enumerate(
            "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
        )
    }
)
File = tuple[str, frozenset[int]]  # The blob with the rows that are left out, or "", and these rows.


class TableBroken(AssertionError):
    """What a table names is not there, or is not what a reader can read."""


@dataclass(frozen=True, slots=True)
class Table:
    """A published table: the files of its newest version by the numbers of parts, and what only the one before has."""

    version: int
    as_of: int
    files: dict[int, File] = field(default_factory=dict)
    before: dict[int, File] = field(default_factory=dict)
    metadata: tuple[str, ...] = ()
    metadata_before: tuple[str, ...] = ()

    @property
    def numbers(self) -> set[int]:
        return {*self.files, *self.before}

    @property
    def blobs(self) -> set[str]:
        vectors = {blob for blob, _ in (*self.files.values(), *self.before.values()) if blob}
        return vectors | {*self.metadata, *self.metadata_before}


def plan_next_version(known: Table | None, mutation: dict[str, Any], resolved: Mapping[int, int]) -> Table:
    """Return what a record makes of a table; resolved gives the numbers of the parts that come with it."""
    old = {} if known is None else known.files
    came = {resolved.get(n, n): (blob, frozenset(rows)) for n, blob, rows in mutation["files"]}
    files = {n: file for n, file in old.items() if n not in mutation["removed"]} | came
    before = {n: file for n, file in old.items() if files.get(n) != file}
    was = () if known is None else known.metadata
    return Table(mutation["version"], mutation["as_of"], files, before, tuple(mutation["metadata"]), was)


def vector_rows(data: bytes, start: int) -> list[int]:
    """Return the rows of the vector that is at a place in a file of vectors."""
    size = int.from_bytes(data[start : start + 4], "big")
    vector = data[start + 4 : start + 4 + size]
    magic, buckets = struct.unpack_from("<IQ", vector)
    assert magic == MAGIC
    rows, at = [], 12
    for _ in range(buckets):
        high, cookie, containers = struct.unpack_from("<III", vector, at)
        assert cookie == COOKIE
        heads = [struct.unpack_from("<HH", vector, at + 12 + 4 * n) for n in range(containers)]
        at += 12 + 8 * containers
        for middle, last in heads:
            assert last < 4096
            rows += [high << 32 | middle << 16 | low for low in struct.unpack_from(f"<{last + 1}H", vector, at)]
            at += 2 * (last + 1)
    return rows


def found_table(blob: Blob, collection: str) -> list[Any] | None:
    """Return version, time and records with their counts of the table that readers find now; None if there is none.

    Raises:
        TableBroken: what it names is not there.
    """
    root = f"part/{collection}/"
    names = [entry.key.removeprefix(f"{root}_delta_log/") for entry in blob.list(f"{root}_delta_log/")]
    versions = sorted(int(name[:20]) for name in names if name.endswith("0.json") or name[20:] == ".json")
    if not versions:
        return None
    files: dict[str, Any] = {}
    first = max((int(n[:20]) for n in names if n.endswith(".checkpoint.parquet")), default=-1)
    if first >= 0:
        rows = pq.read_table(BytesIO(_there(blob, f"{root}_delta_log/{first:020d}.checkpoint.parquet"))).to_pylist()
        files = {row["add"]["path"]: row["add"] for row in rows if row["add"] is not None}
    as_of = -1
    for version in versions:
        lines = _there(blob, f"{root}_delta_log/{version:020d}.json").splitlines()
        actions = [json.loads(line) for line in lines]
        as_of = int(actions[0]["commitInfo"]["persist.as_of"])
        for action in actions if version > first else []:
            if "remove" in action and files.pop(action["remove"]["path"], None) is None:
                raise TableBroken(f"version {version} removes a file that is not in the table")
        for action in actions if version > first else []:
            if "add" in action:
                files[action["add"]["path"]] = action["add"]
    counts: Counter[tuple[Any, Any]] = Counter()
    for add in files.values():
        counts.update(_rows(blob, root, add))
    return [versions[-1], as_of, [[k, v, n] for (k, v), n in sorted(counts.items(), key=repr)]]


def _rows(blob: Blob, root: str, add: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    table = pq.read_table(BytesIO(_there(blob, root + add["path"])))
    left_out: set[int] = set()
    if add.get("deletionVector"):
        vector = add["deletionVector"]
        path = vector["pathOrInlineDv"]
        left_out = {
            *vector_rows(_there(blob, f"{root}{path[:-20]}/deletion_vector_{_uuid(path[-20:])}.bin"), vector["offset"])
        }
        assert len(left_out) == vector["cardinality"]
    columns = table.select([0, 1]).to_pydict().values()
    for at, (k, v) in enumerate(zip(*columns, strict=True)):
        if at not in left_out:
            yield k, v and v.partition("~")[0]


def _uuid(text: str) -> str:
    digits = text.translate(LAST_FIRST)
    words = [digits[at : at + 5] for at in range(0, 20, 5)]
    data = b"".join(sum(ord(d) * 85 ** (4 - n) for n, d in enumerate(word)).to_bytes(4, "big") for word in words)
    h = data.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def _there(blob: Blob, key: str) -> bytes:
    data = blob.get(key)
    if data is None:
        raise TableBroken(f"{key} is missing")
    return data
