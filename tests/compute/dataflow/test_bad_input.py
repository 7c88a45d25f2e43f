"""Mistakes are clear errors that name the operator: when the program is built where that is possible."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist import InvalidUsage
from persist.codecs.errors import InvalidUpdate
from persist.dataflow import Antichain, Program, Stream, col, lit
from persist.errors import InputClosed, NotConsolidated, NotConverging, OperatorFailed, SchemaMismatch


def numbers(dimensions: int = 1) -> tuple[Program, Stream]:
    program = Program("p", dimensions=dimensions)
    return program, program.input("a", key={"k": pa.int64()}, value={"v": pa.int64()})


class Wrong:
    """What is at hand for a mistake."""

    def __init__(self) -> None:
        self.program, self.a = numbers()
        self.text = self.program.input("t", key={"k": pa.string()})
        self.words = self.program.input("w", key={"k": pa.int64()}, value={"l": pa.list_(pa.int64())})
        self.b = numbers()[1]


def set_variable(x: Wrong, body: Callable[[Stream], Stream], times: int = 1) -> None:
    variable = x.program.scope("s").variable("x", x.a)
    for _ in range(times):
        variable.set(body(variable))


# fmt: off
MISMATCHED: list[tuple[Callable[[Any], object], str]] = [
    (lambda x: x.a.filter(col("w") > 0), "filter: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.map(x=col("w") + 1), "map: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.project("w"), "project: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.group_by("w"), "group_by: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.join(x.a, "w"), "join, left side: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.group_by("k").agg(x=col("w").sum()), "map: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.group_by("k").top_k(1, "w"), "top_k: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.persist("x", key=["w"]), "persist: there is no column 'w'; the columns are ['k', 'v']"),
    (lambda x: x.a.map(x=col("v") + "one"),
     "map: (v + 'one') does not fit its types (int64, string): Function 'add_checked' has no kernel "
     "matching input types (int64, string). Cast one of them, or choose another column."),
    (lambda x: x.a.filter(col("v")), "filter: the condition v is of type int64, and not boolean"),
    (lambda x: x.a.filter(col("v") & (col("k") > 1)),
     "filter: (v and (k > 1)) does not fit its types (int64, bool): int64 is not a condition. Cast "
     "one of them, or choose another column."),
    (lambda x: x.a.join(x.text, "k"),
     "join: 'k' is of type int64 on the left, and 'k' of type string on the right. Cast one of them "
     "with map or extend."),
    (lambda x: x.a.concat(x.text),
     "concat: input#1 has the columns k: int64, v: int64, and input#2 has k: string: map one to the other"),
    (lambda x: x.text.group_by().agg(x=col("k").sum()),
     "agg: x is the sum of values of type string, which are not numbers; cast them"),
    (lambda x: x.a.map(x=lit(None)), "map: NULL is NULL of no type; say which with lit(None, pa.int64())"),
    (lambda x: x.a.explode(col("v") / 2),
     "explode: a multiplicity must be an integer, but (v / 2) is of type double"),
    (lambda x: x.a.temporal_filter(lit("now")),
     "temporal_filter: a bound must be an integer, but 'now' is of type string"),
    (lambda x: x.a.map(lambda r: r, schema={"_time": pa.int64()}),
     "map: a column cannot be called '_time': choose another name"),
    (lambda x: x.a.rename({"k": "v"}), "rename: column 'v' would be there twice; rename one of them"),
    (lambda x: x.words.unnest(x=col("k")), "unnest: k is of type int64, and not a list"),
    (lambda x: x.a.join(x.a, "k"),
     "join: both sides have a column 'v' that is not part of the key; rename({'v': …}) one"),
    (lambda x: x.a.group_by("k").agg(k=col("v").sum()),
     "agg: 'k' is a column of the key already; choose another name"),
    (lambda x: x.a.group_by(_diff=col("k")), "group_by: a column cannot be called '_diff': choose another name"),
    (lambda x: set_variable(x, lambda y: y.group_by("k").count()),
     "variable 'x' has the columns k: int64, v: int64, and is set to k: int64, count: int64: map one to the other"),
    (lambda x: x.a.delay(lit("x")), "delay: a time must be an integer, but 'x' is of type string"),
    (lambda x: x.a.cross(x.a),
     "cross: both sides have a column 'k' that is not part of the key; rename({'k': …}) one"),
]
MISUSED: list[tuple[Callable[[Any], object], str]] = [
    (lambda x: x.a.map(lambda r: r),
     "map(function, schema={…}) needs the columns that the function returns, and nothing else"),
    (lambda x: x.a.map(lambda r: r, schema={"x": pa.int64()}, y=col("k")),
     "map(function, schema={…}) needs the columns that the function returns, and nothing else"),
    (lambda x: x.words.unnest(), 'unnest() needs a list, and a name for its elements: unnest(word=col("words"))'),
    (lambda x: x.a.join(x.a, []), "join: on=[] names no columns; for all pairs of records use cross()"),
    (lambda x: x.a.concat(x.b),
     "input#1 belongs to program 'p', and this is 'p': persist it there, and read it as a source here"),
    (lambda x: x.a.join(x.b,"k"),
     "input#1 belongs to program 'p', and this is 'p': persist it there, and read it as a source here"),
    (lambda x: x.program.join_all([x.a], ["k"]), "join_all: 1 streams; a join is of at least two"),
    (lambda x: x.a.group_by("k").top_k(0, "v"), "top_k: count=0 is not a whole number of at least 1"),
    (lambda x: x.a.group_by("k").top_k(True, "v"), "top_k: count=True is not a whole number of at least 1"),
    (lambda x: x.a.group_by("k").top_k(1, "v", skip=-1), "top_k: skip=-1 is not a whole number of at least 0"),
    (lambda x: x.a.group_by("k").top_k(1, "v", counted="x"),
     "top_k: counted='x', skip=0: give one of 'row_number', 'rank', 'dense_rank', and skip with the first"),
    (lambda x: x.program.input("a", key={"k": int}), "input 'a': there is one of that name already"),
    (lambda x: x.program.input("", key={"k": int}), "input '': its name is a text"),
    (lambda x: x.program.scope("s").leave(x.a),
     "leave: input#1 is not in this scope; its own scope must let it leave"),
    (lambda x: x.program.scope("s").variable("y"),
     "variable 'y': give either an initial stream, or the columns with schema={…}"),
    (lambda x: x.program.scope("s").variable("y", x.a, schema={"k": int}),
     "variable 'y': give either an initial stream, or the columns with schema={…}"),
    (lambda x: set_variable(x, lambda y: y.distinct(), 2), "variable 'x' was set already; a variable is set once"),
    (lambda x: x.a.capture().rows(), "this capture holds nothing yet: open its program with program.open(client)"),
    (lambda x: x.a.probe().done(1), "this probe knows nothing yet: open its program with program.open(client)"),
    (lambda x: x.a.iterate(lambda x: 1),
     "iterate: the body returned 1, and must return the stream of the next iteration"),
    (lambda x: x.a.group_by("k").reduce(1, schema={"x": int}), "reduce: 1 is not a function"),
    (lambda x: x.a.map(1, schema={"x": int}), "map: 1 is not a function"),
    (lambda x: Program("p", dimensions=0), "dimensions=0 is not a number of dimensions: give 1 to 16"),
    (lambda x: Program(""), "program name '' is not a text of 1 to 100 printable characters"),
    (lambda x: x.program.source("x"),
     "source('x'): its columns are not known. Give them with schema={…}, or let the program "
     'look them up: Program("name").using(client)'),
    (lambda x: x.program.scope("s", limit=0), "scope 's': limit=0 is not a number of iterations of at least 1"),
    (lambda x: x.a.group_by("k").agg(), 'agg() needs what to aggregate: agg(total=col("amount").sum())'),
    (lambda x: x.a.group_by("k").agg(x=col("v")),
     "agg: x=v is not an aggregate: end it with .sum(), .count(), .max() …"),
    (lambda x: x.a.iterate(lambda _: None),
     "iterate: the body returned None, and must return the stream of the next iteration"),
    (lambda x: x.a.map(), 'map() needs what to compute: map(total=col("a") + 1), or map(function, schema={…})'),
    (lambda x: x.a.map(3), "map: 3 is not a function"),
    (lambda x: col(3), 'col(3): a column is called by its name, as in col("delay")'),  # type: ignore[arg-type]
    (lambda x: numbers(2)[1].persist("x", key=["k"]),
     "persist: times of this program have 2 dimensions, and those of a collection one. Take the "
     "updates of capture(), and write them with columns for the coordinates"),
    (lambda x: x.a.persist("twice", key=["k"]).persist("twice", key=["k"]),
     "persist: the program writes collection 'twice' already"),
    (lambda x: x.a.explode(lambda r: []),
     "explode(function, schema={…}) needs the columns of the records that the function returns"),
    (lambda x: x.a.temporal_filter(col("v"), dimension=1),
     "temporal_filter: dimension=1 is not one of the 1 of this program's times"),
]
# fmt: on


@pytest.mark.parametrize(("error", "wrongs"), [(SchemaMismatch, MISMATCHED), (InvalidUsage, MISUSED)])
def test_what_cannot_be_is_told_exactly_when_the_program_is_built(error: type[Exception], wrongs: Any) -> None:
    for wrong, told in wrongs:
        with pytest.raises(error) as raised:
            wrong(Wrong())
        assert (str(raised.value), type(raised.value)) == (told, error)


def test_and_or_not_on_expressions_say_what_to_write_instead() -> None:
    with pytest.raises(InvalidUsage, match=r"& \| ~"):
        bool(col("a") > 1)


def test_a_function_that_raises_names_operator_and_record() -> None:
    program, a = numbers()
    a.map(lambda r: 1 // r.v, schema={"x": pa.int64()}).named("invert").capture()
    with program.open() as running:
        running["a"].insert([((1, 1), 0, 1), ((2, 0), 0, 1)])
        running["a"].advance_to(1)
        with pytest.raises(
            OperatorFailed, match=r"operator invert failed on the record Record\(k=2, v=0\).*ZeroDivision"
        ):
            running.step()
        with pytest.raises(InvalidUsage, match="failed in the middle of a step"):
            running.step()


@pytest.mark.parametrize("made", ["one", (1, 2), {"y": 1}, 1.5, 2**70])
def test_a_function_that_returns_the_wrong_thing_names_operator_and_record(made: Any) -> None:
    program, a = numbers()
    a.map(lambda r: (made,) if not isinstance(made, tuple | dict) else made, schema={"x": pa.int64()}).capture()
    with program.open() as running:
        running["a"].insert([((7, 1), 0, 1)])
        running["a"].advance_to(1)
        with pytest.raises(OperatorFailed, match="Record"):
            running.step()


def _filter_by(found: object) -> Callable[[Stream], Stream]:
    return lambda a: a.filter(lambda _: found)


FAILING: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "a reduction": (
        lambda a: a.group_by("k").reduce(lambda key, records: [(1, "two")], schema={"x": pa.int64()}),
        r"odd failed on the record 7.*multiplicity",
    ),
    "an expression": (lambda a: a.map(x=(col("v") + 2**40) * 2**40), r"odd failed on the record Record\(k=7.*overflow"),
    "an inspection": (lambda a: a.inspect(raises), r"odd failed.*RuntimeError"),
    **{
        f"the condition {found}": (_filter_by(found), r"odd failed on the record Record\(k=7, v=1\).*True, False")
        for found in ("no", 1, np.array([True, False]))
    },
}


@pytest.mark.parametrize(("make", "message"), FAILING.values(), ids=FAILING)
def test_what_fails_names_operator_and_record(make: Callable[[Stream], Stream], message: str) -> None:
    program, a = numbers()
    make(a).named("odd").capture()
    with program.open() as running:
        running["a"].insert([((7, 1), 0, 1)])
        running["a"].close()
        with pytest.raises(OperatorFailed, match=f"operator {message}"):
            running.step()


def test_a_cycle_without_consolidation_is_an_error_when_the_program_is_built() -> None:
    program, a = numbers()
    with pytest.raises(NotConsolidated, match="'iterate' has no operator that consolidates"):
        a.iterate(lambda x: x.map(k=col("k"), v=col("v") + 1))
    scope = program.scope("mutual")
    one, other = scope.variable("one", a), scope.variable("other", a)
    one.set(other.filter(col("v") > 0))
    with pytest.raises(NotConsolidated, match="'mutual'"):
        other.set(one.negate())
    nested = program.scope("outer")
    x = nested.variable("x", a)
    inner = nested.scope("inner")
    with pytest.raises(NotConsolidated, match="'outer'"):
        x.set(inner.leave(inner.enter(x)))


def test_a_variable_that_was_never_set_is_an_error() -> None:
    program, a = numbers()
    scope = program.scope("s")
    scope.leave(scope.variable("x", a)).capture()
    with pytest.raises(InvalidUsage, match="variable 'x' of scope 's' was never set"):
        program.open()


def test_an_iteration_that_does_not_come_to_its_end_raises() -> None:
    program, a = numbers()
    a.iterate(lambda x: (x + x.extend(v=col("v") + 1)).distinct(), limit=20, name="up").capture()
    with program.open() as running:
        running["a"].insert([((1, 1), 0, 1)])
        running["a"].advance_to(1)
        with pytest.raises(NotConverging, match=r"'up' still had \d+ changes after its limit of 20"):
            running.step()


def test_input_at_a_closed_time_is_refused_whole() -> None:
    program, a = numbers()
    seen = a.capture()
    with program.open() as running:
        running["a"].advance_to(5)
        with pytest.raises(InputClosed, match="'a' got an update at time 4"):
            running["a"].insert([((1, 1), 5, 1), ((1, 1), 4, 1)])
        running["a"].advance_to(6)
        running.step()
        assert seen.rows() == []


def test_frontiers_do_not_go_back_and_dimensions_do_not_mix() -> None:
    program, _ = numbers(2)
    with program.open() as running:
        running["a"].advance_to((1, 1))
        with pytest.raises(InvalidUsage, match="'a' would go back"):
            running["a"].advance_to((0, 2))
        with pytest.raises(InvalidUsage, match="2 integers"):
            running["a"].advance_to(3)
        with pytest.raises(InvalidUsage, match="2 integers"):
            running["a"].insert([((1, 1), 3, 1)])
    program, _ = numbers(1)
    with program.open() as running, pytest.raises((InvalidUsage, InvalidUpdate)):
        running["a"].insert([((1, 1), (3, 3), 1)])


def test_updates_that_do_not_fit_are_refused() -> None:
    program, _ = numbers(2)
    with program.open() as running:
        for wrong in (
            [((1, "x"), (0, 0), 1)],
            [(1, 2)],
            pa.table({"k": [1], "v": [1], "_diff": [1]}),
            pa.table({"k": [1], "_time_0": [1], "_time_1": [1], "_diff": [1]}),
            pa.table({"k": [1], "v": [1], "_time_0": [1], "_time_1": [-1], "_diff": [1]}),
        ):
            with pytest.raises(InvalidUsage):
                running["a"].insert(wrong)


def test_the_one_number_that_stands_for_null_is_refused() -> None:
    program, _ = numbers()
    with program.open() as running, pytest.raises(InvalidUsage, match=r"-2\*\*63"):
        running["a"].insert([((1, -(2**63)), 0, 1)])


def test_streams_of_another_program_or_scope_are_refused() -> None:
    _, a = numbers()
    program, b = numbers()
    with pytest.raises(InvalidUsage, match="belongs to program"):
        a.concat(b)
    scope = program.scope("s")
    inside = scope.enter(b)
    with pytest.raises(InvalidUsage, match="inside an iteration"):
        inside.capture()
    with pytest.raises(InvalidUsage, match="not around"):
        program.scope("t").enter(inside)


def test_running_to_a_time_that_an_input_never_reaches_is_an_error() -> None:
    program, a = numbers()
    a.capture()
    with program.open() as running, pytest.raises(InvalidUsage, match="'a' was advanced to"):
        running.run(until=5)


def test_multiplicities_that_overflow_raise() -> None:
    program, a = numbers()
    a.join(a.rename({"v": "w"}), "k").capture()
    with program.open() as running:
        running["a"].insert([((1, 1), 0, 2**40)])
        running["a"].advance_to(1)
        with pytest.raises(InvalidUsage, match="does not fit int64"):
            running.step()


def test_an_input_that_is_not_there_is_refused() -> None:
    program, a = numbers()
    a.capture()
    with program.open() as running, pytest.raises(InvalidUsage, match="no input 'b'"):
        running["b"]
    with pytest.raises(InvalidUsage, match="cannot be a constant"):
        lit(object())


def test_an_empty_frontier_of_an_input_completes_it() -> None:
    program, a = numbers()
    seen = a.capture()
    with program.open() as running:
        running["a"].insert([((1, 1), 10**18, 1)])
        running["a"].advance_to(Antichain())
        running.step()
        assert seen.rows() == [((1, 1), 10**18, 1)]
        with pytest.raises(InputClosed):
            running["a"].insert([((1, 1), 10**18, 1)])


@pytest.mark.parametrize("name", ["a/b", "a..b"])
def test_a_program_name_that_its_holds_cannot_have_is_an_error_when_the_program_is_built(name: str) -> None:
    with pytest.raises(InvalidUsage, match=r"program name 'a.*cannot be part of the name of its holds"):
        Program(name)


@pytest.mark.parametrize(
    "result", [1, "ab", (1,), (1, 2, 3), [1, 1], (1, True), (1, 1.0), (1, None), (1, 2**63), (1, -(2**63))]
)
def test_what_a_function_of_groups_returns_is_pairs_of_a_record_and_an_integer(result: Any) -> None:
    program, a = numbers()
    a.group_by("k").reduce(lambda key, records: [(0, 1), result], schema={"x": pa.int64()}).named("odd").capture()
    with program.open() as running, pytest.raises(OperatorFailed, match="instead of pairs of a record and its mult"):
        running["a"].insert([((1, 1), 0, 1)])
        running["a"].advance_to(1)
        running.step()


def test_a_function_of_groups_may_give_any_multiplicity_and_records_that_are_flags() -> None:
    program, a = numbers()
    given = [(True, 2**63 - 1), (False, 0), (None, -(2**63) + 1)]
    seen = a.group_by("k").reduce(lambda key, records: given, schema={"x": pa.bool_()}).capture()
    with program.open() as running:
        running["a"].insert([((1, 1), 0, 1)])
        running["a"].advance_to(1)
        running.step()
    made = {row["x"]: row["_diff"] for row in seen.updates().to_pylist()}
    assert made == {True: 2**63 - 1, None: -(2**63) + 1}


def raises(_: object) -> None:
    raise RuntimeError("no")


def test_conditions_are_true_false_or_null() -> None:
    program, a = numbers()
    seen = a.filter(lambda r: {1: True, 2: False, 3: None, 4: np.True_}[r.k]).capture()
    with program.open() as running:
        running["a"].insert([((key, 0), 0, 1) for key in (1, 2, 3, 4)])
        running["a"].close()
        running.step()
    assert sorted(record for record, _, _ in seen.rows()) == [(1, 0), (4, 0)]


def test_options_are_checked_when_a_program_is_opened(tmp_path: Path) -> None:
    program, a = numbers()
    a.capture()
    wrongs: list[dict[str, Any]] = [
        *({"budget": 1}, {"optimise": 1}, {"replace": "yes"}, {"jump": None}, {"memory_budget": -1}),
        *({"memory_budget": "1 GB"}, {"memory_budget": 2.0**30}, {"spill_folder": str(tmp_path / "missing")}),
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidUsage, match=next(iter(wrong))):
            program.open(**wrong)
    program.open(spill_folder=tmp_path, memory_budget=0).close()


def test_a_program_that_was_closed_does_nothing_more(client: persist.Client) -> None:
    program, a = numbers()
    a.persist("kept", key=["k"])
    running = program.open(client)
    running.close()
    running.close()
    for wrong in (running.step, running.run, lambda: running.run(until=3)):
        with pytest.raises(InvalidUsage, match="was closed"):
            wrong()
    assert client.load("kept").upper == persist.Antichain(0)


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1.5]),
        pa.array(["1"]),
        pa.array([None], pa.int64()),
        pa.array([-1]),
        pa.array([2**63 - 1]),
        pa.array([2**64 - 1], pa.uint64()),
    ],
)
def test_columns_of_times_are_checked(times: pa.Array) -> None:
    program, a = numbers(2)
    seen = a.capture()
    with program.open() as running:
        with pytest.raises(InvalidUpdate, match="_time_1"):
            running["a"].insert(pa.table({"k": [1], "v": [1], "_time_0": [0], "_time_1": times, "_diff": [1]}))
        with pytest.raises(InvalidUpdate, match="the updates are 5"):
            running["a"].insert(5)
        running["a"].insert(
            pa.table({"k": [1], "v": [1], "_time_0": pa.array([2], pa.uint8()), "_time_1": [2**63 - 2], "_diff": [1]})
        )
        running["a"].close()
        running.step()
        assert seen.rows() == [((1, 1), (2, 2**63 - 2), 1)]


def test_a_loop_that_was_refused_leaves_the_program_as_it_was() -> None:
    program, a = numbers()
    seen = a.capture()
    before = str(program.plan)
    bodies: list[Callable[[Stream], Any]] = [
        *(lambda x: x.extend(v=col("v") + 1), lambda x: None, lambda x: x.project("w").distinct(), raises)
    ]
    for body in bodies:
        with pytest.raises((NotConsolidated, InvalidUsage, RuntimeError)):
            a.iterate(body)
    assert str(program.plan) == before
    with program.open() as running:
        running["a"].close()
        running.step()
    assert seen.rows() == []


def test_mistakes_are_errors_when_the_program_is_built() -> None:
    program, a = numbers()
    other = a.rename({"v": "w"})
    wrongs: list[Callable[[], object]] = [
        lambda: a.persist("../a\n", key=["k"]),
        lambda: a.persist(5, key=["k"]),  # type: ignore[arg-type]
        lambda: program.source(5, schema={"k": pa.int64()}),  # type: ignore[arg-type]
        lambda: program.source("s", schema=5),
        lambda: program.source("s", schema={"_time": pa.int64()}),
        lambda: program.constant([1, 2]),
        lambda: a.join(other, 5),  # type: ignore[arg-type]
        lambda: a.temporal_filter(col("v"), dimension="x"),  # type: ignore[arg-type]
        lambda: a.iterate(5),  # type: ignore[arg-type]
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidUsage):
            wrong()
    assert len(program.plan.nodes) == 2
