"""Each machine in the box against a few lines for one key, in whatever steps the events are taken."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persist.core.keyed.machine import Machine, Replacing
from persist.core.keyed.machines import BOXED
from persist.errors import BeforeDiffers, InvalidUpdate, InvalidUsage, SchemaMismatch
from persist.events import AppendDistinct, Checked, History, InsertIfAbsent, PerKey, Sessions
from tests.core.keyed.machines.models import KeyEvent, by_machine, by_rule, schema_of

KEYS, TIMES = st.integers(0, 3), st.integers(0, 9)
CUTS = st.lists(st.integers(0, 10), max_size=3)
VALUES = st.tuples(st.sampled_from([None, 0, 1]), st.sampled_from(["a", "b"]))
EVENTS = st.lists(st.tuples(KEYS, st.none() | VALUES, TIMES), max_size=40)
TWO = schema_of(a=pa.int64(), b=pa.string())


@given(EVENTS, CUTS, st.booleans(), st.booleans())
def test_an_upsert_replaces_a_value_that_is_not_above_it(
    events: list[KeyEvent], cuts: list[int], is_ordered: bool, keeps: bool
) -> None:
    def rank(value: Any) -> Any:
        return (value[0] is not None, value[0] or 0) if is_ordered else 0

    def rule(held: list[Any], value: Any, time: int) -> list[Any]:
        return held if held and value is not None and rank(value) < rank(held[0]) else [] if value is None else [value]

    # Deletions are rows where there are tombstones, and so have an order.
    some = sorted(
        (e for e in events if e[1] is not None or not (is_ordered or keeps)), key=lambda e: (e[2], rank(e[1]))
    )
    machine = Replacing(["a"] if is_ordered else [], has_tombstone=keeps)
    assert by_machine(machine, TWO, some, cuts) == by_rule(some, rule)


def test_an_upsert_takes_rows_once_each_though_as_many_come_as_there_are() -> None:
    a, b, c = (0, "a"), (1, "b"), (2, "c")
    events: list[KeyEvent] = [(0, a, 0), (0, b, 1), (0, c, 2), (1, None, 1)]
    wanted = {(0, a, 0): 1, (0, a, 1): -1, (0, b, 1): 1, (0, b, 2): -1, (0, c, 2): 1}
    for cuts in ([], [1], [2]):
        assert by_machine(Replacing(), TWO, events, cuts) == wanted
    assert (Replacing.name, Replacing.version, Replacing.has_one_value) == ("upsert", 1, True)


@given(EVENTS, CUTS)
def test_insert_if_absent_keeps_the_first_value_until_it_is_deleted(events: list[KeyEvent], cuts: list[int]) -> None:
    def rule(held: list[Any], value: Any, time: int) -> list[Any]:
        return [] if value is None else held or [value]

    assert by_machine(InsertIfAbsent(), TWO, events, cuts) == by_rule(events, rule)


@given(EVENTS, CUTS, st.sampled_from([None, ["a"], ["b", "a"]]))
def test_append_distinct_adds_what_is_not_there(events: list[KeyEvent], cuts: list[int], by: list[str] | None) -> None:
    def rule(held: list[Any], value: Any, time: int) -> list[Any]:
        known = [one[:1] if by == ["a"] else one for one in held]
        new = value is not None and (value[:1] if by == ["a"] else value) not in known
        return [] if value is None else [*held, *([value] if new else [])]

    assert by_machine(AppendDistinct(by), TWO, events, cuts) == by_rule(events, rule)


def test_each_of_several_deletions_takes_what_was_appended_since_the_one_before() -> None:
    a, b = (0, "a"), (1, "b")
    events: list[KeyEvent] = [
        (0, a, 0), (0, None, 1), (0, a, 2), (0, b, 2), (0, None, 3), (0, b, 4),
        (1, b, 0), (1, b, 1), (2, a, 0), (2, None, 4), (2, None, 5), (2, b, 6), (2, None, 7),
    ]  # fmt: skip
    wanted = {
        (0, a, 0): 1, (0, a, 1): -1, (0, a, 2): 1, (0, b, 2): 1, (0, a, 3): -1, (0, b, 3): -1, (0, b, 4): 1,
        (1, b, 0): 1, (2, a, 0): 1, (2, a, 4): -1, (2, b, 6): 1, (2, b, 7): -1,
    }  # fmt: skip
    for cuts in ([], [1], [2], [3], [1, 4], [5, 7]):
        assert by_machine(AppendDistinct(), TWO, events, cuts) == wanted, cuts


def test_a_key_is_inserted_anew_after_each_deletion_and_no_other_time() -> None:
    a, b = (0, "a"), (1, "b")
    events: list[KeyEvent] = [
        (0, a, 0), (0, b, 1), (0, None, 2), (0, None, 3), (0, b, 4), (0, None, 5), (0, a, 5),
        (1, None, 0), (1, b, 2), (1, None, 2), (2, a, 3), (2, b, 4),
    ]  # fmt: skip
    wanted = {(0, a, 0): 1, (0, a, 2): -1, (0, b, 4): 1, (0, b, 5): -1, (0, a, 5): 1, (2, a, 3): 1}
    for cuts in ([], [1], [2], [3], [5], [2, 4]):
        assert by_machine(InsertIfAbsent(), TWO, events, cuts) == wanted, cuts


@given(EVENTS, CUTS)
def test_history_keeps_every_value_with_its_interval(events: list[KeyEvent], cuts: list[int]) -> None:
    def rule(held: list[Any], value: Any, time: int) -> list[Any]:
        (valid, *_) = [*(one for one in held if one[3] is None), None]
        if value == (None if valid is None else valid[:2]):
            return held
        ended = [] if valid is None or valid[2] == time else [(*valid[:3], time)]
        return [
            *(one for one in held if one[3] is not None),
            *ended,
            *([] if value is None else [(*value, time, None)]),
        ]

    # Of several events of one time the last counts: what the others would have begun never was.
    last = {(key, time): (key, value, time) for key, value, time in events}
    schema = schema_of(a=pa.int64(), b=pa.string(), valid_from=pa.int64(), valid_to=pa.int64())
    assert by_machine(History(), schema, events, cuts) == by_rule([*last.values()], rule)


def test_history_closes_what_stood_and_opens_what_differs() -> None:
    a, b = (0, "a"), (1, "b")
    events: list[KeyEvent] = [
        (0, a, 0), (0, b, 2), (0, b, 3), (0, None, 5), (0, a, 7), (1, a, 1), (1, b, 5), (2, None, 0), (2, b, 5),
        (3, a, 2), (3, b, 2), (3, None, 6), (3, None, 7),
    ]  # fmt: skip
    wanted = {
        (0, (*a, 0, None), 0): 1, (0, (*a, 0, None), 2): -1, (0, (*a, 0, 2), 2): 1, (0, (*b, 2, None), 2): 1,
        (0, (*b, 2, None), 5): -1, (0, (*b, 2, 5), 5): 1, (0, (*a, 7, None), 7): 1,
        (1, (*a, 1, None), 1): 1, (1, (*a, 1, None), 5): -1, (1, (*a, 1, 5), 5): 1, (1, (*b, 5, None), 5): 1,
        (2, (*b, 5, None), 5): 1, (3, (*b, 2, None), 2): 1, (3, (*b, 2, None), 6): -1, (3, (*b, 2, 6), 6): 1,
    }  # fmt: skip
    schema = schema_of(a=pa.int64(), b=pa.string(), valid_from=pa.int64(), valid_to=pa.int64())
    for cuts in ([], [1], [2], [3], [5], [6], [2, 5], [3, 7]):
        assert by_machine(History(), schema, events, cuts) == wanted, cuts


MOMENTS = st.one_of(st.integers(0, 60), st.sampled_from([-(2**63), 2**63 - 1]))


@given(
    st.lists(st.tuples(KEYS, st.none() | st.tuples(MOMENTS, st.none() | st.integers(-5, 5)), TIMES), max_size=40),
    CUTS,
    st.integers(0, 6),
)
def test_sessions_join_what_is_close(events: list[KeyEvent], cuts: list[int], gap: int) -> None:
    def rule(held: list[Any], value: Any, time: int) -> list[Any]:
        if value is None:
            return []
        joined: list[Any] = []
        for one in sorted([*held, (value[0], value[0], 1, value[1] or 0)]):
            if joined and one[0] - joined[-1][1] <= gap:
                last = joined.pop()
                one = (last[0], max(last[1], one[1]), last[2] + one[2], last[3] + one[3])
            joined.append(one)
        return joined

    schema = schema_of(start=pa.int64(), end=pa.int64(), events=pa.int64(), amount=pa.int64())
    assert by_machine(Sessions(gap), schema, events, cuts) == by_rule(events, rule)


def test_a_deletion_ends_the_sessions_that_were_there_and_those_of_no_other_key() -> None:
    schema = schema_of(start=pa.int64(), end=pa.int64(), events=pa.int64())
    events: list[KeyEvent] = [(0, (10,), 0), (1, (10,), 0), (0, None, 3), (1, (11,), 3)]
    assert by_machine(Sessions(2), schema, events, [3]) == {
        (0, (10, 10, 1), 0): 1,
        (0, (10, 10, 1), 3): -1,
        (1, (10, 10, 1), 0): 1,
        (1, (10, 10, 1), 3): -1,
        (1, (10, 11, 2), 3): 1,
    }


def test_sessions_that_reach_beyond_the_next_moments_take_these_in() -> None:
    schema = schema_of(start=pa.int64(), end=pa.int64(), events=pa.int64())
    chain: list[KeyEvent] = [(0, (moment,), 0) for moment in (0, 100, 108, 116, 124)]
    later: list[KeyEvent] = [(0, (110,), 5), (0, (133,), 5)]
    assert by_machine(Sessions(10), schema, [*chain, *later], [5]) == {
        (0, (0, 0, 1), 0): 1,
        (0, (100, 124, 4), 0): 1,
        (0, (100, 124, 4), 5): -1,
        (0, (100, 133, 6), 5): 1,
    }


def test_what_sessions_sum_up_may_be_missing_from_an_event() -> None:
    schema = schema_of(start=pa.int64(), end=pa.int64(), events=pa.int64(), amount=pa.int64())
    assert [(field.name, field.nullable) for field in Sessions(5).event_fields(schema)] == [
        ("at", False),
        ("amount", True),
    ]


IMAGES = st.none() | st.sampled_from([{"x": 0.0}, {"x": 1.0}, {"x": None}])
CHANGES = st.lists(
    st.tuples(KEYS, st.none() | st.tuples(st.sampled_from([0.0, 1.0, None]), IMAGES), TIMES), max_size=30
)


def checked_rule(policy: str, created_absent: bool) -> Any:
    def rule(held: list[Any], value: Any, time: int) -> list[Any]:
        after, image = (None, None) if value is None else value
        before = {"x": held[0][0]} if held else None
        unchecked = image is None and (value is None or not created_absent)
        if not unchecked and image != before:
            if policy == "fail":
                raise BeforeDiffers(0, time, image, before)
            if policy == "skip":
                return held
        return [] if value is None else [(after,)]

    return rule


@given(CHANGES, CUTS, st.sampled_from(["skip", "trust"]), st.booleans())
def test_what_differs_from_its_image_is_skipped_or_trusted(
    events: list[KeyEvent], cuts: list[int], policy: Any, created_absent: bool
) -> None:
    machine = Checked(policy, created_absent=created_absent)
    expected = by_rule(events, checked_rule(policy, created_absent))
    assert by_machine(machine, schema_of(x=pa.float64()), events, cuts) == expected


@given(CHANGES, CUTS, st.booleans())
def test_what_differs_from_its_image_fails_and_nothing_else_does(
    events: list[KeyEvent], cuts: list[int], created_absent: bool
) -> None:
    machine, schema = Checked(created_absent=created_absent), schema_of(x=pa.float64())
    try:
        expected = by_rule(events, checked_rule("fail", created_absent))
    except BeforeDiffers:
        with pytest.raises(BeforeDiffers, match="Nothing of this was resolved"):
            by_machine(machine, schema, events, cuts)
    else:
        assert by_machine(machine, schema, events, cuts) == expected


def test_a_difference_names_the_key_the_time_and_both_rows() -> None:
    events: list[KeyEvent] = [(7, (1.0, None), 1), (7, (2.0, {"x": 1.0}), 2), (7, (3.0, {"x": 1.0}), 5)]
    for cuts in ([], [2], [5]):
        with pytest.raises(BeforeDiffers) as raised:
            by_machine(Checked(), schema_of(x=pa.float64()), events, cuts)
        error = raised.value
        assert (error.key, error.time, error.said, error.held) == (7, 5, {"x": 1.0}, {"x": 2.0})


def test_an_image_is_equal_to_the_row_that_is_there_as_rows_are_elsewhere() -> None:
    nan = float("nan")
    events: list[KeyEvent] = [
        (1, (nan, None), 1),
        (1, (-0.0, {"x": nan}), 2),
        (1, (None, {"x": 0.0}), 3),
        (1, (1.0, {"x": None}), 4),
    ]
    changes = by_machine(Checked(), schema_of(x=pa.float64()), events, [])
    assert changes[1, (1.0,), 4] == 1
    assert sum(changes.values()) == 1


@given(EVENTS, CUTS)
def test_a_python_function_of_one_key_is_a_machine(events: list[KeyEvent], cuts: list[int]) -> None:
    def two_latest(held: list[Any], value: Any, time: int) -> list[Any]:
        return sorted([*held, value], key=repr)[-2:] if value is not None else []

    machine = PerKey(lambda key, held, event: two_latest(held, event.value, event.time), name="two", version=1)
    assert by_machine(machine, TWO, events, cuts) == by_rule(events, two_latest)


def test_a_python_function_may_take_other_fields_than_it_gives() -> None:
    def total(key: Any, held: list[int], event: Any) -> list[int]:
        return [] if event.value is None else [sum(held) + event.value[0] * event.value[1]]

    fields = {"price": pa.int64(), "count": pa.int64()}
    machine = PerKey(total, name="total", version=2, event=fields, has_one_value=True, options={"of": "price"})
    schema = schema_of(total=pa.int64())
    events: list[KeyEvent] = [(1, (3, 2), 1), (1, (5, 1), 1), (2, (1, 1), 3), (1, None, 4)]
    assert by_machine(machine, schema, events, [2]) == {(1, (11,), 1): 1, (2, (1,), 3): 1, (1, (11,), 4): -1}
    assert (machine.name, machine.version, machine.options) == ("total", 2, {"of": "price"})


def test_a_python_function_tells_a_null_from_a_deletion() -> None:
    def keep(key: Any, held: list[Any], event: Any) -> list[Any]:
        return [] if event.is_deletion else [event.value]

    machine = PerKey(keep, name="keep", version=1)
    events: list[KeyEvent] = [(1, (None,), 1), (2, (5,), 1), (2, None, 2)]
    assert by_machine(machine, schema_of(v=pa.int64()), events, []) == {
        (1, (None,), 1): 1,
        (2, (5,), 1): 1,
        (2, (5,), 2): -1,
    }


def test_a_python_function_that_breaks_its_word_is_refused() -> None:
    machine = PerKey(lambda key, held, event: [*held, event.value], name="n", version=1, has_one_value=True)
    with pytest.raises(InvalidUpdate, match="gives 2 values for the key 1 at time 2"):
        by_machine(machine, TWO, [(1, (0, "a"), 1), (1, (1, "a"), 2)], [])
    with pytest.raises(InvalidUsage, match="are not JSON"):
        PerKey(lambda key, held, event: held, name="n", version=1, options={"of": {1}})


MACHINES: list[Machine] = [
    InsertIfAbsent(),
    AppendDistinct(),
    AppendDistinct(["a"]),
    History("f", "t"),
    Sessions(5, at="moment"),
    Checked("skip", created_absent=True),
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_machine_in_the_box_is_made_again_from_what_is_stored_of_it(machine: Machine) -> None:
    again = BOXED[machine.name, machine.version](machine.options)
    assert type(again) is type(machine)
    assert again.options == machine.options
    assert isinstance(again, Machine)


@pytest.mark.parametrize(
    ("machine", "value", "problem"),
    [
        (History(), {"a": pa.int64()}, "'valid_from'"),
        (History("f", "f"), {"f": pa.int64()}, "both 'f'"),
        (History("f", "t"), {"f": pa.int64(), "t": pa.timestamp("us")}, "must be int64, not timestamp"),
        (AppendDistinct(["id"]), {"a": pa.int64()}, "'id' is not one of"),
        (Sessions(1), {"start": pa.int64()}, "'end'"),
        (Sessions(1), {"start": pa.int64(), "end": pa.int32(), "events": pa.int64()}, "both must be int64"),
        (Sessions(1), {"start": pa.date32(), "end": pa.date32(), "events": pa.int64()}, "both must be int64"),
        (Sessions(1), {"start": pa.int64(), "end": pa.int64(), "events": pa.float64()}, "it must be int64"),
        (
            Sessions(1),
            {"start": pa.int64(), "end": pa.int64(), "events": pa.int64(), "x": pa.float64()},
            "'x' is summed up",
        ),
        (Checked(), {}, "without value columns"),
    ],
)
def test_a_collection_that_a_machine_does_not_fit_is_refused(
    machine: Machine, value: dict[str, pa.DataType], problem: str
) -> None:
    with pytest.raises(SchemaMismatch, match=problem):
        machine.event_fields(schema_of(**value))


REFUSED = [lambda: Sessions(-1), lambda: Sessions(2**64), lambda: Sessions(True)]


@pytest.mark.parametrize("make", [*REFUSED, lambda: Checked("maybe")])  # type: ignore[arg-type]
def test_a_machine_refuses_options_that_it_does_not_know(make: Any) -> None:
    with pytest.raises(InvalidUsage):
        make()


def test_sessions_of_moments_keep_their_type_and_refuse_what_has_none() -> None:
    kind = pa.timestamp("us", "UTC")
    schema = schema_of(start=kind, end=kind, events=pa.int64())
    machine = Sessions(1_000_000)
    assert machine.event_fields(schema) == (pa.field("at", kind, nullable=False),)
    with pytest.raises(InvalidUpdate, match="belongs to no session"):
        by_machine(machine, schema, [(1, (None,), 1)], [])


def test_a_sum_that_does_not_fit_raises_and_never_wraps() -> None:
    schema = schema_of(start=pa.int64(), end=pa.int64(), events=pa.int64(), amount=pa.int64())
    with pytest.raises(InvalidUpdate, match="too large"):
        by_machine(Sessions(1), schema, [(1, (0, 2**62), 1), (1, (1, 2**62), 1)], [])
