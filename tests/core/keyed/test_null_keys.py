"""NULL in a field of a composite key is a value: NULL equals NULL, for whatever touches keys."""

import random
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.events import AppendDistinct, InsertIfAbsent
from tests.support.reads import rows_with

Key = tuple[Any, ...]
POLICIES = ["seal", "background"]
KINDS: dict[str, tuple[dict[str, pa.DataType], list[Key]]] = {
    "numbers": ({"a": pa.int64(), "b": pa.int32()}, [(a, b) for a in (None, -1, 0, 1) for b in (None, 0, 7)]),
    "texts": ({"a": pa.string(), "b": pa.string()}, [(a, b) for a in (None, "", "x") for b in (None, "", "y" * 120)]),
    "floats": ({"a": pa.float64(), "b": pa.bool_()}, [(a, b) for a in (None, 0.0, 1.5) for b in (None, False, True)]),
    "lists": ({"a": pa.list_(pa.int64()), "b": pa.int64()}, [(a, b) for a in (None, [], [None]) for b in (None, 1)]),
}


def same(key: Key) -> str:
    """Return what is equal for equal keys, lists among them."""
    return repr(tuple(key))


def by_key(rows: pa.Table) -> dict[str, int | None]:
    return {same((row["a"], row["b"])): row["v"] for row in rows.to_pylist()}


@pytest.mark.thorough(except_every=5)
@pytest.mark.parametrize("resolve", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_events_of_keys_with_nulls_are_those_of_one_key(
    client: persist.Client, kind: str, resolve: Any, seed: int
) -> None:
    fields, every = KINDS[kind]
    keys = [key for key in every if any(part is not None for part in key)]
    rng = random.Random(f"{kind} {seed}")
    things = client.create_or_load("things", key=fields, value={"v": int}, keyed=persist.Keyed(resolve=resolve))
    held: dict[str, int | None] = {}
    for time in range(6):
        for number in range(rng.randrange(4)):
            events = [(rng.choice(keys), rng.choice([None, rng.randrange(100)])) for _ in range(rng.randrange(1, 12))]
            if number % 2:
                things.upsert(events, time=time)
            else:
                rows = [{**dict(zip(fields, key, strict=True)), "v": v, "_deleted": v is None} for key, v in events]
                columns = pa.schema([*fields.items(), ("v", pa.int64()), ("_deleted", pa.bool_())])
                things.upsert(pa.Table.from_pylist(rows, columns), time=time)
            held.update({same(key): v for key, v in events})
        gone = rng.sample(keys, 2)
        things.delete(gone, time=time)
        held.update(dict.fromkeys(map(same, gone)))
        things.seal(time + 1).result()
        if time == 3:
            things.compact()
        contents = {key: v for key, v in held.items() if v is not None}
        assert by_key(things.snapshot().to_arrow()) == contents
        asked = rng.sample(keys, 4)
        found = by_key(rows_with(things.snapshot(time), asked))
        assert found == {same(key): contents[same(key)] for key in asked if same(key) in contents}


@pytest.mark.parametrize("resolve", POLICIES)
def test_machines_know_a_key_with_null_again(client: persist.Client, resolve: Any) -> None:
    for machine in (InsertIfAbsent(), AppendDistinct()):
        form = persist.Keyed(machine=machine, resolve=resolve)
        name = type(machine).__name__
        things = client.create_or_load(name, key={"a": int, "b": str}, value={"v": int}, keyed=form)
        things.transition([((None, "x"), 1), ((1, None), 2)], time=0, seal=1).result()
        things.transition([((None, "x"), 1), ((1, None), 2), ((None, "x"), 1)], time=1, seal=2).result()
        assert things.changes(1).to_arrow().num_rows == 0
        things.delete([(None, "x")], time=2)
        things.seal(3).result()
        assert [*things.snapshot().rows()] == [((1, None), 2)]


@pytest.mark.parametrize("resolve", POLICIES)
def test_the_greater_watermark_of_a_key_with_null_stands(client: persist.Client, resolve: Any) -> None:
    form = persist.Keyed(order_by=["at"], tombstone="gone", resolve=resolve)
    value = {"at": int, "gone": bool}
    things = client.create_or_load("things", key={"a": int, "b": str}, value=value, keyed=form)
    things.upsert([((None, "x"), (5, True)), ((None, "y"), (5, False))], time=0, seal=1).result()
    things.upsert([((None, "x"), (4, False)), ((None, "y"), (6, False))], time=1, seal=2).result()
    assert [*things.snapshot().rows()] == [((None, "y"), (6, False))]
    assert sorted(key for key, _, _ in things.upserts(0, 2)) == [(None, "x"), (None, "y"), (None, "y")]


def test_a_key_that_is_null_in_all_its_fields_is_refused(client: persist.Client) -> None:
    things = client.create_or_load("things", key={"a": int, "b": str}, value={"v": int}, keyed=persist.Keyed())
    with pytest.raises(persist.errors.InvalidUpdate, match=r"event 1 has NULL in all key columns, \['a', 'b'\]"):
        things.upsert([((None, "x"), 1), ((None, None), 2)], time=0)


def test_a_key_column_that_is_not_null_by_the_schema_takes_none(client: persist.Client) -> None:
    key = {"a": pa.field("a", pa.int64(), nullable=False), "b": pa.string()}
    things = client.create_or_load("things", key=key, value={"v": int}, keyed=persist.Keyed())
    with pytest.raises(persist.errors.InvalidUpdate, match="NULL in 'a'"):
        things.upsert([((None, "x"), 1)], time=0)
    things.upsert([((1, None), 1)], time=0, seal=1).result()
    assert rows_with(things.snapshot(), [(1, None)])["v"].to_pylist() == [1]


def test_a_plain_collection_with_null_in_its_keys_becomes_keyed(client: persist.Client) -> None:
    things = client.create_or_load("things", key={"a": int, "b": str}, value={"v": int})
    things.write([((None, "x"), 1), ((1, None), 2)], time=0, seal=1).result()
    things.evolve(keyed=persist.Keyed())
    things.upsert([((None, "x"), 3), ((1, None), None)], time=1, seal=2).result()
    assert [*things.snapshot().rows()] == [((None, "x"), 3)]
