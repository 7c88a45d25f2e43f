"""The linear operators as methods, and linear logics: what such operators do, apart from any stream.

A linear operator computes its output from one record at a time. All of them are stages of one general
operator, the `Linear` node of a plan. It turns an update into any number of updates, with times joined (least
upper bound) and diffs multiplied. So two linear operators in sequence are one linear operator, which `chain` returns:

    stream.linear(one.chain(other))  is  stream.linear(one).linear(other)

A logic has no columns of its own, so it is checked where it is applied to a stream.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.compute.dataflow.plan import stages
from persist.compute.dataflow.plan.types import Columns, check_names
from persist.core.expression.term import Col, Expression, Term, to_term

Function: TypeAlias = Callable[..., Any]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class LinearStep:
    """One linear operator, before its input columns are known.

    Attributes:
        operator: its name in messages.
        stage: returns the plan's stage for the columns of the input.
        dimension: the dimension of the program's times that the operator reads.
    """

    operator: str
    stage: Callable[[pa.Schema], stages.Stage]
    dimension: int = 0


class LinearMethods(ABC, Generic[Made]):
    """The linear operators. Each returns the stream or logic after it."""

    @abstractmethod
    def then(self, step: LinearStep) -> Made:
        """Return the stream or logic after a linear operator."""

    def map(self, function: Function | None = None, *, schema: Columns | None = None, **outputs: Any) -> Made:
        """Compute one record from each: `map(total=col("a") + 1)`, or `map(function, schema={…})` on Python records."""
        if function is None:
            if not outputs:
                raise InvalidUsage('map() needs what to compute: map(total=col("a") + 1), or map(function, schema={…})')
            return self._append_stage("map", stages.Map(tuple((name, to_term(term)) for name, term in outputs.items())))
        stages.check_function(function, "map")
        if outputs or schema is None:
            raise InvalidUsage(
                "map(function, schema={…}) needs the columns that the function returns, and nothing else"
            )
        return self._append_stage("map", stages.MapFunction(function, stages.to_record_schema(schema, "map")))

    def map_batches(self, function: Function, *, schema: Columns) -> Made:
        """Return the columns that a function of record batches returns: as many records, in the same order."""
        stages.check_function(function, "map_batches")
        return self._append_stage(
            "map_batches", stages.BatchFunction(function, stages.to_record_schema(schema, "map_batches"))
        )

    def extend(self, **outputs: Any) -> Made:
        """Return the columns with computed ones added; equal names are replaced."""
        computed = {name: to_term(term) for name, term in outputs.items()}

        def stage(input_schema: pa.Schema) -> stages.Stage:
            return stages.Map(tuple(({name: Col(name) for name in input_schema.names} | computed).items()))

        return self.then(LinearStep("extend", stage))

    def project(self, *names: str) -> Made:
        """Return some of the columns. Equal records add up."""
        return self.then(
            LinearStep(
                "project",
                lambda given: stages.Map(tuple((name, Col(name)) for name in check_names("project", names, given))),
            )
        )

    def rename(self, names: Mapping[str, str]) -> Made:
        """Rename columns: `{old: new}`."""
        given_names = dict(names)

        def stage(input_schema: pa.Schema) -> stages.Stage:
            check_names("rename", list(given_names), input_schema)
            return stages.Map(tuple((given_names.get(name, name), Col(name)) for name in input_schema.names))

        return self.then(LinearStep("rename", stage))

    def filter(self, condition: Expression | Term | bool | Function) -> Made:
        """Return the records for which a condition, or a Python function, is true."""
        if isinstance(condition, Expression | Term | bool):
            return self._append_stage("filter", stages.Filter(to_term(condition)))
        stages.check_function(condition, "filter")
        return self._append_stage("filter", stages.FilterFunction(condition))

    def flat_map(self, function: Function, *, schema: Columns) -> Made:
        """Return all records that a Python function returns for each record."""
        stages.check_function(function, "flat_map")
        return self._append_stage("flat_map", stages.FlatMap(function, stages.to_record_schema(schema, "flat_map")))

    def explode(self, by: Expression | Term | Function, *, schema: Columns | None = None) -> Made:
        """Multiply diffs by an integer expression; or return the pairs (record, diff) that a function returns."""
        if isinstance(by, Expression | Term):
            return self._append_stage("explode", stages.Explode(to_term(by)))
        stages.check_function(by, "explode")
        if schema is None:
            raise InvalidUsage(
                "explode(function, schema={…}) needs the columns of the records that the function returns"
            )
        return self._append_stage("explode", stages.FlatMap(by, stages.to_record_schema(schema, "explode"), "diffs"))

    def unnest(self, **lists: Expression | Term) -> Made:
        """Repeat each record for each element of a list: `unnest(word=col("words"))`.

        Several lists are read in parallel, with NULL beyond the end of a shorter list. A record whose lists are all
        NULL or empty is left out.
        """
        if not lists:
            raise InvalidUsage('unnest() needs a list, and a name for its elements: unnest(word=col("words"))')
        return self._append_stage("unnest", stages.Unnest(tuple((name, to_term(term)) for name, term in lists.items())))

    def join_function(self, function: Function, *, schema: Columns) -> Made:
        """Return the updates (record, time, diff) that a function returns for each record.

        The result's time is the least upper bound of the returned time and the record's. Its diff is the product of
        their diffs. Returned times have no coordinates of iterations.
        """
        stages.check_function(function, "join_function")
        flattened = stages.FlatMap(function, stages.to_record_schema(schema, "join_function"), "updates")
        return self.then(LinearStep("join_function", lambda _: flattened))

    def negate(self) -> Made:
        """Return the same records with the opposite multiplicities."""
        return self._append_stage("negate", stages.Negate())

    def temporal_filter(self, lower: Any = None, upper: Any = None, *, dimension: int = 0) -> Made:
        """Let each record exist at the times in `[lower, upper)`, two integer expressions of the record.

        `lower=None` or `upper=None` sets no bound. A record whose bound is NULL never exists, as in SQL; `coalesce` an
        expression that may be NULL. A window is a reduction over this:
        `temporal_filter(col("at"), col("at") + 24)` holds the last 24 hours.
        """
        bounds = [None if bound is None else to_term(bound) for bound in (lower, upper)]
        stage = stages.TemporalFilter(bounds[0], bounds[1], dimension)
        return self.then(LinearStep("temporal_filter", lambda _: stage, dimension))

    def delay(self, to: Any, *, dimension: int = 0) -> Made:
        """Move each update to the time of an expression: `delay((col("_time") // 60 + 1) * 60)`.

        The program fails if an expression's value is before the update's time. A program that reads and writes
        collections may not delay inside an iteration, because it could not resume.
        """
        stage = stages.Delay(to_term(to), dimension)
        return self.then(LinearStep("delay", lambda _: stage, dimension))

    def _append_stage(self, operator: str, stage: stages.Stage) -> Made:
        """Return the stream or logic after a stage that does not depend on the columns."""
        return self.then(LinearStep(operator, lambda _: stage))


class Logic(LinearMethods["Logic"]):
    """A sequence of linear operators: `Logic().filter(col("delay") > 15).project("dest")`.

    It is a value: no method changes it. Any number of streams may use it, with `Stream.linear`.
    """

    __slots__ = ("steps",)

    def __init__(self, *steps: LinearStep) -> None:
        self.steps = steps

    def then(self, step: LinearStep) -> "Logic":
        """Return this logic, followed by a linear operator."""
        return Logic(*self.steps, step)

    def chain(self, other: "Logic") -> "Logic":
        """Return the logic that applies this one, and then the other one."""
        if not isinstance(other, Logic):
            raise InvalidUsage(f"chain: {other!r} is not a Logic; begin one with Logic()")
        return Logic(*self.steps, *other.steps)

    def __repr__(self) -> str:
        return f"<Logic {' . '.join(step.operator for step in self.steps) or 'that changes nothing'}>"
