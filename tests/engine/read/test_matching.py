"""Bulk look-ups by any columns, held against a filter over all contents, for all plans of a snapshot."""

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.blob.protocol import MemoryBlob
from persist.engine.collection.reads import snapshot as snapshot_of
from persist.engine.read.lookups import matching
from persist.engine.read.lookups.matching import estimate_matching, read_matching
from persist.engine.read.planning.scan import Scan
from tests.codecs.oracle import sort_keys
from tests.engine.read.test_lookup import ROWS, Update, histories, large, made, scattered
from tests.support.keyframes import add_keyframe, snapshots
from tests.support.tiers import examples

Record = tuple[Any, ...]


def found(collection: persist.Collection, scan: Scan, keys: pa.Table) -> Counter[Record]:
    """Return the records with one of some keys that a look-up gives, with their multiplicities."""
    sums: Counter[Record] = Counter()
    wanted = {*sort_keys(keys, keys.column_names)}
    for table in read_matching(scan, keys, collection.handle.engine.reader()):
        assert table.column_names == [*scan.columns, "_diff"]
        records = sort_keys(table, scan.columns)
        for record, key, diff in zip(
            records, sort_keys(table, keys.column_names), table["_diff"].to_pylist(), strict=True
        ):
            if key in wanted:
                sums[record] += diff
    return Counter({record: count for record, count in sums.items() if count})


def filtered(everything: pa.Table, keys: pa.Table) -> Counter[Record]:
    """Return the same of all contents."""
    names = everything.column_names[:-1]
    wanted = {*sort_keys(keys, keys.column_names)}
    rows = zip(
        sort_keys(everything, names),
        sort_keys(everything, keys.column_names),
        everything["_diff"].to_pylist(),
        strict=True,
    )
    return Counter({record: count for record, key, count in rows if key in wanted})


@settings(max_examples=examples(60))
@given(
    histories(),
    st.integers(0, 3),
    st.lists(st.integers(0, 3), unique=True, max_size=2),
    st.lists(st.integers(0, 3), min_size=1),
    st.lists(st.sampled_from([1, 2, -3, None, 99]), min_size=5, max_size=5),
)
@example(((pa.int64(),), [(((1,), 2), 0, 1), (((1,), 2), 2, 1), (((2,), 2), 3, 1)], [(1,)]), 1, [3], [0], [2] * 5)
def test_a_look_up_by_any_columns_finds_what_a_filter_leaves(
    history: tuple[tuple[pa.DataType, ...], list[Update], list[Record]],
    as_of: int,
    keyframes: list[int],
    places: list[int],
    values: list[int | None],
) -> None:
    types, updates, wanted = history
    names = [*(f"k{i}" for i in range(len(types))), "v"]
    by = [*dict.fromkeys(names[place % len(names)] for place in places)]
    client, collection = made(types, updates)
    kinds = pa.schema([*zip(names, (*types, pa.int64()), strict=True)])
    rows = [(*key, value) for key, value in zip(wanted, values, strict=False)]
    columns = [pa.array([row[names.index(name)] for row in rows], kinds.field(name).type) for name in by]
    keys = pa.table(columns, names=by)
    with client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "WHOLE_BYTES_MAX", 0)  # Keyframes are blobs, and read in pieces.
        for time in keyframes:
            add_keyframe(collection, time)
        everything = collection.snapshot(as_of, form="diff").to_arrow().select([*names, "_diff"])
        for snapshot in snapshots(collection, as_of, columns=tuple(names), form="diff"):
            assert found(collection, snapshot.scan, keys) == filtered(everything, keys)


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    ("kind", "by", "few"),
    [
        ("int", ["k"], False), ("uint64", ["k"], True), ("string", ["k"], True), ("decimal", ["k"], False),
        ("float with NULL and NaN", ["k"], True), ("composite", ["a", "b"], False), ("composite", ["b"], True),
        ("composite", ["b", "v"], True), ("int", ["v"], True), ("float with NULL and NaN", ["k", "v"], False),
    ],
)  # fmt: skip
def test_keys_are_found_in_parts_of_many_row_groups(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch, kind: str, by: list[str], few: bool
) -> None:
    monkeypatch.setattr(matching, "WHOLE_BYTES_MAX", 0)
    if few:
        monkeypatch.setattr(matching, "FETCH_BYTES", 1)
        monkeypatch.setattr(matching, "ALONE_PIECES", 0)
    keys = scattered(kind)
    collection, rows = large(client, keys)
    (part,) = collection.handle.contents().parts
    with collection.snapshot(form="diff") as snapshot:
        assert len(collection.handle.engine.reader().index(part, collection.schema).groups) > 2
        for count, decoded_bytes in ((1, 1), (40, matching.DECODED_BYTES)):
            monkeypatch.setattr(matching, "DECODED_BYTES", decoded_bytes)
            chosen = np.append(np.random.default_rng(count).choice(ROWS, count, replace=False), [0, 1, ROWS - 1])
            wanted = rows.take(pa.array(chosen.astype(np.int64))).select(by)
            tables = [*read_matching(snapshot.scan, wanted, collection.handle.engine.reader())]
            values = pa.concat_tables(tables)["v"].to_pylist()
            assert {*chosen.tolist()} <= {*values}
            assert len(values) == len({*values})
            is_compared = kind != "decimal" and (not kind.startswith("float") or by != ["k"])
            assert (len(values) < 50) == (is_compared or (kind == "decimal" and by != ["k"]))
            assert estimate_matching(snapshot.scan, wanted) <= snapshot.scan.memory


def test_only_row_groups_that_may_hold_a_key_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "WHOLE_BYTES_MAX", 0)
    store = MeteredBlob(MemoryBlob())
    with persist.open(store, settings=persist.Settings(background=False)) as client:
        collection, rows = large(client, scattered("int"))
        (part,) = collection.handle.contents().parts
        with collection.snapshot(form="diff") as snapshot:
            key = rows.slice(7, 1).select(["k"])
            for requests in (2, 1):  # Its footer and the row group; then the row group.
                before = store.get_counts()["get"]
                assert found(collection, snapshot.scan, key).total() == 1
                after = store.get_counts()["get"]
                assert after.requests - before.requests == requests
                assert after.bytes - before.bytes < part.bytes * 0.6
            assert estimate_matching(snapshot.scan, key) < snapshot.scan.memory / 8
            before = store.get_counts()["get"]
            assert not found(collection, snapshot.scan, pa.table({"k": [10 * ROWS, -10 * ROWS]}))
            assert store.get_counts()["get"].bytes == before.bytes
            ends = rows.sort_by("k").take([0, ROWS - 1]).select(["k"])
            for gap_max, requests in ((0, 2), (part.bytes - 1, 1)):
                monkeypatch.setattr(matching, "WHOLE_BYTES_MAX", gap_max)
                before = store.get_counts()["get"]
                assert found(collection, snapshot.scan, ends).total() == 2
                assert store.get_counts()["get"].requests - before.requests == requests


@pytest.mark.parametrize("groups", [True, False])
def test_bytes_are_checked_before_a_row_is_believed(monkeypatch: pytest.MonkeyPatch, groups: bool) -> None:
    monkeypatch.setattr(matching, "WHOLE_BYTES_MAX", 0 if groups else 1 << 30)
    store = MemoryBlob()
    with persist.open(store, settings=persist.Settings(background=False)) as client:
        collection, rows = large(client, scattered("int"))
        (part,) = collection.handle.contents().parts
        data = store.get(part.blob)
        assert data is not None
        store.set(part.blob, data[:40] + bytes([data[40] ^ 1]) + data[41:])
        with collection.snapshot(form="diff") as snapshot, pytest.raises(persist.errors.CorruptBlob):
            found(collection, snapshot.scan, pa.table({"k": [min(rows["k"].to_pylist())]}))


def test_parts_of_other_versions_of_the_schema_are_looked_up(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int32()}, value={"v": pa.int8()})
    c.write([((k, k), 0, 1) for k in range(9)], seal=1).result()
    old = c.handle
    c.evolve(widen={"v": pa.int64()}, add={"w": pa.string()})
    c.write([((3, (1000, "x")), 1, 1)], seal=2).result()
    with c.snapshot(1, form="diff") as snapshot:
        keys = pa.table({"k": pa.array([3, 4], pa.int32())})
        assert found(c, snapshot.scan, keys).total() == 3
        assert found(c, snapshot.scan, pa.table({"v": [1000, 7]})).total() == 2
    with snapshot_of(old, 0, form="diff", schema=1) as snapshot:
        assert found(c, snapshot.scan, keys).total() == 2


def test_an_estimate_follows_from_the_keys_that_descriptors_name(client: persist.Client) -> None:
    t = client.create_or_load("wide", key={"k": pa.int64()}, value={"v": pa.string()})
    for time, first in enumerate((0, 10_000)):
        keys = [*range(first, first + 20_001)]
        values = [f"{key:032}" for key in keys]
        t.write(pa.table({"k": keys, "v": values, "_time": [time] * 20_001, "_diff": [1] * 20_001})).result()
    t.seal(2).result()
    with t.snapshot(form="diff") as snapshot:
        scan = snapshot.scan
        one, two = scan.parts
        assert one.keys is not None
        samples = len(one.keys)

        def estimate(*keys: int) -> int:
            return estimate_matching(scan, pa.table({"k": pa.array(keys, pa.int64())}))

        assert estimate() == estimate(-1) == estimate(50_000) == 0
        assert abs(estimate(1) * (samples - 1) - one.memory) < one.memory / 20
        assert estimate(2) == estimate(1, 2, 3) == estimate(1)
        assert estimate(*range(0, 30_001, 100)) == one.memory + two.memory
        assert estimate(-1, 15_000) == estimate(15_000)
        assert estimate_matching(scan, pa.table({"v": ["x"]})) == scan.memory
