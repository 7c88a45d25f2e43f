"""Window functions and folds against a model that looks at each row by itself, and large partitions against small ones.

The model below sorts a partition, walks over its rows, and collects the rows of each frame one by one. The kernels are
called as a reduction calls them, with random partitions of a few rows, in which values and NULLs meet.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from persist.codecs.errors import DiffOverflow
from persist.compute.dataflow.operators.large_groups import Group
from persist.compute.dataflow.operators.ranked_windows import make_window_ranking
from persist.compute.dataflow.operators.windows import make_window_logic
from persist.compute.dataflow.plan.plan import Bound, WindowFunction
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.updates.words import Domain

Row: TypeAlias = dict[str, Any]
SCHEMA = pa.schema(
    {
        "x": pa.int64(), "y": pa.string(), "v": pa.int64(), "f": pa.float64(), "m": pa.decimal128(12, 2),
        "w": pa.bool_(), "low": pa.int64(), "high": pa.int64(),
    }
)  # fmt: skip
NUMBERS = {"v": pa.decimal128(38, 0), "f": pa.float64(), "m": pa.decimal128(38, 2)}  # And what their sums are.
ODD = [math.nan, math.inf, -math.inf]


def row_of(chance: random.Random, odd: float) -> Row:
    def some(*values: Any) -> Any:
        return None if chance.random() < 0.15 else chance.choice(values)

    return {
        "x": some(0, 1, 2, 3), "y": some("a", "b"), "v": some(-2, 0, 1, 5), "w": some(True, False),
        "f": some(*ODD) if chance.random() < odd else some(-1.5, 0.1, 0.2, 1e300, 5e-324),
        "m": some(Decimal("1.25"), Decimal("-3.00")),
        "low": some(0, 1, 2), "high": some(1, 2, 3),
    }  # fmt: skip


class _Down:
    """A value in the opposite order."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and bool(self.value == other.value)

    def __lt__(self, other: "_Down") -> bool:
        return bool(other.value < self.value)


def key(value: Any, down: bool, first: bool) -> tuple[Any, ...]:
    if value is None:
        return (0 if first else 2,)
    if isinstance(value, float):
        value = (math.isnan(value), 0.0 if math.isnan(value) else value)
    return 1, _Down(value) if down else value


def ordered(rows: list[Row], by: Sequence[tuple[str, bool, bool]]) -> list[Row]:
    """Return rows in an order, of which all columns decide what it leaves open."""
    every = [*by, *((name, False, False) for name in SCHEMA.names)]
    return sorted(rows, key=lambda row: [key(row[name], down, first) for name, down, first in every])


def frame(call: WindowFunction, rows: list[Row], at: int) -> list[int]:
    """Return the places of the rows of a row's frame, in a partition in order."""
    keys = [[key(row[name], down, first) for name, down, first in call.by] for row in rows]
    groups = [[*places] for _, places in groupby(range(len(rows)), key=lambda place: keys[place])]
    own = next(number for number, group in enumerate(groups) if at in group)

    def is_inside(place: int, bound: Bound, column: str, sign: int) -> bool:
        if bound is None:
            return True
        mode, offset = bound
        if mode == "rows":
            return sign * (place - at - offset) <= 0
        if mode == "value":
            [(_, down, first)] = call.by
            wanted = [key(rows[at][column], down, first)]
            return keys[place] == wanted or (keys[place] < wanted) == (sign > 0)
        theirs = next(number for number, group in enumerate(groups) if place in group)
        return sign * (theirs - own - offset) <= 0

    inside = [
        place
        for place in range(len(rows))
        if is_inside(place, call.start, call.start_at, -1) and is_inside(place, call.end, call.end_at, 1)
    ]
    match call.exclude:
        case "current row":
            inside = [place for place in inside if place != at]
        case "group":
            inside = [place for place in inside if place not in groups[own]]
        case "ties":
            inside = [place for place in inside if place == at or place not in groups[own]]
    return inside


def total(values: list[Any]) -> Any:
    """Return a sum that is exact up to the last step."""
    if not values:
        return None
    if not isinstance(values[0], float):
        return sum(values)
    odd = [value for value in values if not math.isfinite(value)]
    return sum(odd) if odd else float(sum(map(Fraction, values)))


def mean(values: list[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], float) and not all(map(math.isfinite, values)):
        return total(values)
    return float(sum(map(Fraction, values)) / len(values))


def expected(call: WindowFunction, rows: list[Row], at: int) -> Any:
    """Return what a function says of a row of a partition in order."""
    size, name = len(rows), call.function
    keys = [[key(row[column], down, first) for column, down, first in call.by] for row in rows]
    below, equal = sum(each < keys[at] for each in keys), keys.count(keys[at])
    match name:
        case "row_number":
            return at + 1
        case "rank":
            return below + 1
        case "dense_rank":
            return len([*groupby(keys[: at + 1])])
        case "percent_rank":
            return below / (size - 1) if size > 1 else 0.0
        case "cume_dist":
            return (below + equal) / size
        case "ntile":
            sizes = [size // call.number + (tile < size % call.number) for tile in range(call.number)]
            return [tile + 1 for tile, count in enumerate(sizes) for _ in range(count)][at]
        case "lag" | "lead":
            sign = -call.number if name == "lag" else call.number
            [column, *default] = call.arguments
            others = [place for place in range(size) if not call.ignores_nulls or rows[place][column] is not None]
            if call.ignores_nulls and sign:
                beyond = [place for place in others if (place - at) * sign > 0]
                beyond = beyond[::-1] if sign < 0 else beyond
                return (
                    rows[beyond[abs(sign) - 1]][column] if len(beyond) >= abs(sign) else read_default(rows[at], default)
                )
            return rows[at + sign][column] if 0 <= at + sign < size else read_default(rows[at], default)
    inside = [rows[place] for place in frame(call, rows, at)]
    if call.where:
        inside = [row for row in inside if row[call.where]]
    if call.within:
        inside = sorted(inside, key=lambda row: [key(row[column], down, first) for column, down, first in call.within])
    values: list[Any] = [tuple(row[column] for column in call.arguments) for row in inside]
    if call.ignores_nulls or name not in ("first_value", "last_value", "nth_value", "list", "count_star"):
        values = [value for value in values if None not in value]
    if call.is_distinct:
        values = [*dict.fromkeys(values)]
    if name == "count_star" or name == "count":
        return len(values)
    firsts = [value[0] for value in values]
    match name:
        case "first_value":
            return firsts[0] if firsts else None
        case "last_value":
            return firsts[-1] if firsts else None
        case "nth_value":
            return firsts[call.number - 1] if len(firsts) >= call.number else None
        case "sum":
            return total(firsts)
        case "avg":
            return mean(firsts)
        case "min" | "bool_and":
            return min(firsts, key=lambda value: key(value, False, False), default=None)
        case "max" | "bool_or":
            return max(firsts, key=lambda value: key(value, False, False), default=None)
        case "list":
            return firsts or None
        case "string_agg":
            return call.constants[0].join(firsts) if firsts else None
        case "mode":
            return max(firsts, key=firsts.count, default=None)
        case "arg_min" | "arg_max":
            pick = min if name == "arg_min" else max
            return pick(values, key=lambda value: key(value[1], False, False), default=(None,))[0]
    raise AssertionError(name)


def read_default(row: Row, default: list[str]) -> Any:
    return row[default[0]] if default else None


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value if isinstance(value, bool) or not isinstance(value, int | Decimal) else Fraction(value)


def words_of(domain: Domain, rows: list[Row]) -> Any:
    columns = [domain.encode(pa.array([row[field.name] for row in rows], field.type)) for field in SCHEMA]
    return np.array(columns, np.int64).reshape(len(SCHEMA), len(rows))


def shown(domain: Domain, words: Any, calls: Sequence[WindowFunction]) -> list[tuple[Any, ...]]:
    """Return records of the output as tuples of values."""
    kinds = [*SCHEMA.types, *(call.result for call in calls)]
    columns = [domain.decode(column, kind).to_pylist() for column, kind in zip(words, kinds, strict=True)]
    return [tuple(map(repr, map(comparable, record))) for record in zip(*columns, strict=True)]


def model(call: WindowFunction, parts: list[list[Row]]) -> Counter[tuple[Any, ...]]:
    made = Counter[tuple[Any, ...]]()
    for part in parts:
        rows = ordered(part, call.by)
        for at, row in enumerate(rows):
            record = (*row.values(), expected(call, rows, at))
            made[tuple(map(repr, map(comparable, (*(row[name] for name in SCHEMA.names), record[-1]))))] += 1
    return made


OF_PLACE = [
    *(WindowFunction("r", name, pa.int64()) for name in ("row_number", "rank", "dense_rank")),
    *(WindowFunction("r", name, pa.float64()) for name in ("percent_rank", "cume_dist")),
    *(WindowFunction("r", "ntile", pa.int64(), number=number) for number in (1, 2, 3, 9)),
    *(
        WindowFunction("r", name, SCHEMA.field(arguments[0]).type, arguments, number, ignores_nulls=ignores)
        for name in ("lag", "lead")
        for arguments in (("v",), ("y",), ("v", "x"))
        for number in (0, 1, 2, -1)
        for ignores in (False, True)
    ),
]
OF_FRAMES = [
    WindowFunction("r", "count_star", pa.int64()),
    *(WindowFunction("r", "count", pa.int64(), (name,)) for name in ("v", "y", "f")),
    *(WindowFunction("r", "sum", result, (name,)) for name, result in NUMBERS.items()),
    WindowFunction("r", "sum", pa.int64(), ("v",)),
    *(WindowFunction("r", "avg", pa.float64(), (name,)) for name in NUMBERS),
    *(WindowFunction("r", how, SCHEMA.field(name).type, (name,)) for how in ("min", "max") for name in "vyfm"),
    *(WindowFunction("r", how, pa.bool_(), ("w",)) for how in ("bool_and", "bool_or")),
    *(WindowFunction("r", how, pa.int64(), ("v",)) for how in ("first_value", "last_value")),
    *(WindowFunction("r", "nth_value", pa.string(), ("y",), number) for number in (1, 2, 3)),
]
FOLDED = [
    WindowFunction("r", "list", pa.list_(pa.int64()), ("v",)),
    WindowFunction("r", "string_agg", pa.string(), ("y",), constants=("|",)),
    *(WindowFunction("r", name, pa.int64(), ("v", "m")) for name in ("arg_min", "arg_max")),
]
BOUNDS: list[Bound] = [
    None,
    ("range", 0),
    *(("rows", at) for at in (-2, -1, 0, 1, 2)),
    *(("groups", at) for at in (-1, 0, 1)),
]
ORDERS: list[tuple[tuple[str, bool, bool], ...]] = [
    (), (("x", False, False),), (("x", True, False),), (("x", False, True),), (("x", True, True), ("y", False, False)),
    (("y", True, False),),
]  # fmt: skip


def drawn(call: WindowFunction, chance: random.Random, *, is_plain: bool = False) -> WindowFunction:
    """Return a function with a frame, an order, and what else it may have, all drawn."""
    by = chance.choice(ORDERS)
    if call in OF_PLACE:
        return replace(call, by=by)
    start, end = chance.choice(BOUNDS), chance.choice(BOUNDS)
    call = replace(call, by=by, start=start, end=end)
    if len(by) == 1 and by[0][0] == "x" and chance.random() < 0.3:
        call = replace(call, start=("value", 0), start_at="low", end=chance.choice([("value", 0), None]), end_at="high")
    if is_plain:
        return call
    exclude = chance.choice(["", "", "current row", "group", "ties"])
    where, ignores = chance.choice(["", "", "w"]), chance.random() < 0.3
    is_distinct = call.function in ("count", "sum", "avg", "list") and chance.random() < 0.3
    call = replace(call, exclude=exclude, where=where, ignores_nulls=ignores, is_distinct=is_distinct)
    if call.function in ("list", "string_agg", "first_value") and chance.random() < 0.4:
        # All that it gives is in the order, so ties are of equal values.
        call = replace(call, within=((call.arguments[0], chance.random() < 0.5, chance.random() < 0.5),))
    return call


def check(call: WindowFunction, parts: list[list[Row]], costs: Costs = USUAL) -> None:
    domain = Domain()
    groups = np.arange(len(parts)).repeat([len(part) for part in parts])
    words = words_of(domain, [row for part in parts for row in part])
    owners, made, diffs = make_window_logic([call], SCHEMA, domain, costs)(
        groups, words, np.ones(len(groups), np.int64), None
    )
    assert owners.tolist() == groups.tolist()
    assert diffs.tolist() == [1] * len(groups)
    assert Counter(shown(domain, made, [call])) == model(call, parts), call


@pytest.mark.parametrize("seed", range(3))
def test_a_function_of_a_place_or_of_a_frame_says_what_a_look_at_each_row_says(seed: int) -> None:
    chance = random.Random(seed)
    for call in [*OF_PLACE, *OF_FRAMES]:
        parts = [[row_of(chance, 0.3 * (seed % 2)) for _ in range(size)] for size in (chance.randint(1, 7), 3)]
        check(drawn(call, chance, is_plain=True), parts)
    check(WindowFunction("r", "ntile", pa.int64(), number=2), [])


@pytest.mark.parametrize("seed", range(2))
def test_rows_that_are_left_out_put_in_an_order_or_taken_once_count_so_for_each_frame(seed: int) -> None:
    chance = random.Random(100 + seed)
    for call in [*OF_FRAMES, *FOLDED] * 2:
        parts = [[row_of(chance, 0.2 * (seed % 2)) for _ in range(size)] for size in (chance.randint(1, 6), 2)]
        check(drawn(call, chance), parts, Costs(frame_rows=3))


def test_a_record_is_as_many_rows_as_it_is_there() -> None:
    domain, chance = Domain(), random.Random(0)
    rows = [row_of(chance, 0) for _ in range(3)]
    call = WindowFunction("r", "row_number", pa.int64())
    diffs = np.array([3, -2, 1])
    owners, made, counts = make_window_logic([call], SCHEMA, domain)(
        np.zeros(3, np.int64), words_of(domain, rows), diffs, None
    )
    assert Counter(shown(domain, made, [call])) == model(call, [[rows[0], rows[0], rows[0], rows[2]]])
    assert (owners.tolist(), counts.tolist()) == ([0] * 4, [1] * 4)


def test_what_no_result_can_hold_is_refused() -> None:
    domain, chance = Domain(), random.Random(0)
    rows = [row_of(chance, 0) | {"m": Decimal("9999999999.99")} for _ in range(2)]
    words, every = words_of(domain, rows), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match=r"ntile\(0\) is of no tiles: give a number of at least 1"):
        make_window_logic([WindowFunction("r", "ntile", pa.int64(), number=0)], SCHEMA, domain)(
            every, words, every + 1, None
        )
    for digits, fits in ((12, False), (13, True)):
        call = WindowFunction("r", "sum", pa.decimal128(digits, 2), ("m",))
        if fits:
            _, made, _ = make_window_logic([call], SCHEMA, domain)(every, words, every + 1, None)
            assert shown(domain, made, [call])[0][-1] == repr(Fraction("19999999999.98"))
            continue
        with pytest.raises(DiffOverflow, match="needs more than the digits of decimal"):
            make_window_logic([call], SCHEMA, domain)(every, words, every + 1, None)


def test_sums_of_wide_decimals_lose_no_digit() -> None:
    schema, domain = pa.schema({"h": pa.decimal128(38, 1)}), Domain()
    values = [Decimal("1234567890123456789012345678901234567.5"), Decimal("0.1"), None]
    words = domain.encode(pa.array(values, schema.field("h").type))[None]
    for function, kind, wanted in (
        ("sum", pa.decimal128(38, 1), Decimal("1234567890123456789012345678901234567.6")),
        ("avg", pa.float64(), 12345678901234567890123456789012345676 / 20),
    ):
        call = WindowFunction("r", function, kind, ("h",))
        _, made, _ = make_window_logic([call], schema, domain)(np.zeros(3, np.int64), words, np.ones(3, np.int64), None)
        assert domain.decode(made[-1], kind).to_pylist() == [wanted] * 3


def test_sums_of_frames_are_exact_whatever_their_size() -> None:
    schema = pa.schema({"u": pa.uint64(), "h": pa.decimal128(38, 1), "d": pa.decimal256(60, 1), "g": pa.float32()})
    rows: list[Row] = [
        {"u": 2**64 - 1, "h": Decimal(10**36), "d": Decimal(10**50), "g": 0.5},
        {"u": 1, "h": None, "d": Decimal("0.5"), "g": None},
        {"u": None, "h": Decimal("-0.1"), "d": None, "g": 2.0**-126},
    ]
    domain = Domain()
    words = np.array([domain.encode(pa.array([row[field.name] for row in rows], field.type)) for field in schema])
    groups, ones = np.zeros(3, np.int64), np.ones(3, np.int64)
    wanted = {
        ("sum", "u", pa.decimal128(38, 0)): Decimal(2**64),
        ("avg", "u", pa.float64()): float(2**63),
        ("sum", "h", pa.decimal128(38, 1)): Decimal("999999999999999999999999999999999999.9"),
        ("avg", "h", pa.float64()): 5e35,
        ("sum", "d", pa.decimal256(60, 1)): Decimal(f"1{'0' * 50}.5"),
        ("avg", "d", pa.float64()): 5e49,
        ("sum", "g", pa.float64()): 0.5 + 2.0**-126,
        ("avg", "g", pa.float64()): (0.5 + 2.0**-126) / 2,
    }
    for (function, column, kind), value in wanted.items():
        call = WindowFunction("r", function, kind, (column,))
        _, made, _ = make_window_logic([call], schema, domain)(groups, words, ones, None)
        assert domain.decode(made[-1], kind).to_pylist() == [value] * 3, (function, column)


# ---- Large partitions, of which a change looks at some rows


def changed_by(group: Group, domain: Domain, rows: list[Row], diffs: list[int], call: Any) -> Counter[tuple[Any, ...]]:
    records, changes = group.apply_changes(words_of(domain, rows), np.array(diffs, np.int64))
    made = Counter[tuple[Any, ...]]()
    for record, diff in zip(shown(domain, records, [call]), changes.tolist(), strict=True):
        made[record] += diff
    return Counter({record: diff for record, diff in made.items() if diff})


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("block", [2, 3])
def test_a_change_of_a_large_partition_changes_what_the_model_says(block: int) -> None:
    costs = Costs(block_rows=block, window_rows=2)
    chance, tried = random.Random(block), 0
    for function in [*OF_PLACE[::3], *OF_FRAMES, *OF_FRAMES]:
        call = drawn(function, chance, is_plain=True)
        domain, held = Domain(), Counter[int]()
        pool = [row_of(chance, 0.1) for _ in range(14)]
        for _ in range(10):
            held[chance.randrange(len(pool))] += 1
        ranking = make_window_ranking([call], SCHEMA, domain, costs)
        if ranking is None:
            continue
        tried += 1
        group = ranking(words_of(domain, [pool[at] for at in held]), np.array([*held.values()], np.int64))
        before = model(call, [[pool[at] for at, count in held.items() for _ in range(count)]])
        for _ in range(4):
            places = [chance.randrange(len(pool)) for _ in range(chance.choice([1, 1, 2, 3]))]
            diffs = [chance.choice([1, 1, -1]) for _ in places]
            for at, diff in zip(places, diffs, strict=True):
                held[at] += diff
            after = model(call, [[pool[at] for at, count in held.items() for _ in range(count)]])
            want = Counter({record: after[record] - before[record] for record in {*before, *after}})
            have = changed_by(group, domain, [pool[at] for at in places], diffs, call)
            assert have == Counter({record: diff for record, diff in want.items() if diff}), call
            before = after
    assert tried > 20


RUNNING: list[tuple[Bound, Bound]] = [
    (None, ("rows", 0)), (None, ("range", 0)), (("rows", 0), None), (("range", 0), ("rows", 2)), (None, ("rows", -1)),
]  # fmt: skip


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("function", [case for case in OF_FRAMES if case.arguments in ((), ("v",), ("f",))])
def test_running_functions_of_a_large_partition_follow_its_first_and_its_last_rows(function: WindowFunction) -> None:
    for number, (start, end) in enumerate(RUNNING):
        call, chance = replace(function, by=(("x", False, True),), start=start, end=end), random.Random(number)
        domain = Domain()
        rows = ordered([row_of(chance, 0) for _ in range(6)], call.by)
        ranking = make_window_ranking([call], SCHEMA, domain, Costs(block_rows=2))
        if ranking is None:
            continue
        group = ranking(words_of(domain, rows), np.ones(6, np.int64))
        # The first row goes, and comes back with another value; then the last one does.
        for at, new in ((0, 7), (5, 8)):
            after = [*rows[:at], {**rows[at], "v": new, "f": float(new)}, *rows[at + 1 :]]
            want = Counter(model(call, [after]))
            want.subtract(model(call, [rows]))
            have = changed_by(group, domain, [rows[at], after[at]], [-1, 1], call)
            assert have == Counter({record: diff for record, diff in want.items() if diff}), call
            rows = after


def test_a_function_that_must_look_at_all_of_a_partition_is_not_ranked() -> None:
    by = (("x", False, False),)
    rank = WindowFunction("r", "rank", pa.int64(), by=by)
    ranked: list[list[WindowFunction]] = [
        [rank],
        [rank, WindowFunction("s", "row_number", pa.int64(), by=by)],
        [WindowFunction("r", "lag", pa.int64(), ("v",), 1 << 40, by)],
        [WindowFunction("r", "lead", pa.int64(), ("v",), 1 << 40, by)],
        [WindowFunction("r", "sum", pa.int64(), ("v",), by=by, start=("rows", -(1 << 40)), end=("rows", 1 << 40))],
        [WindowFunction("r", "min", pa.int64(), ("v",), by=by, end=("rows", 0))],
        [WindowFunction("r", "first_value", pa.int64(), ("v",), by=by, end=("rows", 0))],
        [WindowFunction("r", "last_value", pa.int64(), ("v",), by=by, end=("range", 0))],
        [WindowFunction("r", "count_star", pa.int64(), by=by)],
    ]
    whole: list[list[WindowFunction]] = [
        [rank, WindowFunction("s", "row_number", pa.int64())],  # In two orders.
        [WindowFunction("r", "sum", pa.int64(), ("v",), by=by, end=("groups", 1))],
        [WindowFunction("r", "min", pa.int64(), ("v",), by=by)],
        [WindowFunction("r", "max", pa.string(), ("y",), by=by, end=("rows", 0))],  # Texts have no order as words.
        [WindowFunction("r", "first_value", pa.int64(), ("v",), by=by)],
        [WindowFunction("r", "last_value", pa.int64(), ("v",), by=by)],
        [WindowFunction("r", "nth_value", pa.int64(), ("v",), by=by, end=("rows", 0))],
        [WindowFunction("r", "list", pa.list_(pa.int64()), ("v",), by=by)],
        [WindowFunction("r", "count", pa.int64(), ("v",), by=by, exclude="group")],
        [WindowFunction("r", "count", pa.int64(), ("v",), by=by, within=by)],
        [WindowFunction("r", "count", pa.int64(), ("v",), by=by, where="w")],
        [WindowFunction("r", "count", pa.int64(), ("v",), by=by, is_distinct=True)],
        [WindowFunction("r", "count", pa.int64(), ("v",), by=by, ignores_nulls=True)],
    ]
    for calls in ranked:
        assert make_window_ranking(calls, SCHEMA, Domain()) is not None, calls
    for calls in whole:
        assert make_window_ranking(calls, SCHEMA, Domain()) is None, calls
    nested = SCHEMA.append(pa.field("l", pa.list_(pa.int64())))  # Python does not order lists as Arrow does.
    assert make_window_ranking([rank], nested, Domain()) is None
    assert make_window_ranking([WindowFunction("r", "row_number", pa.int64())], pa.schema([]), Domain()) is None
