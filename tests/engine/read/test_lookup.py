"""Point reads, held against a plain filter over the contents, for all plans that a snapshot may have."""

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings

import persist
import persist.codecs.order.search
import persist.engine.read.lookups.lookup
import persist.engine.read.lookups.part_rows
import persist.engine.read.parts.reader
from persist.blob.layers.metered import MeteredBlob
from persist.blob.lru import Cache
from persist.blob.protocol import MemoryBlob
from persist.codecs.order.search import SortedKeys
from persist.codecs.part.stream import encode_parts
from persist.engine.read.lookups.part_rows import find_places
from persist.engine.read.merging import Form
from persist.engine.read.parts.caches import ENTRY_BYTES, make_decoded_rows_kind
from persist.engine.read.parts.reader import PartReader
from tests.codecs.oracle import plain_values, sort_key, sort_keys
from tests.codecs.strategies import python_values
from tests.support.clocks import ImpatientClock
from tests.support.keyframes import add_keyframe, snapshots
from tests.support.reads import rows_with
from tests.support.tiers import examples

NAN = math.nan
KEYS: list[tuple[pa.DataType, ...]] = [(t,) for t in (pa.int64(), pa.uint8(), pa.string(), pa.float64(), pa.bool_())]
KEYS += [(pa.decimal128(12, 2),), (pa.binary(3),), (pa.large_binary(),), (pa.timestamp("ms", "UTC"),), (pa.float16(),)]
KEYS += [(pa.int8(), pa.string()), (pa.string(), pa.float32(), pa.date32()), (pa.list_(pa.int8()),), ()]
KEYS += [(pa.struct([("a", pa.int8())]), pa.int64())]
Update = tuple[tuple[tuple[Any, ...], Any], int, int]


def made(types: tuple[pa.DataType, ...], updates: list[Update]) -> tuple[persist.Client, persist.Collection]:
    """Return a client and a collection with those updates, some in a part of their own, sealed up to 4."""
    client = persist.open(MemoryBlob(), settings=persist.Settings(background=False))
    key = {f"k{i}": type_ for i, type_ in enumerate(types)} or None
    collection = client.create_or_load("c", key=key, value={"v": pa.int64()})
    given = [((shaped(k), v), time, diff) for (k, v), time, diff in updates]
    half = len(given) // 2
    for batch in [given[:half], *([update] for update in given[half:])]:
        collection.write(batch).result()
    collection.seal(4).result()
    return client, collection


def shaped(key: tuple[Any, ...]) -> Any:
    """A key as the library takes it."""
    return key[0] if len(key) == 1 else key or None


def key_of(types: tuple[pa.DataType, ...], key: tuple[Any, ...]) -> tuple[Any, ...]:
    columns = zip(types, key, strict=True)
    return tuple(sort_key(type_, plain_values(pa.array([value], type_))[0]) for type_, value in columns)


@st.composite
def histories(draw: st.DrawFn) -> tuple[tuple[pa.DataType, ...], list[Update], list[tuple[Any, ...]]]:
    """Key types, updates of few keys, and keys to look for, most of which are there."""
    types = draw(st.sampled_from(KEYS))
    pool = draw(st.lists(st.tuples(*map(python_values, types)), min_size=1, max_size=6))
    update = st.tuples(
        st.tuples(st.sampled_from(pool), st.sampled_from([1, 2, -3, None])),
        st.integers(0, 3),
        st.sampled_from([1, 1, 1, -1, 2]),
    )
    wanted = draw(st.lists(st.one_of(st.sampled_from(pool), st.tuples(*map(python_values, types))), max_size=5))
    return types, draw(st.lists(update, max_size=12)), wanted


def expected(
    types: tuple[pa.DataType, ...], updates: list[Update], wanted: Any, as_of: int, columns: Any, is_filtered: bool
) -> dict[Any, int]:
    """The multiplicities of the projected records with a wanted key."""
    keys = {key_of(types, key) for key in wanted}
    sums: dict[Any, int] = {}
    for (k, v), time, diff in updates:
        if time <= as_of and key_of(types, k) in keys and (not is_filtered or (v is not None and v > 0)):
            row = {f"k{i}": key for i, key in enumerate(key_of(types, k))} | {"v": sort_key(pa.int64(), v)}
            record = tuple(row[name] for name in columns)
            sums[record] = sums.get(record, 0) + diff
    return {record: n for record, n in sums.items() if n}


@settings(max_examples=examples(80))
@given(
    histories(),
    st.integers(0, 3),
    st.lists(st.integers(0, 3), unique=True, max_size=2),
    st.sampled_from(["rows", "diff"]),
    st.sampled_from([None, None, (), ("v",), "reversed"]),
    st.booleans(),
    st.sampled_from([(0, 0), (64, 0), (64, 96)]),
)
@example(((pa.int64(),), [(((1,), 2), 0, 1), (((1,), 2), 2, 1)], [(1,)]), 1, [3], "diff", None, False, (64, 96))
@example(((pa.int64(),), [(((i // 2,), 2), i % 2, 1) for i in range(4)], [(0,)]), 1, [], "diff", None, False, (64, 96))
@example(((pa.int64(),), [(((i,), 2), 0, 1) for i in range(4)], [(0,), (1,)]), 1, [0], "diff", ("v",), False, (64, 96))
@example(
    ((pa.float64(),), [(((NAN,), 2), 0, 1), (((-0.0,), 2), 0, 1)], [(NAN,), (0.0,)]),
    1,
    [0],
    "rows",
    None,
    True,
    (64, 96),
)
def test_rows_with_some_keys_are_found_as_a_filter_would(
    history: tuple[tuple[pa.DataType, ...], list[Update], list[tuple[Any, ...]]],
    as_of: int,
    keyframes: list[int],
    form: Form,
    columns: Any,
    is_filtered: bool,
    searching: tuple[int, int],
) -> None:
    types, updates, wanted = history
    names = [*(f"k{i}" for i in range(len(types))), "v"]
    columns = tuple(names if columns is None else reversed(names) if columns == "reversed" else columns)
    filter = pc.field("v") > 0 if is_filtered else None
    client, collection = made(types, updates)
    with client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(persist.codecs.order.search, "FEW_KEYS", searching[0])
        patch.setattr(persist.codecs.order.search, "WIDTH_MAX", searching[1])
        patch.setattr(
            persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0
        )  # Keyframes are blobs, and read in pieces.
        patch.setattr(persist.engine.read.lookups.lookup, "PARTS_MAX", (1, 2, 64)[len(updates) % 3])  # Read as one.
        for time in keyframes:
            add_keyframe(collection, time)
        records = expected(types, updates, wanted, as_of, columns, is_filtered)
        for snapshot in snapshots(collection, as_of, columns=columns, filter=filter, form=form):
            for _ in range(2):  # Cold and warm.
                if form == "rows" and any(n < 0 for n in records.values()):
                    with pytest.raises(persist.errors.NegativeMultiplicity):
                        rows_with(snapshot, [shaped(key) for key in wanted])
                    continue
                got = rows_with(snapshot, [shaped(key) for key in wanted])
                assert got.schema == snapshot.schema
                found: dict[Any, int] = {}
                diffs = got["_diff"].to_pylist() if form == "diff" else [1] * len(got)
                for record, n in zip(sort_keys(got, columns), diffs, strict=True):
                    assert form == "rows" or record not in found
                    found[record] = found.get(record, 0) + n
                assert found == records
                if set(columns) == set(names):
                    assert (keys := sort_keys(got, names[:-1])) == sorted(keys)


ROWS = 150_000


def large(client: persist.Client, keys: pa.Table, **more: Any) -> tuple[persist.Collection, pa.Table]:
    """A collection with a part of several row groups, of those keys, value v; and its rows in order."""
    key = {name: keys.schema.field(name).type for name in keys.column_names}
    collection = client.create_or_load("large", key=key, value={"v": pa.int64()})
    rows = keys.append_column("v", pa.array(np.arange(len(keys))))
    updates = rows.append_column("_time", pa.array(np.zeros(len(keys), np.int64)))
    collection.write(updates.append_column("_diff", pa.array(np.ones(len(keys), np.int64)))).result()
    collection.seal(1).result()
    return collection, rows


@cache
def scattered(kind: str) -> pa.Table:
    """Distinct keys of a kind, in no order, with gaps."""
    numbers = np.random.default_rng(3).permutation(ROWS * 3)[:ROWS]
    match kind:
        case "int":
            return pa.table({"k": numbers - ROWS})
        case "uint64":
            return pa.table({"k": numbers.astype(np.uint64) + np.uint64(2**63 - ROWS)})
        case "string":
            return pa.table({"k": [f"käse {n:06}" * (1 + n % 2) for n in numbers.tolist()]})
        case "float with NULL and NaN":
            values = (numbers / 7).tolist()
            return pa.table({"k": pa.array([None, NAN, *values[2:]], pa.float64())})
        case "decimal":
            return pa.table({"k": pa.array(numbers).cast(pa.decimal128(20, 0))})
        case "timestamp[s]":
            return pa.table({"k": pa.array(numbers).cast(pa.timestamp("s"))})
        case _:
            return pa.table({"a": pa.array(numbers % 5).cast(pa.int8()), "b": [f"{n}" for n in numbers.tolist()]})


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    "kind", ["int", "uint64", "string", "float with NULL and NaN", "decimal", "timestamp[s]", "composite"]
)
@pytest.mark.parametrize("count", [1, 20, 500])
def test_keys_are_found_in_parts_of_many_row_groups(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0)
    keys = scattered(kind)
    collection, rows = large(client, keys)
    assert len(collection.handle.contents().parts) == 1
    with collection.snapshot() as snapshot:
        chance = np.random.default_rng(count)
        for _ in range(10):
            chosen = np.unique(np.append(chance.choice(ROWS, count, replace=False), [0, 1] if count > 1 else []))
            wanted = rows.take(pa.array(chosen.astype(np.int64)))
            got = rows_with(snapshot, wanted.select(keys.column_names))
            assert sorted(got["v"].to_pylist()) == chosen.tolist()
            assert (found := sort_keys(got, keys.column_names)) == sorted(found)
        columns = [keys.slice(5, 1)[name].to_pylist()[0] for name in keys.column_names]
        assert rows_with(snapshot, [shaped(tuple(columns))])["v"].to_pylist() == [5]
        if kind == "int":
            ascending = rows.sort_by("k")
            for at in (0, 1, 65535, 65536, 131071, 131072, ROWS - 1):  # Where row groups meet.
                assert rows_with(snapshot, [ascending["k"][at].as_py()]).equals(ascending.slice(at, 1))
            absent = set(range(-ROWS, 2 * ROWS)) - set(keys["k"].to_pylist())
            assert len(rows_with(snapshot, list(absent)[:count])) == 0


def test_only_the_row_group_of_a_key_is_fetched_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0)
    store = MeteredBlob(MemoryBlob())
    with persist.open(store, settings=persist.Settings(background=False)) as client:
        collection, _ = large(client, scattered("int"))
        (part,) = collection.handle.contents().parts
        snapshot, key = collection.snapshot(), scattered("int")["k"][7].as_py()
        for requests in (2, 0, 0):  # Its footer and the row group; then nothing.
            before = store.get_counts()["get"]
            assert len(rows_with(snapshot, [key])) == 1
            after = store.get_counts()["get"]
            assert after.requests - before.requests == requests
            assert after.bytes - before.bytes < part.bytes * 0.6
        before = store.get_counts()["get"]
        assert len(rows_with(collection.snapshot(), [10 * ROWS, -10 * ROWS])) == 0
        assert store.get_counts()["get"].bytes - before.bytes < 1000, "nothing but the log"


def test_history_that_was_dropped_is_not_needed(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
    for time in range(3):
        c.write([((k, time), time, 1) for k in range(40)] + [((k, time - 1), time, -1) for k in range(40) if time])
        c.seal(time + 1).result()
    c.allow_compaction(1).result()
    add_keyframe(c, 1, pieces=7, drop_history=True)
    assert rows_with(c.snapshot(1), [39, 3, 3, 17, 99]).to_pylist() == [{"k": k, "v": 1} for k in (3, 17, 39)]
    assert rows_with(c.snapshot(2), [3, 39]).to_pylist() == [{"k": k, "v": 2} for k in (3, 39)]


@pytest.mark.parametrize(
    "keys",
    [
        [2, 1],
        (1, 2, 2),
        {1, 2},
        iter([1, 2]),
        np.array([1, 2]),
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
        pa.table({"k": pa.array([1, 2], pa.int8())}),
        pa.record_batch({"k": [1, 2]}),
        pa.table({"k": [1, 2]}).to_pandas(),
        pa.table({"k": [1, 2]}).to_pandas().iloc[::-1],
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_keys_come_in_many_forms(client: persist.Client, keys: Any) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
    c.write([((k, k), 0, 1) for k in range(5)], seal=1).result()
    assert rows_with(c.snapshot(), keys)["v"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([2, 1, 2]),
        pa.chunked_array([[1], [2, 2]]),
        pl.Series([2, 1]),
        pa.table({"k": pa.array([1, 2], pa.int8())}),
        pa.record_batch({"k": [1, 2]}),
        pl.DataFrame({"k": [1, 2, 1]}),
        pa.table({"k": [1, 2]}).to_pandas(),
        pa.RecordBatchReader.from_batches(pa.schema({"k": pa.int64()}), [pa.record_batch({"k": [2, 1]})]),
    ],
    ids=lambda keys: type(keys).__module__.split(".")[0] + " " + type(keys).__name__,
)
def test_a_lookup_takes_anything_arrow_and_answers_each_key_once(client: persist.Client, keys: Any) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
    c.write([((k, k), 0, 1) for k in range(5)], seal=1).result()
    found = c.snapshot().get(keys)
    asked_in = type(keys).__module__.partition(".")[0]
    assert type(found).__module__.partition(".")[0] == asked_in
    assert pa.table(found).to_pylist() == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.string(), pa.float64()])
@pytest.mark.parametrize("columns", [None, ["v"], ["v", "k"], ["k"]])
@pytest.mark.parametrize("null", [False, True])
def test_a_few_keys_of_several_parts_in_memory_are_given_in_order(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, columns: list[str] | None, null: bool
) -> None:
    monkeypatch.setattr(persist.engine.read.lookups.lookup, "PART_BYTES_MAX", 0)  # Each run is looked into by itself.
    collection = client.create_or_load("parts", key={"k": kind}, value={"v": pa.int64(), "s": pa.string()})

    def key(number: int) -> Any:
        return str(number) if kind == pa.string() else number

    for run in range(4):  # Some keys are in several runs, and some twice in one.
        rows = [(key(n), (n + 1000 * run + again, f"{n}")) for n in range(run, 200, 3) for again in range(1 + n % 2)]
        collection.write([*rows, *([(None, (run, None))] if null else [])], time=run).result()
    collection.seal(4).result()
    snapshot = collection.snapshot(columns=columns)
    contents = collection.snapshot().to_arrow()
    for wanted in ([7], [150, 3, 12, 99, 3], [*range(16)], [*range(0, 60, 2)], [201, 255], [201, 9]):
        keys = pa.array([key(number) for number in wanted] + [None] * null, kind)
        rows = contents.filter(pc.is_in(contents["k"], keys)).select(columns or ["k", "v", "s"])
        for _ in range(2):  # From then on, all of it is in memory.
            found = snapshot.get(keys)
            assert found.schema == snapshot.schema
            assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, rows.to_pylist()))
            if columns is None or "k" in columns:
                numbers = found["k"].to_pylist()
                assert numbers == sorted(numbers, key=lambda number: (number is None, number))


BERLIN = ZoneInfo("Europe/Berlin")
TWICE = [dt.datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=BERLIN) for fold in (0, 1)]  # As clocks show it.
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, -2, None]),
    (pa.float64(), [1.5, NAN, -NAN, None]),
    (pa.timestamp("us", "Europe/Berlin"), TWICE),
    (pa.decimal128(38, 0), [Decimal(7), Decimal(8)]),
    (pa.timestamp("us"), [dt.datetime(2026, 1, 1), dt.datetime(9999, 1, 1)]),
    (pa.list_(pa.float64()), [[NAN], [1.0], []]),
    (pa.string(), ["a", "", "ä"]),
]
SINGLE_KEYS: list[tuple[dict[str, pa.DataType], list[Any]]] = [
    ({"k": pa.int64()}, [1, 2, -5]),
    ({"k": pa.string()}, ["a", "a much longer text", "ä"]),
    ({"k": pa.int64(), "l": pa.string()}, [(1, "a"), (1, "b"), (2, "a")]),
]


@settings(max_examples=examples(100))
@given(st.data())
def test_a_single_key_that_is_in_memory_holds_what_its_updates_add_up_to(data: st.DataObject) -> None:
    key, keys = data.draw(st.sampled_from(SINGLE_KEYS))
    kinds = data.draw(st.lists(st.sampled_from(VALUES), max_size=2))
    value = {f"v{at}": kind for at, (kind, _) in enumerate(kinds)} or None
    record = st.tuples(st.sampled_from(keys), st.tuples(*(st.sampled_from(values) for _, values in kinds)))
    updates = data.draw(st.lists(st.tuples(record, st.integers(0, 3), st.sampled_from([1, 1, -1, -1, 2])), max_size=8))
    as_of, parts_max = data.draw(st.integers(0, 3)), data.draw(st.sampled_from([1, 64]))
    sums: Counter[Any] = Counter()
    for (k, values), time, diff in updates:
        sums[k, _as_stored(values, kinds)] += diff * (time <= as_of)
    client = persist.open(MemoryBlob(), settings=persist.Settings(background=False))
    with client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(persist.engine.read.lookups.lookup, "PARTS_MAX", parts_max)
        collection = client.create_or_load("c", key=key, value=value)
        for (k, values), time, diff in updates:
            collection.write([((k, shaped(values)), time, diff)]).result()
        collection.seal(4).result()
        for time in data.draw(st.lists(st.integers(0, 3), unique=True, max_size=1)):
            add_keyframe(collection, time)
        snapshot = collection.snapshot(as_of)
        for k in keys:
            held = {values: n for (of, values), n in sums.items() if of == k and n}
            for _ in range(2):  # Cold and warm.
                if any(n < 0 for n in held.values()):
                    with pytest.raises(persist.errors.NegativeMultiplicity):
                        snapshot.get([k])
                    continue
                got = [(of, v if len(kinds) > 1 else (v,) if kinds else ()) for of, v in snapshot.get([k])]
                assert Counter(_as_stored(values, kinds) for _, values in got) == held
                assert all(of == k for of, _ in got)


def _as_stored(values: tuple[Any, ...], kinds: list[tuple[pa.DataType, list[Any]]]) -> tuple[Any, ...]:
    columns = zip(values, kinds, strict=True)
    return tuple(sort_key(kind, plain_values(pa.array([value], kind))[0]) for value, (kind, _) in columns)


def test_what_a_key_holds_is_told_from_memory_once_it_is_there(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = client.create_or_load("c", key={"k": pa.int64()}, value={"a": pa.int64(), "b": pa.string()})
    collection.write([((k, (k, "first")), 0, 1) for k in range(1000)], seal=1).result()
    collection.write([((5, (5, "first")), 1, -1), ((5, (5, "second")), 1, 1), ((6, (6, "first")), 1, -1)], seal=2)
    snapshot = collection.snapshot()
    lookup, reader = persist.engine.read.lookups.lookup.Lookup(snapshot.scan), client.engine.reader()
    assert lookup.record([5], reader) is None, "nothing was read yet"
    snapshot.get([5])
    records = [lookup.record([k], reader) for k in (5, 6, 7, 2000)]
    assert records == [[(5, (5, "second"))], [], [(7, (7, "first"))], []]
    assert lookup.record([5, 6], reader) is None
    diffs = collection.snapshot(form="diff")
    assert diffs.get([7]) == diffs.get([7]) == [((7, (7, "first")), 1)]
    monkeypatch.setattr(type(snapshot), "_read_keys", None)
    assert snapshot.get([7]) == [(7, (7, "first"))], "of rows, no table is made"
    monkeypatch.undo()
    with pytest.raises(persist.InvalidUsage, match="key 0 has 'x'"):
        snapshot.get(["x"])


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int8(), pa.uint16()])
def test_integers_are_looked_for_in_whatever_pieces_they_come(client: persist.Client, kind: pa.DataType) -> None:
    bits, sign = kind.bit_width, 0 if pa.types.is_unsigned_integer(kind) else 1
    least, greatest = -sign << (bits - sign), (1 << (bits - sign)) - 1
    there = [least, 5, 6, 100, greatest]
    collection = client.create_or_load("integers", key={"k": kind}, value=None)
    collection.write([(number, None) for number in there], time=0).result()
    collection.seal(1).result()
    snapshot = collection.snapshot()
    keys = pa.array([1, greatest, 6, least, 6, 7, 100, 2], kind)
    for given_keys in (
        keys,
        keys.slice(1, 6),
        pa.chunked_array([keys.slice(4), keys.slice(0, 4)]),
        pa.chunked_array([pa.array([], kind), keys.slice(1)]),
        pa.table({"k": pa.concat_arrays([keys, pa.nulls(1, kind)])}),
    ):
        for _ in range(2):
            assert snapshot.get(given_keys)["k"].to_pylist() == [least, 6, 100, greatest]
    assert len(snapshot.get(pa.chunked_array([], kind))) == 0


@pytest.mark.parametrize("keys", [5, "ab", {"k": [1]}], ids=lambda keys: type(keys).__name__)
def test_what_holds_no_keys_is_refused(client: persist.Client, keys: Any) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value=None)
    c.seal(1).result()
    with pytest.raises(persist.InvalidUsage, match="is not an iterable of keys: for one key give a list of it"):
        c.snapshot().get(keys)


def test_keys_that_say_that_they_are_arrow_and_give_none_are_refused(client: persist.Client) -> None:
    class Broken:
        def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
            raise TypeError("nothing to give")

    c = client.create_or_load("c", key={"k": pa.int64()})
    c.seal(1).result()
    with pytest.raises(persist.errors.SchemaMismatch, match="Broken does not give Arrow data: nothing to give"):
        c.get(Broken())


def test_other_columns_are_decoded_only_where_a_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0)
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        collection, _ = large(client, pa.table({"k": np.arange(0, 2 * ROWS, 2)}))
        snapshot, kept = collection.snapshot(), client.engine.reader().decoded
        assert len(rows_with(snapshot, [7])) == 0
        keys_alone = kept.bytes
        assert len(rows_with(snapshot, [8])) == 1
        assert keys_alone > 65536 * 8
        assert kept.bytes - keys_alone > 65536 * 8, "the values come besides, and not the keys once more"
        assert kept.bytes - keys_alone < 1.2 * keys_alone


def test_texts_that_repeat_are_decoded_as_numbers_and_given_as_texts(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0)
    kinds = {"often": pa.string(), "once": pa.string(), "bytes": pa.binary(), "long": pa.large_string()}
    collection = client.create_or_load("c", key={"k": pa.int64()}, value=kinds)
    few = [["ä", None, "long " * 9][k % 3] for k in range(ROWS)]
    columns = [few, [f"{k} once" for k in range(ROWS)], [(text or "").encode() for text in few], few]
    rows = pa.table([range(ROWS), *columns], pa.schema([("k", pa.int64()), *kinds.items()]))
    collection.write(rows, time=0, seal=1).result()
    coded, before = list[str](), PartReader.decode_groups

    def decoded_groups(*args: Any, **options: Any) -> pa.Table:
        table = before(*args, **options)
        coded.extend(field.name for field in table.schema if pa.types.is_dictionary(field.type))
        return table

    monkeypatch.setattr(PartReader, "decode_groups", decoded_groups)
    chosen = [0, 1, 2, 70_000, ROWS - 1]
    for _ in range(2):  # Cold and warm.
        with collection.snapshot() as snapshot:
            assert rows_with(snapshot, chosen).equals(rows.take(pa.array(chosen)))
            assert snapshot.get([2]) == [(2, ("long " * 9, "2 once", b"long " * 9, "long " * 9))]
        with collection.snapshot(form="diff") as snapshot:
            assert rows_with(snapshot, chosen).drop_columns("_diff").equals(rows.take(pa.array(chosen)))
    assert {*coded} == {"often", "bytes"}


def test_many_tiny_runs_are_looked_into_together_and_stay_right_as_they_change(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64(), "t": pa.string()}, value={"v": pa.int64()})
    held: dict[int, int] = {}
    for time in range(200):
        key = time * 7 % 40
        rows = [(((key, "x"), time), time, 1)]
        if key in held:
            rows.append((((key, "x"), held[key]), time, -1))
        held[key] = time
        c.write(rows, seal=time + 1).result()
        if time % 20 == 0 or time > 190:
            found = rows_with(c.snapshot(), [(k, "x") for k in range(50)])
            assert dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True)) == held
        if time == 150:
            c.compact()
    assert len(rows_with(c.snapshot(100), [(7 * 100 % 40, "x")])) == 1, "the interval of times cuts through the groups"
    assert rows_with(c.snapshot(100), [(7 * 100 % 40, "x")])["v"].to_pylist() == [100]
    fewer = rows_with(c.snapshot(columns=["v"], where=pc.field("v") > 190), [(k, "x") for k in range(50)])
    assert sorted(fewer["v"].to_pylist()) == list(range(191, 200))


def test_tiny_runs_that_are_blobs_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.engine.write.part_writer.INLINE_PART_MAX", 0)
    store = MeteredBlob(MemoryBlob())
    settings = persist.Settings(background=False)
    with persist.open(store, settings=settings) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        for time in range(3):
            c.write([((key, str(time)), time, 1) for key in range(time * 50, time * 50 + 50)], seal=time + 1).result()
    with persist.open(store, settings=settings, mode="read") as other:
        snapshot = other.load("c").snapshot()
        opened = store.get_counts()["get"].requests
        assert len(rows_with(snapshot, [1, 51, 101, 5000])) == 3
        assert store.get_counts()["get"].requests - opened == 3
        assert len(rows_with(snapshot, [2, 52, 102])) == 3
        assert store.get_counts()["get"].requests - opened == 3


def test_keys_go_through_the_codec_of_the_collection(client: persist.Client) -> None:
    c = client.create_or_load("c", key=persist.Json, value={"v": pa.int64()})
    c.write([(({"a": [i]}, i), 0, 1) for i in range(5)], seal=1).result()
    assert rows_with(c.snapshot(), [{"a": [3]}, {"a": [9]}])["v"].to_pylist() == [3]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (5, "for one key give a list of it"),
        ("ab", "for one key give a list of it"),
        ([(1, "a"), 5], r"key 1 is 5, and a key of this collection is a tuple \(a: int64, b: string\)"),
        ([(1, "a"), (2,)], "key 1 is"),
        ([(1, "a"), (1, 2)], r"key 1 has 2 \(int\) for key field 'b'"),
        ([(2**70, "a")], "key 0 has"),
        (pa.table({"a": [1]}), r"the keys have the columns \['a'\]"),
        (pa.table({"a": [1], "b": ["x"], "v": [1]}), "give exactly the key columns"),
        (pa.table({"a": [1], "b": ["x"], "_time": [1]}), "give exactly the key columns"),
        (pa.table({"a": [1], "b": [1]}), "column 'b' has type int64"),
        (pa.table({"a": pa.array([1, 2**63], pa.uint64()), "b": ["x", "y"]}), "key 1 has 9223372036854775808"),
    ],
)
def test_what_is_no_key_is_refused(client: persist.Client, keys: Any, says: str) -> None:
    c = client.create_or_load("c", key={"a": pa.int64(), "b": pa.string()}, value=None)
    c.seal(1).result()
    with pytest.raises(persist.InvalidUsage, match=says):
        rows_with(c.snapshot(), keys)


def test_a_tuple_is_no_key_of_one_field_and_a_value_none_of_none(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"a": pa.int64()}, value=None)
    unit = client.create_or_load("unit", key=None, value={"v": pa.int64()})
    c.seal(1)
    unit.write([((None, 7), 0, 1)], seal=1).result()
    with pytest.raises(persist.InvalidUsage, match=r"key 0 is \(1,\), and a key .* is a value by itself"):
        rows_with(c.snapshot(), [(1,)])
    with pytest.raises(persist.InvalidUsage, match="key 1 is 5, and the only key here is None"):
        rows_with(unit.snapshot(), [None, 5])
    assert rows_with(unit.snapshot(), [None, None]).to_pylist() == [{"v": 7}]
    assert rows_with(unit.snapshot(), []).to_pylist() == []


@pytest.mark.parametrize("whole_bytes_max", [0, 1 << 20])
def test_other_columns_of_a_key_that_was_looked_up_are_looked_up_too(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch, whole_bytes_max: int
) -> None:
    """What is kept of a part is kept for the columns that were read."""
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", whole_bytes_max)
    rows = 200 if whole_bytes_max else 100_000
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"a": pa.int64(), "b": pa.int64()})
    numbers = np.arange(rows)
    table = pa.table({"k": numbers, "a": numbers + 1, "b": numbers + 2, "_time": 0 * numbers, "_diff": 0 * numbers + 1})
    c.write(table, seal=1).result()
    for columns in (["a"], ["b"], ["b", "a"], ["k", "b"], ["a"]):
        expected = [{"k": 77, "a": 78, "b": 79}[name] for name in columns]
        got = rows_with(c.snapshot(columns=columns), [77])
        assert [got[name].to_pylist() for name in columns] == [[each] for each in expected]


def test_keys_at_the_ends_of_row_groups_are_found_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ROWS // 20
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "WHOLE_BYTES_MAX", 0)
    monkeypatch.setattr(persist.engine.read.lookups.part_rows, "BLOCK_BYTES", ROWS * 32 * 8 // 20)  # Eight row groups.
    monkeypatch.setitem(encode_parts.__kwdefaults__ or {}, "row_group_rows", group)
    store = MeteredBlob(MemoryBlob())
    with persist.open(store, settings=persist.Settings(background=False)) as client:
        collection, rows = large(client, scattered("int"))
        ascending = rows.sort_by("k")
        snapshot, keys = collection.snapshot(), ascending["k"].to_pylist()
        starts = list(range(0, ROWS, group))
        for some in (starts[3:9], starts):
            before = store.get_counts()["get"].requests
            assert rows_with(snapshot, [keys[row] for row in some]).equals(ascending.take(pa.array(some)))
            assert 0 < store.get_counts()["get"].requests - before <= 6
        before = store.get_counts()["get"].requests
        for at in [at + by for at in starts for by in (0, 1, group - 1)]:
            assert rows_with(snapshot, [keys[at]]).equals(ascending.slice(at, 1))
            assert snapshot.get([keys[at]]) == [(keys[at], ascending["v"][at].as_py())]
            if at + 1 < ROWS and keys[at] + 1 != keys[at + 1]:
                assert len(rows_with(snapshot, [keys[at] + 1])) == 0
        assert store.get_counts()["get"].requests == before, "all of these are in memory"
        assert len(rows_with(snapshot, [keys[0] - 1])) == len(rows_with(snapshot, [keys[-1] + 1])) == 0


def test_results_do_not_keep_row_groups_in_memory(client: persist.Client) -> None:
    collection, _ = large(client, scattered("int"))
    got = rows_with(collection.snapshot(), [scattered("int")["k"][7].as_py()])
    assert sum(buffer.size for column in got.columns for buffer in column.chunk(0).buffers() if buffer) < 1000


def rows_of(count: int) -> SortedKeys:
    return SortedKeys(pa.table({"k": np.arange(count)}))


def test_decoded_rows_are_kept_within_bounds() -> None:
    kept = make_decoded_rows_kind(Cache(room := 4 * (ENTRY_BYTES + 200) * 9 // 8))
    for name in range(10):
        kept.put(name, rows_of(25))
        kept.get(0)
    assert kept.get(0) is not None
    assert [name for name in range(10) if kept.peek(name) is not None] == [0, 1, 2, 3]
    kept.put("large", rows_of(300))
    assert kept.get("large") is None
    assert kept.bytes <= room


def test_what_look_ups_have_decoded_of_parts_that_are_gone_is_not_kept_for_ever() -> None:
    clock = ImpatientClock()
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False), clock=clock) as client:
        users = client.create_or_load("users", key={"k": int}, value={"v": int}, keyed=persist.Keyed())
        kept = client.engine.caches.decoded
        sizes = []
        for day in range(30):
            users.upsert([(key, day * key) for key in range(100)], time=day, seal=day + 1).result()
            users.allow_compaction(day).result()
            users.compact()
            assert users.get([day]) == [(day, day * day)]
            clock.sleep(24 * 3600.0)
            sizes.append(kept.bytes)
        assert sizes[-1] > 0
        assert max(sizes[15:]) <= max(sizes[:10])


def test_the_places_of_keys_are_those_of_their_rows_in_small_parts_and_in_parts_of_many_row_groups(
    client: persist.Client,
) -> None:
    for name, count in (("small", 500), ("many row groups", 300_000)):
        c = client.create_or_load(name, key={"k": pa.int64()}, value={"v": pa.int64()})
        numbers = np.arange(count) * 2
        values = np.random.default_rng(1).integers(0, 2**62, count)
        c.write(pa.table({"k": numbers, "v": values}), time=0, seal=1).result()
        (part,) = c.handle.contents().parts
        wanted = SortedKeys(pa.table({"k": [-2, 0, 1, 400, 998, 2 * count]}))
        reader = PartReader(client.engine.blob)
        assert find_places(wanted, part, c.schema, reader).tolist() == [0, 200, 499]
        assert find_places(SortedKeys(pa.table({"k": [-5, -1]})), part, c.schema, reader).tolist() == []
