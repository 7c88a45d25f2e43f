"""How large relations are taken to be, and which columns tell their rows apart: what orders of joins are chosen by."""

from math import isclose
from typing import Any

import pyarrow as pa
import pytest

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.sql.algebra import (
    Aggregate,
    Aggregation,
    Distinct,
    Filter,
    Join,
    Let,
    Node,
    Project,
    Recursive,
    Ref,
    Scan,
    SetOperation,
    TopK,
    Values,
    has_one_partner,
    infer_types,
    is_empty_without,
    list_inputs,
    split_by_side,
    unique_columns,
)
from persist.compute.sql.compile import plan_query
from persist.compute.sql.duck import mentions_column
from persist.compute.sql.order import EQUAL_KEEPS, OTHER_KEEPS, ROWS, SEMI_KEEPS, Known, estimate_relation, order_joins
from persist.compute.sql.rewrite import rewrite_plan
from persist.compute.sql.types import to_arrow
from persist.core.expression.evaluation import factor_conjuncts
from persist.core.expression.term import Lit, Place, Term, make_sql_call
from tests.compute.sql.oracle import changes, check

KNOWN: Known = {
    "t": Statistics(10_000, None, {"a": 100, "b": 5000}),
    "u": Statistics(300, None, {"a": 60}),
    "none": Statistics(0, None, {}),
    7: Statistics(40),
}
T = Scan("t", ("a", "b", "c"), ("int64", "int64", "text"))
U = Scan("u", ("a", "x"), ("int64", "int64"))
NEW = Scan("new", ("a",), ("int64",))
A, B, C, X = Place(0), Place(1), Place(2), Place(1)


def one(value: Any) -> Lit:
    return Lit(pa.scalar(value))


def is_(how: str, *arguments: Term) -> Term:
    return make_sql_call(how, pa.bool_(), *arguments)


def of(rows: float, **distinct: float) -> tuple[float, dict[int, float]]:
    return rows, {int(name[1:]): count for name, count in distinct.items()}


def joined(left: Node, right: Node, *pairs: tuple[int, int], how: Any = "inner") -> Join:
    return Join(how, left, right, tuple((Place(one), Place(other)) for one, other in pairs))


ESTIMATES: list[tuple[Node, tuple[float, dict[int, float]]]] = [
    (T, of(10_000, c0=100, c1=5000)),
    (NEW, of(ROWS)),
    (Scan("none", ("a",), ("int64",)), of(1.0)),
    (Filter(T, is_("equal", A, one(5))), of(100, c0=100, c1=5000)),
    (Filter(T, is_("equal", C, one("x"))), of(10_000 * EQUAL_KEEPS, c0=100, c1=5000)),
    (Filter(T, is_("equal", one(5), A)), of(10_000 * OTHER_KEEPS, c0=100, c1=5000)),
    (Filter(T, is_("in", A, one(1), one(2), one(3))), of(300, c0=100, c1=5000)),
    (Filter(T, is_("in", C, *(one(str(n)) for n in range(20)))), of(10_000, c0=100, c1=5000)),
    (Filter(T, is_("or", is_("equal", A, one(1)), is_("less", B, one(2)))), of(3100, c0=100, c1=5000)),
    (Filter(T, is_("or", *(is_("less", B, one(n)) for n in range(4)))), of(10_000, c0=100, c1=5000)),
    *(
        (Filter(T, is_(how, C, one("x"))), of(10_000 * EQUAL_KEEPS, c0=100, c1=5000))
        for how in ("like", "prefix", "suffix", "contains")
    ),
    (Filter(T, is_("less", A, one(1))), of(10_000 * OTHER_KEEPS, c0=100, c1=5000)),
    (Filter(T, C), of(10_000 * OTHER_KEEPS, c0=100, c1=5000)),
    (Filter(T, is_("and", is_("equal", A, one(5)), is_("less", B, one(1)))), of(30, c0=100, c1=5000)),
    (Project(T, (B, one(1), A)), of(10_000, c0=5000, c2=100)),
    (Distinct(T), of(10_000, c0=100, c1=5000)),
    (Aggregate(T, (A,), (), ((0,),)), of(100, c0=100)),
    (Aggregate(T, (A, B), (), ((0, 1),)), of(10_000, c0=100, c1=5000)),
    (Aggregate(T, (C,), (), ((0,),)), of(100, c0=100)),  # The root of the rows.
    (Aggregate(T, (), (), ((),)), of(1)),
    (joined(T, U, (0, 0)), of(10_000 * 300 / 100, c0=60, c1=5000, c3=60)),
    (joined(U, T, (0, 0)), of(300 * 10_000 / 100, c0=60, c2=60, c3=5000)),
    (joined(T, U), of(3_000_000, c0=100, c1=5000, c3=60)),
    (joined(T, U, (0, 0), (1, 1)), of(10_000, c0=60, c1=300**0.5, c3=60, c4=300**0.5)),  # As many as of the least.
    (joined(T, Filter(U, is_("equal", A, one(1))), (1, 0)), of(10.0, c0=100, c1=5, c3=5)),
    *((joined(T, U, (0, 0), how=how), of(10_000 * SEMI_KEEPS, c0=100, c1=5000)) for how in ("semi", "anti", "unless")),
    *((joined(T, U, (0, 0), how=how), of(10_000)) for how in ("left", "right", "full", "mark", "single")),
    (SetOperation("union", U, T), of(10_000)),
    (Values(("int64",), ((one(1),), (one(2),))), of(2)),
    (Ref(7, ("int64",)), of(40)),
    (Ref(8, ("int64",)), of(ROWS)),
    (TopK(U, (), 5), of(5)),
    (TopK(U, (), 5000), of(300)),
    (TopK(U, (), 5, 0, (A,)), of(300)),
]  # fmt: skip


@pytest.mark.parametrize(("node", "wanted"), ESTIMATES)
def test_a_relation_is_taken_to_be_about_so_large(node: Node, wanted: tuple[float, dict[int, float]]) -> None:
    made = estimate_relation(node, KNOWN)
    assert isclose(made.rows, wanted[0])
    assert made.distinct.keys() == wanted[1].keys()
    assert all(isclose(made.distinct[at], count) for at, count in wanted[1].items())


def scans(node: Node) -> list[str]:
    return [node.collection] if isinstance(node, Scan) else [name for each in list_inputs(node) for name in scans(each)]


def test_relations_are_joined_in_the_order_with_the_fewest_rows_in_between() -> None:
    v = Scan("v", ("a", "x"), ("int64", "int64"))
    sizes = {name: Statistics(rows, None, {"a": rows, "x": 10}) for name, rows in (("t", 1e6), ("u", 1e3), ("v", 10.0))}
    three = joined(joined(T, U, (0, 0)), v, (0, 0))
    plan = order_joins(three, sizes)
    assert infer_types(plan) == infer_types(three)
    assert scans(plan) == ["t", "v", "u"]  # Both others have a key of t only, and with v fewer rows are left.
    chain = joined(joined(U, T, (1, 1)), v, (3, 0))
    assert "t" in scans(order_joins(chain, sizes))[:2]
    # Two are left as they are, and so is what is within other relations.
    two = joined(T, U, (0, 0))
    assert order_joins(two, sizes) == two
    assert scans(order_joins(Distinct(three), sizes)) == scans(plan)
    same = Join("inner", joined(T, U, (0, 0)), v, (), ((Place(0), Place(0)),))
    assert order_joins(same, sizes) == same


def test_all_conditions_and_pairs_of_joins_that_are_put_in_order_stay() -> None:
    v = Scan("v", ("a", "x"), ("int64", "int64"))
    below = Join("inner", T, U, ((Place(0), Place(0)),), (), is_("less", Place(1), Place(4)))
    plan = Join("inner", below, v, ((Place(3), Place(0)), (Place(4), Place(1))), (), is_("less", Place(0), Place(6)))
    sizes = {"t": Statistics(1e6), "u": Statistics(1e3), "v": Statistics(1.0)}
    made = order_joins(plan, sizes)
    assert isinstance(made, Project)
    every, pairs, conditions = [made.input], set[tuple[str, str]](), 0
    while every:
        node = every.pop()
        if isinstance(node, Join):
            names = [name for side in (node.left, node.right) for name in columns_of(side)]
            width = len(columns_of(node.left))
            for left, right in node.equal:
                assert isinstance(left, Place)
                assert isinstance(right, Place)
                low, high = sorted((names[left.index], names[width + right.index]))
                pairs.add((low, high))
            conditions += 0 if node.condition is None else len(factor_conjuncts(node.condition))
        every += list_inputs(node)
    assert pairs == {("t.a", "u.a"), ("u.a", "v.a"), ("u.x", "v.x")}
    assert conditions == 2
    assert [columns_of(made.input)[place.index] for place in made.outputs if isinstance(place, Place)] == [
        *("t.a", "t.b", "t.c"), *("u.a", "u.x"), *("v.a", "v.x"),
    ]  # fmt: skip


def columns_of(node: Node) -> list[str]:
    if isinstance(node, Scan):
        return [f"{node.collection}.{column}" for column in node.columns]
    return [name for child in list_inputs(node) for name in columns_of(child)]


COUNT = Aggregation("count_star", "int64")
UNIQUE: list[tuple[Node, list[frozenset[int]]]] = [
    (T, []),
    (Aggregate(T, (A, B), (COUNT,), ((0, 1),)), [frozenset({0, 1})]),
    (Aggregate(T, (A, B), (COUNT,), ((0, 1), (0,))), []),
    (Filter(Aggregate(T, (A,), (), ((0,),)), A), [frozenset({0})]),
    (Project(Aggregate(T, (A,), (COUNT,), ((0,),)), (Place(1), Place(0))), [frozenset({1})]),
    (Project(Aggregate(T, (A,), (COUNT,), ((0,),)), (Place(0), Place(0))), [frozenset({0})]),
    (Project(Aggregate(T, (A,), (COUNT,), ((0,),)), (Place(1),)), []),
    (Let(1, U, Aggregate(T, (A,), (), ((0,),))), [frozenset({0})]),
    *(
        (joined(Aggregate(T, (A,), (), ((0,),)), U, (0, 0), how=how), [frozenset({0})])
        for how in ("semi", "anti", "mark")
    ),
    *(
        (joined(Aggregate(T, (A,), (), ((0,),)), Aggregate(U, (A,), (COUNT,), ((0,),)), (0, 0), how=how), unique)
        for how, unique in (("inner", [frozenset({0})]), ("left", [frozenset({0})]), ("right", []), ("full", []))
    ),
    (joined(Aggregate(T, (A,), (), ((0,),)), U, (0, 0)), []),
    (joined(Aggregate(T, (A,), (), ((0,),)), Aggregate(U, (A,), (COUNT,), ((0,),)), (0, 1)), []),
]


@pytest.mark.parametrize(("node", "columns"), UNIQUE)
def test_columns_in_which_no_two_rows_agree(node: Node, columns: list[frozenset[int]]) -> None:
    assert unique_columns(node) == columns


def test_a_row_has_one_partner_where_the_keys_of_the_join_tell_those_of_the_right_apart() -> None:
    groups = Aggregate(U, (A, X), (), ((0, 1),))
    assert has_one_partner(joined(T, groups, (0, 0), (1, 1)))
    assert not has_one_partner(joined(T, groups, (0, 0)))
    assert has_one_partner(Join("inner", T, groups, ((A, A),), ((B, X),)))


R, EMPTY = Ref(7, ("int64",)), Values(("int64",), ())
EMPTIES: list[tuple[Node, bool]] = [
    (NEW, False), (R, True), (Ref(8, ("int64",)), False), (EMPTY, True), (Values(("int64",), ((one(1),),)), False),
    (Filter(R, A), True), (Filter(NEW, A), False), (Distinct(R), True), (TopK(R, ()), True),
    (Aggregate(R, (A,), (), ((0,),)), True), (Aggregate(R, (), (COUNT,), ((),)), False),
    (Aggregate(R, (A,), (), ((0,), ())), False), (Aggregate(NEW, (A,), (), ((0,),)), False),
    *((joined(R, NEW, (0, 0), how=how), is_empty) for how, is_empty in (
        ("inner", True), ("semi", True), ("left", True), ("anti", True), ("mark", True), ("single", True),
        ("right", False), ("full", False),
    )),
    *((joined(NEW, R, (0, 0), how=how), is_empty) for how, is_empty in (
        ("inner", True), ("semi", True), ("left", False), ("anti", False), ("mark", False), ("single", False),
        ("right", True), ("full", False),
    )),
    (joined(R, R, (0, 0), how="full"), True),
    (SetOperation("union", R, NEW), False), (SetOperation("union", R, EMPTY), True),
    (SetOperation("except", R, NEW), True), (SetOperation("except", NEW, R), False),
    (SetOperation("intersect", R, NEW), True), (SetOperation("intersect", NEW, R), True),
    (SetOperation("intersect", NEW, NEW), False),
    (Let(9, R, Ref(9, ("int64",))), True), (Let(9, NEW, Ref(9, ("int64",))), False), (Let(9, NEW, R), True),
    (Recursive(9, False, R, NEW), True), (Recursive(9, False, NEW, R), False),
]  # fmt: skip


@pytest.mark.parametrize(("node", "is_empty"), EMPTIES)
def test_a_relation_that_has_no_rows_if_another_has_none(node: Node, is_empty: bool) -> None:
    assert is_empty_without(node, frozenset({7})) == is_empty


def test_conditions_are_those_of_a_side_that_read_nothing_else() -> None:
    left, right = is_("less", A, one(1)), is_("less", Place(3), Place(4))
    both, neither = is_("less", Place(2), Place(3)), is_("less", one(1), one(2))
    lefts, rights, rest = split_by_side([left, right, both, neither], 3)
    assert (lefts, rights, rest) == ([left], [is_("less", Place(0), Place(1))], [both, neither])


BIG = {"fact": [("f", "int64"), ("k", "int64"), ("n", "int64")], "dim": [("k", "int64"), ("g", "int64")]}
BIG |= {"group": [("g", "int64"), ("name", "text")], "other": [("n", "int64"), ("x", "int64")]}
SIZES = {
    "fact": Statistics(600_000, None, {"f": 600_000, "k": 1_000, "n": 25}),
    "dim": Statistics(1_000, None, {"k": 1_000, "g": 25}),
    "group": Statistics(25, None, {"g": 25}),
    "other": Statistics(5_000, None, {"n": 25}),
}
STAR = """
    SELECT fact.f FROM fact, dim, "group", other
    WHERE fact.k = dim.k AND dim.g = "group".g AND fact.n = other.n AND "group".name = 'here'
"""


def scans_of(node: Node) -> list[str]:
    """Return the collections of a plan, in the order in which they are joined."""
    return (
        [node.collection] if isinstance(node, Scan) else [name for each in list_inputs(node) for name in scans_of(each)]
    )


def plan_of(sql: str, known: Known) -> Node:
    schemas = {name: CollectionSchema.of({c: to_arrow(k) for c, k in columns}, None) for name, columns in BIG.items()}
    return rewrite_plan(plan_query(sql, {name: schema for name, schema in schemas.items() if name in sql})[0], known)


def test_what_keeps_few_rows_is_joined_first_and_what_makes_many_last() -> None:
    found = scans_of(plan_of(STAR, SIZES))
    assert ({*found[:2]}, found[2:]) == ({"dim", "group"}, ["fact", "other"])


def test_no_order_makes_a_cross_product_that_can_be_avoided() -> None:
    for known in ({}, SIZES, {"group": SIZES["group"], "other": SIZES["group"]}):
        left = [plan_of(STAR, known)]
        while left:
            node = left.pop()
            assert not isinstance(node, Join) or node.equal, known
            left += list_inputs(node)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("rows", [{"t": 1, "u": 10**6, "w": 10**3}, {"t": 10**6, "u": 1, "w": 1}, {}])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT t.b, u.s, w.x FROM t, u, w WHERE t.a = u.a AND u.b = w.a AND t.b < w.a + 2",
        "SELECT count(*) FROM t, u, w, t AS v WHERE t.a = u.a AND v.b = u.b AND w.a = v.a AND (t.b = 1 OR t.s = 'x')",
        "SELECT t.a, w.p FROM t, u, w WHERE t.a = 1 AND t.b = u.b",
    ],
)
def test_what_is_known_changes_no_row(sql: str, rows: dict[str, int]) -> None:
    known = {name: Statistics(count, None, {"a": 5, "b": 5}) for name, count in rows.items()}
    check(sql, changes(7, steps=4, size=6), known=known)


def test_estimates_tell_conditions_apart() -> None:
    known = {"group": Statistics(1000)}

    def rows(condition: str) -> float:
        return estimate_relation(plan_of(f'SELECT g FROM "group" WHERE {condition}', {}), known).rows

    assert estimate_relation(Scan("dim", ("k", "g"), ("int64", "int64")), SIZES).rows == 1000
    assert rows("name LIKE 'a%'") == 100
    assert rows("name LIKE 'a%' OR name LIKE 'b%'") == 200
    assert rows("name > 'a'") == rows("name = upper(name)") == 300
    half = plan_of("SELECT g FROM dim WHERE k IN (SELECT f FROM fact)", {})
    assert estimate_relation(half, SIZES).rows == 500


def test_a_query_names_a_column_if_it_refers_to_one() -> None:
    assert mentions_column("SELECT Since FROM t", "since")
    assert mentions_column("SELECT a FROM t WHERE t.since > (SELECT max(b) FROM u)", "since")
    assert not mentions_column("SELECT a FROM since", "since")
    assert not mentions_column("SELECT 'since' FROM t", "since")
