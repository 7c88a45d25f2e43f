"""Values mean what they are said to mean: whatever they are called, however large they are, however long it runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from persist.codecs.errors import DiffOverflow
from persist.dataflow import Program, Stream, col, lit
from persist.errors import OperatorFailed, SchemaMismatch


def given(
    stream: Stream, updates: list[tuple[Any, int, int]] | pa.Table, **options: Any
) -> list[tuple[tuple[object, ...], int]]:
    """Return the records of a stream of a program of one input, `a`, and their multiplicities."""
    seen = stream.capture()
    with stream.program.open(**options) as running:  # type: ignore[attr-defined]
        running["a"].insert(updates)
        running["a"].close()
        running.step()
        return [(record, diff) for record, _, diff in seen.rows()]


def one(kind: pa.DataType, **others: pa.DataType) -> Stream:
    return Program("p").input("a", key={"k": pa.int64()}, value={"v": kind, **others})


def test_a_constant_stays_what_it_is_when_other_values_are_forgotten() -> None:
    program = Program("p")
    a = program.input("a", key={"k": pa.int64()})
    program.input("texts", key={"t": pa.string()})
    seen = a.map(k=col("k"), kind=lit("constant")).capture()
    with program.open() as running:
        for time, count in enumerate([0, 140_000, 0]):
            if not count:
                running["a"].insert([((time, None), time, 1)])
            values = np.char.add("text ", np.arange(count).astype(str))
            running["texts"].insert(
                pa.table({"t": values, "_time": np.full(count, time), "_diff": np.ones(count, int)})
            )
            running["a"].advance_to(time + 1)
            running["texts"].advance_to(time + 1)
            running.step()
            if time == 0:
                seen.take()
        assert running.metrics()["interned_values"] < 140_000, "values are forgotten"
        assert seen.rows() == [((2, "constant"), 2, 1)]


@pytest.mark.parametrize("name", ["_0", "_1", "__0", "slot", "due"])
def test_a_group_may_be_called_like_a_column_of_the_engines_own(name: str) -> None:
    stream = one(pa.int64()).rename({"k": name}).group_by(name).agg(total=col("v").sum(), most=col("v").max())
    assert given(stream, [((1, 10), 0, 1), ((1, 20), 0, 1)]) == [((1, 30, 20), 1)]


def test_what_may_not_fit_int64_is_no_time_and_no_multiplicity() -> None:
    a = one(pa.uint64())
    wrongs: list[Callable[[], object]] = [
        *(lambda: a.explode(col("v")), lambda: a.temporal_filter(col("v")), lambda: a.delay(col("v")))
    ]
    for wrong in wrongs:
        with pytest.raises(SchemaMismatch, match="uint64: cast it to int64"):
            wrong()
    assert given(a.explode(col("v").cast(pa.int64())), [((1, 3), 0, 2)]) == [((1, 3), 6)]


@pytest.mark.parametrize(
    ("bounds", "there"),
    [
        ((col("v"), col("until")), [((3, 1, 5), 1, 1), ((3, 1, 5), 5, -1)]),
        ((col("v"), None), [((2, 1, None), 1, 1), ((3, 1, 5), 1, 1)]),
        ((None, col("until")), [((1, None, 5), 0, 1), ((1, None, 5), 5, -1), ((3, 1, 5), 0, 1), ((3, 1, 5), 5, -1)]),
        ((lit(None, pa.int64()), None), []),
    ],
)
def test_a_record_with_a_bound_of_time_that_is_null_is_never_there(bounds: Any, there: list[Any]) -> None:
    stream = one(pa.int64(), until=pa.int64()).temporal_filter(*bounds)
    seen = stream.capture()
    with stream.program.open() as running:  # type: ignore[attr-defined]
        rows = [(1, (None, 5)), (2, (1, None)), (3, (1, 5)), (4, (None, None))]
        running["a"].insert([(row, 0, 1) for row in rows])
        running["a"].close()
        running.step()
        assert sorted(seen.rows()) == there


NESTED: list[tuple[Callable[[pa.DataType], pa.DataType], Callable[[int], Any]]] = [
    (pa.list_, lambda n: [n]),
    (lambda kind: pa.list_(kind, 1), lambda n: [n]),
    (lambda kind: pa.struct({"n": kind, "text": pa.string()}), lambda n: {"n": n, "text": "x"}),
    (lambda kind: pa.map_(pa.string(), kind), lambda n: [("x", n)]),
    (lambda kind: pa.list_(pa.struct({"n": kind})), lambda n: [{"n": n}, None]),
]


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.timestamp("ns"), pa.duration("ns")])
def test_nanoseconds_inside_of_values_are_told_apart(kind: pa.DataType) -> None:
    for nested, value in NESTED:
        plain = pa.array([value(1), value(2), value(2), None], nested(pa.int64()))
        stream = one(nested(kind)).project("v").distinct()
        seen = stream.capture()
        with stream.program.open() as running:  # type: ignore[attr-defined]
            columns = {"k": range(4), "v": plain.cast(nested(kind)), "_time": [0] * 4, "_diff": [1] * 4}
            running["a"].insert(pa.table(columns))
            running["a"].close()
            running.step()
            found = seen.updates()["v"].combine_chunks().cast(plain.type).to_pylist()
        assert sorted(map(str, found)) == sorted({str(each) for each in plain.to_pylist()})


def test_a_constant_keeps_its_nanoseconds() -> None:
    stream = one(pa.int64()).map(at=lit(pa.scalar(1001, pa.time64("ns")))).distinct().map(n=col("at").cast(pa.int64()))
    assert given(stream, [((1, 1), 0, 1)], optimise=False) == [((1001,), 1)]


@pytest.mark.parametrize("optimise", [False, True])
def test_a_condition_after_a_join_fails_on_no_record_that_the_join_leaves_out(optimise: bool) -> None:
    a = one(pa.string())
    known = a.program.constant(pa.table({"k": [1]}))  # type: ignore[attr-defined]
    stream = a.join(known, "k").filter(col("v").cast(pa.int64()) > 3)
    assert given(stream, [((1, "7"), 0, 1), ((2, "no number"), 0, 1)], optimise=optimise) == [((1, "7"), 1)]


def test_a_condition_after_a_join_still_fails_on_the_records_that_it_gives() -> None:
    a = one(pa.string())
    known = a.program.constant(pa.table({"k": [2]}))  # type: ignore[attr-defined]
    with pytest.raises(OperatorFailed, match="no number"):
        given(a.join(known, "k").filter(col("v").cast(pa.int64()) > 3), [((2, "no number"), 0, 1)])


def test_integers_that_no_float_equals_meet_floats() -> None:
    large = 2**53 + 1
    stream = one(pa.int64()).map(
        half=col("v") / 2, more=col("v") + 0.5, rest=col("v") % 2.0, is_more=col("v") > 0.5, times=col("v") * 2.0
    )
    assert given(stream, [((1, large), 0, 1)]) == [((2.0**52, 2.0**53, 0.0, True, 2.0**54), 1)]
    narrow = one(pa.float32()).map(sum=col("v") + 1)
    assert narrow.schema.types == [pa.float32()], "what a float is added to is as wide as before"


@pytest.mark.parametrize(
    ("value", "by", "rest"),
    [(1.5, float("inf"), 1.5), (-1.5, 2.0, 0.5), (1e300, -7.25, -0.75), (5.5, -2.0, -0.5), (1.0, 0.0, None)],
)
def test_the_rest_of_floats_is_exact(value: float, by: float, rest: float | None) -> None:
    stream = one(pa.float64(), w=pa.float64()).map(k=col("k"), rest=col("v") % col("w"), const=lit(value) % lit(by))
    updates = [((1, (value, by)), 0, 1), ((2, (None, by)), 0, 1)]
    assert sorted(given(stream, updates)) == [((1, rest, rest), 1), ((2, None, rest), 1)]


def test_what_is_none_of_some_values_may_be_the_one_that_is_null() -> None:
    stream = one(pa.int64()).map(k=col("k"), has=col("v").is_in([1, None]), lacks=~col("v").is_in([1, None]))
    updates = [((1, 1), 0, 1), ((2, 2), 0, 1), ((3, None), 0, 1)]
    assert sorted(given(stream, updates)) == [((1, True, False), 1), ((2, None, None), 1), ((3, None, None), 1)]


def test_a_multiplicity_without_an_opposite_is_an_error_that_names_the_operator() -> None:
    with pytest.raises(DiffOverflow, match=r"operator opposite failed.*does not fit int64"):
        given(one(pa.int64()).negate().named("opposite"), [((1, 1), 0, -(2**63))])
