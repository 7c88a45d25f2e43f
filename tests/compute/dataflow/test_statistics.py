"""What is known of the sizes of inputs says where joins look first, and nothing else."""

import random
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.operators.join import JoinPaths
from persist.compute.dataflow.plan.optimise import FILTER_KEEPS, Statistics, estimate_streams, optimise_plan
from persist.compute.dataflow.plan.plan import Input, Source
from persist.compute.dataflow.plan.stages import Filter, Map
from persist.compute.dataflow.running.reports import OperatorReport, make_reports, measure_depths, render_operators
from persist.core.expression.term import Col
from persist.dataflow import Captured, Options, Program, Running, col, lit
from tests.compute.sql.two_ways import requests_by_key

Update = tuple[Any, int, int]


COLUMNS = {"r": ("a", "b"), "s": ("b", "c"), "t": ("c", "d"), "u": ("d", "a")}


def joined() -> tuple[Program, Captured]:
    """Four inputs in a ring: each has a column in common with two others."""
    program = Program("joined")
    r, s, t, u = (program.input(name, key={each: pa.int64() for each in names}) for name, names in COLUMNS.items())
    return program, r.join(s, "b").join(t, "c").join(u, ["d", "a"]).capture()


def updates(seed: int) -> dict[str, list[Update]]:
    """Return updates of each input at five times; about a third of them take a record away."""
    random_, found = random.Random(seed), dict[str, list[Update]]()
    for name in "rstu":
        there: list[tuple[int, int]] = []
        found[name] = []
        for time in range(5):
            for _ in range(6):
                if there and random_.random() < 0.35:
                    found[name].append(((there.pop(), None), time, -1))
                else:
                    there.append((random_.randrange(4), random_.randrange(4)))
                    found[name].append(((there[-1], None), time, 1))
    return found


def given(sizes: dict[str, float], changes: dict[str, list[Update]]) -> list[str]:
    """Return all updates of the join, where its inputs are taken to be so large."""
    program, seen = joined()
    nodes = {node.operator.name: n for n, node in program.plan.nodes.items() if isinstance(node.operator, Input)}
    with Running(program, None, Options(), {nodes[name]: Statistics(size) for name, size in sizes.items()}) as running:
        for time in range(5):
            for name, every in changes.items():
                running[name].insert([each for each in every if each[1] == time])
                running[name].advance_to(time + 1)
            running.step()
    return sorted(map(repr, seen.updates().to_pylist()))


def orders(sizes: dict[str, float]) -> list[list[int]]:
    """Return in which order a change of each input looks up the others."""
    schemas = [pa.schema([(each, pa.int64()) for each in names]) for names in COLUMNS.values()]
    on = [[("b", "b")], [("c", "c")], [("d", "d"), ("a", "a")]]
    known = [Statistics(each) for each in sizes.values()]
    arranged: Any = lambda number, keys, values: number  # noqa: E731
    partners = (lambda number, keys: known[number].estimate_partners(keys)) if sizes else (lambda number, keys: None)
    found: Any = JoinPaths(schemas, on, ["a", "b", "c", "d"], arranged, partners).make_paths()
    return [[step.arrangement for step in path.steps] for path in found]


def test_every_order_of_look_ups_gives_the_same() -> None:
    changes, tried = updates(3), set[str]()
    expected = given({}, changes)
    assert len(expected) > 5
    for ranks in permutations((1.0, 1e3, 1e6, 1e9)):
        sizes = dict(zip("rstu", ranks, strict=True))
        tried.add(repr(orders(sizes)))
        assert given(sizes, changes) == expected, sizes
    assert len(tried) >= 6, "the sizes did not change the order"


def test_fewest_partners_are_looked_up_first() -> None:
    small_last = dict(zip("rstu", (1e6, 1e9, 1e6, 1.0), strict=True))
    assert orders(small_last)[0] == [3, 2, 1]
    small_second = dict(zip("rstu", (1e6, 1.0, 1e6, 1e6), strict=True))
    assert orders(small_second)[0][0] == 1
    # What has no column in common with what is there comes last, however small it is.
    assert orders(small_second)[3][0] != 1
    assert orders({}) == [[1, 2, 3], [0, 2, 3], [1, 0, 3], [0, 1, 2]]


def test_statistics_of_a_collection_are_its_rows_its_key_and_the_bounds_of_numbers() -> None:
    with persist.open("memory://statistics") as client:
        facts = client.create_or_load("facts", key={"k": pa.int64()}, value={"d": pa.int64(), "s": pa.string()})
        facts.write([((k, (k % 10, str(k))), 0, 1) for k in range(1000)], seal=1).result()
        facts.write([((5, (5, "5")), 1, -1)], seal=2).result()
        for name in ("one", "two"):
            client.create_or_load(name, key={"d": pa.int64()}, value={"x": pa.string()}).seal(2).result()
        program = Program("p").using(client)
        two = program.source("two").map(d=col("d"), y=col("x"))
        program.source("facts").filter(col("k") > 1).join(program.source("one"), "d").join(two, "d").capture()
        plan = optimise_plan(program.plan)
        known = estimate_streams(client.engine, plan)
        [number] = [n for n, each in plan.nodes.items() if each.operator == Source("facts")]
        found = known(number)
        assert found is not None
        assert (found.rows, found.key) == (999.0, frozenset("k"))
        assert 10 <= found.distinct["d"] <= 11
        assert found.estimate_partners(["k"]) == found.estimate_partners(["k", "s"]) == 1.0
        assert 80 < found.estimate_partners(["d"]) < 110
        assert 25 < found.estimate_partners(["s"]) < 40
        renamed = found.apply_stages([Filter((col("k") > 1).term), Map((("x", Col("d")), ("y", lit(1).term)))])
        assert renamed is not None
        assert (renamed.key, {*renamed.distinct}) == (None, {"x"})
        assert renamed.rows < found.rows
        assert estimate_streams(None, plan)(number) is None
        assert Statistics(0.0).estimate_partners([]) == 1.0


def test_statistics_are_passed_on_by_what_changes_no_rows_but_leaves_some_out() -> None:
    with persist.open("memory://passed-on") as client:
        for name in ("one", "two"):
            t = client.create_or_load(name, key={"d": pa.int64()}, value={"x": pa.string()})
            t.write([((d, "x"), 0, 1) for d in range(100)], seal=1).result()
        program = Program("p").using(client)
        one, two = program.source("one"), program.source("two")
        few = one.filter(col("x") == "x")
        few.capture()
        few.join(two.map(d=col("d"), y=col("x")), "d").join(one.map(d=col("d"), z=col("x")), "d").capture()
        plan = optimise_plan(program.plan)
        known = estimate_streams(client.engine, plan)
        sizes = {
            type(node.operator).__name__: each.rows for node in plan.nodes.values() if (each := known(node.number))
        }
        assert sizes == {"Source": 100.0, "Linear": 100.0 * FILTER_KEEPS}
        client.drop("one").result()
        client.drop("two").result()


def test_a_requested_join_begins_at_the_input_with_the_fewest_records_of_the_keys() -> None:
    tables = {
        "customers": ("c", {"c": [*range(400)], "n": [c % 4 for c in range(400)]}),
        "suppliers": ("s", {"s": [*range(40)], "n": [s % 4 for s in range(40)]}),
        "orders": ("o", {"o": [*range(4000)], "c": [o % 400 for o in range(4000)]}),
        "lines": ("l", {"l": [*range(100)], "o": [*range(100)], "s": [line % 40 for line in range(100)]}),
    }

    def program() -> Program:
        made = Program("lines by nation").using(client)
        near = made.source("suppliers").join(made.source("customers"), "n").filter(col("s") + col("c") >= 0)
        ordered = near.join(made.source("orders").named("orders"), "c").filter(col("s") + col("o") >= 0)
        ordered.join(made.source("lines"), ["o", "s"]).group_by("n").count("many").persist("out", key=["n"])
        return made

    with persist.open("memory://begins") as client, requests_by_key():
        for name, (key, columns) in tables.items():
            fields = {each: pa.int64() for each in columns}
            collection = client.create_or_load(name, key={key: fields.pop(key)}, value=fields)
            collection.write(pa.table({each: pa.array(values) for each, values in columns.items()}), time=0, seal=1)
        with program().open(client) as running:
            running.step()
        client.load("lines").write([((100, (7, 9)), 1, 1)], seal=2).result()
        for name in tables:
            client.load(name).seal(2).result()
        with program().open(client, partial=True) as running:
            running.step()
            assert running.partial is not None
            columns_of = {reading.title: reading.columns for reading in running.partial.readings}
        assert columns_of["orders"] == ("o",), columns_of


def report(*inputs: int, title: str = "an operator", kept_bytes: int = 0) -> OperatorReport:
    return OperatorReport(title, "linear", inputs, 1200, 0.5, 3400, kept_bytes)


def test_an_operator_is_a_step_further_than_the_furthest_of_those_it_reads() -> None:
    assert measure_depths([report(), report(0), report(), report(1, 2), report(2), report(3, 4, 0)]) == [
        0,
        1,
        0,
        2,
        1,
        3,
    ]
    # What comes later feeds a loop back, and is not a step before it.
    assert measure_depths([report(), report(0, 3), report(1), report(2)]) == [0, 1, 2, 3]
    assert measure_depths([]) == []


@pytest.mark.parametrize(
    ("updates", "seconds", "kind", "rate"),
    [(8, 2.0, "linear", 4.0), (0, 2.0, "linear", None), (8, 0.0, "linear", None), (8, 2.0, "entry", None)],
)
def test_a_rate_is_of_an_operators_own_work(updates: int, seconds: float, kind: str, rate: float | None) -> None:
    assert OperatorReport("it", kind, (), updates, seconds, 0, 0).rate == rate


def test_reports_as_a_page_show_what_is_read_and_kept_and_interpret_nothing() -> None:
    page = render_operators("<p>", [report(title="<b>"), report(0, 1, kept_bytes=5600)])
    assert "<p>" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "0, 1" in page
    assert "1,200" in page
    assert "2,400" in page  # A second.
    assert page.count("3,400 (5,600 B)") == 1


def test_each_operator_reports_what_it_read_gave_and_keeps() -> None:
    program = Program("p")
    numbers = program.input("numbers", key={"k": pa.int64()}, value={"v": pa.int64()})
    sums = numbers.filter(col("v") > 1).named("large").group_by("k").agg(s=col("v").sum()).named("sums")
    sums.capture()
    with program.open() as running:
        running["numbers"].insert([((k, v), 0, 1) for k in range(3) for v in range(4)])
        running["numbers"].advance_to(1)
        running.step()
        reports = running.operators()
    assert [(each.title, each.kind, each.inputs, each.updates, each.kept_updates) for each in reports] == [
        ("input#1", "entry", (), 12, 0),
        ("sums.input", "arrangement", (0,), 6, 6),  # What the filter passes.
        ("sums", "totalreduce", (1,), 3, 0),
        ("capture#5", "capture", (2,), 3, 0),
    ]
    assert reports[1].kept_bytes == 6 * 8 * 5  # A hash, the key, the value, the time, the multiplicity.
    assert make_reports([]) == []
