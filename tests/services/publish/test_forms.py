"""The forms of types, bounds, vectors and names in published tables, and when a table is due: each by a table."""

import zlib
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.blob.errors import CorruptBlob
from persist.codecs.types.schema import CollectionSchema
from persist.core.state_rules.contents import Publication
from persist.services.publish.bitmaps import MAGIC, decode_rows, encode_rows, frame_vector, unframe_vector
from persist.services.publish.catalog import to_identifier
from persist.services.publish.delta import DeltaTable, _encode_z85, _format_bounds, log_key, to_delta_type
from persist.services.publish.iceberg import IcebergTable
from persist.services.publish.iceberg_files import _encode_bound, to_iceberg_type
from persist.services.publish.planning import NONE, PlannedFile, check_version, compute_omitted_rows
from persist.services.publish.publication import UNITS_S, _delete_others, _find_due_time, parse_schedule
from tests.services.publish.test_delta import SETTINGS, client, orders
from tests.support.clocks import DatedBlob, ImpatientClock

__all__ = ["client"]  # The fixture.
ID = {b"PARQUET:field_id": b"7"}
INNER = [pa.field("a", pa.int32(), metadata=ID), pa.field("b", pa.string(), metadata=ID)]
FIELD: dict[str, Any] = {"id": 7, "required": False}
ODD = [pa.uint8(), pa.float16(), pa.duration("us"), pa.time32("s"), pa.timestamp("ms"), pa.list_(pa.uint16())]


@pytest.mark.parametrize(
    ("kind", "in_delta", "in_iceberg"),
    [
        *((kind, None, None) for kind in (*ODD, pa.struct([("a", pa.int8()), ("b", pa.uint8())]))),
        (pa.bool_(), "boolean", "boolean"),
        (pa.int8(), "byte", "int"),
        (pa.int16(), "short", "int"),
        (pa.int32(), "integer", "int"),
        (pa.int64(), "long", "long"),
        (pa.float32(), "float", "float"),
        (pa.large_binary(), "binary", "binary"),
        (pa.decimal128(20, 3), "decimal(20,3)", "decimal(20, 3)"),
        (pa.binary(4), None, "fixed[4]"),
        (pa.time64("us"), None, "time"),
        (pa.timestamp("us"), "timestamp_ntz", "timestamp"),
        (pa.timestamp("us", "UTC"), "timestamp", "timestamptz"),
        (pa.timestamp("ns"), None, "timestamp_ns"),
        (pa.timestamp("ns", "UTC"), None, "timestamptz_ns"),
        (
            pa.list_(INNER[0]),
            {"type": "array", "elementType": "integer", "containsNull": True},
            {"type": "list", "element-id": 7, "element": "int", "element-required": False},
        ),
        (
            pa.map_(INNER[1].with_nullable(False), INNER[0]),
            {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
            {"type": "map", "key-id": 7, "key": "string", "value-id": 7, "value": "int", "value-required": False},
        ),
        (
            pa.struct([INNER[0], pa.field("c", pa.date32())]),
            {
                "type": "struct",
                "fields": [
                    {"name": "a", "type": "integer", "nullable": True, "metadata": {}},
                    {"name": "c", "type": "date", "nullable": True, "metadata": {}},
                ],
            },
            {
                "type": "struct",
                "fields": [{**FIELD, "name": "a", "type": "int"}, {**FIELD, "id": -1, "name": "c", "type": "date"}],
            },
        ),
    ],
    ids=str,
)
def test_types_of_tables(kind: pa.DataType, in_delta: Any, in_iceberg: Any) -> None:
    assert (to_delta_type(kind), to_iceberg_type(kind), to_iceberg_type(kind, 3)) == (in_delta, in_iceberg, in_iceberg)
    assert to_iceberg_type(kind, 2) == (None if str(in_iceberg).endswith("_ns") else in_iceberg)


def test_bounds_are_those_that_a_format_has() -> None:
    kinds = {
        "i": pa.int8(),
        "t": pa.string(),
        "l": pa.large_string(),
        "d": pa.date32(),
        "f": pa.float64(),
        "n": pa.int64(),
    }
    schema = CollectionSchema.of(kinds, None)
    values = [("i", -3), ("t", "a"), ("l", "b"), ("f", 1.0), ("n", None)]
    for days, written in ((-719_162, "0001-01-01"), (-719_163, None), (2_932_896, "9999-12-31"), (2_932_897, None)):
        expected = {"i": -3, "t": "a", "l": "b"} | ({} if written is None else {"d": written})
        assert _format_bounds([*values, ("d", days)], schema) == expected
    bounds = [
        (None, pa.int64(), None), ("é", pa.string(), b"\xc3\xa9"), ("x", pa.large_string(), b"x"),
        (-2, pa.int64(), b"\xfe" + b"\xff" * 7), (1, pa.timestamp("us"), b"\x01" + bytes(7)),
        (-2, pa.int8(), b"\xfe\xff\xff\xff"), (1, pa.date32(), b"\x01\0\0\0"), (1.0, pa.float64(), None),
    ]  # fmt: skip
    assert [_encode_bound(value, kind) for value, kind, _ in bounds] == [written for *_, written in bounds]
    assert _encode_z85(bytes.fromhex("864fd26fb559f75b")) == "HelloWorld"  # The example of ZeroMQ's specification.


def test_vectors_are_read_as_written_and_nothing_else_is() -> None:
    rows = np.array([0, 5, 2**33, 2**33 + 70_000], np.int64)
    vector = encode_rows(rows)
    framed = frame_vector(vector)
    assert framed == len(vector).to_bytes(4, "big") + vector + zlib.crc32(vector).to_bytes(4, "big")
    assert vector.startswith(MAGIC)
    for data in (framed, framed + b"more"):
        assert decode_rows(unframe_vector(data, "x"), "x").tolist() == rows.tolist()
    for data in (framed[:-1], framed[:-1] + b"\0", b"", framed[:4], b"\xff" + framed[1:]):
        with pytest.raises(CorruptBlob, match="the checksum of a deletion vector in it is wrong"):
            unframe_vector(data, "x")
    for data in (vector[4:], vector[:-1], b""):
        with pytest.raises(CorruptBlob, match="it holds no deletion vector as this library writes them"):
            decode_rows(data, "x")


@pytest.mark.parametrize(
    ("added", "before", "is_anew", "rows"),
    [
        ([], None, False, []), ([], None, True, []), ([2], None, False, [2]),
        ([], [1], False, None), ([], [1], True, []), ([1], [1], True, None), ([1], [1, 2], False, None),
        ([0, 1, 3], [1, 2], False, [0, 1, 2, 3]), ([0, 1, 3], [1, 2], True, [0, 1, 3]),
    ],
)  # fmt: skip
def test_rows_to_leave_out_are_told_whole_if_they_change(added: Any, before: Any, is_anew: bool, rows: Any) -> None:
    part: Any = None
    file = PlannedFile(part, 1, np.array(added, np.int64))
    found = compute_omitted_rows(file, None if before is None else np.array(before, np.int64), is_anew)
    assert (None if found is None else found.tolist()) == rows
    assert PlannedFile(part, None).left_out is NONE


def test_no_table_goes_back_to_an_older_format() -> None:
    three = Publication("a" * 32, 0, 0, 1, options={"format-version": "3"})
    for publication, options in (
        (None, {}),
        (three, {"format-version": "3"}),
        (msgspec.structs.replace(three, options={}), {}),
    ):
        check_version(publication, options)
    with pytest.raises(
        persist.InvalidUsage, match=r"version 3 of Iceberg's format, and no table goes back to version 2: "
    ):
        check_version(three, {})


@pytest.mark.parametrize(
    ("name", "space", "table"),
    [
        ("c", "main", "c"), ("a.b", "a", "b"), ("a.b.c", "a.b", "c"), ("main.c", "main", "main.c"),
        ("main.a.c", "main.a", "c"), ("a..b", "main", "a..b"), (".b", "main", ".b"), ("a.", "main", "a."),
    ],
)  # fmt: skip
def test_names_are_parts_of_namespaces_unless_a_part_is_empty(name: str, space: str, table: str) -> None:
    assert to_identifier(name) == (tuple(space.split(".")), table)


def test_a_table_is_due_by_its_schedule() -> None:
    blob = DatedBlob(ImpatientClock())
    with persist.open(blob, clock=blob.clock, settings=SETTINGS) as client:
        c = orders(client, 50)
        c.publish("delta")
        c.write([((1, ("s1", 0.25)), 1, -1)], seal=3).result()
        c.compact()
        contents = c.handle.contents()
        [keyframe] = [keyframe.as_of for keyframe in contents.keyframes]
        shown = contents.published["delta"]

        def find(every: str, as_of: int = 0, version: int = 0) -> int | None:
            publication = msgspec.structs.replace(shown, options=parse_schedule(every), as_of=as_of, version=version)
            return _find_due_time(client.engine, contents, "delta", publication)

        assert (parse_schedule(None), parse_schedule("1 hour")) == ({}, {"every": "1 hour"})
        assert [find("seal", 1), find("seal", 2), find("seal", 3)] == [2, None, None]
        assert [find("keyframe", keyframe - 1), find("keyframe", keyframe)] == [keyframe, None]
        assert find("1 day", version=1) == 2, "a version that is not shown is due"
        publication = msgspec.structs.replace(shown, options={})
        assert _find_due_time(client.engine, contents, "delta", publication) is None
        for unit, seconds in UNITS_S.items():
            blob.set(log_key(c.id, 0), b"{}")
            blob.clock.sleep(2 * seconds - 0.5)
            assert find(f"2 {unit}s") is None
            assert find(f"2 {unit}s", as_of=2) is None
            blob.clock.sleep(0.6)
            assert (find(f"2 {unit}s"), find(f"3 {unit}s")) == (2, None)
        assert UNITS_S == {"second": 1, "minute": 60, "hour": 60 * 60, "day": 24 * 60 * 60}


def test_visible_files_of_other_tables_are_deleted_with_what_points_to_them(client: persist.Client) -> None:
    c = orders(client, 5)
    made = c.publish("delta")
    blob, format = client.engine.blob, DeltaTable(c.handle)
    present = c.handle.contents().published["delta"].id
    folder = log_key(c.id, 0).rpartition("/")[0]
    mark = b'{"persist.collection" : "' + c.id.encode() + b'"'

    def files() -> dict[str, bytes | None]:
        return {entry.key.rpartition("/")[2]: blob.get(entry.key) for entry in blob.list(f"{folder}/")}

    shown = files()
    others = {
        f"{1:020d}.json": mark + b', "persist.table": "other"}',
        f"{2:020d}.json": b'{"persist.table":"other"}',
        f"{1:020d}.checkpoint.parquet": b"1",
        f"{2:020d}.checkpoint.parquet": b"2",
        "_last_checkpoint": b"{}",
        f"{1:020d}.crc": b"of another program",
    }
    for name, data in others.items():
        blob.set(f"{folder}/{name}", data)
    assert _delete_others(c.handle, format, present)
    left = {name: others[name] for name in (f"{2:020d}.json", f"{2:020d}.checkpoint.parquet", f"{1:020d}.crc")}
    assert files() == shown | left
    blob.set(f"{folder}/_last_checkpoint", b"{}")
    assert not _delete_others(c.handle, format, present)
    assert files() == shown | left | {"_last_checkpoint": b"{}"}
    assert _delete_others(c.handle, format, None)
    assert files() == left
    assert made.version == 0


def test_versions_know_since_when_they_are_visible(client: persist.Client) -> None:
    c = orders(client, 5)
    for form, table in (("delta", DeltaTable(c.handle)), ("iceberg", IcebergTable(c.handle, {}))):
        c.publish(form)  # type: ignore[arg-type]
        publication = c.handle.contents().published[form]
        root = f"part/{c.id}/{'_delta_log/' if form == 'delta' else 'metadata/v'}"
        [entry] = [each for each in client.engine.blob.list(root) if each.key.endswith(".json")]
        assert table.find_visible_since_s(publication) == entry.modified_s
        assert table.find_visible_since_s(msgspec.structs.replace(publication, version=1)) is None


def test_the_metadata_of_two_versions_stay_and_only_newer_ones_are_pointed_to(client: persist.Client) -> None:
    c, table = orders(client, 50), IcebergTable
    blob, root = client.engine.blob, f"part/{c.id}/metadata/"
    first: Any = None
    for time in range(4):
        c.publish("iceberg")
        first = first or (c.handle.contents(), c.handle.contents().published["iceberg"])
        names = sorted(entry.key.removeprefix(root) for entry in blob.list(f"{root}v"))
        assert names == [*(f"v{number}.metadata.json" for number in range(max(1, time), time + 2)), "version-hint.text"]
        assert blob.get(f"{root}version-hint.text") == f"{time + 1}".encode()
        c.write([((time, (f"s{time}", time / 4)), time + 1, -1)], seal=time + 2).result()
    for is_new in (True, False):
        table(c.handle, {}).show(*first, is_new=is_new)
        assert blob.get(f"{root}version-hint.text") == b"4", "who is late changes nothing"
    for hint in (b"9", b" 9\n"):
        blob.set(f"{root}version-hint.text", hint)
        blob.set(f"{root}v9.metadata.json", b'{"table-uuid": "of another"}')
        with pytest.raises(persist.InvalidUsage, match=r"/v9\.metadata\.json was not written by this library: another"):
            c.publish("iceberg")
    blob.set(f"{root}version-hint.text", b"no number")
    assert c.publish("iceberg").version == 4
    assert blob.get(f"{root}version-hint.text") == b"5"
