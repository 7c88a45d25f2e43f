"""What events become, without a client: by the model of groups, by the machine of upserts, and as they are taken."""

from collections import Counter
from datetime import date, datetime, time
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.codecs.order.sums import consolidate
from persist.codecs.types.schema import CollectionSchema
from persist.core.keyed.events import list_unchanged, prepare_events, replace_by_event, resolve_to_updates
from persist.core.keyed.form import build_form
from persist.core.keyed.intake import bound_watermarks, concat_events, mark_below, to_events
from persist.core.keyed.machine import GIVEN, Replacing
from persist.core.keyed.partial import complete_events, to_partial_events
from persist.core.state_rules.keyed_rules import WATERMARK_OF_NULL
from persist.errors import InvalidUpdate, SchemaMismatch
from tests.core.keyed.test_groups import KEYED, VALUE, Model, make_event

KINDS = {int: pa.int64(), bool: pa.bool_(), str: pa.string()}
SCHEMA = CollectionSchema.of({"k": pa.int64()}, {name: KINDS.get(kind, kind) for name, kind in VALUE.items()})
FORM = build_form(persist.Keyed(**KEYED), SCHEMA)


@pytest.mark.thorough(except_every=10)
@pytest.mark.parametrize("first_seed", range(0, 400, 10))
def test_events_of_groups_are_resolved_as_the_model_says(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        random, model, rows = Random(seed), Model(), Counter[str]()
        values = dict[str, dict[str, Any]]()
        for _ in range(3):
            pieces = []
            for _ in range(random.randrange(1, 4)):
                policy = random.choice(["whole", "insert", "ignore"])
                events = [make_event(random, is_whole=policy == "whole") for _ in range(random.randrange(1, 4))]
                timed = [{**event, "_time": model.upper + random.randrange(2)} for event in events]
                for event in timed:
                    model.add({name: event[name] for name in event if name != "_time"}, event["_time"], policy)
                is_whole = policy == "whole"
                missing: Any = policy
                pieces.append(
                    to_events(timed, SCHEMA, FORM, None, None)
                    if is_whole
                    else to_partial_events(timed, SCHEMA, FORM, None, None, missing)
                )
            model.seal(model.upper + 2)
            present = pa.Table.from_pylist(
                [{**values[row], "_time": 0, "_diff": count} for row, count in rows.items() if count], SCHEMA.arrow
            )
            ready = prepare_events(SCHEMA, FORM, concat_events(pieces).table)
            named = present.take(
                pa.array(
                    [n for n, k in enumerate(present["k"].to_pylist()) if k in ready.keys["k"].to_pylist()], pa.int64()
                )
            )
            ready, left = complete_events(ready, named, FORM, "t")
            updates = resolve_to_updates(ready, Replacing(has_tombstone=True), left).to_pylist()
            for time_ in (model.upper - 2, model.upper - 1):
                for update in updates:
                    if update["_time"] == time_:
                        row = {name: update[name] for name in SCHEMA.names}
                        values[repr(row)] = row
                        rows[repr(row)] += update["_diff"]
                assert min(rows.values(), default=0) >= 0
                live = [values[row] for row, count in rows.items() if count and not values[row]["gone"]]
                found = [{**row, "gone": None} for row in sorted(live, key=lambda row: row["k"])]
                assert found == model.history[time_], (seed, time_)


PLAIN = CollectionSchema.of({"k": pa.int64()}, {"a": pa.int64(), "b": pa.string()})
UPSERT = build_form(persist.Keyed(), PLAIN)


def sums(updates: pa.Table) -> list[dict[str, Any]]:
    names = [*PLAIN.names, "_time"]
    return consolidate(updates.select([*names, "_diff"]), names).to_pylist()  # type: ignore[no-any-return]


def test_events_replace_rows_as_the_machine_of_upserts_does() -> None:
    for seed in range(60):
        random = Random(seed)
        rows = [{"k": k, "a": k, "b": "old", "_time": 0, "_diff": 1} for k in range(4) if random.random() < 0.5]
        times = random.choice([[5], [5, 6, 9]])
        events = [
            (random.randrange(5), random.choice([None, (random.randrange(2), "new")]), random.choice(times))
            for _ in range(random.randrange(1, 7))
        ]
        ready = prepare_events(PLAIN, UPSERT, to_events(events, PLAIN, UPSERT, None, None).table)
        keys = {k for k, _, _ in events}
        present = pa.Table.from_pylist([row for row in rows if row["k"] in keys], PLAIN.arrow)
        wanted = sums(resolve_to_updates(ready, Replacing(), present))
        assert sums(replace_by_event(ready, present)) == wanted, seed
        model = {row["k"]: (row["a"], row["b"]) for row in rows}
        for row in sorted(wanted, key=lambda row: (row["_time"], row["_diff"])):
            assert model.get(row["k"]) == (None if row["_diff"] > 0 else (row["a"], row["b"]))
            model[row["k"]] = (row["a"], row["b"]) if row["_diff"] > 0 else None  # type: ignore[assignment]
        last = {k: value for k, value, _ in sorted(events, key=lambda event: event[2])}
        assert {k: model.get(k) for k in keys} == last


LEAST = WATERMARK_OF_NULL
COLUMNS: list[tuple[pa.DataType, list[Any], Any]] = [
    (pa.int8(), [3, -5, 4], (-5, 4)), (pa.uint64(), [3, 2**64 - 1], (3, 2**64 - 1)), (pa.int64(), [7], (7, 7)),
    (pa.int64(), [7, None, 8], (LEAST, 8)), (pa.int64(), [None, None], (LEAST, LEAST)), (pa.int64(), [], None),
    (pa.date32(), [date(1970, 1, 3), date(1970, 1, 2)], (1, 2)), (pa.date64(), [date(1970, 1, 2)], (86_400_000,) * 2),
    (pa.time32("s"), [time(0, 1), None], (LEAST, 60)), (pa.time64("us"), [time(0, 0, 1)], (10**6, 10**6)),
    (pa.timestamp("ms"), [datetime(1970, 1, 1, 0, 0, 2)], (2000, 2000)),
    (pa.float64(), [1.0], None), (pa.string(), ["a"], None), (pa.duration("s"), [5], None), (pa.bool_(), [True], None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "bounds"), COLUMNS)
def test_the_bounds_of_watermarks_and_those_below_a_bound(kind: pa.DataType, values: list[Any], bounds: Any) -> None:
    column = pa.chunked_array([pa.array(values, kind)])
    assert bound_watermarks(column) == bounds
    if bounds is not None:
        numbers = [LEAST if value is None else number for value, number in zip(values, to_numbers(column), strict=True)]
        for bound in {*numbers, *(number + 1 for number in numbers), LEAST, -(2**63) + 1, -200, 2**63 - 1}:
            assert mark_below(column, bound).tolist() == [number < bound for number in numbers], bound


def to_numbers(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    wide = column if pa.types.is_integer(kind) else column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return wide.to_pylist()  # type: ignore[no-any-return]


def test_tables_of_events_are_joined_in_their_order_with_the_bounds_of_all() -> None:
    form = build_form(persist.Keyed(order_by=["a"]), PLAIN)
    tables = [
        to_events([(1, (a, b), 0) for a, b in rows], PLAIN, form, None, None)
        for rows in ([(5, "x"), (2, "y")], [(3, "z")], [(9, "w"), (1, "v")])
    ]
    assert [each.watermarks for each in tables] == [(2, 5), (3, 3), (1, 9)]
    joined = concat_events(tables)
    assert (joined.watermarks, joined.table["b"].to_pylist()) == ((1, 9), ["x", "y", "z", "w", "v"])
    assert joined.table["_seq"].to_pylist() == [0, 1, 2, 3, 4]
    assert concat_events(tables[:1]) is tables[0]
    unordered = [to_events([(1, (1, "x"), 0)], PLAIN, UPSERT, None, None)] * 2
    assert concat_events(unordered).watermarks is None
    nothing = to_events(PLAIN.arrow.empty_table().drop_columns(["_diff"]), PLAIN, form, None, None)
    assert concat_events([nothing, *tables]).watermarks == (1, 9)


THREE = CollectionSchema.of({"k": pa.int64()}, {"a": pa.int64(), "b": pa.int64(), "c": pa.int64()})


def take(names: Any, deleted: Any = None, kind: Any = None) -> Any:
    """Return the texts of events that leave columns as they are, and the names that these say."""
    columns: dict[str, Any] = {"k": range(len(names)), "_time": [0] * len(names)}
    columns |= {name: pa.array([1] * len(names), pa.int64()) for name in THREE.value_names}
    columns |= {"_unchanged": pa.array(names, kind or pa.list_(pa.string()))}
    columns |= {} if deleted is None else {"_deleted": pa.array(deleted, pa.bool_())}
    events = to_events(pa.table(columns), THREE, build_form(persist.Keyed(), THREE), None, None).table
    if GIVEN not in events.column_names:
        return None
    return events[GIVEN].to_pylist(), list_unchanged(events, THREE).to_pylist()


def test_the_columns_that_events_leave_as_they_are_are_written_as_digits() -> None:
    ab = ["a", "b"]
    assert take([["a"], None, ["b", "c"], ["a"], [], ab]) == (
        ["error 011", None, "error 100", "error 011", None, "error 001"],
        [["a"], None, ["b", "c"], ["a"], None, ab],
    )
    assert take([ab, ["c"]]) == (["error 001", "error 110"], [ab, ["c"]])
    assert take([ab, ["c"]], [True, False]) == ([None, "error 110"], [None, ["c"]])
    assert take([["x"], ["c"]], [True, False]) == ([None, "error 110"], [None, ["c"]]), "a deletion changes all"
    whole: list[Any] = [[None, []], [None, None], [["a"], ["b"]]]
    assert [take(names, [True, True]) for names in whole] == [None] * 3
    assert take([None, []]) is take([None], None, pa.null()) is take([[]], None, pa.list_(pa.null())) is None
    assert take([["a"]], None, pa.large_list(pa.large_string())) == (["error 011"], [["a"]])
    for names, said in (
        ([["a"], ["x"]], r"'_unchanged' of row 1 names 'x', which is not a value column\."),
        ([["a"], ["k"]], "row 1 names 'k', which"), ([["b"], [None]], "has NULL, or an empty text"),
        ([["b", ""]], "has NULL, or an empty text"),
    ):  # fmt: skip
        with pytest.raises(SchemaMismatch, match=said):
            take(names)


def test_a_column_that_is_never_null_may_stay_as_it_is_and_else_has_a_value() -> None:
    schema = CollectionSchema.of(
        {"k": pa.int64()}, pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.int64())])
    )
    form = build_form(persist.Keyed(), schema)
    columns = {"k": [1, 2], "a": pa.array([None, 1], pa.int64()), "b": [1, 2], "_time": [0, 0]}
    names = pa.array([["a"], None], pa.list_(pa.string()))
    assert to_events(pa.table({**columns, "_unchanged": names}), schema, form, None, None).is_partial
    for others in ([["b"], None], [None, ["a"]]):
        names = pa.array(others, pa.list_(pa.string()))
        with pytest.raises(InvalidUpdate, match="event 0 has NULL in 'a'"):
            to_events(pa.table({**columns, "_unchanged": names}), schema, form, None, None)


def test_an_event_is_one_update_in_whatever_form_it_comes() -> None:
    columns = {"k": [1, 2], "a": [1, None], "b": ["x", None], "_time": [0, 0]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    forms: list[Any] = [[(1, (1, "x"), 0), (2, None, 0)], pa.table({**columns, "_deleted": [False, True]})]
    for data in (*forms, [{**row, "_deleted": row["k"] == 2} for row in rows]):
        table = to_events(data, PLAIN, UPSERT, None, None).table
        found = [table[name].to_pylist() for name in ("_diff", "_deleted", "_seq", "a")]
        assert found == [[1, 1], [False, True], [0, 1], [1, None]]
    live = to_events([(1, (1, "x"), 0)], PLAIN, UPSERT, None, None)
    assert (live.table["_diff"].to_pylist(), live.at_commit, live.is_partial) == ([1], False, False)


def test_it_is_asked_which_tombstones_count_where_that_matters() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"a": pa.int64(), "v": pa.string(), "gone": pa.bool_()})
    form = build_form(persist.Keyed(order_by=["a"], tombstone="gone"), schema)
    rows = [{"k": k, "a": 5, "v": "old", "gone": k == 1, "_time": 0, "_diff": 1} for k in (1, 2)]
    cases: list[tuple[list[dict[str, Any]], bool]] = [
        ([{"k": 1, "v": "x"}], True), ([{"k": 1, "a": 6, "v": "x"}], False), ([{"k": 1, "a": 6, "gone": True}], True),
        ([{"k": 2, "v": "x"}], False), ([{"k": 2, "gone": True}], False),
        ([{"k": 1, "a": 6}, {"k": 2, "v": "x"}], False), ([{"k": 3, "v": "x"}], False),
    ]  # fmt: skip
    for events, is_asked in cases:
        asked = list[int]()
        timed = [{**event, "_time": 1} for event in events]
        ready = prepare_events(schema, form, to_partial_events(timed, schema, form, None, None, "insert").table)
        names = {event["k"] for event in events}
        present = pa.Table.from_pylist([row for row in rows if row["k"] in names], schema.arrow)
        complete_events(ready, present, form, "t", find_floor=partial(asked.append, 1))
        assert asked == [1] * is_asked, events
