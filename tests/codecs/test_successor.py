"""Which schema may follow another one, and which changes only add."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from persist.codecs.errors import SchemaMismatch
from persist.codecs.evolution import check_successor, decode_defaults, evolve_schema, make_lift, only_adds, read_default
from persist.codecs.types.schema import CollectionSchema, Side

NO_CHANGE: dict[str, Any] = {"add": {}, "defaults": {}, "drop": [], "rename": {}, "widen": {}, "reorder": None}


def side(**kinds: Any) -> Side:
    fields = {name: kind if isinstance(kind, tuple) else (kind, True) for name, kind in kinds.items()}
    return Side(tuple(pa.field(name, kind, nullable) for name, (kind, nullable) in fields.items()))


BASE = CollectionSchema(
    side(k=pa.int32(), f=pa.float32()),
    side(a=pa.int32(), d=pa.int16(), r=(pa.string(), False)),
    ids=(0, 1, 2, 3, 4),
    defaults=((3, "7"),),
)
ROWS: dict[str, Any] = {"a": pa.int32(), "d": pa.int16(), "r": (pa.string(), False)}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"version": 3}, "version 3 of the schema does not follow version 1"),
        ({"version": 1}, "version 1 of the schema does not follow version 1"),
        ({"timeline": "us"}, "the timeline of a collection cannot change"),
        ({"ids": (5, 1, 2, 3, 4)}, "the key columns of a collection stay the same"),
        ({"key": side(f=pa.float32(), k=pa.int32()), "ids": (1, 0, 2, 3, 4)}, "the key columns of a collection stay"),
        ({"key": side(k=pa.int64(), f=pa.float32())}, ""),
        ({"key": side(key=pa.int32(), f=pa.float32())}, ""),
        ({"key": side(k=pa.int32(), f=pa.float64())}, "key column 'f' is of type float, and cannot become double"),
        ({"key": side(k=pa.int16(), f=pa.float32())}, "column 'k' is of type int32, and int16 does not hold all"),
        ({"value": side(**ROWS | {"a": pa.int64()})}, ""),
        ({"value": side(**ROWS | {"a": pa.float64()})}, ""),
        ({"value": side(**ROWS | {"a": pa.int8()})}, "column 'a' is of type int32, and int8 does not hold all"),
        ({"value": side(**ROWS | {"a": pa.list_(pa.int32())})}, "'a' is of type int32, and cannot become list"),
        ({"value": side(**ROWS | {"a": (pa.int32(), False)})}, "whether a column may be NULL cannot change"),
        ({"value": side(**ROWS | {"r": pa.string()})}, "whether a column may be NULL cannot change"),
        ({"value": side(a=pa.int32(), d=pa.int16()), "ids": (0, 1, 2, 3)}, ""),
        ({"value": side(b=pa.int32(), d=pa.int16(), r=(pa.string(), False))}, ""),
        ({"value": side(d=pa.int16(), a=pa.int32(), r=(pa.string(), False)), "ids": (0, 1, 3, 2, 4)}, ""),
        ({"value": side(**ROWS, n=pa.date32()), "ids": (0, 1, 2, 3, 4, 5)}, ""),
        (
            {"value": side(**ROWS, n=pa.date32()), "ids": (0, 1, 2, 3, 4, 9)},
            "column 'n' has the id 9, which is that of",
        ),
        ({"value": side(**ROWS, n=pa.date32()), "ids": (0, 1, 2, 3, 4, -1)}, "column 'n' has the id -1, which is that"),
        ({"value": side(**ROWS, n=(pa.date32(), False)), "ids": (0, 1, 2, 3, 4, 5)}, "may be NULL cannot change"),
        ({"value": side(**ROWS, n=pa.int8()), "ids": (0, 1, 2, 3, 4, 5), "defaults": ((3, "7"), (5, "1"))}, ""),
        ({"defaults": ()}, "column 'd' keeps the default that it has"),
        ({"defaults": ((3, "8"),)}, "column 'd' keeps the default that it has"),
        ({"defaults": ((2, "1"), (3, "7"))}, "column 'a' keeps the default that it has"),
        ({"value": side(**ROWS | {"d": pa.int64()})}, ""),
        ({"value": side(**ROWS | {"d": pa.float32()}), "defaults": ((3, '"7.0"'),)}, ""),
        ({"value": side(**ROWS | {"d": pa.float32()}), "defaults": ((3, '"7.5"'),)}, "keeps the default that it has"),
    ],
    ids=str,
)
def test_a_version_follows_if_no_stored_row_changes_its_meaning(changes: dict[str, Any], problem: str) -> None:
    after = replace(BASE, **{"version": 2, **changes})
    if not problem:
        check_successor(BASE, after, {*BASE.ids, 9})
        if 5 not in after.ids:
            check_successor(replace(BASE, known=(BASE,)), after)
        return
    with pytest.raises(SchemaMismatch) as refused:
        check_successor(BASE, after, {*BASE.ids, 9})
    assert problem in str(refused.value)


def test_ids_of_all_known_versions_are_used_up() -> None:
    known = replace(BASE, known=(BASE, replace(BASE, value=side(**ROWS, n=pa.int8()), ids=(0, 1, 2, 3, 4, 5))))
    for id_, is_free in ((5, False), (6, True)):
        after = replace(BASE, version=2, value=side(**ROWS, m=pa.int8()), ids=(0, 1, 2, 3, 4, id_))
        if is_free:
            check_successor(known, after)
        else:
            with pytest.raises(SchemaMismatch, match="has the id 5, which is that of another column"):
                check_successor(known, after)
    evolved = evolve_schema(known, **NO_CHANGE | {"add": {"x": pa.int8(), "y": pa.int8()}})
    assert (evolved.ids, evolved.version) == ((0, 1, 2, 3, 4, 6, 7), 2)
    assert evolve_schema(BASE, **NO_CHANGE | {"add": {"x": pa.int8()}}).ids == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("change", "adds"),
    [
        ({}, True),
        ({"add": {"n": pa.int8()}}, True),
        ({"add": {"n": pa.int8()}, "reorder": ["n", "a", "d", "r"]}, True),
        ({"reorder": ["d", "a", "r"]}, False),
        ({"drop": ["a"]}, False),
        ({"drop": ["r"], "add": {"r": pa.string()}}, False),
        ({"rename": {"a": "b"}}, False),
        ({"widen": {"a": pa.int64()}}, False),
    ],
    ids=str,
)
def test_a_change_that_only_adds_leaves_earlier_rows_as_they_were(change: dict[str, Any], adds: bool) -> None:
    after = evolve_schema(BASE, **NO_CHANGE | change)
    assert only_adds(BASE, after) == adds
    assert (after.version, {*after.ids} - {*BASE.ids}) == (2, {5} if "add" in change else set())


def test_defaults_are_read_by_name_and_widen_with_their_columns() -> None:
    add = {"n": pa.int8(), "m": pa.string(), "o": pa.int8()}
    after = evolve_schema(
        BASE, **NO_CHANGE | {"add": add, "defaults": {"n": 3, "m": "x" * ((64 << 10) - 4), "o": None}}
    )
    assert {name: scalar.as_py() for name, scalar in decode_defaults(after).items() if name != "m"} == {"d": 7, "n": 3}
    assert [read_default(after, name).as_py() for name in ("a", "d", "n", "o")] == [None, 7, 3, None]
    wider = evolve_schema(
        replace(after, known=(BASE, after)), **NO_CHANGE | {"widen": {"d": pa.int64()}, "rename": {"n": "z"}}
    )
    assert read_default(wider, "d").type == pa.int64()
    assert read_default(wider, "z").as_py() == 3
    linked = replace(wider, known=(BASE, after, wider))
    lift = make_lift(linked, 1)
    assert lift is not None
    assert (lift.is_younger, lift.is_exact) == (True, True)
    assert [lift.find_source(name) for name in linked.names] == ["k", "f", "a", "d", "r", None, None, None]
    assert make_lift(linked, 3) is None
    with pytest.raises(ValueError, match="it has schema version 4, and the collection has none"):
        make_lift(linked, 4)
    stored = pa.table({"k": [1], "f": [0.5], "a": [2], "d": [5], "r": ["r"], "_time": [0], "_diff": [1]}, BASE.arrow)
    assert lift.adapt_table(stored, ["z", "d", "o", "_diff"]).to_pydict() == {
        "z": [3],
        "d": [5],
        "o": [None],
        "_diff": [1],
    }
    back = make_lift(replace(BASE, known=(BASE, after)), 2)
    assert back is not None
    assert (back.is_younger, back.is_exact, back.find_source("a")) == (False, False, "a")
    dropped = replace(BASE, version=2, value=side(d=pa.int16(), r=(pa.string(), False)), ids=(0, 1, 3, 4))
    gone = make_lift(replace(BASE, known=(BASE, dropped)), 2)
    assert gone is not None
    with pytest.raises(SchemaMismatch, match="column 'a' of schema version 1 is gone"):
        gone.find_source("a")
