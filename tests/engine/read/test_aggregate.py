"""Sums and counts straight from updates, held against sums over the contents by an oracle in plain Python."""

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings

import persist
import persist.engine.read.results.aggregate
from persist.blob.protocol import MemoryBlob
from persist.engine.read.parts.reader import PartReader
from tests.codecs.oracle import sort_key
from tests.codecs.strategies import python_values
from tests.support.keyframes import add_keyframe, snapshots
from tests.support.tiers import examples

NAN, INF = math.nan, math.inf
Update = tuple[tuple[int, tuple[Any, Any]], int, int]
GROUPS = [
    pa.int64(),
    pa.string(),
    pa.float64(),
    pa.float16(),
    pa.decimal128(20, 3),
    pa.bool_(),
    pa.timestamp("us", "UTC"),
]
GROUPS += [pa.list_(pa.float32()), pa.struct([("a", pa.int8()), ("b", pa.string())]), pa.map_(pa.string(), pa.int8())]
WHOLE = [pa.int64(), pa.uint64(), pa.int8(), pa.uint32(), pa.duration("us"), pa.decimal128(38, 4), pa.decimal256(76, 0)]
WHOLE += [pa.decimal128(9, 2)]
FLOATS = [0.0, 1.5, -1.5, 0.1, 1e290, -1e290, 1e16, NAN, INF, -INF, 3.0, None]
ALL = {"n": (None, "count"), "c": ("v", "count"), "s": ("v", "sum")}


def made(blob: MemoryBlob, updates: list[Update], group: pa.DataType, value: pa.DataType, times: int) -> Any:
    """Return a client and a collection with those updates, a part for each, sealed up to times."""
    client = persist.open(blob, settings=persist.Settings(background=False))
    collection = client.create_or_load("c", key={"k": pa.int64()}, value={"g": group, "v": value})
    for update in updates:
        collection.write([update]).result()
    collection.seal(times).result()
    return client, collection


def contents(
    updates: Iterable[Update], as_of: int, group: pa.DataType, value: pa.DataType
) -> list[tuple[Any, Any, int]]:
    """The group, value and multiplicity of every record as of a time."""
    sums: dict[Any, list[Any]] = {}
    for (k, (g, v)), time, diff in updates:
        if time <= as_of:
            record = sums.setdefault((k, sort_key(group, g), sort_key(value, v)), [g, v, 0])
            record[2] += diff
    return [(g, v, n) for g, v, n in sums.values() if n]


def summed(values: list[tuple[Any, int]]) -> Any:
    """The sum of value * n over what is not NULL; as a fraction, or a float where it is not finite.

    NaN, or an infinity, is there when its multiplicities do not sum to zero.
    """
    terms = [
        (v // dt.timedelta(microseconds=1) if isinstance(v, dt.timedelta) else v, n) for v, n in values if v is not None
    ]
    odd: Counter[str] = Counter()
    for v, n in terms:
        if not is_finite(v):
            odd[str(v)] += n
    left = [float(v) * n for v, n in odd.items() if n]
    return sum(left) if left else sum((Fraction(v) * n for v, n in terms if is_finite(v)), Fraction(0))


def is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def expected(records: list[tuple[Any, Any, int]], group: pa.DataType | None) -> list[tuple[Any, int, int, Any, Any]]:
    """Per group, in order: its column, the count, the count of values, their sum, and that of their sizes."""
    groups: dict[Any, list[tuple[Any, Any, int]]] = {} if group is not None else {(): []}
    for record in records:
        groups.setdefault(() if group is None else sort_key(group, record[0]), []).append(record)
    rows = []
    for key in sorted(groups):
        found = groups[key]
        n = sum(m for _, _, m in found)
        if group is not None and n == 0:
            continue
        counted = sum(m for _, v, m in found if v is not None)
        total = summed([(v, m) for _, v, m in found])
        sizes = summed([(abs(v), abs(m)) for _, v, m in found if v is not None and is_finite(v)])
        nothing = counted == 0 and total == 0
        rows.append((found[0][0] if found else None, n, counted, None if nothing else total, sizes))
    return rows


def fits(total: Any, type_: pa.DataType) -> bool:
    """Whether a sum can be held by its type."""
    if total is None or pa.types.is_floating(type_):
        return True
    if pa.types.is_decimal(type_):
        return bool(abs(total * 10**type_.scale) < 10 ** (38 if type_.bit_width == 128 else 76))
    least, greatest = (0, 2**64 - 1) if type_ == pa.uint64() else (-(2**63), 2**63 - 1)
    return bool(least <= total <= greatest)


def check(got: pa.Table, rows: list[tuple[Any, int, int, Any, Any]], group: pa.DataType | None, value: Any) -> None:
    if group is not None:
        keys = [sort_key(group, g) for g in got["g"].to_pylist()]
        assert keys == [sort_key(group, g) for g, *_ in rows]
    assert got["n"].to_pylist() == [n for _, n, *_ in rows]
    assert got["c"].to_pylist() == [c for _, _, c, *_ in rows]
    sums = got["s"].to_pylist() if not pa.types.is_duration(value) else got["s"].cast(pa.int64()).to_pylist()
    for found, (_, _, _, total, sizes) in zip(sums, rows, strict=True):
        if isinstance(total, float) or total is None:
            assert found == total or (total is not None and math.isnan(total) and math.isnan(found))
        elif pa.types.is_floating(value):
            assert abs(Fraction(found) - total) <= sizes / 10**9
        else:
            assert Fraction(found) == total


@st.composite
def histories(draw: st.DrawFn) -> tuple[pa.DataType, pa.DataType, list[Update]]:
    """Histories in which much is retracted again, and some of it was never there."""
    group = draw(st.sampled_from(GROUPS))
    value = draw(st.sampled_from([*WHOLE, pa.float64(), pa.float32(), pa.float64()]))
    if pa.types.is_floating(value):
        values: Any = st.sampled_from(
            [v for v in FLOATS if value == pa.float64() or v not in (0.1, 1e16, 1e290, -1e290)]
        )
    else:
        values = python_values(value)
    pool = draw(st.lists(st.tuples(st.integers(0, 3), st.tuples(python_values(group), values)), min_size=1, max_size=6))
    diffs = st.sampled_from([1, 1, -1, 2, 2**33]) if pa.types.is_floating(value) else st.sampled_from([1, -1, 3, 2**62])
    update = st.tuples(st.sampled_from(pool), st.integers(0, 3), diffs)
    return group, value, draw(st.lists(update, max_size=14))


@settings(max_examples=examples(50))
@given(histories(), st.integers(0, 3), st.lists(st.integers(0, 3), unique=True, max_size=2), st.booleans())
@example(
    (pa.int64(), pa.float64(), [((1, (1, 1e300)), 0, 1), ((2, (1, 1.5)), 0, 1), ((1, (1, 1e300)), 1, -1)]), 1, [], True
)
@example(
    (pa.int64(), pa.float64(), [((1, (1, NAN)), 0, 1), ((2, (1, 1.5)), 0, 1), ((1, (1, NAN)), 1, -1)]), 1, [], False
)
@example((pa.int64(), pa.float64(), [((1, (1, INF)), 0, 1), ((2, (1, -INF)), 1, 1)]), 1, [0], True)
@example((pa.int64(), pa.float64(), [((1, (1, 0.5)), 0, 1), ((1, (1, 0.5)), 2, 1)]), 1, [3], True)
@example((pa.int64(), pa.float64(), [((0, (1, INF)), 0, 1), ((1, (1, INF)), 0, -1)]), 0, [], False)
@example((pa.int64(), pa.float64(), [((0, (1, INF)), 0, 2), ((1, (1, INF)), 0, -1)]), 0, [], True)
@example(
    (pa.int64(), pa.float64(), [((0, (1, INF)), 0, 2), ((1, (1, INF)), 0, -2), ((2, (1, 1.5)), 1, 1)]), 1, [], True
)
@example(
    (pa.int64(), pa.float64(), [((0, (1, NAN)), 0, 1), ((1, (1, NAN)), 0, -1), ((2, (1, 1.5)), 1, 1)]), 1, [], True
)
@example((pa.int64(), pa.float64(), [((0, (1, INF)), 0, 1), ((1, (1, -INF)), 0, -1)]), 0, [], False)
def test_aggregates_are_those_of_the_contents(
    history: tuple[pa.DataType, pa.DataType, list[Update]], as_of: int, keyframes: list[int], is_grouped: bool
) -> None:
    group, value, updates = history
    client, collection = made(MemoryBlob(), updates, group, value, 4)
    with client:
        try:
            for time in keyframes:
                add_keyframe(collection, time)
        except persist.errors.DiffOverflow:
            return  # There are no contents.
        rows = expected(contents(updates, as_of, group, value), group if is_grouped else None)
        is_held = all(fits(total, value) and max(abs(n), abs(c)) < 2**63 for _, n, c, total, _ in rows)
        for snapshot in snapshots(collection, as_of):
            if is_held:
                got = snapshot.aggregate(["g"] if is_grouped else [], ALL)
                check(got, rows, group if is_grouped else None, value)
            else:
                with pytest.raises(persist.errors.DiffOverflow):
                    snapshot.aggregate(["g"] if is_grouped else [], ALL)


def test_many_tables_are_merged_on_the_way(client: persist.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partials are merged, with more limbs the further the bounds go."""
    monkeypatch.setattr(persist.engine.read.results.aggregate, "MERGE_ROWS", 10)
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"g": pa.int8(), "v": pa.int64()})
    rng = np.random.default_rng(7)
    updates: list[Any] = []
    for time in range(20):
        largest = 2 ** (3 * time + 1)
        batch = [
            ((time * 50 + i, (int(rng.integers(7)), int(rng.integers(-largest, largest)))), time, 1) for i in range(50)
        ]
        batch += [(record, time, -1) for record, _, _ in updates[:: time + 2]]
        c.write(batch).result()
        updates += batch
    c.seal(20).result()
    for as_of in (3, 13, 19):
        sums: dict[int, list[int]] = {}
        for (_, (g, v)), time, diff in updates:
            if time <= as_of:
                entry = sums.setdefault(g, [0, 0])
                entry[0], entry[1] = entry[0] + diff, entry[1] + v * diff
        got = c.snapshot(as_of).aggregate(["g"], {"n": (None, "count"), "s": ("v", "sum")})
        assert got.to_pylist() == [{"g": g, "n": sums[g][0], "s": sums[g][1]} for g in sorted(sums) if sums[g][0]]


def test_what_was_added_after_the_time_leaves_no_rounding_error_in_a_sum_read_backwards(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"g": pa.int8(), "v": pa.float64()})
    c.write([((k, (0, 1.0)), 0, 1) for k in range(10)] + [((99, (1, 3.0)), 0, 1)], seal=1).result()
    c.write([((k, (0, 1e16)), 1, 1) for k in range(10, 15)], seal=2).result()
    add_keyframe(c, 1)
    plans = list(snapshots(c, 0))
    assert [snapshot.scan.sign for snapshot in plans] == [-1, 1]
    assert not any(part.negatives for part in plans[0].scan.all_parts)
    for snapshot in snapshots(c, 0):
        assert snapshot.aggregate(["g"], {"s": ("v", "sum")}).to_pylist() == [{"g": 0, "s": 10.0}, {"g": 1, "s": 3.0}]


def test_groups_by_several_columns_come_in_the_order_of_the_library(client: persist.Client) -> None:
    key = {"s": pa.string(), "x": pa.float64(), "l": pa.list_(pa.int64())}
    c = client.create_or_load("c", key=key, value={"v": pa.int64()})
    keys = [("b", NAN, [2]), (None, 1.0, None), ("a", None, [1, 2]), ("a", NAN, [1]), ("a", -0.0, []), ("a", 0.0, [])]
    c.write([((k, i), i, 1) for i, k in enumerate(keys)])
    c.seal(10).result()
    got = c.snapshot().aggregate(["l", "s", "x"], {"v": ("v", "sum")})
    assert got.column_names == ["l", "s", "x", "v"]
    assert got["v"].to_pylist() == [9, 3, 2, 0, 1]
    got = c.snapshot().aggregate(["s", "x"], {"v": ("v", "sum"), "n": (None, "count")})
    assert got["v"].to_pylist() == [9, 3, 2, 0, 1]
    assert got["n"].to_pylist() == [2, 1, 1, 1, 1]


def test_the_filter_counts_and_the_columns_asked_for_do_not(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"g": pa.string(), "v": pa.int64()})
    c.write([((i, ("ab"[i % 2], i)), 0, 1) for i in range(10)])
    c.write([((i, ("ab"[i % 2], i)), 1, -1) for i in range(3)])
    c.seal(2).result()
    snapshot = c.snapshot(1, columns=["k"], where=pc.field("k") < 6, form="diff")
    assert snapshot.aggregate(["g"], {"v": ("v", "sum")}).to_pylist() == [{"g": "a", "v": 4}, {"g": "b", "v": 8}]
    assert snapshot.aggregate(aggregations={"n": (None, "count")}).to_pylist() == [{"n": 3}]


def test_nothing_at_all_is_one_row_or_none(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"g": pa.list_(pa.int64()), "v": pa.float64()})
    c.write([((1, ([1], 2.0)), 0, 1), ((1, ([1], 2.0)), 1, -1)])
    c.seal(3).result()
    for as_of, filter in ((2, None), (0, pc.field("k") == 7)):
        snapshot = c.snapshot(as_of, where=filter)
        assert snapshot.aggregate([], ALL).to_pylist() == [{"n": 0, "c": 0, "s": None}]
        for names in (["g"], ["v"], ["k", "g"]):
            got = snapshot.aggregate(names, ALL)
            assert len(got) == 0
            assert got.schema.types[len(names) :] == [pa.int64(), pa.int64(), pa.float64()]


@pytest.mark.parametrize(
    ("type_", "values", "expected"),
    [
        (pa.int8(), [127, 127], (pa.int64(), 254)),
        (pa.uint32(), [2**32 - 1] * 3, (pa.int64(), 3 * (2**32 - 1))),
        (pa.uint64(), [2**63, 2**63 - 1], (pa.uint64(), 2**64 - 1)),
        (pa.float16(), [1.5, 2.0], (pa.float64(), 3.5)),
        (pa.float32(), [0.5, None], (pa.float64(), 0.5)),
        (pa.decimal128(5, 2), [Decimal("999.99")] * 2, (pa.decimal128(38, 2), Decimal("1999.98"))),
        (pa.decimal128(38, 0), [Decimal(10**37)] * 2, (pa.decimal128(38, 0), Decimal(2 * 10**37))),
        (pa.decimal256(40, 1), [Decimal("-0.1")] * 2, (pa.decimal256(76, 1), Decimal("-0.2"))),
        (pa.duration("ms"), [dt.timedelta(hours=1)] * 2, (pa.duration("ms"), dt.timedelta(hours=2))),
    ],
    ids=str,
)
def test_a_sum_has_the_widest_type_of_its_kind(
    client: persist.Client, type_: pa.DataType, values: list[Any], expected: tuple[pa.DataType, Any]
) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": type_})
    c.write([((i, v), 0, 1) for i, v in enumerate(values)], seal=1).result()
    (column,) = c.snapshot().aggregate([], {"s": ("v", "sum")}).columns
    assert (column.type, column.to_pylist()) == (expected[0], [expected[1]])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 2**62),
        (pa.uint64(), 2**63),
        (pa.decimal128(38, 2), Decimal(5 * 10**35)),
        (pa.duration("us"), dt.timedelta(days=10**8 - 1)),
    ],
    ids=str,
)
def test_a_sum_that_does_not_fit_is_an_error_that_names_the_group(
    client: persist.Client, type_: pa.DataType, value: Any
) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"g": pa.string(), "v": type_})
    c.write([((i, ("full", value)), i % 2, 1) for i in range(3)] + [((9, ("fine", value)), 0, 1)])
    c.seal(2).result()
    with pytest.raises(
        persist.errors.DiffOverflow, match=r"sum of column 'v' of the group \{'g': 'full'\} is .* nothing was wrapped"
    ):
        c.snapshot().aggregate(["g"], {"s": ("v", "sum")})
    assert len(c.snapshot(where=pc.field("g") == "fine").aggregate(["g"], {"s": ("v", "sum")})) == 1


def test_a_count_that_does_not_fit_is_an_error(client: persist.Client) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.int64()})
    c.write([((i, 0), i, 2**62) for i in range(2)])
    c.write([((0, 0), 2, -(2**62))])
    c.seal(3).result()
    with pytest.raises(persist.errors.DiffOverflow, match=r"the count is 9223372036854775808, outside of int64"):
        c.snapshot(1).aggregate([], {"n": (None, "count")})
    assert c.snapshot(2).aggregate([], {"n": (None, "count")}).to_pylist() == [{"n": 2**62}]


@pytest.mark.parametrize(
    ("group_by", "aggregations", "says"),
    [
        ("g", ALL, "is one string"),
        (5, ALL, "is not a list of names"),
        (["z"], ALL, "'z' is not a column"),
        (["g", "g"], ALL, "'g' is there twice"),
        ([], {}, "at least one output"),
        ([], [("n", (None, "count"))], "is not a dict"),
        ([], {"n": "count"}, "give"),
        ([], {"n": (None, "max")}, "give"),
        ([], {"n": (None, "sum")}, "a sum of no column"),
        ([], {"n": ("z", "sum")}, "does not have"),
        ([], {"n": (["v"], "count")}, "does not have"),
        ([], {"n": ("g", "sum")}, "of type string: only integers, floats, decimals and durations"),
        ([], {1: (None, "count")}, "is not a name"),
        (["g"], {"g": (None, "count")}, "choose another"),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    client: persist.Client, group_by: Any, aggregations: Any, says: str
) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"g": pa.string(), "v": pa.int64()})
    c.seal(1).result()
    with pytest.raises(persist.InvalidUsage, match=says):
        c.snapshot().aggregate(group_by, aggregations)


@pytest.mark.parametrize(
    "type_", [pa.bool_(), pa.date32(), pa.timestamp("us"), pa.time64("us"), pa.binary(), pa.list_(pa.int8())]
)
def test_only_what_has_sums_is_added_up(client: persist.Client, type_: pa.DataType) -> None:
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": type_})
    c.seal(1).result()
    with pytest.raises(persist.InvalidUsage, match="can be added up"):
        c.snapshot().aggregate([], {"s": ("v", "sum")})
    assert c.snapshot().aggregate([], {"s": ("v", "count")})["s"].to_pylist() == [0]


def test_only_the_columns_that_are_needed_are_read(client: persist.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no diffs of parts where all are 1."""
    c = client.create_or_load("c", key={"k": pa.int64()}, value={"g": pa.string(), "v": pa.int64()})
    c.write([((1, ("a", 1)), 0, 1)]).result()
    c.write([((1, ("a", 1)), 1, -1)]).result()
    c.seal(2).result()
    asked: list[tuple[str, ...]] = []
    reading = PartReader.table

    def table(self: Any, part: Any, request: Any, keys: Any) -> pa.Table:
        asked.append(tuple(request.columns))
        return reading(self, part, request, keys)

    monkeypatch.setattr(PartReader, "table", table)
    c.snapshot().aggregate(["g"], {"n": (None, "count")})
    assert asked == [("g",), ("g", "_diff")]
    asked.clear()
    rows = [((k, ("a", None if k == 7 else k)), 2, 1) for k in range(3000)]
    c.write(rows, seal=3).result()
    found = c.snapshot().aggregate(["g"], {"k": ("k", "count"), "v": ("v", "count")})
    assert found.to_pylist() == [{"g": "a", "k": 3000, "v": 2999}]
    # What is only counted is not read of files whose descriptors say that none is NULL; batches have no statistics.
    c.snapshot().aggregate(["g"], {"k": ("k", "count")})
    assert asked == [
        ("g", "k", "v"),
        ("g", "k", "v"),
        ("g", "k", "v", "_diff"),
        ("g",),
        ("g", "k"),
        ("g", "k", "_diff"),
    ]


@pytest.mark.parametrize(("budget", "filter"), [(16 << 20, None), (256 << 20, pc.field("k") > 3_000)], ids=str)
def test_texts_that_files_hold_as_dictionaries_are_groups(
    blob: MemoryBlob, budget: int, filter: pc.Expression | None
) -> None:
    """Each file numbers the texts in its own way, and some have NULL, or texts that are all different."""
    settings = persist.Settings(background=False, memory_budget=budget)
    with persist.open(blob, settings=settings) as client:
        value = {"g": pa.string(), "b": pa.binary(), "v": pa.int64()}
        c = client.create_or_load("c", key={"k": pa.int64()}, value=value)
        chance, rows = np.random.default_rng(3), 6_000
        texts = [
            *(f"text {i}" for i in chance.integers(0, 1000, rows)),
            *(None if i % 3 else f"text {i % 90}" for i in range(rows)),
            *(f"text {i}" for i in range(rows)),
            *(f"text {900 + i % 200}" for i in range(rows)),
        ]
        keys = np.arange(len(texts))
        every = pa.table({"k": keys, "g": texts, "b": [b"%d" % (k % 5) for k in keys.tolist()], "v": keys % 11})

        def updates(start: int, stop: int, time: int, diff: int = 1) -> pa.Table:
            some = every.slice(start, stop - start)
            some = some.append_column("_time", pa.array(np.full(len(some), time)))
            return some.append_column("_diff", pa.array(np.full(len(some), diff)))

        middle = rows * 5 // 2
        c.write(updates(0, rows, 0), seal=1).result()
        c.write(pa.concat_tables([updates(rows, 2 * rows, 1), updates(2 * rows, middle, 2)]), seal=3).result()
        c.write(every.slice(3 * rows)).result()
        c.write(pa.concat_tables([updates(5, 905, 4, -1), updates(middle, 3 * rows, 4)]), seal=5).result()
        kept = pa.concat_tables([every.slice(0, 5), every.slice(905)])
        for as_of, contents in ((1, every.slice(0, 2 * rows)), (4, kept)):
            contents = contents if filter is None else contents.filter(filter)
            for names in (["g"], ["b", "g"], ["g", "b"], []):
                found = c.snapshot(as_of, where=filter).aggregate(names, ALL | {"k": ("k", "count")})
                truth = contents.group_by(names).aggregate([("k", "count"), ("v", "sum")])
                truth = truth.sort_by([(name, "ascending") for name in names] or "k_count")
                named = {**dict.fromkeys("nck", "k_count"), "s": "v_sum", **{name: name for name in names}}
                assert found.to_pydict() == {name: truth[column].to_pylist() for name, column in named.items()}


def test_an_infinity_that_is_retracted_leaves_nothing_in_whatever_pieces_it_is_read(
    blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it matter what else is added up: other columns keep records apart that are one value here."""
    monkeypatch.setattr(PartReader, "slice_bytes", 1)
    with persist.open(blob, settings=persist.Settings(background=False)) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.float64(), "w": pa.float64()})
        c.write([((0, (INF, 1.0)), 0, 1), ((1, (0.5, NAN)), 0, 1)]).result()
        c.write([((10**9, (INF, 1e300)), 1, -1), ((10**9 + 1, (2.0, NAN)), 1, -1)], seal=2).result()
        snapshot = c.snapshot(1)
        assert snapshot.aggregate([], {"v": ("v", "sum")}).to_pylist() == [{"v": -1.5}]
        both = snapshot.aggregate([], {"v": ("v", "sum"), "w": ("w", "sum")})
        assert both.to_pylist() == [{"v": -1.5, "w": -1e300}]
