"""Linear logics: what linear operators do apart from any stream, put together with followed_by."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.compute.dataflow.plan.plan import Linear
from persist.core.expression.term import Col, Lit, make_sql_call
from persist.dataflow import Logic, Program, Stream, col
from tests.compute.dataflow.schedule import updates_strategy
from tests.support.tiers import examples

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
    with pytest.raises(persist.InvalidUsage, match=r"followed_by: .* is not a Logic; begin one with Logic\(\)"):
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
