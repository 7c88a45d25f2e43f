"""From our plan to a dataflow: each relation becomes a stream with the columns c0, c1, …; and queries in programs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.plan.plan import Clamped, WindowFunction
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.stream import Stream
from persist.compute.sql.algebra import (
    Aggregate,
    Distinct,
    Filter,
    Frame,
    Join,
    Let,
    Node,
    Project,
    Recursive,
    Ref,
    Scan,
    SetOperation,
    Temporal,
    TopK,
    Unnest,
    Values,
    Window,
    WindowCall,
    all_terms_of,
    is_empty_without,
)
from persist.compute.sql.compile import check_columns, mentioned, planned
from persist.compute.sql.lower_aggregate import aggregated, fold_of, kept_where, split, summable
from persist.compute.sql.lower_join import column, joined, lowered, numbered
from persist.compute.sql.order import NOTHING, Known
from persist.compute.sql.rewrite import rewritten
from persist.compute.sql.types import to_arrow
from persist.core.errors import InvalidUsage
from persist.core.expression.evaluation import type_of
from persist.core.expression.python_functions import calls_of_python
from persist.core.expression.term import Call, Col, Lit, Term, sql_call

ALL_ROWS = 2**62
ITERATIONS_MAX = 10_000
FEW = 1000  # Up to so many first rows, finding them in parts first pays.


class Lowering:
    """Makes the streams of one plan.

    Args:
        program: what they belong to.
        source: returns the stream of a collection, with its columns by name.
        known: what is known of the sizes of collections.
    """

    def __init__(self, program: Program, source: Callable[[str], Stream], known: Known = NOTHING) -> None:
        self._program = program
        self._source = source
        self._sizes = known
        self._known: dict[int, Stream] = {}

    def answer(self, plan: Node) -> Stream:
        """Return the stream of a whole plan, which is rewritten first."""
        return self.lowered(rewritten(plan, self._sizes))

    def lowered(self, plan: Node) -> Stream:
        """Return the stream of a whole plan that is rewritten already."""
        self._program.local_functions |= {name for name, _ in calls_of_python(all_terms_of(plan))}
        return self.stream(plan)

    def stream(self, node: Node) -> Stream:
        """Return the stream of a relation."""
        match node:
            case Scan(collection, columns, types):
                return _scanned(self._source(collection), columns, types)
            case Values():
                return self._program.constant(_table(node))
            case Project(input_, outputs):
                return numbered(self.stream(input_), [lowered(output) for output in outputs])
            case Filter(input_, condition):
                return self.stream(input_).filter(lowered(condition))
            case Temporal(input_, lower, upper):
                bounds = [None if bound is None else lowered(bound) for bound in (lower, upper)]
                return self.stream(input_).temporal_filter(*bounds)
            case Join(_, left, right):
                return joined(node, self.stream(left), self.stream(right))
            case Aggregate(input_):
                return aggregated(node, self.stream(input_), self._program)
            case Distinct(input_):
                return self.stream(input_).distinct()
            case TopK(input_):
                return _top(node, self.stream(input_))
            case SetOperation():
                return self._set_operation(node)
            case Window(input_, calls):
                return _windowed(self.stream(input_), calls)
            case Unnest(input_, lists):
                stream = self.stream(input_)
                width = len(stream.columns)
                return stream.unnest(**{column(width + at): lowered(term) for at, term in enumerate(lists)})
            case Let(number, value, body):
                self._known[number] = self.stream(value)
                return self.stream(body)
            case Ref(number):
                return self._known[number]
            case Recursive():
                return self._recursive(node)
        raise AssertionError(node)

    def _set_operation(self, node: SetOperation) -> Stream:
        left, right = self.stream(node.left), self.stream(node.right)
        if node.how == "union":
            return left + right
        more = (left - right).threshold(Clamped())
        return more if node.how == "except" else left - more

    def _recursive(self, node: Recursive) -> Stream:
        """Return the result of a recursion: in each round, step sees the rows that were new in the round before."""
        scope = self._program.scope("recursive", limit=ITERATIONS_MAX)
        anchor = self.stream(node.anchor)
        anchor = anchor if node.all else anchor.distinct()
        every, new = scope.variable("every", anchor), scope.variable("new", anchor)
        self._known[node.number] = new
        step = self.stream(node.step).enter_scope(scope.number)
        goes_on = None
        if not is_empty_without(node.step, frozenset([node.number])):
            # A sum has a row even of nothing. The first round is always done, and others only after one with new rows.
            goes_on = scope.variable("goes_on", self._program.constant(pa.table({"goes_on": [True]})))
            step = step.cross(goes_on).project(*step.columns)
        if node.all:
            step = step.consolidate()
        else:
            step = step.distinct()
            step = step - step.join(every, step.columns, null_equals=True)
            step = step.consolidate()
        new.set(step)
        if goes_on is not None:
            goes_on.set(step.map(goes_on=True).distinct())
        every.set((every + step).consolidate())
        return scope.leave(every)


def _scanned(stream: Stream, columns: Sequence[str], types: Sequence[str]) -> Stream:
    """Return columns of a stream, as the types that the plan takes them for: a long text as a text."""
    outputs: list[Term] = []
    for name, kind in zip(columns, map(to_arrow, types), strict=True):
        is_so = stream.schema.field(name).type == kind
        outputs.append(Col(name) if is_so else Call("cast", (Col(name),), (kind,)))
    return numbered(stream, outputs)


def _table(node: Values) -> pa.Table:
    arrays = []
    for at, kind in enumerate(node.types):
        values = [row[at] for row in node.rows]
        arrays.append(
            pa.array([literal.value.as_py() for literal in values if isinstance(literal, Lit)], to_arrow(kind))
        )
    return pa.table({column(at): array for at, array in enumerate(arrays)})


def _named(stream: Stream, expressions: list[Term], prefix: str) -> tuple[Stream, list[str]]:
    """Return a stream with expressions among its columns, and what these are called."""
    computed: dict[str, Any] = {}
    names: list[str] = []
    for expression in expressions:
        made = lowered(expression)
        name = made.name if isinstance(made, Col) else f"{prefix}{len(computed)}"
        if not isinstance(made, Col):
            computed[name] = made
        names.append(name)
    return (stream.extend(**computed) if computed else stream), names


def _top(node: TopK, stream: Stream) -> Stream:
    columns = list(stream.columns)
    if node.limit == 0:
        return stream.filter(False)
    stream, keys = _named(stream, list(node.partition), "p")
    stream, by = _named(stream, [sort_key.by for sort_key in node.order], "o")
    order = {}
    for name, sort_key in zip(by, node.order, strict=True):
        if name not in order and name not in keys:
            order[name] = sort_key
    count = ALL_ROWS if node.limit is None else node.limit
    if not keys and count + node.offset <= FEW:
        stream = _foremost(stream, by, node)
    keys = list(dict.fromkeys(keys))
    if not order and node.counted != "row_number":
        return stream.project(*columns)  # All rows of a partition agree in the order.
    if not order:
        rest = [name for name in stream.columns if name not in keys]
        if not rest:
            # All columns are keys: one of each group is as good as another.
            return stream.distinct().project(*columns) if count == 1 and not node.offset else _counted(node, stream)
        top_rows = stream.group_by(*keys).top_k(count, rest[0], skip=node.offset)
    else:
        nulls = [name for name, sort_key in order.items() if sort_key.nulls_first]
        down = [sort_key.descending for sort_key in order.values()]
        top_rows = stream.group_by(*keys).top_k(
            count, list(order), descending=down, skip=node.offset, nulls_first=nulls, counted=node.counted
        )
    return top_rows.project(*columns)


def _foremost(stream: Stream, by: list[str], node: TopK) -> Stream:
    """Return the first rows of each of some parts, among which those of the whole are: a change then costs its part."""
    columns = list(stream.columns)
    part = sql_call("bucket", pa.int64(), *map(Col, columns))
    order = dict(zip(reversed(by), reversed(node.order), strict=True))
    names = list(dict.fromkeys(by)) or columns[:1]
    down = [order[name].descending if name in order else False for name in names]
    nulls = [name for name in names if name in order and order[name].nulls_first]
    assert node.limit is not None
    by_part = stream.extend(_part=part).group_by("_part")
    top_rows = by_part.top_k(node.limit + node.offset, names, descending=down, nulls_first=nulls, counted=node.counted)
    return top_rows.project(*columns)


def _counted(node: TopK, stream: Stream) -> Stream:
    return stream.threshold(Clamped(node.offset, node.limit))


def _windowed(stream: Stream, calls: tuple[WindowCall, ...]) -> Stream:
    width = len(stream.columns)
    columns = list(stream.columns)
    by_partition: dict[tuple[Term, ...], list[int]] = {}
    for at, window_call in enumerate(calls):
        by_partition.setdefault(window_call.partition, []).append(at)
    for partition, places in by_partition.items():
        stream, keys = _named(stream, list(partition), "p")
        made, known = [], _Computed(keys)
        for at in places:
            stream, call = _window_function(stream, calls[at], column(width + at), known)
            made.append(call)
        columns += [function.name for function in made]
        stream = stream.group_by(*dict.fromkeys(keys)).windows(made).project(*columns)
    return stream.project(*(column(at) for at in range(width + len(calls))))


class _Computed:
    """What functions over the same partitions read, computed once: in columns of the rows, and not in the key."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._names: dict[Term, str] = {}
        self.new: dict[str, Term] = {}

    def name(self, term: Term) -> str:
        """Return the column that holds a value."""
        if isinstance(term, Col) and term.name not in self._keys:
            return term.name
        if term not in self._names:
            self._names[term] = f"w{len(self._names)}"
            self.new[self._names[term]] = term
        return self._names[term]

    def added(self, stream: Stream) -> Stream:
        """Return a stream with the columns that it lacks."""
        new, self.new = self.new, {}
        return stream.extend(**new) if new else stream


# Functions of the place of a row in its partition, whatever its frame is.
_UNFRAMED = ("row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead")
# Aggregates of which that of a frame is made of running ones, and to which NULL is nothing.
_RUNNING = ("count_star", "count", "sum", "avg", "min", "max", "bool_and", "bool_or")


def _window_function(stream: Stream, call: WindowCall, name: str, known: _Computed) -> tuple[Stream, WindowFunction]:
    given, constants = split(call.function, call.arguments)
    arguments, number, function = list(given), 1, "sum" if call.function == "count_if" else call.function
    if function in ("lag", "lead", "nth_value") and len(arguments) > 1:
        number = _whole(arguments.pop(1), function)
    if function == "ntile":
        number = _whole(arguments.pop(0), function)
    values = [lowered(argument) for argument in arguments]
    if function in ("sum", "avg"):
        values = [summable(values[0], stream, function)]
    if function in ("lag", "lead") and len(values) > 1:
        values[1] = sql_call("cast", to_arrow(call.type), values[1])
    frame, where = Frame() if function in _UNFRAMED else call.frame, call.where
    if where is not None and function in _RUNNING and not (call.distinct or frame.exclude):
        if function == "count_star":
            function, values = "count", [Lit(pa.scalar(True))]
        values = [kept_where(where, value, type_of(value, stream.schema, "map")) for value in values]
        where = None
    by, inner = (
        tuple((known.name(lowered(key.by)), key.descending, key.nulls_first) for key in keys)
        for keys in (call.order, call.within)
    )
    columns = [known.name(value) for value in values]
    start_at, end_at, kept = (
        "" if term is None else known.name(lowered(term)) for term in (frame.start_at, frame.end_at, where)
    )
    stream = known.added(stream)
    kinds = [stream.schema.field(argument).type for argument in columns]
    made = replace(
        fold_of(function, name, to_arrow(call.type), constants, kinds),
        function=function,
        arguments=tuple(columns),
        number=number,
        by=by,
        start=frame.start,
        end=frame.end,
        start_at=start_at,
        end_at=end_at,
        exclude=frame.exclude,
        within=inner,
        where=kept,
        is_distinct=call.distinct,
        ignores_nulls=call.ignore_nulls,
    )
    return stream, made


def _whole(expression: Term, function: str) -> int:
    made = lowered(expression)
    value: Any = getattr(made, "value", None)
    if value is None or not value.is_valid:
        raise InvalidUsage(f"{function}() takes a constant number in a view")
    return int(value.as_py())


def answer(program: Program, query: str, /, **streams: Stream) -> Stream:
    """Return the answer of a query in DuckDB's SQL, as a stream of a program; see `docs/use/views-sql.md`.

    Args:
        streams: what the query calls by these names. Other names are those of collections, which are sources of the
            program: `Program("name").using(client)` finds their columns.
    """
    names = [*streams, *(program.engine.names() if program.engine is not None else ())]
    known: dict[str, Stream] = {}
    for name in mentioned(query, list(dict.fromkeys(names))):
        known[name] = streams[name] if name in streams else program.source(name)
        if not isinstance(known[name], Stream):
            raise InvalidUsage(f"sql: {name}={known[name]!r} is no stream of this program")
    schemas = {name: CollectionSchema.of(stream.schema, None) for name, stream in known.items()}
    plan, columns = planned(query, schemas)
    check_columns(columns)
    rows = Lowering(program, known.__getitem__).answer(plan)
    outputs: dict[str, Any] = {name: Col(column(at)) for at, (name, _) in enumerate(columns)}
    return rows.map(**outputs)
