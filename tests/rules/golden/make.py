"""Makes the golden files of the present format: `python -m tests.rules.golden.make`, once for each format version.

They hold every kind of record and object, parts in blobs and inline, of every type, and what all of it reads as. Files
of a released format are never made again: see `docs/inside/golden.md`.
"""

import datetime
import json
import re
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
import xxhash
from msgspec import structs

import persist
from persist.blob.stores.file import FileBlob
from persist.codecs.types.schema import TIME_MAX
from persist.codecs.updates.updates import to_updates
from persist.core.log import kinds, token_archives
from persist.core.log import records as commits
from persist.core.log.framing import FORMAT
from persist.core.log.records import Record
from persist.engine.follow import checkpoint, directory, state_objects
from persist.engine.follow import directory_pages as pages
from persist.engine.follow.checkpoint import Checkpoint, write_checkpoint
from persist.engine.follow.state_objects import StateObject
from persist.engine.write import group_commit
from persist.engine.write.part_writer import PartWriter
from tests.rules.golden.kinds import (
    SETTINGS,
    commit,
    write_cloned,
    write_compacted,
    write_erased,
    write_every_kind,
    write_evolved_keyed,
    write_grouped,
    write_keyed,
    write_published,
    write_remembered,
    write_single,
)
from tests.support.parts import commit_parts

HERE = Path(__file__).parent
AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
UTC = datetime.UTC
STRUCT = pa.struct([("x", pa.int16()), ("y", pa.list_(pa.string()))])
FIELDS: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), True),
    "document": (persist.JSON, '{"a": [1, null]}'),
    "int8": (pa.int8(), -(2**7)),
    "int16": (pa.int16(), -(2**15)),
    "int32": (pa.int32(), -(2**31)),
    "int64": (pa.int64(), -(2**63)),
    "uint8": (pa.uint8(), 2**8 - 1),
    "uint16": (pa.uint16(), 2**16 - 1),
    "uint32": (pa.uint32(), 2**32 - 1),
    "uint64": (pa.uint64(), 2**64 - 1),
    "float16": (pa.float16(), 1.5),
    "float32": (pa.float32(), -0.25),
    "float64": (pa.float64(), float("nan")),
    "string": (pa.string(), "Zürich \N{SNOWMAN}"),
    "large_string": (pa.large_string(), ""),
    "binary": (pa.binary(), b"\x00\xff"),
    "large_binary": (pa.large_binary(), b""),
    "fixed_size_binary": (pa.binary(2), b"ab"),
    "date32": (pa.date32(), AT.date()),
    "date64": (pa.date64(), AT.date()),
    "time32_s": (pa.time32("s"), datetime.time(1, 2, 3)),
    "time32_ms": (pa.time32("ms"), datetime.time(1, 2, 3, 4000)),
    "time64_us": (pa.time64("us"), datetime.time(1, 2, 3, 4)),
    "time64_ns": (pa.time64("ns"), datetime.time(1, 2, 3, 4)),
    "timestamp_s": (pa.timestamp("s"), AT.replace(microsecond=0)),
    "timestamp_ms": (pa.timestamp("ms"), AT.replace(microsecond=678000)),
    "timestamp_us": (pa.timestamp("us"), AT),
    "timestamp_ns": (pa.timestamp("ns"), AT),
    "timestamp_us_tz": (pa.timestamp("us", "Europe/Zurich"), AT.replace(tzinfo=UTC)),
    "duration_s": (pa.duration("s"), datetime.timedelta(seconds=-1)),
    "duration_ms": (pa.duration("ms"), datetime.timedelta(days=-1)),
    "duration_us": (pa.duration("us"), datetime.timedelta(microseconds=1)),
    "duration_ns": (pa.duration("ns"), datetime.timedelta(days=1)),
    "decimal128": (pa.decimal128(20, 3), Decimal("-12345.678")),
    "decimal256": (pa.decimal256(50, 5), Decimal("1.00001")),
    "list": (pa.list_(pa.int64()), [1, None, 3]),
    "large_list": (pa.large_list(pa.string()), []),
    "fixed_size_list": (pa.list_(pa.float32(), 2), [1.0, None]),
    "struct": (STRUCT, {"x": None, "y": ["a", None]}),
    "map": (pa.map_(pa.string(), pa.int32()), [("k", 1), ("l", None)]),
}
AS_OTHERS = ["date64", "time32_s", "timestamp_s"]  # Which Parquet stores as other types.


def main() -> None:
    folder = HERE / f"format-{FORMAT}"
    shutil.rmtree(folder, ignore_errors=True)
    commits.PARTS_INLINE_MAX = 1
    vars(checkpoint)["WHOLE_BYTES_MAX"] = state_objects.LEAST_BYTES = state_objects.RATIO = 1
    write_every_kind(folder / "location")
    with persist.open(folder / "location", settings=SETTINGS) as client:
        every = client.create_or_load(
            "every type",
            key={"id": pa.field("id", pa.int64(), nullable=False)},
            value={n: t for n, (t, _) in FIELDS.items()},
        )
        columns = {"id": pa.array([1, 2, 2])}
        columns |= {name: pa.array([value, None, None], type_) for name, (type_, value) in FIELDS.items()}
        rows = pa.table({**columns, "_time": pa.array([3, 3, 5]), "_diff": pa.array([1, 2, -1])})
        every.write(rows).result()
        every.seal(6).result()
        large = client.create_or_load("large", key={"a": pa.int64(), "b": pa.string()}, value=persist.Json)
        numbers = pa.array(range(3000))
        text = pa.array([f'{{"n":{n}}}' for n in range(3000)])
        constant = {"_time": pa.array([0] * 3000), "_diff": pa.array([1] * 3000)}
        table = to_updates(pa.table({"a": numbers, "b": text, "value": text, **constant}), large.schema)
        uploads = PartWriter(FileBlob(folder / "location"), client.engine.follower.find_next_seqno)
        halves = [uploads.upload(large.id, large.schema, half) for half in (table.slice(0, 1500), table.slice(1500))]
        commit_parts(large, [part for parts in halves for part in parts]).result()
        with client.multi_write() as multi:
            multi.seal(large, 1)
            multi.write(large, [(((0, "again"), {"n": 1}), 1, 1)])
        write_keyed(client)
        write_evolved_keyed(client)
        slow = large.hold(0, name="slow")
        with large.hold(0):
            write_compacted(client)
            write_published(client)
            write_cloned(client)
            write_erased(client)
            write_remembered(client)
            write_single(client)
            commit(client, kinds.TruncateLog(1))
            commit(client, kinds.Upgrade(FORMAT))
            longer = {name: value + 1 for name, value in structs.asdict(client.policy).items()}
            client.set_policy(**longer, at_once=True)
            client.set_policy(grace_s=3600)
            large.tag("beginning", 0)
            large.retain(1000).result()
            large.describe("large", properties={"a": "b"}, columns={"b": "text"}).result()
            for time in range(2, 50):
                large.seal(time).result()
        slow.advance(5)
        large.allow_compaction(30).result()
        client.create_or_load("gone", key=persist.Utf8, value=None).drop().result()
        done = client.create_or_load("done", key=persist.Int64, value=persist.Binary)
        done.write([((1, b"x"), 0, 1)])
        done.seal(persist.Antichain()).result()
        batched = client.create_or_load(
            "every type of a batch",
            key={"id": pa.int64()},
            value={n: FIELDS[n][0] for n in FIELDS if n not in AS_OTHERS},
        )
        batched.write(rows.drop_columns(AS_OTHERS)).result()
        batched.seal(6).result()
        write_view(client)
        write_grouped(client)
        for side, codec in (("utf8", persist.Utf8), ("json", persist.Json), ("unit", None)):
            client.create_or_load(f"key of {side}", key=codec, value=codec).seal(1).result()
    write_directories(folder / "location")
    with persist.open(folder / "location", mode="read") as client:
        names = client.collections()
    with persist.open(folder / "location", mode="read") as client:
        expected = {name: digest(client, name) for name in names}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    (folder / "members.json").write_text(json.dumps(stored_members(), indent=1, sort_keys=True) + "\n")


def stored_members() -> dict[str, dict[str, str]]:
    """Return the members of everything that is stored in frames, and their types: what a format number stands for."""
    found: dict[str, dict[str, str]] = {}
    waiting: list[Any] = [Record, Checkpoint, StateObject, directory.DirectoryObject, commits.PartList]
    waiting.append(token_archives.ArchiveObject)
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__ not in found:
            fields = msgspec.structs.fields(kind)
            found[kind.__name__] = {field.encode_name: _type_name(field.type) for field in fields}
            waiting += [field.type for field in fields]
    return found


def _type_name(kind: Any) -> str:
    name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return re.sub(r"\w+\.(?=\w)", "", name).replace("Mapping[", "dict[")  # JSON has one kind of object.


def write_view(client: persist.Client) -> None:
    """Make a view with so many holds on it that the next checkpoint gives it a state object."""
    view = client.create_view("done, counted", "SELECT count(*) AS n FROM done WHERE key > 0")
    view.refresh()
    seen = client.create_view("seen", 'SELECT id FROM "every type of a batch"')
    seen.refresh()
    seen.redefine('SELECT id, id + 1 AS following FROM "every type of a batch"')
    holds = [kinds.SetHold(view.id, f"reader {n}", view.since.time or 0, schema=1, columns=(0,)) for n in range(40)]
    client.engine.submit("hold", holds, {view.id: view.name}).result()


def write_directories(location: Path) -> None:
    """Leave a directory in pages, an object that says what is gone from it, and a checkpoint that says so."""
    vars(group_commit)["checkpoint_due"] = lambda _: False  # Or else it would depend on the pace of threads.
    with persist.open(location, settings=SETTINGS) as client:
        doomed = [client.create_or_load(f"gone from {n}", key=None, value=None) for n in range(2)]

        def write_one(inline_bytes_max: int, whole_bytes_max: int) -> None:
            directory.INLINE_BYTES_MAX, directory.WHOLE_BYTES_MAX = inline_bytes_max, whole_bytes_max
            assert write_checkpoint(FileBlob(location), *client.engine.follower.get_recent_records())

        pages.PAGE_BYTES, pages.OBJECT_BYTES_MAX = 4000, 8000
        with client.load("every type").hold(5), client.load("every type").follow("a consumer"):
            write_one(1, 1)
            doomed[0].drop().result()
            client.load("every type").tag("read", 5)
            write_one(1, 1 << 20)
            doomed[1].drop().result()
            client.load("every type").describe("it is read").result()
            write_one(1 << 20, 1 << 20)


def digest(client: persist.Client, name: str) -> dict[str, Any]:
    """Return all that can be read of one collection, as text; of many rows their checksum and the first and last."""
    collection = client.load(name)
    snapshot = collection.snapshot(form="diff")
    first = collection.snapshot(collection.since.time, form="diff") if collection.since.time else snapshot
    since, upper = collection.since.time or 0, collection.upper.time
    after = min(since + 1, TIME_MAX)  # After the last of all times there are no changes.
    changes = collection.changes(after, max(after, 40 if upper is None else upper)) if since < TIME_MAX else None
    return {
        "since": repr(collection.since),
        "upper": repr(collection.upper),
        "tags": collection.tags(),
        "about": repr(collection.about),
        "holds": list(map(repr, collection.holds())),
        "schema": collection.schema.to_json(),
        "as_of": snapshot.as_of,
        "snapshot": _rows(snapshot.to_arrow()),
        "snapshot as of since": _rows(first.to_arrow()),
        "changes": None if changes is None else _rows(changes.to_arrow()),
    }


def _rows(table: pa.Table) -> dict[str, Any]:
    rows = sorted(map(repr, table.to_pylist()))
    checksum = xxhash.xxh3_128_hexdigest("\n".join(rows).encode())
    return {"rows": len(rows), "checksum": checksum, "some": [*rows[:3], *rows[3:][-1:]]}


if __name__ == "__main__":
    main()
