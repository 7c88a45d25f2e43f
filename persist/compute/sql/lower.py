"""From our plan to a dataflow: each relation becomes rows of a stream; and queries in programs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.linear_logic import LinearStep
from persist.compute.dataflow.plan.plan import Clamped, WindowFunction
from persist.compute.dataflow.plan.stages import Unnest as UnnestStage
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.stream import Stream
from persist.compute.sql import algebra
from persist.compute.sql.compile import check_columns, find_mentioned, plan_query
from persist.compute.sql.lower_aggregate import build_fold, keep_if, lower_aggregate, split_arguments, to_summable
from persist.compute.sql.lower_join import lower_join
from persist.compute.sql.order import NOTHING, Known
from persist.compute.sql.rewrite import rewrite_plan
from persist.compute.sql.rows import (
    Rows,
    choose_free_name,
    choose_free_names,
    extend_with_terms,
    lower_term,
    select_terms,
)
from persist.compute.sql.types import to_array, to_arrow
from persist.core.errors import InvalidUsage
from persist.core.expression.python_functions import list_python_calls
from persist.core.expression.term import Call, Col, Lit, Term, make_sql_call

ALL_ROWS = 2**62
ITERATIONS_MAX = 10_000


class Lowering:
    """Translates the relations of one plan to streams.

    Args:
        program: the program to which the streams belong.
        source: returns the stream of a collection, with its columns by name.
        known: statistics of collections, by name.
    """

    def __init__(self, program: Program, source: Callable[[str], Stream], known: Known = NOTHING) -> None:
        self._program = program
        self._source = source
        self._sizes = known
        self._known: dict[int, Rows] = {}

    def lower_query(self, plan: algebra.Node, names: Sequence[str] = ()) -> Stream:
        """Rewrite a plan, and return its stream; see `lower_rewritten`."""
        return self.lower_rewritten(rewrite_plan(plan, self._sizes), names)

    def lower_rewritten(self, plan: algebra.Node, names: Sequence[str] = ()) -> Stream:
        """Return the stream of a plan that is rewritten already."""
        self._program.local_functions |= {name for name, _ in list_python_calls(algebra.iterate_terms(plan))}
        rows = self.lower_relation(plan)
        column_names = names or [f"c{at}" for at in range(len(rows.columns))]
        return select_terms(
            rows.stream, {name: Col(column) for name, column in zip(column_names, rows.columns, strict=True)}
        )

    def lower_relation(self, node: algebra.Node) -> Rows:
        """Return the rows of a relation."""
        match node:
            case algebra.Scan(collection, columns, types):
                return _cast_columns(self._source(collection), columns, types)
            case algebra.Values():
                return Rows.of(self._program.constant(_make_constant_table(node)))
            case algebra.Project(input_, outputs):
                return self.lower_relation(input_).project(outputs)
            case algebra.Filter(input_, condition):
                return self.lower_relation(input_).filter([condition])
            case algebra.Temporal(input_, lower, upper):
                rows = self.lower_relation(input_)
                bounds = [None if bound is None else rows.to_stream_term(bound) for bound in (lower, upper)]
                return replace(rows, stream=rows.stream.temporal_filter(*bounds))
            case algebra.Join(_, left, right):
                return lower_join(node, self.lower_relation(left), self.lower_relation(right))
            case algebra.Aggregate(input_):
                return lower_aggregate(node, self.lower_relation(input_), self._program)
            case algebra.Distinct(input_):
                return Rows.of(self.lower_relation(input_).to_stream().distinct())
            case algebra.TopK(input_):
                return Rows.of(_lower_top_k(node, Rows.of(self.lower_relation(input_).to_stream())))
            case algebra.SetOperation():
                return Rows.of(self._lower_set_operation(node))
            case algebra.Window(input_, calls):
                return Rows.of(_add_windows(Rows.of(self.lower_relation(input_).to_stream()), calls))
            case algebra.Unnest(input_, lists):
                return _lower_unnest(self.lower_relation(input_), lists)
            case algebra.Let(number, value, body):
                self._known[number] = self.lower_relation(value)
                return self.lower_relation(body)
            case algebra.Ref(number):
                return self._known[number]
            case algebra.Recursive():
                return Rows.of(self._lower_recursion(node))
        raise AssertionError(node)

    def _lower_set_operation(self, node: algebra.SetOperation) -> Stream:
        """Return the stream of an EXCEPT or INTERSECT."""
        left = self.lower_relation(node.left).to_stream()
        right = self.lower_relation(node.right).to_stream(left.columns)
        if node.how == "union":
            return left + right
        more = (left - right).threshold(Clamped())
        return more if node.how == "except" else left - more

    def _lower_recursion(self, node: algebra.Recursive) -> Stream:
        """Return the result of a recursion: in each round, step sees the rows that were new in the round before."""
        scope = self._program.scope("recursive", limit=ITERATIONS_MAX)
        anchor = self.lower_relation(node.anchor).to_stream()
        anchor = anchor if node.all else anchor.distinct()
        every, new = scope.variable("every", anchor), scope.variable("new", anchor)
        self._known[node.number] = Rows.of(new)
        step = self.lower_relation(node.step).to_stream(anchor.columns).enter_scope(scope.number)
        goes_on = None
        if not algebra.is_empty_without(node.step, frozenset([node.number])):
            # A sum has a row even of nothing. The first round is always done, and others only after one with new rows.
            name = choose_free_name("goes_on", step.columns)
            goes_on = scope.variable("goes_on", self._program.constant(pa.table({name: [True]})))
            step = step.cross(goes_on).project(*step.columns)
        if node.all:
            step = step.consolidate()
        else:
            step = step.distinct()
            step = step - step.join(every, step.columns, null_equals=True)
            step = step.consolidate()
        new.set(step)
        if goes_on is not None:
            goes_on.set(select_terms(step, {goes_on.columns[0]: Lit(pa.scalar(True))}).distinct())
        every.set((every + step).consolidate())
        result: Stream = scope.leave(every)
        return result


def _cast_columns(stream: Stream, columns: Sequence[str], types: Sequence[str]) -> Rows:
    """Return some columns of a stream, cast to types of the plan."""
    outputs: list[Term] = []
    for name, kind in zip(columns, map(to_arrow, types), strict=True):
        is_so = stream.schema.field(name).type == kind
        outputs.append(Col(name) if is_so else Call("cast", (Col(name),), (kind,)))
    return Rows(stream, tuple(columns)).compute(outputs)


def _lower_unnest(rows: Rows, lists: Sequence[Term]) -> Rows:
    """Return a row for each element of the lists."""
    names = choose_free_names((f"c{len(rows.columns) + at}" for at in range(len(lists))), rows.stream.columns)
    unnest = UnnestStage(tuple(zip(names, map(rows.to_stream_term, lists), strict=True)))
    stream = rows.stream.then(LinearStep("unnest", lambda _: unnest))
    return Rows(stream, (*rows.columns, *names))


def _make_constant_table(node: algebra.Values) -> pa.Table:
    """Return the rows of VALUES as a table."""
    arrays = []
    for at, kind in enumerate(node.types):
        values = (row[at] for row in node.rows)
        arrays.append(to_array((value for value in values if isinstance(value, Lit)), to_arrow(kind)))
    return pa.table({f"c{at}": array for at, array in enumerate(arrays)})


def _add_named_terms(rows: Rows, terms: Iterable[Term], prefix: str) -> tuple[Rows, list[str]]:
    """Add terms as columns of a stream; return the rows and the columns' names."""
    computed, names = dict[str, Term](), list[str]()
    for term in map(rows.to_stream_term, terms):
        name = term.name if isinstance(term, Col) else choose_free_name(prefix, {*rows.stream.columns, *computed})
        if not isinstance(term, Col):
            computed[name] = term
        names.append(name)
    return replace(rows, stream=extend_with_terms(rows.stream, computed)), names


def _lower_top_k(node: algebra.TopK, rows: Rows) -> Stream:
    """Return the stream of the first rows in an order."""
    columns = rows.columns
    if node.limit == 0:
        return rows.stream.filter(False)
    rows, keys = _add_named_terms(rows, node.partition, "p")
    rows, by = _add_named_terms(rows, [sort_key.by for sort_key in node.order], "o")
    stream, order = rows.stream, {}
    for name, sort_key in zip(by, node.order, strict=True):
        if name not in order and name not in keys:
            order[name] = sort_key
    count = ALL_ROWS if node.limit is None else node.limit
    keys = list(dict.fromkeys(keys))
    if not order and node.counted != "row_number":
        return stream.project(*columns)  # All rows of a partition agree in the order.
    if not order:
        value_columns = [name for name in stream.columns if name not in keys]
        if not value_columns:
            # All columns are keys: one of each group is as good as another.
            is_one = count == 1 and not node.offset
            return stream.distinct() if is_one else stream.threshold(Clamped(node.offset, node.limit))
        top_rows = stream.group_by(*keys).top_k(count, value_columns[0], skip=node.offset)
    else:
        nulls = [name for name, sort_key in order.items() if sort_key.nulls_first]
        down = [sort_key.descending for sort_key in order.values()]
        top_rows = stream.group_by(*keys).top_k(
            count, list(order), descending=down, skip=node.offset, nulls_first=nulls, counted=node.counted
        )
    return top_rows.project(*columns)


def _add_windows(rows: Rows, calls: tuple[algebra.WindowCall, ...]) -> Stream:
    """Return a stream of the relation's columns, followed by one for each window function."""
    input_columns = rows.columns
    names = choose_free_names((f"c{len(input_columns) + at}" for at in range(len(calls))), input_columns)
    columns, by_partition = [*input_columns], dict[tuple[Term, ...], list[int]]()
    for at, window_call in enumerate(calls):
        by_partition.setdefault(window_call.partition, []).append(at)
    for partition, places in by_partition.items():
        rows, keys = _add_named_terms(rows, partition, "p")
        functions, computed = [], _ComputedArguments(keys, rows)
        for at in places:
            functions.append(_lower_window_function(computed, calls[at], names[at]))
        columns += [names[at] for at in places]
        stream = computed.rows.stream.group_by(*dict.fromkeys(keys)).windows(functions).project(*columns)
        rows = Rows(stream, input_columns)
    return rows.stream.project(*input_columns, *names)


class _ComputedArguments:
    """Adds the arguments of window functions to a stream as columns, each once."""

    def __init__(self, keys: Sequence[str], rows: Rows) -> None:
        self.rows = rows
        self._keys = keys
        self._names: dict[Term, str] = {}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the stream, including the columns added so far."""
        return self.rows.stream.schema

    def add(self, terms: Iterable[Term]) -> list[str]:
        """Return the columns of values, after adding the missing ones."""
        new, names = dict[str, Term](), list[str]()
        for term in terms:
            if isinstance(term, Col) and term.name not in self._keys:
                names.append(term.name)
                continue
            if term not in self._names:
                self._names[term] = choose_free_name("w", {*self.rows.stream.columns, *new})
                new[self._names[term]] = term
            names.append(self._names[term])
        self.rows = replace(self.rows, stream=extend_with_terms(self.rows.stream, new))
        return names


# Functions of the place of a row in its partition, whatever its frame is.
_UNFRAMED = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead")
# Aggregates of a frame that follow from running ones and ignore NULL.
_RUNNING = ("count_star", "count", "sum", "avg", "min", "max", "bool_and", "bool_or")


def _lower_window_function(known: _ComputedArguments, call: algebra.WindowCall, name: str) -> WindowFunction:
    """Return the dataflow's window function for a call."""
    non_constant, constants = split_arguments(call.function, call.arguments)
    arguments, number, function = list(non_constant), 1, "sum" if call.function == "count_if" else call.function
    if function in ("lag", "lead", "nth_value") and len(arguments) > 1:
        number = _parse_whole_constant(arguments.pop(1), function)
    if function == "ntile":
        number = _parse_whole_constant(arguments.pop(0), function)
    term = known.rows.to_stream_term
    values = [*map(term, arguments)]
    if function in ("sum", "avg"):
        values = [to_summable(values[0], known.schema, function)]
    if function in ("lag", "lead") and len(values) > 1:
        values[1] = make_sql_call("cast", to_arrow(call.type), values[1])
    frame, condition = algebra.Frame() if function in _UNFRAMED else call.frame, call.where
    if condition is not None and function in _RUNNING and not (call.distinct or frame.exclude):
        if function == "count_star":
            function, values = "count", [Lit(pa.scalar(True))]
        values = [keep_if(term(condition), value, known.schema) for value in values]
        condition = None
    by, inner = (
        [(key, column) for key, column in zip(keys, known.add(term(key.by) for key in keys), strict=True)]
        for keys in (call.order, call.within)
    )
    columns = known.add(values)
    start_at, end_at, filter_column = (
        "" if bound is None else known.add([term(bound)])[0] for bound in (frame.start_at, frame.end_at, condition)
    )
    kinds = [known.schema.field(argument).type for argument in columns]
    return replace(
        build_fold(function, name, to_arrow(call.type), constants, kinds),
        function=function,
        arguments=tuple(columns),
        number=number,
        by=tuple((column, key.descending, key.nulls_first) for key, column in by),
        start=frame.start,
        end=frame.end,
        start_at=start_at,
        end_at=end_at,
        exclude=frame.exclude,
        within=tuple((column, key.descending, key.nulls_first) for key, column in inner),
        where=filter_column,
        is_distinct=call.distinct,
        ignores_nulls=call.ignore_nulls,
    )


def _parse_whole_constant(expression: Term, function: str) -> int:
    """Return a constant whole number; raise InvalidUsage for another argument."""
    value: Any = getattr(lower_term(expression, ()), "value", None)
    if value is None or not value.is_valid:
        raise InvalidUsage(f"{function}() takes a constant number in a view")
    return int(value.as_py())


def answer(program: Program, query: str, /, **streams: Stream) -> Stream:
    """Return the answer of a query as a stream of a program; see `docs/use/views-sql.md`.

    `streams`: tables of the query, by name. Other tables are collections, which become sources of the program:
    `Program("name").using(client)` finds their columns.
    """
    names = [*streams, *(program.engine.names() if program.engine is not None else ())]
    sources: dict[str, Stream] = {}
    for name in find_mentioned(query, list(dict.fromkeys(names))):
        sources[name] = streams[name] if name in streams else program.source(name)
        if not isinstance(sources[name], Stream):
            raise InvalidUsage(f"sql: {name}={sources[name]!r} is not a stream of this program")
    schemas = {name: CollectionSchema.of(stream.schema, None) for name, stream in sources.items()}
    plan, columns = plan_query(query, schemas)
    check_columns(columns)
    return Lowering(program, sources.__getitem__).lower_query(plan, [name for name, _ in columns])
