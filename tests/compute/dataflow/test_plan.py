"""Plans: what is printed, and what the optimiser does without changing results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.compute.dataflow.operators.reduce import TotalReduce
from persist.compute.dataflow.plan.draft import Draft
from persist.compute.dataflow.plan.optimise import optimise_plan
from persist.compute.dataflow.plan.plan import Concat, Constant, Join, Linear, Plan, Reduce, Source
from persist.compute.dataflow.plan.stages import Map
from persist.compute.dataflow.running.graph import Builder
from persist.compute.dataflow.state.spine import allocate_in_memory
from persist.compute.dataflow.updates.words import Domain
from persist.core.expression.term import Col
from persist.dataflow import Captured, Program, Stream, col, lit, when


def inputs(*names: str) -> tuple[Program, list[Stream]]:
    program = Program("p")
    return program, [program.input(name, key={"k": pa.int64()}, value={name: pa.int64()}) for name in names]


def of_kind(plan: Plan, kind: type) -> list[Any]:
    return [node.operator for node in plan.nodes.values() if isinstance(node.operator, kind)]


def test_linear_operators_become_one() -> None:
    program, [a] = inputs("a")
    a.filter(col("a") > 1).extend(b=col("a") + 1).filter(col("b") < 9).project("b").negate().capture()
    assert len(of_kind(program.plan, Linear)) == 5
    [linear] = of_kind(optimise_plan(program.plan), Linear)
    # Both maps between two filters are one, so what only the first computed is computed once.
    assert str([str(stage) for stage in linear.stages]).count("map(") == 2


def test_what_is_used_twice_is_computed_once() -> None:
    program, [a] = inputs("a")
    a.map(x=col("a") + 1).map(y=col("x") * col("x")).map(z=col("y") + 1).capture()
    [linear] = of_kind(optimise_plan(program.plan), Linear)
    assert [str(stage) for stage in linear.stages] == ["map(x=(a + 1))", "map(z=((x * x) + 1))"]


def test_a_column_that_only_a_filter_before_a_join_reads_is_not_arranged() -> None:
    program = Program("p")
    facts = program.input("facts", key={"id": pa.int64()}, value={"k": pa.int64(), "x": pa.int64()})
    groups = program.input("groups", key={"k": pa.int64()}, value={"g": pa.int64()})
    facts.filter(col("x") > 1).named("large").join(groups, "k").named("pairs").project("g").named("shown").capture()
    [join] = of_kind(optimise_plan(program.plan), Join)
    assert [str(stage) for stage in join.before[0]] == ["filter((x > 1))", "map(k)"]
    # A stack of an input is not what its join is called; what is done to the pairs is.
    assert [node.name for node in optimise_plan(program.plan).nodes.values() if node.name] == ["pairs . shown"]


def test_linear_operators_move_into_joins_and_reductions() -> None:
    program, [a, b] = inputs("a", "b")
    joined = a.extend(a=col("a") * 2).join(b.filter(col("b") > 0), "k").map(k=col("k"), s=col("a") + col("b"))
    joined.named("sums").group_by("k").agg(s=col("s").sum()).filter(col("s") > 5).capture()
    plan = optimise_plan(program.plan)
    assert of_kind(plan, Linear) == []
    shown = program.explain()
    assert "input 0: [map(k, a=(a * 2))]" in shown
    assert "input 1: [filter((b > 0))]" in shown
    assert "input: [map(k, _0=(a + b))]" in shown
    assert "output: [filter((s > 5))]" in shown
    assert "join[k=k]" in program.explain(optimise=False)


def test_a_stage_that_somebody_else_reads_is_not_moved() -> None:
    program, [a, b] = inputs("a", "b")
    shared = a.extend(a=col("a") * 2)
    shared.join(b, "k").capture()
    shared.capture()
    assert len(of_kind(optimise_plan(program.plan), Linear)) == 1


def test_conditions_move_before_joins_and_unread_columns_are_not_arranged() -> None:
    program = Program("p")
    wide = {"k": pa.int64(), "x": pa.int64(), "y": pa.int64()}
    a = program.input("a", key=wide)
    b = program.input("b", key={"k": pa.int64()}, value={"z": pa.int64(), "unused": pa.string()})
    a.join(b, "k").filter(col("z") > 1).filter(col("x") + col("z") > 3).map(x=col("x")).capture()
    [join] = of_kind(optimise_plan(program.plan), Join)
    assert [str(stage) for stage in join.before[0]] == ["map(k, x)"]
    assert [str(stage) for stage in join.before[1]] == ["filter((z > 1))", "map(k, z)"]
    assert [str(stage) for stage in join.after] == ["filter(((x + z) > 3))", "map(x)"]


def test_a_join_gives_only_what_its_readers_read() -> None:
    program = Program("p")
    facts = program.input("facts", key={"id": pa.int64()}, value={"k": pa.int64()})
    groups = program.input("groups", key={"k": pa.int64()}, value={"g": pa.int64()})
    facts.join(groups, "k").group_by("g").count().capture()
    plan = optimise_plan(program.plan)
    [join] = of_kind(plan, Join)
    assert [str(stage) for stage in join.before[0]] == ["map(k)"]
    assert [node.schema.names for node in plan.nodes.values() if node.operator == join] == [["g"]]


def test_a_join_that_a_join_reads_gives_only_what_that_one_still_needs() -> None:
    program = Program("p")
    facts = program.input("facts", key={"id": pa.int64()}, value={"k": pa.int64(), "x": pa.int64()})
    groups = program.input("groups", key={"k": pa.int64()}, value={"g": pa.int64(), "unused": pa.string()})
    names = program.input("names", key={"g": pa.int64()}, value={"name": pa.string()})
    facts.join(groups, "k").extend(x=col("x") + 1).join(names, "g").group_by("name").agg(x=col("x").sum()).capture()
    first, second = of_kind(optimise_plan(program.plan), Join)
    assert [str(stage) for stages in first.before for stage in stages] == ["map(k, x)", "map(k, g)"]
    assert [str(stage) for stage in second.before[0]] == ["map(x=(x + 1), g)"]


def test_what_nobody_reads_is_neither_read_of_a_collection_nor_computed() -> None:
    program = Program("p")
    wide = {name: pa.int64() for name in "abcde"}
    facts, more = program.source("facts", schema=wide), program.source("more", schema=wide)
    both = facts.extend(f=col("a") / col("b")) + more.extend(f=col("c") / col("d"))
    sums = both.filter(col("c") > 0).group_by("a").agg(s=col("b").sum(), t=col("f").sum(), u=col("e").max())
    sums.map(a=col("a"), s=col("s")).capture()
    plan = optimise_plan(program.plan)
    sources = {n.operator.collection: n.schema.names for n in plan.nodes.values() if isinstance(n.operator, Source)}
    assert sources == {"facts": ["a", "b", "c"], "more": ["a", "b", "c"]}
    [reduce] = of_kind(plan, Reduce)
    assert (reduce.values, [name for name, _, _ in reduce.logic.outputs]) == (("_0",), ["s"])
    assert program.plan.nodes[facts.number].schema.names == [*"abcde"], "the program itself is as it was written"


def test_what_functions_and_whole_records_read_is_left_as_it_is() -> None:
    program = Program("p")
    wide = {"a": pa.int64(), "b": pa.int64()}
    program.source("distinct", schema=wide).distinct().map(a=col("a")).capture()
    program.source("mapped", schema=wide).map(lambda row: (row.a,), schema={"a": pa.int64()}).capture()
    program.source("filtered", schema=wide).filter(lambda row: row.b > 1).map(a=col("a")).capture()
    program.source("first", schema=wide).group_by("a").top_k(1, "a").map(a=col("a")).capture()
    program.source("indexed", schema=wide).arrange_by_key("a").map(a=col("a")).capture()
    plan = optimise_plan(program.plan)
    assert {n.schema.names == ["a", "b"] for n in plan.nodes.values() if isinstance(n.operator, Source)} == {True}


ONE = {"a": pa.int64()}
READ: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "extended": (lambda s: s.extend(x=col("b") + 1).project("x"), "b"),
    "negated": (lambda s: s.negate().project("a"), "a"),
    "exploded": (lambda s: s.explode(col("b")).project("a"), "ab"),
    "unnested": (lambda s: s.unnest(w=col("l")).project("w"), "l"),
    "unnested and dropped": (lambda s: s.unnest(w=col("l")).project("a"), "al"),
    "bounded": (lambda s: s.temporal_filter(col("b"), col("c")).project("a"), "abc"),
    "delayed": (lambda s: s.delay(col("b")).project("a"), "ab"),
    "at its time": (lambda s: s.filter(col("_time") > col("b")).project("a"), "ab"),
    "by batches": (lambda s: s.map_batches(lambda batch: batch.select(["a"]), schema=ONE), "abcl"),
    "several of each": (lambda s: s.flat_map(lambda row: [(row.a,)], schema=ONE), "abcl"),
    "with a column first": (lambda s: s.project("c", "a").filter(lambda row: row.a > 1).project("a"), "ac"),
    "consolidated": (lambda s: s.consolidate().project("a"), "a"),
    "counted": (lambda s: s.consolidate().group_by().count(), "a"),
    "joined with itself": (lambda s: s.join(s.map(k=col("a"), x=col("b")), {"c": "k"}).project("x"), "abc"),
    "crossed": (lambda s: s.cross(s.map(x=col("a"))).project("b"), "b"),
    "what is left": (lambda s: (s - s.filter(col("b") > 1)).project("a"), "ab"),
    "folded": (lambda s: s.group_by("a").reduce(lambda key, rows: [((1,), 1)], schema={"n": pa.int64()}), "abcl"),
}


@pytest.mark.parametrize("name", READ)
def test_of_a_collection_is_read_what_operators_read(name: str) -> None:
    make, columns = READ[name]
    program = Program("p")
    wide = {"a": pa.int64(), "b": pa.int64(), "c": pa.int64(), "l": pa.list_(pa.int64())}
    make(program.source("t", schema=wide)).capture()
    [source] = [node for node in optimise_plan(program.plan).nodes.values() if isinstance(node.operator, Source)]
    assert "".join(source.schema.names) == columns


def test_sums_that_are_all_of_a_group_stay_and_of_others_one_stays() -> None:
    for is_complete in (False, True):
        program = Program("p")
        groups = program.source("t", schema={"a": pa.int64(), "b": pa.int64()}).group_by("a")
        sums = {"n": lit(1).count(), "t": col("b").count()}
        groups.aggregate(sums, is_complete=is_complete).project("a").capture()
        [reduce] = of_kind(optimise_plan(program.plan), Reduce)
        assert len(reduce.logic.outputs) == len(reduce.values) == 1 + is_complete


def test_constants_and_unions_have_the_columns_that_are_read() -> None:
    program, [a] = inputs("a")
    table = pa.table({"k": [1], "a": [2], "more": [3]})
    both = program.constant(table) + a.extend(more=col("a") + 1)
    (both + program.constant(table)).group_by("k").agg(s=col("more").sum()).capture()
    plan = optimise_plan(program.plan)
    assert {tuple(each.table.column_names) for each in of_kind(plan, Constant)} == {("k", "more")}
    assert {tuple(n.schema.names) for n in plan.nodes.values() if isinstance(n.operator, Concat)} == {("k", "more")}
    assert of_kind(plan, Linear) == [Linear((Map((("k", Col("k")), ("more", (col("a") + 1).term))),))]


def test_records_are_counted_by_one_column_and_an_unread_column_may_go() -> None:
    with persist.open("memory://unread") as client:
        columns = {"a": pa.int64(), "b": pa.string(), "c": pa.int64()}
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value=columns)
        orders.write([((n, (n, "x", n % 2)), 0, 1) for n in range(5)], seal=1).result()
        program = Program("p").using(client)
        rows = program.source("orders")
        total, per = rows.group_by().count().capture(), rows.group_by("c").agg(a=col("a").sum()).capture()
        orders.evolve(drop=["b"])
        with program.open(client) as running:
            running.run()
        assert (total.rows(), sorted(per.rows())) == ([((5,), 0, 1)], [((0, 6), 0, 1), ((1, 4), 0, 1)])


def test_a_join_of_joins_keeps_nothing_in_between() -> None:
    program, [a, b, c] = inputs("a", "b", "c")
    program.join_all([a, b, c], on="k").capture()
    [join] = of_kind(optimise_plan(program.plan), Join)
    assert len(join.on) == 2
    assert "delta_join[k=k ; k=k]" in program.explain()
    arrangements = _arrangements(program)
    assert len(arrangements) == 3


def test_one_arrangement_serves_all_who_use_the_same_key() -> None:
    program, [a, b, c] = inputs("a", "b", "c")
    indexed = a.arrange_by_key("k")
    indexed.join(b, "k").capture()
    indexed.join(c, "k").capture()
    indexed.antijoin(b, "k").capture()
    # One of a, b and c each, and the distinct keys of b: as they come, and as the join reads them.
    assert len(_arrangements(program)) == 5
    assert "arrange[by k]" in program.explain()


def _arrangements(program: Draft) -> list[str]:
    captures = {number: Captured() for number in program.captures}
    graph = Builder(optimise_plan(program.plan), Domain(), captures, {}, allocate_in_memory).build_graph()
    return [each.title for each in graph.operators if type(each).__name__ == "Arrangement"]


def test_what_no_end_reads_is_not_run() -> None:
    program, [a, b] = inputs("a", "b")
    a.join(b, "k")
    a.capture()
    assert of_kind(optimise_plan(program.plan), Join) == []
    with program.open() as running:
        running["b"].insert([((1, 1), 0, 1)])  # Inputs are there, whoever reads them.


def test_counting_constants_keeps_no_words_for_them() -> None:
    program, [a] = inputs("a")
    a.group_by("k").agg(n=lit(1).sum(), m=lit(3).sum(), c=lit("x").count(), z=lit(None, pa.int64()).count()).capture()
    seen = next(iter(program.captures.values()))
    with program.open() as running:
        running["a"].insert([((1, 5), 0, 1), ((1, 6), 0, 1)])
        running["a"].advance_to(1)
        running.step()
    assert seen.rows() == [((1, 2, 6, 2, 0), 0, 1)]
    assert len(of_kind(optimise_plan(program.plan), Reduce)) == 1


EXPRESSIONS: list[tuple[Any, Any]] = [
    (col("a") + 1, [3, 0, None]),
    (10 - col("a"), [8, 11, None]),
    (col("a") * col("b"), [6, None, None]),
    (col("a") / 4, [0.5, -0.25, None]),
    (col("a") / 0, [None, None, None]),
    (col("a") // 2, [1, -1, None]),
    (col("a") % 2, [0, 1, None]),
    (7 // col("a"), [3, -7, None]),
    (col("a") // 0, [None, None, None]),
    (-col("a"), [-2, 1, None]),
    (col("a").abs(), [2, 1, None]),
    (col("a") > 0, [True, False, None]),
    ((col("a") > 0) & (col("b") > 0), [True, False, None]),
    ((col("a") > 0) | (col("b") > 0), [True, None, True]),
    (~(col("a") == 2), [False, True, None]),
    (col("a") != 2, [False, True, None]),
    (col("b").is_null(), [False, True, False]),
    (col("b").coalesce(col("a"), 9), [3, -1, 4]),
    (col("a").is_in([2, 5]), [True, False, None]),
    (col("a").min_with(0), [0, -1, 0]),
    (col("a").max_with(0), [2, 0, 0]),
    (when(col("a") > 0, "up").when(col("a") < 0, "down").otherwise("?"), ["up", "down", "?"]),
    (when(col("a") > 0, 1).otherwise(None), [1, None, None]),
    (col("a").cast(pa.string()), ["2", "-1", None]),
    ((col("a") > 0).cast(pa.int64()), [1, 0, None]),
    (col("t").upper() + "!", ["AB!", " C !", None]),
    (col("t").strip().lower(), ["ab", "c", None]),
    (col("t").length(), [2, 3, None]),
    (col("t").slice(0, 1), ["A", " ", None]),
    (col("t").starts_with("A"), [True, False, None]),
    (col("t").ends_with(" "), [False, True, None]),
    (col("t").contains("b"), [True, False, None]),
    (col("t").replace("b", "xx"), ["Axx", " c ", None]),
    (col("t").concat("-", col("t")), ["Ab-Ab", " c - c ", None]),
    (col("d").part("year"), [2026, 1970, None]),
    (col("d").floor("day").cast(pa.string()), ["2026-03-04 00:00:00", "1970-01-01 00:00:00", None]),
    ((col("d") + lit(90, pa.duration("s"))).part("minute"), [1, 1, None]),
]


@pytest.mark.parametrize(("expression", "values"), EXPRESSIONS, ids=[str(each) for each, _ in EXPRESSIONS])
def test_expressions_mean_what_sql_means(expression: Any, values: list[Any]) -> None:
    program = Program("p")
    columns = {"a": pa.int64(), "b": pa.int64(), "t": pa.string(), "d": pa.timestamp("s")}
    stream = program.input("x", key={"id": pa.int64()}, value=columns).map(id=col("id"), y=expression)
    seen = stream.capture()
    table = pa.table(
        {
            "id": [0, 1, 2],
            "a": pa.array([2, -1, None], pa.int64()),
            "b": pa.array([3, None, 4], pa.int64()),
            "t": pa.array(["Ab", " c ", None]),
            "d": pa.array([1772582400, 0, None], pa.timestamp("s")),
            "_time": [0, 0, 0],
            "_diff": [1, 1, 1],
        }
    )
    with program.open() as running:
        running["x"].insert(table)
        running["x"].advance_to(1)
        running.step()
    assert [record[1] for record, _, _ in sorted(seen.rows())] == values


def test_steps_can_be_limited_by_times_and_by_updates() -> None:
    program, [a] = inputs("a")
    seen, probe = a.capture(), a.probe()
    with program.open() as running:
        running["a"].insert([((n, n), n // 2, 1) for n in range(10)])
        running["a"].advance_to(9)
        assert running.step(times=1).updates == 2
        assert (probe.done(0), probe.done(1)) == (True, False)
        assert running.step(updates=5).updates == 4
        assert running.step(updates=1).updates == 2
        assert running.step().updates == 2
        assert probe.done(8)
    assert len(seen.rows()) == 10


def test_inspect_shows_what_passes_and_take_forgets_what_was_taken() -> None:
    program, [a] = inputs("a")
    shown: list[pa.Table] = []
    seen = a.inspect(shown.append).capture()
    with program.open() as running:
        for time in range(2):
            running["a"].insert([((time, 1), time, 1)])
            running["a"].advance_to(time + 1)
            running.step()
            assert seen.take().num_rows == 1
    assert [table.column_names for table in shown] == [["k", "a", "_time", "_diff"]] * 2
    assert seen.rows() == []


@pytest.mark.thorough
def test_values_that_nothing_refers_to_are_forgotten_while_the_program_runs() -> None:
    program = Program("p")
    probe = program.input("x", key={"t": pa.string()}).distinct().probe()
    with program.open() as running:
        for time in range(6):
            texts = pa.array([f"{time}-{n}" for n in range(40_000)])
            ones = pa.array([1] * 40_000)
            running["x"].insert(pa.table({"t": texts, "_time": pa.array([2 * time] * 40_000), "_diff": ones}))
            gone = pa.array([-1] * 40_000)
            running["x"].insert(pa.table({"t": texts, "_time": pa.array([2 * time + 1] * 40_000), "_diff": gone}))
            running["x"].advance_to(2 * time + 2)
            running.step()
        assert running.metrics()["interned_values"] < 240_000
        assert probe.done(11)


def test_state_beyond_the_memory_budget_is_in_files_and_counts_stay_right(tmp_path: Path) -> None:
    program = Program("p")
    stream = program.input("x", key={"id": pa.int64()}, value={"k": pa.int64()})
    seen = stream.join(stream.rename({"id": "other"}).filter(col("other") < 3), "k").group_by("other").count().capture()
    rows = 200_000
    # Optimised, the program would keep five records of one side, and three of the other.
    with program.open(optimise=False, memory_budget=1 << 20, spill_folder=str(tmp_path)) as running:
        for time in range(2):
            ids = range(time * rows, (time + 1) * rows)
            table = {"id": ids, "k": [each % 5 for each in ids], "_time": [time] * rows, "_diff": [1] * rows}
            running["x"].insert(pa.table({name: pa.array(values) for name, values in table.items()}))
            running["x"].advance_to(time + 1)
            running.step()
        assert running.metrics()["spilled_bytes"] > 1 << 20
    last = [record for record, time, diff in seen.rows() if time == 1 and diff == 1]
    assert sorted(last) == [(each, 2 * rows // 5) for each in range(3)]
    assert list(tmp_path.iterdir()) == []


def test_a_count_that_changes_at_many_times_is_brought_up_to_date_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its group has thousands of updates, but one sum: it does not have to be laid out block by block."""
    calls: list[int] = []
    changes = TotalReduce._compute_changes

    def counting(self: TotalReduce, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return changes(self, *arguments, **named)

    monkeypatch.setattr(TotalReduce, "_compute_changes", counting)
    program, [a] = inputs("a")
    seen = a.group_by().count().capture()
    times = list(range(3000))
    with program.open() as running:
        running["a"].insert(pa.table({"k": times, "a": times, "_time": times, "_diff": [1] * 3000}))
        running["a"].advance_to(3000)
        running.step()
    assert len(calls) == 1
    assert len(seen.rows()) == 5999
