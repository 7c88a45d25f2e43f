"""Published tables whose fields inside of columns have changed, for readers that nobody here wrote."""

from collections.abc import Callable
from typing import Literal

import pyarrow as pa

import persist
from tests.services.publish.readers import delta_reader, iceberg_reader, same_rows
from tests.services.publish.test_delta import client

__all__ = ["client"]  # The fixture.
Read = Callable[[str], pa.Table]
INNER = pa.struct([("a", pa.int32()), ("b", pa.string())])


def check_changes_inside(client: persist.Client, read: Read, form: Literal["delta", "iceberg"]) -> None:
    """Publish a collection after each change of its fields, and compare what is read."""
    value = {"s": INNER, "l": pa.list_(INNER), "m": pa.map_(pa.string(), INNER)}
    c = client.create_or_load("c", key={"k": int}, value=value)

    def write(time: int, name: str) -> None:
        inner = [{"a": time, name: "x"}, None]
        rows = [{"k": 10 * time + n, "s": each, "l": [each], "m": [("p", each)]} for n, each in enumerate(inner)]
        table = pa.Table.from_pylist(rows, schema=pa.schema([c.schema.arrow.field(n) for n in ("k", "s", "l", "m")]))
        c.write(table, time=time, seal=time + 1).result()
        c.compact()

    write(0, "b")
    assert same_rows(read(c.publish(form).url), c) == 2
    parts = {*c.handle.contents().published[form].files}
    c.evolve(add={f"{path}.n": pa.int64() for path in ("s", "l.element")})
    assert same_rows(read(c.publish(form).url), c) == 2
    assert {*c.handle.contents().published[form].files} == parts, "nothing is written again"
    c.evolve(add={"m.value.n": pa.int64()})
    assert same_rows(read(c.publish(form).url), c) == 2
    write(1, "b")
    assert same_rows(read(c.publish(form).url), c) == 4
    c.evolve(rename={f"{path}.b": f"{path}.c" for path in ("s", "l.element", "m.value")}, widen={"s.a": pa.int64()})
    assert same_rows(read(c.publish(form).url), c) == 4
    c.evolve(drop=[f"{path}.n" for path in ("s", "l.element", "m.value")], add={"s.n": pa.int64(), "s.b": pa.string()})
    write(2, "c")
    assert same_rows(read(c.publish(form).url), c) == 6
    assert client.fsck(deep=True).is_clean


@iceberg_reader
def test_fields_of_an_iceberg_table_follow(client: persist.Client, read: Read) -> None:
    check_changes_inside(client, read, "iceberg")


@delta_reader
def test_fields_of_a_delta_table_follow(client: persist.Client, read: Read) -> None:
    check_changes_inside(client, read, "delta")
