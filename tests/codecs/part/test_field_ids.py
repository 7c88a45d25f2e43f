"""Columns of parts have field ids, so readers that know nothing of this library tell them apart under any names."""

from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from tests.codecs.part.made import SCHEMAS, rows_of

FIELD_ID = b"PARQUET:field_id"


def ids_by_path(fields: list[pa.Field], above: str = "") -> dict[str, int]:
    """Return the id of every field, also inside of others."""
    found: dict[str, int] = {}
    for field in fields:
        path, kind = f"{above}/{field.name}", field.type
        found[path] = int(field.metadata[FIELD_ID])
        if pa.types.is_map(kind):
            found |= ids_by_path([kind.key_field, kind.item_field], path)
        elif pa.types.is_nested(kind):
            found |= ids_by_path([kind.field(i) for i in range(kind.num_fields)], path)
    return found


@pytest.mark.parametrize("schema", SCHEMAS, ids=repr)
def test_every_field_of_a_part_has_an_id_of_its_own(schema: CollectionSchema) -> None:
    [(data, part)] = encode_parts(rows_of(Random(1), schema, 40), schema)
    found = ids_by_path(list(pq.ParquetFile(pa.BufferReader(data)).schema_arrow))
    assert len({*found.values()}) == len(found)
    columns = {name: found[f"/{name}"] for name in schema.names}
    assert columns == {name: id_ + 1 for name, id_ in zip(schema.names, schema.ids, strict=True)}
    assert (found["/_time"], found["/_diff"]) == (2_147_000_001, 2_147_000_002)

    assert decode_part(data, part, schema).schema.equals(schema.arrow, check_metadata=True)


def test_fields_inside_of_a_column_are_numbered_depth_first() -> None:
    inner = pa.struct([("a", pa.list_(pa.int8())), ("b", pa.map_(pa.string(), pa.int8()))])
    schema = CollectionSchema.of({"k": pa.int64()}, {"flat": pa.int64(), "s": inner})
    [(data, _)] = encode_parts(rows_of(Random(1), schema, 40), schema)
    found = ids_by_path(list(pq.ParquetFile(pa.BufferReader(data)).schema_arrow))
    first = 1_000_000_000 + 2 * 2**15  # Of the column with id 2.
    assert [found[path] for path in found if path.startswith("/s/")] == [first + n for n in range(5)]
    assert list(found)[3:8] == ["/s/a", "/s/a/element", "/s/b", "/s/b/key", "/s/b/value"]


def test_columns_are_found_by_their_ids_after_they_were_renamed(tmp_path: Path) -> None:
    """DuckDB reads both parts by the ids alone. A name that is used again is another column."""
    with persist.open(tmp_path) as client:
        c = client.create_or_load("c", key={"k": int}, value={"a": str, "b": str})
        c.write([((1, ("left", "dropped")), 0, 1)], seal=1).result()
        c.compact()
        c.evolve(rename={"a": "old"}, drop=["b"])
        c.evolve(add={"b": pa.string(), "a": pa.string()})
        c.write([((2, ("also left", "new b", "new a")), 1, 1)], seal=2).result()
        c.compact()
        newest = client.load("c").schema
        rows = sorted(c.snapshot(1).rows())
    wanted = dict(zip((*newest.ids, 2_147_000_000), (*newest.names, "_time"), strict=True))
    mapping = ", ".join(
        f"{id_ + 1}: {{name: '{name}', type: '{'BIGINT' if name in 'k_time' else 'VARCHAR'}', default_value: NULL}}"
        for id_, name in wanted.items()
    )
    parts = f"{tmp_path}/part/**/*.parquet"
    query = f"SELECT DISTINCT * FROM read_parquet('{parts}', schema=MAP {{{mapping}}}) ORDER BY k"
    found = duckdb.connect().sql(query).fetchall()  # A forked process must not use the default connection.
    assert [(k, tuple(value)) for k, *value, _ in found] == rows
    assert rows == [(1, ("left", None, None)), (2, ("also left", "new b", "new a"))]
