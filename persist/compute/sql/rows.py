"""A relation as a stream whose columns keep their names from operator to operator.

A column of a plan is a place in a relation. Here it is the name of a stream's column, which joins, filters and
groupings preserve. So a projection that computes nothing adds no operator, and `explain` shows users' column names.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import pyarrow as pa

from persist.compute.dataflow.linear_logic import LinearStep
from persist.compute.dataflow.plan.stages import Map
from persist.compute.dataflow.stream import Stream
from persist.core.expression.evaluation import evaluate
from persist.core.expression.term import Call, Col, Lit, Place, Term


class _OneRow(dict[str, object]):
    """Columns for evaluating constants: no column, and one row."""

    def __len__(self) -> int:
        return 1


def fold_constant_call(term: Term) -> Term:
    """Replace a call of constants by its value, unless it raises."""
    if not isinstance(term, Call) or term.function in ("sql.error", "sql.case"):
        return term
    if not all(isinstance(argument, Lit) for argument in term.arguments):
        return term
    try:
        value = evaluate(term, _OneRow())
    except (pa.ArrowException, ValueError, TypeError):
        return term  # It raises when it is evaluated, if it ever is.
    return Lit(value if isinstance(value, pa.Scalar) else value[0])


def lower_term(term: Term, columns: Sequence[str]) -> Term:
    """Return a term of a plan over columns by their names, with its constant parts computed."""
    if isinstance(term, Place):
        return Col(columns[term.index])
    if not isinstance(term, Call):
        return term
    return fold_constant_call(
        Call(term.function, tuple(map(lower_term, term.arguments, repeat(columns))), term.options)
    )


def make_null(kind: pa.DataType) -> Lit:
    """Return a NULL of a type."""
    return Lit(pa.scalar(None, kind))


def choose_free_name(name: str, taken: Container[str]) -> str:
    """Return a name, with a number behind it if it is taken."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def choose_free_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return distinct names that are not taken."""
    every, free = {*taken}, list[str]()
    for name in names:
        free.append(choose_free_name(name, every))
        every.add(free[-1])
    return free


def select_terms(stream: Stream, outputs: Mapping[str, Term]) -> Stream:
    """Return computed columns of a stream, under any names."""
    return stream.then(LinearStep("map", lambda _: Map(tuple(outputs.items()))))


def extend_with_terms(stream: Stream, outputs: Mapping[str, Term]) -> Stream:
    """Add computed columns to a stream."""
    return select_terms(stream, {**{name: Col(name) for name in stream.columns}, **outputs}) if outputs else stream


@dataclass(frozen=True, slots=True)
class Rows:
    """A relation as a stream: each column of the relation is a named column of the stream.

    Attributes:
        stream: it may have more columns.
        columns: the stream's name of each column of the relation. A name may be there several times.
    """

    stream: Stream
    columns: tuple[str, ...]

    @classmethod
    def of(cls, stream: Stream) -> "Rows":
        """Return a stream as a relation of all its columns."""
        return cls(stream, tuple(stream.columns))

    @property
    def types(self) -> list[pa.DataType]:
        """The types of the columns."""
        schema = self.stream.schema
        return [schema.field(name).type for name in self.columns]

    def to_stream_term(self, term: Term) -> Term:
        """Return a term whose columns are names of the stream instead of places."""
        return lower_term(term, self.columns)

    def filter(self, conditions: Iterable[Term]) -> "Rows":
        """Return the rows for which conditions over column numbers hold."""
        stream = self.stream
        for condition in conditions:
            stream = stream.filter(self.to_stream_term(condition))
        return replace(self, stream=stream)

    def project(self, outputs: Iterable[Term]) -> "Rows":
        """Return the results of terms over column numbers. Costs an operator if one is computed."""
        return self.compute([self.to_stream_term(output) for output in outputs])

    def compute(self, terms: Sequence[Term]) -> "Rows":
        """Return the results of terms over column names. Costs an operator if one is computed."""
        outputs: dict[str, Term] = {term.name: term for term in terms if isinstance(term, Col)}
        columns, is_computed = list[str](), False
        for at, term in enumerate(terms):
            name = term.name if isinstance(term, Col) else choose_free_name(f"c{at}", outputs)
            is_computed |= not isinstance(term, Col)
            outputs[name] = term
            columns.append(name)
        return Rows(select_terms(self.stream, outputs) if is_computed else self.stream, tuple(columns))

    def to_stream(self, names: Sequence[str] | None = None) -> Stream:
        """Return a stream with exactly the relation's columns, in order.

        `names`: the names of its columns. By default columns keep their names; repeated names get numbers.
        """
        names = choose_free_names(self.columns) if names is None else [*names]
        if names == self.stream.columns == [*self.columns]:
            return self.stream
        return select_terms(self.stream, {name: Col(column) for name, column in zip(names, self.columns, strict=True)})
