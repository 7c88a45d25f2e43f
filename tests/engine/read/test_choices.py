"""What a read decides before it reads: sizes, cuts, row groups, ways. Results are the same with each, so nothing else
tells one from another."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persist.blob.protocol import MemoryBlob
from persist.codecs.order.search import SortedKeys
from persist.codecs.part.index import Group
from persist.codecs.part.key_range import KeyRange
from persist.codecs.part.part import Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import to_updates
from persist.core.log.fields import KeyedForm, MachineForm
from persist.engine.read.following.changes import Transitions, UpsertEvents, _order_by_time, slice_by_time
from persist.engine.read.keyed import resolution
from persist.engine.read.keyed.key_replacement import check_one_row_per_key
from persist.engine.read.lookups import matching
from persist.engine.read.lookups.lookup import (
    PART_BYTES_MAX,
    Lookup,
    _add_record,
    _group_tiny_parts,
    _has_comparable_values,
)
from persist.engine.read.lookups.matching import _estimate_part_bytes, _is_comparable, estimate_matching
from persist.engine.read.lookups.part_rows import (
    GroupBounds,
    KeySamples,
    PartRows,
    _decode_samples,
    _group_consecutive,
    _make_limits,
    _take_rows,
)
from persist.engine.read.merging import Split, slice_snapshot
from persist.engine.read.parts.reader import (
    WHOLE_BYTES_MAX,
    PartReader,
    _PartSection,
    _read_in_order,
    _slice_or_copy,
    estimate_memory_within,
)
from persist.engine.read.planning import scan as scans
from persist.engine.read.planning.scan import Scan, sort_by_cost
from persist.engine.read.planning.snapshot_plan import Explanation
from persist.engine.read.results import aggregate as aggregating
from persist.errors import DuplicateKeys, InvalidUsage

SCHEMA = CollectionSchema.of({"k": pa.int64()}, {"v": pa.int64()})
PLAIN = CollectionSchema.of(None, {"v": pa.int64()})
((_, PART),) = encode_parts(to_updates([((n, n), 0, 1) for n in range(0, 640, 10)], SCHEMA), SCHEMA)


def part(memory: int, first: int = 0, last: int = 0, **more: Any) -> Part:
    return msgspec.structs.replace(PART, memory=memory, time_min=first, time_max=last, stamped=first == last, **more)


def scan(*parts: Part, lower: int = 0, upper: int = 100, schema: CollectionSchema = SCHEMA, **more: Any) -> Scan:
    return Scan(schema, parts, lower, upper, tuple(schema.names), **more)


def keys(*values: int) -> SortedKeys:
    return SortedKeys(pa.table({"k": pa.array(values, pa.int64())}))


def times_of(scans: list[Scan]) -> list[tuple[int, int]]:
    return [(each.time_lower, each.time_upper) for each in scans]


def test_rows_within_a_range_of_keys_take_their_share_of_a_part() -> None:
    # Of 64 keys, 33 are known, and each bound lies in the middle of two of these: both together cost one row.
    for bounds, share in (((None, None), 64), ((0, None), 64), ((None, 320), 33), ((320, None), 33), ((320, 480), 17)):
        inside = KeyRange(*((None if bound is None else [bound]) for bound in bounds))
        assert estimate_memory_within(part(6400), inside, SCHEMA) == 100 * share, bounds
    assert estimate_memory_within(part(6400), KeyRange([700], None), SCHEMA) == 100
    half = KeyRange(None, [320])
    assert scan(part(6400), part(640), base=(part(64),)).memory == 7104
    assert scan(part(6400), part(640), base=(part(64),), keys=half).memory == 3300 + 330 + 33
    assert scan(part(6400), keys=half).estimate_memory([part(64)] * 2) == 66


def test_updates_take_the_share_of_their_times() -> None:
    long = part(1000, 10, 19)
    for (lower, upper), size in {(0, 100): 1000, (10, 20): 1000, (12, 15): 300, (0, 11): 100, (19, 30): 100}.items():
        assert scan(long, part(7, 200, 200), lower=lower, upper=upper).updates_memory == size
    for lower, upper in ((0, 10), (20, 30)):
        assert scan(long, lower=lower, upper=upper).updates_memory == 0
        assert scan(long, lower=lower, upper=upper).prune().parts == ()
    assert scan(long, lower=12, upper=13).prune().parts == (long,)
    whole = scan(long)
    assert whole.prune() is whole
    inside = [scan(long, lower=lower, upper=upper).is_inside(long) for lower, upper in ((10, 20), (11, 20), (10, 19))]
    assert inside == [True, False, False]
    assert (scan(long).as_of, scan(long, lower=5, sign=-1).as_of) == (99, 4)


def test_intervals_of_time_are_cut_where_there_is_no_room_for_more() -> None:
    even = scan(part(1000, 0, 9), upper=10)
    for bytes_max, cuts in (
        (1000, []), (999, [9]), (500, [5]), (300, [3, 6, 9]), (100, [*range(1, 10)]), (1, [*range(1, 10)]),
    ):  # fmt: skip
        slices = even.time_slices(bytes_max)
        assert times_of(slices) == [*zip([0, *cuts], [*cuts, 10], strict=True)], bytes_max
    steps = scan(part(100, 0, 0), part(400, 3, 6), part(50, 5, 5), upper=10)
    assert times_of(steps.time_slices(250)) == [(0, 4), (4, 6), (6, 10)]
    assert [len(each.parts) for each in steps.time_slices(250)] == [2, 2, 1]
    assert times_of(scan(part(100, 4, 4), lower=2, upper=9).time_slices(10)) == [(2, 4), (4, 5), (5, 9)]
    assert times_of(scan(lower=2, upper=9).time_slices(10)) == [(2, 9)]
    whole = scan(part(1000, 0, 9), upper=10)
    assert [*slice_by_time(whole, 1000)] == [[whole]]
    assert [times_of(each) for each in slice_by_time(whole, 999)] == [[(0, 9)], [(9, 10)]]
    of_one_time = [*slice_by_time(scan(part(1000, 5, 5), upper=6, lower=5), 300)]
    assert [len(each) for each in of_one_time] == [4], "a single time is cut by keys"


def test_slices_are_cut_until_none_is_above_twice_the_size_or_no_key_is_known_between() -> None:
    whole = scan(part(6400))
    assert whole.cut_into_slices(3200) == [whole]
    slices = whole.cut_into_slices(3199)
    assert [each.memory for each in slices] == [2300, 2300, 2100]
    assert [each.keys.lower for each in slices] == [None, [230], [450]]
    assert [each.memory for each in whole.cut_into_slices(1600)] == [1700] * 4
    assert [each.memory for each in whole.cut_into_slices(100)] == [100, *[300] * 32]
    asked = list[Scan]()

    def estimate(each: Scan) -> int:
        asked.append(each)
        return 20

    assert whole.cut_into_slices(10, estimate) == asked == [whole]
    same = whole.cut_into_slices(10, lambda each: 1000)
    assert same == [whole], "cuts that make nothing smaller are not made"


def test_there_are_whole_rounds_of_tasks_that_are_neither_large_nor_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "TASK_BYTES_MAX", 1000)
    monkeypatch.setattr(scans, "TASK_BYTES_MIN", 100)
    for size, counts in (
        (2500, [3, 4, 3, 4, 25]), (2000, [2, 2, 3, 4, 20]), (100, [1] * 5), (101, [1, 2, 2, 2, 2]), (0, [1] * 5),
    ):  # fmt: skip
        assert [scan(part(size)).choose_task_count(parallel) for parallel in (1, 2, 3, 4, 100)] == counts
    assert scan().empty(["v", "k"]).schema.names == ["v", "k"]


@pytest.mark.parametrize(
    ("form", "sign", "columns", "kinds"),
    [
        ("rows", 1, None, ([0], [2], [1], [3])), ("rows", -1, None, ([0], [], [1], [2, 3])),
        ("diff", 1, None, ([0, 1], [], [], [2, 3])), ("diff", -1, ("v", "k"), ([0, 1], [], [], [2, 3])),
        ("diff", 1, ("k",), ([], [], [0, 1], [2, 3])), ("rows", 1, ("v",), ([0], [2], [1], [3])),
    ],
)  # fmt: skip
def test_rows_stand_that_no_other_can_cancel(form: Any, sign: int, columns: Any, kinds: Any) -> None:
    parts = [part(100 + at, negatives=at % 2) for at in range(4)]
    whole = Scan(SCHEMA, tuple(parts[2:]), 0, 9, columns or ("k", "v"), base=tuple(parts[:2]), sign=sign)
    split = Split.of(whole, form)
    found = [[each.memory - 100 for each in some] for some in (split.base, split.history, split.base_tail, split.tail)]
    assert found == [*kinds]
    assert split.is_merged == bool(kinds[2] or kinds[3])
    assert Split.of(Scan(SCHEMA, (parts[2],), 0, 9, ("k", "v")), "rows").is_merged is False
    only = split.keep_standing_parts(lambda each: each.memory == 100)
    assert ([*only.base], [*only.history]) == ([each for each in split.base if each.memory == 100], [])
    assert (only.base_tail, only.tail) == (split.base_tail, split.tail)


def test_most_standing_rows_pass_unless_the_tail_is_half_as_large_again() -> None:
    def touches(*tail: int, schema: CollectionSchema = SCHEMA) -> bool:
        parts = [part(0, rows=1000, negatives=0), *(part(0, rows=rows, negatives=1) for rows in tail)]
        whole = scan(*parts, schema=schema)
        return Split.of(whole, "rows").is_touching(whole)

    assert [touches(1500), touches(1501), touches(500, 1000), touches(1000, 501), touches()] == [
        True, False, True, False, True,
    ]  # fmt: skip
    assert not touches(1500, schema=PLAIN)
    assert not touches(schema=PLAIN)
    # Standing rows that pass count half of what they take.
    merged = scan(part(4000), part(1000, negatives=1))
    assert len(slice_snapshot(merged, "rows", 1500)) == 1
    assert len(slice_snapshot(merged, "rows", 1499)) == 3
    assert len(slice_snapshot(scan(part(4000, rows=64), part(1000, rows=97, negatives=1)), "rows", 1500)) > 1
    assert slice_snapshot(scan(part(4000)), "rows", 1) == [scan(part(4000))]


def bounds_of(leasts: Any, greatests: Any) -> GroupBounds:
    firsts = np.array([0, 10, 20, 30])
    return GroupBounds(
        firsts, 2, *(None if each is None else _make_limits(each, pa.int64()) for each in (leasts, greatests))
    )


def test_row_groups_are_those_whose_bounds_or_samples_include_a_key() -> None:
    exact = bounds_of([0, 100, 200], [90, 200, 290])
    nothing = bounds_of(None, None)
    samples = KeySamples(keys(0, 100, 200, 290), np.array([0, 10, 20, 29]))
    cases = {
        (-1,): [], (0,): [0], (90,): [0], (95,): [], (100,): [1], (200,): [1, 2], (290,): [2], (291,): [],
        (5, 250): [0, 2], (-5, 300): [], (95, 150): [1], (-5, 95, 400): [],
    }  # fmt: skip
    for wanted, groups in cases.items():
        assert exact.find_groups(samples, keys(*wanted)).tolist() == groups, wanted
        assert exact.find_groups(None, keys(*wanted)).tolist() == groups, wanted
        assert nothing.find_groups(None, keys(*wanted)).tolist() == [0, 1, 2]
    sampled = {
        (-1,): [], (0,): [0], (95,): [0], (100,): [0, 1], (200,): [1, 2], (290,): [2], (291,): [], (5, 250): [0, 2],
    }  # fmt: skip
    for wanted, groups in sampled.items():
        assert nothing.find_groups(samples, keys(*wanted)).tolist() == groups, wanted
    assert [exact.is_exact(keys(1)), nothing.is_exact(keys(1))] == [True, False]
    two = SortedKeys(pa.table({"k": [1], "j": [2]}))
    assert not exact.is_exact(two)
    for half in (bounds_of([0, 100, 200], None), bounds_of(None, [90, 200, 290])):
        assert half.find_groups(None, keys(95)).tolist() == [0, 1, 2]
        assert half.nbytes == 1000 + exact.firsts.nbytes
    assert exact.leasts is not None
    assert exact.nbytes == 1000 + exact.firsts.nbytes + 2 * exact.leasts.nbytes
    assert samples.nbytes == 1000 + samples.keys.nbytes
    blocks = {(0, 1, 2): [(0, 2, [0, 1]), (2, 3, [2])], (1,): [(0, 2, [1])], (0, 2): [(0, 2, [0]), (2, 3, [2])], (): []}
    assert {some: exact.to_blocks(np.array(some, np.int64)) for some in blocks} == blocks


def test_bounds_of_row_groups_are_those_of_the_footer_and_the_last_may_hold_nan() -> None:
    for kind, last in ((pa.float64(), "nan"), (pa.float32(), "nan"), (pa.int64(), "6"), (pa.uint8(), "6")):
        schema = CollectionSchema.of({"k": kind}, {"v": pa.int64()})
        limits: list[Any] = [([1, 3, 5], [2, 4, 6])]
        footer = {"groups": Index.groups[:3], "get_first_field_limits": lambda _, kind, known=limits: known[0]}
        index: Any = type("", (), footer)()
        bounds = GroupBounds.of(part(3000, rows=25), index, schema, 2500)
        assert (bounds.firsts.tolist(), bounds.group_count_max) == ([0, 10, 20, 25], 2)
        assert bounds.leasts is not None
        assert bounds.greatests is not None
        assert [str(each) for each in bounds.leasts.batch[0].cast(pa.int64()).to_pylist()] == ["1", "3", "5"]
        greatest = bounds.greatests.batch[0].to_pylist()
        assert (greatest[:2], str(greatest[2])) == ([2, 4], last)
        assert [GroupBounds.of(part(3000), index, schema, size).group_count_max for size in (0, 999, 1000, 3000)] == [
            1,
            1,
            1,
            3,
        ]
        plain = GroupBounds.of(part(3000), index, PLAIN)
        limits[0] = None
        for unknown in (plain, GroupBounds.of(part(0), index, schema)):
            assert (unknown.leasts, unknown.greatests) == (None, None)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, 127]), (pa.uint64(), [0, 2**64 - 1]), (pa.date32(), [3, -4]), (pa.timestamp("us"), [5]),
        (pa.int64(), [1, None]), (pa.string(), ["a", None, ""]), (pa.bool_(), [True, False]),
    ],
)  # fmt: skip
def test_keys_of_a_descriptor_are_values_of_their_type(kind: pa.DataType, values: list[Any]) -> None:
    stored = pa.int32() if kind == pa.date32() else pa.int64()
    wanted = pa.array(values, stored).view(kind) if pa.types.is_temporal(kind) else pa.array(values, kind)
    assert _decode_samples(values, kind).equals(wanted)


def test_consecutive_numbers_are_runs_and_rows_are_taken_from_the_pieces_that_have_them() -> None:
    assert _group_consecutive([]) == []
    assert _group_consecutive([0, 1, 3, 5, 6, 7]) == [[0, 1], [3], [5, 6, 7]]
    pieces = [(start, pa.record_batch({"v": [*range(start, start + 5)]})) for start in (10, 15, 30)]
    for rows in ([10], [14, 15], [12, 16, 19, 30, 34], [30, 31]):
        assert _take_rows([*pieces], np.array(rows))["v"].to_pylist() == rows


def test_tiny_parts_of_the_history_are_searched_together() -> None:
    tiny, large = part(PART_BYTES_MAX), part(PART_BYTES_MAX + 1)

    def sizes(*parts: Part, schema: CollectionSchema = SCHEMA) -> list[int]:
        return [len(group) for group in _group_tiny_parts(scan(*parts, schema=schema))]

    assert sizes(tiny, tiny, large, tiny) == [2, 1, 1]
    assert sizes(large, large) == [1, 1]
    assert sizes(*[tiny] * 130) == [64, 64, 2]
    assert sizes(*[tiny] * 64) == [64]
    assert sizes(tiny, tiny, schema=PLAIN) == [1, 1]
    assert [*_group_tiny_parts(scan())] == []
    assert [*_group_tiny_parts(scan(tiny, large))] == [(tiny,), (large,)]


def test_records_are_added_up_where_python_compares_values_as_they_are() -> None:
    records = list[tuple[list[Any], int]]()
    for values, diff in (([1, "a"], 1), ([2, "a"], 2), ([1, "a"], -3), ([float("nan")], 1), ([float("nan")], 1)):
        _add_record(records, values, diff)
    assert [count for _, count in records] == [-2, 2, 1, 1]
    kinds = {
        pa.int64(): True, pa.float64(): True, pa.timestamp("us"): True, pa.timestamp("us", "UTC"): False,
        pa.decimal128(5, 2): True, pa.decimal128(5, 0): False, pa.list_(pa.int64()): False, pa.string(): True,
    }  # fmt: skip
    for kind, may in kinds.items():
        assert (
            _has_comparable_values(CollectionSchema.of({"k": pa.timestamp("us", "UTC")}, {"a": pa.int64(), "v": kind}))
            == may
        )
    finds = {pa.int8(): True, pa.bool_(): True, pa.date32(): True, pa.timestamp("s"): True, pa.large_string(): True,
             pa.binary(): True, pa.float64(): False, pa.list_(pa.int8()): False, pa.time32("s"): False}  # fmt: skip
    assert {kind: _is_comparable(kind) for kind in finds} == finds
    wide = CollectionSchema.of({"s": pa.string(), "k": pa.int64()}, {"t": pa.string(), "v": pa.int64()})
    assert sort_by_cost([*"tvsk"], wide) == ["k", "s", "v", "t"]


def test_what_is_near_some_keys_is_about_so_large() -> None:
    whole = scan(part(6300), base=(part(630),))
    sizes = {(0,): 100, (-1, 700): 0, (5,): 100, (20,): 200, (630,): 200, (5, 625): 300, (320, 325): 200}
    for wanted, size in sizes.items():
        assert _estimate_part_bytes(part(6300), whole, keys(*wanted)) == size, wanted
    assert estimate_matching(whole, pa.table({"k": [5]})) == 100 + 10
    assert estimate_matching(whole, pa.table({"v": [5]})) == 6930
    assert (
        _estimate_part_bytes(
            msgspec.structs.replace(PART, rows=1, memory=70, keys_json=msgspec.Raw(b"[[5]]")), whole, keys(5)
        )
        == 70
    )


class Index:
    """A footer, as far as cuts look at it."""

    groups = tuple(Group(10 * at, 10, 100 * at, 100 * at + 100) for at in range(6))


def test_row_groups_are_read_together_up_to_a_size_and_to_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartReader, "index", lambda *_: Index)
    reader, whole = PartReader(MemoryBlob()), part(6000, rows=60)
    cases: list[tuple[list[int], int, list[list[int]]]] = [
        ([0, 1, 2, 3, 4, 5], 2000, [[0, 1], [2, 3], [4, 5]]), ([0, 1, 2, 3], 1999, [[0], [1], [2], [3]]),
        ([0, 1, 2, 4, 5], 9999, [[0, 1, 2], [4, 5]]), ([0, 1, 2], 1, [[0], [1], [2]]), ([], 1, []),
        ([0, 2, 3, 4, 5], 3000, [[0], [2, 3, 4], [5]]),
    ]  # fmt: skip
    for groups, bytes_max, batches in cases:
        assert [*reader._cut_row_groups(whole, SCHEMA, groups, bytes_max)] == batches, (groups, bytes_max)


@pytest.mark.parametrize(
    ("bytes_of_part", "matching", "found"),
    [
        (WHOLE_BYTES_MAX + 600, [1, 2, 3], True), (WHOLE_BYTES_MAX + 300, [1, 2, 3], False),
        (2 * WHOLE_BYTES_MAX, [0, 5], False), (2 * WHOLE_BYTES_MAX + 201, [0, 5], True),
        (2 * WHOLE_BYTES_MAX + 200, [0, 5], False), (WHOLE_BYTES_MAX, [], False), (WHOLE_BYTES_MAX + 1, [], True),
        (3 * WHOLE_BYTES_MAX + 301, [0, 2, 4], True), (3 * WHOLE_BYTES_MAX, [0, 2, 4], False),
    ],
)  # fmt: skip
def test_row_groups_are_fetched_alone_if_that_saves_what_each_request_costs(
    monkeypatch: pytest.MonkeyPatch, bytes_of_part: int, matching: list[int], found: bool
) -> None:
    index = type("", (Index,), {"list_matching_groups": staticmethod(lambda filter: matching)})
    monkeypatch.setattr(PartReader, "index", lambda *_: index)
    reader, blob = PartReader(MemoryBlob()), part(6000, bytes=bytes_of_part, footer=PART.footer)
    few, many = pc.field("k") == 5, pc.field("k") >= 0
    wanted = matching if found else None
    assert reader._select_few_matching_groups(blob, SCHEMA, few) == wanted
    assert reader._select_few_matching_groups(blob, SCHEMA, None) is None
    assert reader._select_few_matching_groups(blob, SCHEMA, many) is None, "most of it may match"
    without_footer = msgspec.structs.replace(blob, footer=None)
    assert reader._select_few_matching_groups(without_footer, SCHEMA, few) is None
    monkeypatch.setattr(PartReader, "get_cached_index", lambda *_: index)
    assert reader._select_few_matching_groups(blob, SCHEMA, many) == wanted, "its footer is known"


def test_what_is_kept_of_row_groups_is_a_block_if_all_of_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = pa.schema([SCHEMA.arrow.field("k")])
    rows = PartRows([part(64)], SCHEMA, "", (), fields, PartReader(MemoryBlob()))
    kept = set[Any]()
    monkeypatch.setattr(PartRows, "_is_in_memory", lambda self, columns, span: span in kept)
    cases: list[tuple[Any, list[int], Any]] = [
        ((2, 5), [2, 3, 4], [(2, 5)]), ((2, 5), [2, 4], [(2, 3), (4, 5)]), ((2, 5), [3], [(3, 4)]),
        ((0, -1), [], [(0, -1)]), ((0, 2), [0, 1], [(0, 2)]), ((3, 4), [3], [(3, 4)]), ((2, 5), [], []),
    ]  # fmt: skip
    for block, groups, spans in cases:
        assert rows._list_spans(("k",), block, groups) == spans
    kept.add((2, 5))
    assert rows._list_spans(("k",), (2, 5), [3]) == [(2, 5)]
    rows._known_bounds = bounds_of(None, None)
    for touched, groups, of_them in (
        ([0, 9], [0, 1], [0]), ([9, 10], [0, 1], [0, 1]), ([29], [0, 1, 2], [2]), ([], [1], [1]),
    ):  # fmt: skip
        assert rows._select_touched(np.array(touched, np.int64), groups) == of_them
    assert [rows._find_start(span) for span in ((0, -1), (1, 3), (2, 3))] == [0, 10, 20]
    assert [rows._count_rows(span) for span in ((0, -1), (1, 3), (2, 3))] == [64, 20, 10]
    assert not wait([PartReader(MemoryBlob()).pool.submit(int)], timeout=9).not_done, "it has a thread of its own"


class ThreeGroups(PartRows):
    """Thirty rows in memory: the first block has two row groups, the second one has one."""

    held: ClassVar[dict[str, Any]] = {}

    def _select_groups(self, requested_keys: SortedKeys | None) -> Any:
        return [(0, 2, [0, 1]), (2, 3, [2])]

    def _get_cached(self, columns: tuple[str, ...], block: Any, groups: Any) -> Any:
        return self.held.get(f"{columns[0]}{block[0]}")

    def _load(self, columns: tuple[str, ...], block: Any, *_: Any) -> Any:
        return self.held[f"{columns[0]}{block[0]}"]


@pytest.mark.parametrize("cuts", [[0, 10, 20, 30], [0, 20, 30]])
@pytest.mark.parametrize("columns", [("v",), ()])
def test_rows_of_keys_are_taken_from_each_block_that_has_some(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], cuts: list[int]
) -> None:
    pieces = [(a, pa.record_batch({"v": range(a, b)})) for a, b in pairwise(cuts)]
    held = {f"k{a}": [(a, keys(*range(10 * a, 10 * b, 10)))] for a, b in ((0, 20), (20, 30))}
    held = {"k0": held["k0"], "k2": held["k20"], "v0": pieces[:-1], "v2": pieces[-1:]}
    monkeypatch.setattr(ThreeGroups, "held", held)
    fields = pa.schema([SCHEMA.arrow.field(name) for name in ("k", *columns)])
    rows = ThreeGroups([part(64)], SCHEMA, "", columns, fields, PartReader(MemoryBlob()))
    rows._known_bounds = bounds_of(None, None)
    for wanted, found in (
        ((50, 150, 250), [5, 15, 25]), ((250,), [25]), ((0, 99, 190), [0, 19]), ((95,), []), ((-5, 999), []),
    ):  # fmt: skip
        table = rows.with_keys(keys(*wanted))
        assert table.to_pydict() == {"k": [10 * row for row in found], **dict.fromkeys(columns, found)}
        assert table.schema == fields
        hits = rows.find_hits_in_memory(keys(*wanted))
        assert hits is not None
        if columns:
            assert [values[0][row].as_py() for values, at in hits for row in at.tolist()] == found
        else:
            assert [row for values, at in hits for row in at.tolist()] == found
            assert not any(values for values, _ in hits)
    for gone, is_read in (("v2", (250,)), ("k2", (5,))):
        held.pop(gone)
        assert rows.find_hits_in_memory(keys(*is_read)) is None or not (columns or gone == "k2")


def test_a_look_up_reads_the_columns_that_it_needs_of_each_source() -> None:
    mixed = part(10**6, 5, 9, negatives=1, schema=1)
    plain = part(10**6, 5, 5)

    def sources(*parts: Part, keeps_time: bool = False, **more: Any) -> list[Any]:
        lookup = Lookup(scan(*parts, **more), keeps_time=keeps_time)
        return [(each.columns, each.sign, each.diff, each.is_keyframe, each.cuts_time) for each in lookup._sources]

    assert plain.is_plain
    assert sources(plain) == [(("v",), 1, 1, False, False)]
    assert sources(mixed) == [(("v", "_diff"), 1, None, False, False)]
    assert sources(plain, sign=-1) == [(("v",), -1, -1, False, False)]
    assert sources(mixed, upper=9) == [(("v", "_time", "_diff"), 1, None, False, True)]
    assert sources(plain, keeps_time=True) == [(("v", "_time"), 1, 1, False, False)]
    assert sources(base=(plain, mixed), sign=-1) == [
        (("v",), 1, 1, True, False),
        (("v", "_diff"), 1, None, True, False),
    ]
    assert sources(part(9), part(9), part(9, negatives=1)) == [(("v", "_diff"), 1, None, False, False)]
    keys_alone = Scan(SCHEMA, (plain,), 0, 9, ("k",))
    assert [each.columns for each in Lookup(keys_alone)._sources] == [()]
    filtered = Scan(SCHEMA, (plain,), 0, 9, ("k",), pc.field("v") > 5)
    assert [each.columns for each in Lookup(filtered)._sources] == [("v",)]
    [alone], [joined] = (Lookup(scan(*parts))._sources for parts in ([part(9)], [part(9), part(9)]))
    assert (alone.types, joined.types) == (f"1 {SCHEMA.reading}", SCHEMA.reading)
    assert [Lookup(each)._has_plain_rows for each in (scan(plain), keys_alone, filtered, scan(mixed, upper=9))] == [
        True, False, False, False,
    ]  # fmt: skip
    assert not Lookup(scan(plain), keeps_time=True)._has_plain_rows


def test_partial_sums_are_added_up_when_they_are_more_than_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregating, "MERGE_ROWS", 3)
    request = aggregating.Request.of(SCHEMA, ["k"], {"n": (None, "count")})
    sums, kept = aggregating._Sums(scan(), request, tracks_size=False), list[list[int]]()
    for first, count in ((0, 3), (2, 1), (2, 1), (0, 4), (8, 5), (8, 4), (0, 1)):
        sums.add(pa.table({"k": range(first, first + count)}), 1)
        kept.append([len(partial) for partial in sums._partials])
    assert kept == [[0, 3], [3], [3, 1], [4], [9], [9, 4], [9, 4, 1]]
    assert dict(zip(*sums.merge().result().to_pydict().values(), strict=True)) == {
        0: 3, 1: 2, 2: 4, 3: 1, **dict.fromkeys(range(8, 12), 2), 12: 1,
    }  # fmt: skip


def test_a_bulk_look_up_fetches_row_groups_together_up_to_a_gap_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [(0, 100), (100, 200), (251, 300), (350, 400), (400, 500), (500, 502)]
    index = type("", (), {"groups": [Group(10 * at, 10, *ends) for at, ends in enumerate(places)]})
    monkeypatch.setattr(PartReader, "index", lambda *_: index)
    monkeypatch.setattr(matching, "WHOLE_BYTES_MAX", 50)
    monkeypatch.setattr(matching, "FETCH_BYTES", 250)
    small, large, inline = (
        msgspec.structs.replace(PART, blob=blob, inline=b"" if blob else b"x", bytes=size, rows=60)
        for blob, size in (("part/a", 50), ("part/b", 51), ("", 99))
    )
    search = matching._Search(scan(small, large, inline, base=(large, small)), [], None, PartReader(MemoryBlob()))
    runs = [[0, 1], [2, 3, 4], [5]]
    of_base = [(large, True, run) for run in runs] + [(small, True, ())]
    assert [(piece.part, piece.is_base, piece.groups) for piece in search.iterate_pieces()] == [
        *of_base, (small, False, ()), *((large, False, run) for run in runs), (inline, False, ()),
    ]  # fmt: skip


def test_a_small_share_of_decoded_rows_is_copied() -> None:
    table = pa.table({"v": np.arange(100)})
    address = table["v"].chunk(0).buffers()[1].address
    for first, end, is_slice in ((0, 50, True), (0, 49, False), (60, 100, False), (40, 100, True)):
        rows = _slice_or_copy(table, first, end)
        assert rows["v"].to_pylist() == [*range(first, end)]
        assert (rows["v"].chunk(0).buffers()[1].address == address) == is_slice


class Recorder(Executor):
    """Runs nothing until its result is asked for, and records what was submitted."""

    def __init__(self) -> None:
        self.submitted: list[int] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        self.submitted.append(args[0].size)
        future = Future[Any]()
        future.set_result(call(*args))
        return future


@pytest.mark.parametrize(
    ("sizes", "alone", "ahead"),
    [
        ([10, 20, 30], 99, [[10, 20, 30], [10, 20, 30], [10, 20, 30]]),
        ([50, 51, 10], 99, [[50], [50, 51, 10], [50, 51, 10]]),
        ([50, 50, 1], 99, [[50, 50], [50, 50, 1], [50, 50, 1]]), ([200, 200], 999, [[200], [200, 200]]),
        ([10, 99, 10], 99, [[10], [10], [10, 10]]), ([98, 1, 2], 99, [[98, 1], [98, 1, 2], [98, 1, 2]]),
    ],
)  # fmt: skip
def test_pieces_are_read_ahead_as_far_as_there_is_room(sizes: list[int], alone: int, ahead: list[list[int]]) -> None:
    executor, found = Recorder(), list[list[int]]()
    sections = (_PartSection(FakePart, size, None) for size in sizes)  # type: ignore[arg-type]
    for _, table in _read_in_order(executor, lambda piece: piece.size, sections, 100, 1 << 30, alone):
        assert table == sizes[len(found)]
        found.append([*executor.submitted])
    assert found == ahead


class FakePart:
    inline = b""


def test_updates_are_put_in_the_order_of_time_if_they_are_not() -> None:
    for times in ([], [1], [1, 1, 2], [0, 70_000]):
        assert _order_by_time(np.array(times, np.int64)) is None
    for times in ([2, 1, 2, 1], [70_000, 0, 0xFFFF, 0], [0xFFFF, 0, 1], [2**62, 2**62 - 1], [0x10000, 0, 1]):
        order = _order_by_time(np.array(times, np.int64))
        assert order is not None
        assert order.tolist() == sorted(range(len(times)), key=lambda at: (times[at], at))


def transitions(rows: list[tuple[Any, ...]], key: tuple[str, ...]) -> list[tuple[Any, ...]]:
    kinds = {"k": pa.int64(), "a": pa.string(), "b": pa.int64(), "_time": pa.int64(), "_diff": pa.int64()}
    fields = pa.schema([*kinds.items()])
    updates = pa.Table.from_pylist([dict(zip(kinds, row, strict=True)) for row in rows], fields)
    made = Transitions(fields.remove(4), key).of(updates)
    assert made.schema == Transitions(fields.remove(4), key).schema
    return [tuple(row.values()) for row in made.to_pylist()]


def test_rows_of_a_key_and_a_time_are_paired_in_the_order_of_their_values() -> None:
    rows = [
        (2, "z", 1, 0, 1), (1, "b", 1, 0, -1), (1, "a", 9, 0, -1), (1, "c", 3, 0, 2), (1, "b", 5, 0, 1),
        (1, "q", 1, 7, -2), (1, "r", 0, 7, 1), (3, None, 2, 0, -1),
    ]  # fmt: skip
    assert transitions(rows, ("k",)) == [
        (1, "b", 5, 0, "update", "a", 9), (1, "c", 3, 0, "update", "b", 1), (1, "c", 3, 0, "insert", None, None),
        (2, "z", 1, 0, "insert", None, None), (3, None, None, 0, "delete", None, 2),
        (1, "r", 0, 7, "update", "q", 1), (1, None, None, 7, "delete", "q", 1),
    ]  # fmt: skip
    assert transitions([], ("k",)) == []
    assert transitions([(1, "b", 1, 0, -1), (1, "a", 9, 0, 1), (2, "b", 0, 0, 1)], ()) == [
        (None, None, None, 0, "delete", 1, "b", 1), (1, "a", 9, 0, "insert", None, None, None),
        (2, "b", 0, 0, "insert", None, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("tombstone", [None, "gone"])
def test_changes_of_a_key_are_its_row_or_its_deletion(tombstone: str | None) -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.string(), "gone": pa.bool_()})
    form = KeyedForm(MachineForm("upsert", 1), order_by=("v",), tombstone=tombstone)
    rows = [
        (1, "a", False, 0, 1), (1, "a", False, 5, -1), (1, "b", None, 5, 1), (2, "x", None, 5, -1),
        (3, "t", True, 5, 1), (4, "t", True, 5, -1), (5, "u", True, 6, -1), (5, "w", False, 6, 1),
    ]  # fmt: skip
    table = pa.Table.from_pylist([dict(zip(schema.arrow.names, row, strict=True)) for row in rows], schema.arrow)
    events = UpsertEvents(schema, form)
    found = [tuple(row.values()) for row in events.of(table.take([7, 0, 5, 2, 1, 4, 3, 6])).to_pylist()]
    marked = tombstone is not None
    wanted = [
        (1, "a", False, 0, False), (1, "b", None, 5, False), (2, None, None, 5, True), (3, "t", True, 5, marked),
        (4, None, None, 5, True), (5, "w", False, 6, False),
    ]  # fmt: skip
    assert found == [row for row in wanted if not (marked and row[0] == 4)], "a tombstone that goes is no event"
    assert events.of(table.slice(0, 0)).schema == events.schema == events.of(table).schema
    for wrong in ([(1, "a", None, 0, 1), (1, "b", None, 0, 1)], [(1, "a", None, 0, 2)], [(1, "a", None, 0, -2)]):
        several = pa.Table.from_pylist([dict(zip(schema.arrow.names, row, strict=True)) for row in wrong], schema.arrow)
        with pytest.raises(InvalidUsage, match="a key has more than one value"):
            events.of(several)


def test_events_in_memory_are_cut_into_parts_of_about_a_size() -> None:
    rows = to_updates([((n, n), 0, 1) for n in range(10)], SCHEMA)
    for bytes_max, counts in (
        (1, [1] * 10), (rows.nbytes, [10]), (rows.nbytes - 1, [9, 1]), (rows.nbytes // 2, [5, 5]),
    ):  # fmt: skip
        parts = resolution._to_parts(rows, SCHEMA, bytes_max)
        assert [each.rows for each in parts] == counts
        assert all(each.inline for each in parts)


def test_an_explanation_says_all_that_is_read() -> None:
    told = Explanation(
        as_of=7, keyframe=5, direction="forwards", parts=4, bytes=5 << 20, rows=70_000, base_parts=1,
        base_bytes=3 << 20, base_rows=1000, memory=9 << 19, slices=2, columns=("k", "v"), form="diff", filter="(k > 5)",
        pruned={"keyframe": 3, "time": 0, "filter": 1}, index=("v", "k"), index_memory=3 << 19,
    )  # fmt: skip
    lines = [
        "snapshot as of 7, form 'diff', columns ['k', 'v']", "  from the keyframe as of 5, forwards",
        "  keyframe  1 parts, 1,000 rows, 3.0 MiB", "  history   3 parts, 69,000 rows, 2.0 MiB",
        "  slices    2, 4.5 MiB decoded in all", "  pruned    3 parts by keyframe, 1 parts by filter",
        "  filter    (k > 5)", "  index     v, k: 1.5 MiB decoded, in place of the above",
    ]  # fmt: skip
    assert str(told).splitlines() == lines
    bare = replace(told, keyframe=None, pruned={"time": 0}, filter=None, index=None)
    lines[1], lines[5:] = "  from no keyframe", ["  pruned    nothing"]
    assert str(bare).splitlines() == lines


def test_one_row_for_each_key_is_needed_where_there_are_keys() -> None:
    twice = pa.table({"k": [1, 2, 1, 3], "v": [5, 5, 6, 5], "_diff": [1, 1, 1, 2]})
    check_one_row_per_key(twice, PLAIN, "t", "keyed")
    check_one_row_per_key(twice.slice(0, 2), SCHEMA, "t", "keyed")
    check_one_row_per_key(twice.slice(0, 0), SCHEMA, "t", "keyed")
    for rows, key in ((twice, "repeat keys, first of all 1, 3, and"), (twice.slice(3), "first of all 3, and")):
        with pytest.raises(DuplicateKeys, match=key):
            check_one_row_per_key(rows, SCHEMA, "t", "keyed")
