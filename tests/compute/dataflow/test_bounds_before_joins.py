"""A bound in time behind a join goes before it: the results are the same, and the join forgets what is over."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.compute.dataflow.plan.optimise import optimise_plan
from persist.compute.dataflow.plan.plan import Capture, Join, Linear
from persist.core.expression.term import Col, Lit, make_sql_call
from persist.dataflow import Logic, Program, Stream, col
from tests.compute.dataflow.schedule import updates_strategy
from tests.support.tiers import examples

UPDATES = st.lists(
    st.tuples(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(0, 9))), st.integers(0, 7)), max_size=10
)
BOUNDS: dict[str, Any] = {
    "both of one": (col("a"), col("a") + 3),
    "one of each": (col("a"), col("b") + 2),
    "of both together": (col("a"), col("a") + col("b")),
    "upper alone": (None, col("b") + 2),
    "of the key": (col("k"), col("k") + 4),
}


def joined(lower: Any, upper: Any) -> Program:
    program = Program("p")
    a = program.input("a", key={"k": pa.int64()}, value={"a": pa.int64()})
    b = program.input("b", key={"k": pa.int64()}, value={"b": pa.int64()})
    a.join(b, "k").temporal_filter(lower, upper).capture()
    return program


def test_bounds_move_to_the_inputs_whose_columns_they_read() -> None:
    shown = {name: joined(*bounds).explain() for name, bounds in BOUNDS.items()}
    assert "input 0: [temporal_filter(a, (a + 3))]" in shown["both of one"]
    assert "input 0: [temporal_filter(a, None)], input 1: [temporal_filter(None, (b + 2))]" in shown["one of each"]
    assert "input 0: [temporal_filter(a, None)]" in shown["of both together"]
    assert "output: [temporal_filter(None, (a + b))]" in shown["of both together"]
    assert "input 1: [temporal_filter(None, (b + 2))]" in shown["upper alone"]
    assert "input 0: [temporal_filter(k, (k + 4))]" in shown["of the key"]


def test_bounds_pass_columns_that_are_renamed_and_not_those_that_are_computed() -> None:
    pairs = joined(col("a"), col("a") + 3)
    a, b = (Stream(pairs, number) for number in (1, 2))
    made = a.join(b, "k")
    shown = {
        "renamed": made.map(k=col("k"), since=col("a")).temporal_filter(col("since"), col("since") + 3),
        "beside": made.extend(both=col("a") + col("b")).filter(col("k") > 0).temporal_filter(None, col("b")),
        "computed": made.extend(until=col("a") + 3).temporal_filter(None, col("until")),
    }
    text = {name: optimised_join(stream) for name, stream in shown.items()}
    assert "input 0: [temporal_filter(a, (a + 3))]" in text["renamed"]
    assert "input 1: [temporal_filter(None, b)]" in text["beside"]
    assert "temporal_filter(None, until)" in text["computed"].split("output:")[1]


def optimised_join(stream: Stream) -> str:
    """Return the join that a stream is made of, as it is run."""
    nodes = stream.program.plan.nodes.items()
    others = {number: node for number, node in nodes if not isinstance(node.operator, Capture)}
    plan = replace(stream.program.plan, nodes=others)
    plan.add(Capture("capture"), (stream.number,), stream.schema)
    return next(line for line in str(optimise_plan(plan)).splitlines() if " join[" in line)


def test_an_index_that_others_may_read_keeps_everything() -> None:
    program = Program("p")
    a = program.input("a", key={"k": pa.int64()}, value={"a": pa.int64()}).arrange_by_key("k")
    b = program.input("b", key={"k": pa.int64()}, value={"b": pa.int64()})
    a.join(b, "k").temporal_filter(col("a"), col("a") + 3).capture()
    [join] = [n.operator for n in optimise_plan(program.plan).nodes.values() if isinstance(n.operator, Join)]
    assert join.before == ((), ())


def test_a_join_keeps_what_is_in_the_window_and_no_more() -> None:
    program = joined(col("a"), col("a") + 10)
    with program.open() as running:
        running["b"].insert([((0, 0), 0, 1)])
        for time in range(300):
            running["a"].insert([((0, time), time, 1)])
            for name in "ab":
                running[name].advance_to(time + 1)
            running.step()
        assert sum(rows for title, rows, _ in running.state() if title.endswith(".input")) < 60


def test_a_bound_beyond_all_times_is_never_reached() -> None:
    last = 2**63 - 1
    program = Program("p")
    a = program.input("a", key={"k": pa.int64()}, value={"a": pa.int64()})
    upper = a.temporal_filter(None, col("a") + 3).capture()
    lower = a.temporal_filter(3 + col("a"), None).capture()
    before = a.temporal_filter(col("a") - 3, None).capture()
    with program.open() as running:
        running["a"].insert([((1, last), 0, 1), ((2, 1 - 2**63), 0, 1), ((3, None), 0, 1)])
        running["a"].advance_to(9)
        running.step()
    found = [[(row["k"], row["_time"]) for row in each.updates().to_pylist()] for each in (upper, lower, before)]
    assert found == [[(1, 0)], [(2, 0)], [(2, 0)]]


@pytest.mark.parametrize("name", BOUNDS)
@settings(max_examples=examples(50), deadline=None)
@given(left=UPDATES, right=UPDATES)
def test_at_every_time_the_pairs_are_there_that_are_in_their_bounds(name: str, left: Any, right: Any) -> None:
    bounds: Any = {
        "both of one": lambda k, a, b: None if a is None else (a, a + 3),
        "one of each": lambda k, a, b: None if a is None or b is None else (a, b + 2),
        "of both together": lambda k, a, b: None if a is None or b is None else (a, a + b),
        "upper alone": lambda k, a, b: None if b is None else (0, b + 2),
        "of the key": lambda k, a, b: (k, k + 4),
    }[name]
    program = joined(*BOUNDS[name])
    [captured] = program.captures.values()
    with program.open() as running:
        for stream, updates in (("a", left), ("b", right)):
            running[stream].insert([(row, time, 1) for row, time in updates])
        for time in range(1, 12):
            for stream in "ab":
                running[stream].advance_to(time)
            running.step()
        rows = captured.updates().to_pylist()
    for time in range(11):
        found: Counter[Any] = Counter()
        for row in rows:
            if row["_time"] <= time:
                found[row["k"], row["a"], row["b"]] += row["_diff"]
        wanted: Counter[Any] = Counter()
        for (k, a), came in left:
            for (other, b), its in right:
                within = bounds(k, a, b)
                if k == other and max(came, its) <= time and within and within[0] <= time < within[1]:
                    wanted[k, a, b] += 1
        assert Counter({row: n for row, n in found.items() if n}) == wanted, time


KV = {"k": pa.int64(), "v": pa.int64()}
EACH = [
    Logic().map(k=col("v"), v=col("k")),
    Logic().map(lambda r: (r.v, r.k), schema=KV),
    Logic().map_batches(lambda batch: batch, schema=KV),
    Logic().extend(v=col("v").coalesce(1)),
    Logic().rename({"k": "v", "v": "k"}).project("k", "v"),
    Logic().filter(col("v") > 0),
    Logic().filter(lambda r: r.k is not None),
    Logic().flat_map(lambda r: [r, (r.v, 7)], schema=KV),
    Logic().explode(col("v").coalesce(2)),
    Logic().explode(lambda r: [(r, -2), ((1, 1), 1)], schema=KV),
    Logic().join_function(lambda r: [((r.v, 3), 2, 2)], schema=KV),
    Logic().negate(),
    Logic().temporal_filter(col("v"), col("k") + 2),
    Logic().delay(col("_time") + 1),
]


def two_inputs() -> tuple[Program, Stream, Stream]:
    program = Program("p")
    return program, program.input("a", key=KV), program.input("b", key=KV)


@pytest.mark.parametrize("logic", EACH, ids=lambda each: each.steps[0].operator)
def test_every_linear_operator_is_a_stage_of_the_one_general_one(logic: Logic) -> None:
    _, a, _ = two_inputs()
    made = a.linear(logic)
    assert isinstance(made.node.operator, Linear)
    assert made.node.inputs == (a.number,)
    assert len(made.node.operator.stages) == len(logic.steps)


@settings(max_examples=examples(60))
@given(logics=st.lists(st.sampled_from(EACH), min_size=2, max_size=4), data=st.data())
def test_what_follows_gives_what_one_after_the_other_gives(logics: list[Logic], data: Any) -> None:
    together = Logic()
    for each in logics:
        together = together.chain(each)
    program, a, b = two_inputs()
    apart = a
    for each in logics:
        apart = apart.linear(each)
    # Once alone, once before and behind a join and a reduction, into which the optimiser pushes them.
    seen = [a.linear(together).capture(), apart.capture()]
    for made in (a.linear(together), apart):
        joined = made.join(b.rename({"v": "w"}), "k").map(k=col("v"), v=col("w")).linear(logics[0])
        seen.append(joined.group_by("k").count("v").filter(col("v") > 0).capture())
    updates = [data.draw(updates_strategy(1, 8)) for _ in "ab"]
    with program.open(optimise=data.draw(st.booleans())) as running:
        for name, given_ in zip("ab", updates, strict=True):
            running[name].insert([((record, None), time[0], diff) for record, time, diff in given_])
            running[name].close()
        running.step()
    rows = [sorted(map(repr, each.rows())) for each in seen]
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]


def test_a_logic_is_a_value_that_many_streams_may_be_given() -> None:
    positive, swapped = Logic().filter(col("v") > 0), Logic().map(k=col("v"), v=col("k"))
    both = positive.chain(swapped)
    program, a, b = two_inputs()
    a.linear(both).join(b.linear(both).rename({"v": "w"}), "k").capture()
    assert [len(each.steps) for each in (positive, swapped, both)] == [1, 1, 2]
    assert repr(both) == "<Logic filter . map>"
    shown = program.explain()
    assert "join[k=k, input 0: [filter((v > 0)) . map(k=v, v=k)], input 1: [filter((v > 0)) . map(k=v, w=k)]]" in shown
    assert a.linear(Logic()) is a


def test_a_logic_is_checked_where_it_meets_columns() -> None:
    _, a, _ = two_inputs()
    with pytest.raises(persist.errors.SchemaMismatch, match=r"filter: .*'missing'"):
        a.linear(Logic().negate().filter(col("missing") > 1))
    with pytest.raises(persist.InvalidUsage, match="rename"):
        a.linear(Logic().rename({"missing": "x"}))
    with pytest.raises(persist.InvalidUsage, match="delay: dimension=1"):
        a.linear(Logic().delay(col("_time"), dimension=1))
    with pytest.raises(persist.InvalidUsage, match=r"chain: .* is not a Logic; begin one with Logic\(\)"):
        Logic().chain(a)  # type: ignore[arg-type]
    with pytest.raises(persist.InvalidUsage, match="linear: 3 is not a Logic"):
        a.linear(3)  # type: ignore[arg-type]


def test_an_error_that_an_earlier_part_of_a_condition_keeps_away_does_not_stop_a_filter() -> None:
    program = Program("guarded")
    numbers = program.input("numbers", key={"a": pa.int64()}, value={"b": pa.int64()})
    quotient = make_sql_call("divide_whole", pa.int64(), Col("b"), Col("a"))
    parts = (
        make_sql_call("not_equal", pa.bool_(), Col("a"), Lit(pa.scalar(0))),
        make_sql_call("equal", pa.bool_(), quotient, Lit(pa.scalar(2))),
    )
    kept = numbers.filter(make_sql_call("and", pa.bool_(), *parts)).capture()
    with program.open(None) as running:
        running["numbers"].insert([((0, 1), 0, 1), ((2, 4), 0, 1)])
        running["numbers"].advance_to(1)
        running.step()
        assert kept.updates()["a"].to_pylist() == [2]
