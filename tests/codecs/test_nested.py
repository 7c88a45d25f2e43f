"""Fields inside of columns: their paths, their numbers, and what tells two versions apart."""

from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from persist.codecs.errors import SchemaMismatch
from persist.codecs.evolution import evolve_schema
from persist.codecs.nested import (
    align_fields,
    describe_changes,
    find_changes_by_path,
    find_new_fields,
    get_column_node,
    is_extended,
    iterate_column_nodes,
    list_all_ids,
    list_step_names,
    make_node,
    parse_new_names,
    quote_name,
    split_changes,
    split_path,
)
from persist.codecs.types.schema import CollectionSchema

INNER = pa.struct([("x", pa.int32()), ("y.z", pa.string())])
KIND = pa.struct([("a", pa.int32()), ("l", pa.list_(INNER)), ("m", pa.map_(pa.string(), INNER))])
BASE = CollectionSchema.of({"k": pa.int64()}, {"s": KIND, "v": pa.int32(), "dot.ted": pa.int8()})
FIRST = replace(BASE, known=(BASE,))


def evolved(**changes: Any) -> CollectionSchema:
    """Return the next version, by paths."""
    given = {"add": {}, "drop": [], "rename": {}, "widen": {}} | changes
    add, drop, rename, widen, inner = split_changes(
        FIRST, *(given[name] for name in ("add", "drop", "rename", "widen"))
    )
    return evolve_schema(
        FIRST, add=add, defaults={}, drop=drop, rename=rename, widen=widen, reorder=given.get("reorder"), inner=inner
    )


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        *(("a", ["a"]), ("a.b.c", ["a", "b", "c"]), ('"a.b".c', ["a.b", "c"]), ('a."b.c"', ["a", "b.c"])),
        *(('"a""b"', ['a"b']), ('"a"".".b', ['a".', "b"]), ('a"b', ['a"b']), ('""""', ['"']), ("ab.cd", ["ab", "cd"])),
        *((path, None) for path in (".a", "a.", "a..b", '"a', '"a"b', '""', '"".a', 'a."b', ".")),
        ("", [""]),
    ],
)
def test_a_path_has_steps_which_may_be_quoted(path: str, steps: list[str] | None) -> None:
    if steps is None:
        with pytest.raises(SchemaMismatch, match="is not a path"):
            split_path(path)
    else:
        assert split_path(path) == steps
        assert path == "" or split_path(".".join(map(quote_name, steps))) == steps


def test_names_are_quoted_where_they_need_it() -> None:
    assert [*map(quote_name, ("a", "a.b", '"a', 'a"b', '"a.b'))] == ["a", '"a.b"', '"""a"', 'a"b', '"""a.b"']
    assert parse_new_names({'"a.b"': 1, "c": 2, 3: 4}) == {"a.b": 1, "c": 2, 3: 4}  # type: ignore[dict-item]
    with pytest.raises(SchemaMismatch, match=r"defaults= names 'a.b': a field inside of a column has no default"):
        parse_new_names({"a.b": 1})


def test_fields_have_numbers_in_order_and_names_as_steps() -> None:
    node = get_column_node(BASE, "s")
    found = [(one.number, one.name) for one in node.walk()][1:]
    assert found == [
        *((0, "a"), (1, "l"), (2, "element"), (3, "x"), (4, "y.z")),
        *((5, "m"), (6, "key"), (7, "value"), (8, "x"), (9, "y.z")),
    ]
    assert list_all_ids(BASE) == {0, 1, 2, 3, *((1, number) for number in range(10))}
    assert [*iterate_column_nodes(BASE, "s")] == []
    assert [one.number for one in iterate_column_nodes(FIRST, "s")] == [-1, *range(10)]
    assert (list_step_names(pa.int8()), list_step_names(pa.list_(pa.int8()))) == ([], ["element"])


CHANGES: list[tuple[dict[str, Any], list[str], bool]] = [
    ({"add": {"s.n": pa.int8()}}, ["'s.n' (int8) was added"], True),
    ({"add": {"s.l.element.n": INNER}}, ["'s.l.element.n' (struct<x: int32, y.z: string>) was added"], True),
    ({"drop": ["s.a"]}, ["'s.a' (int32) was dropped"], False),
    ({"drop": ['s.m.value."y.z"']}, ["""'s.m.value."y.z"' (string) was dropped"""], False),
    ({"rename": {"s.a": "s.b"}}, ["'a' was renamed to 's.b'"], False),
    ({"rename": {"s": "t"}}, ["'s' was renamed to 't'"], True),
    ({"rename": {'"dot.ted"': "d"}}, ["'dot.ted' was renamed to 'd'"], True),
    ({"widen": {"s.l.element.x": pa.int64()}}, ["'s.l.element.x' was widened from int32 to int64"], False),
    ({"widen": {"v": pa.int64()}}, ["'v' was widened from int32 to int64"], True),
    ({"drop": ["v"]}, ["'v' (int32) was dropped"], True),
    ({"add": {"n": pa.int8()}}, ["'n' (int8) was added"], True),
    ({"reorder": ["v", "s", "dot.ted"]}, ["the columns are in the order ['k', 'v', 's', 'dot.ted']"], True),
    (
        {"add": {"s.n": pa.int8()}, "rename": {"s.l.element.x": "s.l.element.w"}, "widen": {"s.a": pa.int64()}},
        ["'s.n' (int8) was added", "'x' was renamed to 's.l.element.w'", "'s.a' was widened from int32 to int64"],
        False,
    ),
]


@pytest.mark.parametrize(("changes", "described", "extends"), CHANGES, ids=lambda value: str(value)[:40])
def test_changes_are_described_found_again_and_told_from_additions(
    changes: dict[str, Any], described: list[str], extends: bool
) -> None:
    after = evolved(**changes)
    assert describe_changes(BASE, after) == described
    assert describe_changes(after, after) == ["nothing"]
    name = "t" if changes.get("rename", {}).get("s") else "s"
    old, new = get_column_node(BASE, "s"), get_column_node(after, name)
    assert is_extended(old, new) == extends
    inside = {
        what: {path: kind for path, kind in changes.get(what, {}).items() if "." in path and path[0] == "s"}
        for what in ("add", "rename", "widen")
    }
    dropped = [path for path in changes.get("drop", []) if path.startswith("s.")]
    assert find_changes_by_path(old, new) == {**inside, "drop": dropped}


def test_types_from_elsewhere_are_matched_by_names() -> None:
    theirs = pa.struct([("l", pa.list_(pa.struct([("x", pa.int64()), ("w", pa.int8())]))), ("a", pa.int8())])
    assert find_new_fields("s", theirs, KIND) == {"s.l.element.w": pa.int8()}
    assert find_new_fields("s", KIND, theirs) == {'s.l.element."y.z"': pa.string(), "s.m": KIND.field("m").type}
    assert find_new_fields("s", KIND, KIND) == find_new_fields("s", pa.int8(), KIND) == {}
    assert find_new_fields("s", theirs, pa.int8()) == {}
    column = pa.chunked_array(
        [pa.array([{"l": [{"x": 1, "w": 2}, None], "a": 3}, None, {"l": None, "a": None}], theirs)]
    )
    aligned = align_fields(column, KIND)
    inner = pa.struct([("x", pa.int64()), ("y.z", pa.string())])
    assert aligned.type == pa.struct([("a", pa.int8()), ("l", pa.list_(inner)), ("m", KIND.field("m").type)])
    first = {"a": 3, "l": [{"x": 1, "y.z": None}, None], "m": None}
    assert aligned.to_pylist() == [first, None, {"a": None, "l": None, "m": None}]
    assert align_fields(column, theirs) is column
    assert align_fields(column, pa.list_(pa.int8())) is column
    for outer in (pa.large_list, lambda kind: pa.list_(kind, 1), lambda kind: pa.map_(pa.string(), kind)):
        flat = outer(pa.struct([("b", pa.int8())]))
        node = make_node("c", flat, count())
        assert find_new_fields("c", outer(pa.struct([("a", pa.int8())])), flat) == {
            f"c.{'value' if pa.types.is_map(flat) else 'element'}.a": pa.int8()
        }
        assert [one.number for one in node.walk()][1:] == [*range(len([*node.walk()]) - 1)]
