"""A stream: a collection in a program, and the operators on it. Each call adds a node to the plan and returns a stream.

Mistakes in names and types are errors here, when the program is built. If a stream of an outer scope is combined with
one of an inner scope, it enters the inner scope by itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, get_args

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.schema import TIME
from persist.compute.dataflow.linear_logic import Function, LinearMethods, LinearStep, Logic
from persist.compute.dataflow.operators.aggregates import find_result_type
from persist.compute.dataflow.plan import plan as plans
from persist.compute.dataflow.plan.draft import Captured, Draft, Probed
from persist.compute.dataflow.plan.stages import FlatMap, Map, Stage, check_function, derive_schema, to_record_schema
from persist.compute.dataflow.plan.types import (
    Columns,
    On,
    check_column_names,
    check_names,
    check_same_schema,
    join_schemas,
    pair_join_columns,
    select_fields,
)
from persist.compute.dataflow.updates.words import is_interned
from persist.core.expression.term import Aggregate, Col, Expression, Lit, Term, col, list_columns, lit, to_term
from persist.core.names import check_name


class Stream(LinearMethods["Stream"]):
    """A collection in a program: a multiset of records that changes over the program's times."""

    def __init__(self, program: Draft, number: int) -> None:
        self.program = program
        self.number = number

    @property
    def node(self) -> plans.Node:
        """The plan's node that computes the stream."""
        return self.program.plan.nodes[self.number]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the stream's records, as an Arrow schema."""
        return self.node.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns of the stream's records."""
        return list(self.schema.names)

    def named(self, name: str) -> "Stream":
        """Name the operator of this stream, for errors and `explain`."""
        self.program.plan.replace_node(self.number, name=name)
        return self

    # Linear operators; most are methods of `LinearMethods`.

    def linear(self, logic: Logic) -> "Stream":
        """Return the records after a logic, as one operator: `linear(one.chain(other))`."""
        if not isinstance(logic, Logic):
            raise InvalidUsage(f"linear: {logic!r} is not a Logic; begin one with Logic()")
        schema, stages = self.schema, list[Stage]()
        for step in logic.steps:
            self._check_dimension(step.operator, step.dimension)
            stage = step.stage(schema)
            stages.append(replace(stage, dimensions=self.program.dimensions) if isinstance(stage, FlatMap) else stage)
            schema = self._derive_schema(stages[-1], schema, step.operator)
        return self._add_node(plans.Linear(tuple(stages)), [self], schema) if stages else self

    def then(self, step: LinearStep) -> "Stream":
        """Return the stream after a linear operator."""
        return self.linear(Logic(step))

    def concat(self, *others: "Stream") -> "Stream":
        """Return the records of this stream and of others: multiplicities add up."""
        streams = self._enter_common_scope(others)
        schema = check_same_schema([(stream.schema, stream.node.title) for stream in streams])
        return self._add_node(plans.Concat(), streams, schema)

    def __add__(self, other: "Stream") -> "Stream":
        return self.concat(other)

    def __sub__(self, other: "Stream") -> "Stream":
        return self.concat(other.negate())

    def sealed_with(self, *others: "Stream | str") -> "Stream":
        """Return the same records, complete only as far as other streams, or named collections, are.

        An output of the result seals a time only when all others are complete there. Only the upper of a named
        collection is read. Cost: waiting updates are kept.
        """
        if not others:
            raise InvalidUsage('sealed_with: name a stream or a collection to wait for: sealed_with("orders")')
        streams = [
            self.program.add_upper(condition) if isinstance(condition, str) else condition for condition in others
        ]
        first, *conditions = self._enter_common_scope(streams)
        return self._add_node(plans.SealedWith(), [first, *conditions], self.schema)

    # Operators that keep state.

    def consolidate(self) -> "Stream":
        """Return the same collection with its updates summed per record and time, once they are complete."""
        return self._add_node(plans.Consolidate(), [self], self.schema)

    def arrange_by_key(self, *keys: str) -> "Stream":
        """Keep an index by key, which every join and reduction by this key on the result shares."""
        return self._add_node(plans.Arrange(check_names("arrange_by_key", keys, self.schema)), [self], self.schema)

    def join(self, other: "Stream", on: On, *, null_equals: bool = False) -> "Stream":
        """Return the pairs of records that agree in key: this one's columns, then the other's that are not its key.

        Args:
            on: column names, or `{this one's: the other's}`.
            null_equals: NULL equals NULL; else it equals nothing.
        """
        this_side, other_side = self._enter_common_scope([other])
        pairs = pair_join_columns("join", on, this_side.schema, other_side.schema)
        operator = plans.Join((pairs,), null_equals=null_equals)
        return self._add_node(
            operator, [this_side, other_side], join_schemas("join", this_side.schema, other_side.schema, pairs)
        )

    def cross(self, other: "Stream") -> "Stream":
        """Return all pairs of records. Cost: each change is paired with all records of the other side."""
        this_side, other_side = self._enter_common_scope([other])
        return self._add_node(
            plans.Join(((),)), [this_side, other_side], join_schemas("cross", this_side.schema, other_side.schema, ())
        )

    def semijoin(self, other: "Stream", on: On) -> "Stream":
        """Return the records whose key the other stream has, however often."""
        this_side, other_side = self._enter_common_scope([other])
        pairs = pair_join_columns("semijoin", on, this_side.schema, other_side.schema)
        keys = other_side._map_terms({this_name: Col(other_name) for this_name, other_name in pairs}).distinct()
        return this_side.join(keys, [this_name for this_name, _ in pairs])

    def antijoin(self, other: "Stream", on: On) -> "Stream":
        """Return the records whose key the other stream lacks, and records with NULL in their key."""
        return self - self.semijoin(other, on)

    def left_join(self, other: "Stream", on: On) -> "Stream":
        """Return what join returns, and the records without partner, with NULL for the other's columns."""
        this_side, other_side = self._enter_common_scope([other])
        pairs = pair_join_columns("left_join", on, this_side.schema, other_side.schema)
        joined = this_side.join(other_side, dict(pairs))
        missing = [field for field in joined.schema if field.name not in this_side.columns]
        alone = this_side.antijoin(other_side, dict(pairs))
        return joined + alone.extend(**{column.name: Lit(pa.scalar(None, column.type)) for column in missing})

    def group_by(self, *names: str, **keys: Any) -> "Grouped":
        """Return the records by key: column names, and expressions under new names. Without any, all are one group."""
        check_names("group_by", names, self.schema)
        return Grouped(self, {name: Col(name) for name in names} | {name: to_term(key) for name, key in keys.items()})

    def distinct(self) -> "Stream":
        """Return each record of positive multiplicity once."""
        return self._add_node(plans.Reduce(tuple(self.columns), (), plans.Distinct()), [self], self.schema)

    def threshold(self, function: Callable[[int], int]) -> "Stream":
        """Return each record with a new multiplicity that a function computes from its non-zero multiplicity."""
        check_function(function, "threshold")
        return self._add_node(plans.Reduce(tuple(self.columns), (), plans.Threshold(function)), [self], self.schema)

    def upsert(
        self, key: str | Sequence[str], *, order_by: str | Sequence[str], tombstone: str | None = None
    ) -> "Stream":
        """Return the last event of each key, unless it is a tombstone.

        An event that arrives late changes nothing if a later event of its key exists; it does not bring back a deleted
        key.

        Args:
            order_by: columns; the other columns break ties.
            tombstone: a boolean column; where it is true the key is deleted.
        """
        keys = check_names("upsert", tuple([key] if isinstance(key, str) else key), self.schema)
        if tombstone is not None:
            check_names("upsert", (tombstone,), self.schema)
        last = self.group_by(*keys).top_k(1, order_by, descending=True)
        # Several copies of the last event are one value.
        last = last.distinct().project(*self.columns)
        if tombstone is None:
            return last
        return last.filter(~col(tombstone).coalesce(False)).project(*(n for n in self.columns if n != tombstone))

    def machine(
        self,
        key: str | Sequence[str],
        function: Function,
        *,
        order_by: str | Sequence[str],
        schema: Columns,
        initial: Any = None,
    ) -> "Stream":
        """Return the records that a state machine emits for each key's events.

        Args:
            function: `function(state, event)` returns the next state and the records for this event; an event of
                multiplicity n comes n times.
            order_by: columns of the events; the other columns break ties.
            schema: the columns of the emitted records, which follow the key.
            initial: the state of a key before its first event. It is copied for each key.
        """
        check_function(function, "machine")
        keys = check_names("machine", tuple([key] if isinstance(key, str) else key), self.schema)
        order = check_names("machine", tuple([order_by] if isinstance(order_by, str) else order_by), self.schema)
        ordered = [*order, *(name for name in self.columns if name not in order and name not in keys)]
        places = [[n for n in self.columns if n not in keys].index(name) for name in ordered if name not in keys]

        def reduce(_: Any, events: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
            state, pairs = deepcopy(initial), []
            for event, count in sorted(events, key=lambda item: [(item[0][at] is None, item[0][at]) for at in places]):
                for _ in range(count):
                    state, records = function(state, event)
                    pairs += [(record, 1) for record in records]
            return pairs

        reduce.__qualname__ = f"machine {getattr(function, '__qualname__', function)}"
        return self.group_by(*keys).reduce(reduce, schema=schema)

    # Iteration.

    def scope(self, name: str = "scope", *, limit: int = 1000) -> Any:
        """Return a new `Scope` of iteration inside this stream's scope."""
        return self.program.scope(name, limit=limit, inside=self.node.scope)

    def iterate(self, body: Callable[["Stream"], "Stream"], *, limit: int = 1000, name: str = "") -> "Stream":
        """Return the fixed point of body, from this collection on.

        Body is called once, with the collection of an iteration, and returns the next one; streams from outside enter
        by themselves. After `limit` iterations without a fixed point the program raises `NotConverging`.
        """
        check_function(body, "iterate")
        plan = self.program.plan
        nodes, scopes = dict(plan.nodes), dict(plan.scopes)
        try:
            scope = self.program.scope(name or "iterate", limit=limit, inside=self.node.scope)
            variable = scope.variable("x", scope.enter(self))
            result = body(variable)
            if not isinstance(result, Stream):
                raise InvalidUsage(
                    f"iterate: the body returned {result!r}, and must return the stream of the next iteration"
                )
            result = scope.enter(result)
            variable.set(result)
            fixed_point: Stream = scope.leave(result)
        except BaseException:
            # A loop that is not whole would keep the program from being opened ever after.
            plan.nodes, plan.scopes = nodes, scopes
            raise
        return fixed_point

    # Ends.

    def inspect(self, function: Callable[[pa.Table], object]) -> "Stream":
        """Call a function with each table of updates that passes (columns, `_time` or `_times`, `_diff`)."""
        check_function(function, "inspect")
        return self._add_node(plans.Inspect(function), [self], self.schema)

    def probe(self) -> Probed:
        """Return a probe of how far this stream is complete in the running program."""
        self._check_root("probe")
        return self.program.add_probe(self._add_node(plans.Probe("probe"), [self], self.schema).number)

    def capture(self) -> Captured:
        """Return a capture of the complete updates of this stream while the program runs. Memory: all of them."""
        self._check_root("capture")
        return self.program.add_capture(self._add_node(plans.Capture("capture"), [self], self.schema).number)

    def early(self) -> Captured:
        """Return a capture of this stream that also shows updates of incomplete times.

        Its tables have one column more, `_early`. If it is true, the time was not complete when the last step ended:
        updates of that time may be added or retracted. Operators without state pass records on at once; operators
        with state emit complete updates only. Memory: all updates.
        """
        self._check_root("early")
        return self.program.add_capture(
            self._add_node(plans.Capture("early", early=True), [self], self.schema).number, early=True
        )

    def persist(self, collection: str, *, key: Sequence[str]) -> "Stream":
        """Keep a collection of a name equal to this stream at every time. `key`: the columns of its key."""
        self._check_root("persist")
        if self.program.dimensions != 1:
            raise InvalidUsage(
                f"persist: times of this program have {self.program.dimensions} dimensions, and those of a "
                "collection one. Take the updates of capture(), and write them with columns for the coordinates"
            )
        keys = check_names("persist", tuple([key] if isinstance(key, str) else key), self.schema)
        check_name(collection)
        self.program.check_output(collection)
        self._add_node(plans.Persist(collection, keys), [self], self.schema)
        return self

    # Inside.

    def _map_terms(self, outputs: Mapping[str, Term]) -> "Stream":
        """Return a stream of computed columns, of which there may be none."""
        return self.then(LinearStep("map", lambda _: Map(tuple(outputs.items()))))

    def _derive_schema(self, stage: Stage, input_schema: pa.Schema, operator: str) -> pa.Schema:
        """Return the checked columns of records after a stage."""
        schema = derive_schema((stage,), input_schema, operator, has_time=self.program.dimensions == 1)
        check_column_names(operator, schema)
        return schema

    def _add_node(self, operator: plans.Operator, streams: Iterable["Stream"], schema: pa.Schema) -> "Stream":
        """Return the output of a new operator on some streams."""
        inputs = list(streams)
        numbers = tuple(stream.number for stream in inputs)
        return Stream(self.program, self.program.plan.add(operator, numbers, schema, inputs[0].node.scope).number)

    def _enter_common_scope(self, others: Iterable["Stream"]) -> list["Stream"]:
        """Return this and other streams, all inside the innermost of their scopes."""
        streams = [self, *others]
        for stream in streams:
            if not isinstance(stream, Stream):
                raise InvalidUsage(f"{stream!r} is not a stream of this program")
            if stream.program is not self.program:
                raise InvalidUsage(
                    f"{stream.node.title} belongs to program {stream.program.name!r}, and this is "
                    f"{self.program.name!r}: persist it there, and read it as a source here"
                )
        scopes = self.program.plan.scopes
        inner = max((stream.node.scope for stream in streams), key=lambda number: scopes[number].depth)
        return [stream.enter_scope(inner) for stream in streams]

    def enter_scope(self, scope: int) -> "Stream":
        """Return this stream inside a scope: itself, or entered from an outer scope."""
        scopes, path, at = self.program.plan.scopes, list[int](), scope
        while at != self.node.scope:
            if at == plans.ROOT:
                raise InvalidUsage(
                    f"{self.node.title} is in scope {scopes[self.node.scope].name!r}, which is not around "
                    f"{scopes[scope].name!r}: let it leave its scope first"
                )
            path.append(at)
            at = scopes[at].parent
        stream = self
        for inner_scope in reversed(path):
            number = self.program.plan.add(plans.Enter(), (stream.number,), self.schema, inner_scope).number
            stream = Stream(self.program, number)
        return stream

    def enter_with_rounds(self, scope: int, expression: Expression) -> "Stream":
        """Return this stream in a scope directly inside its own; each record enters at an iteration."""
        if self.program.plan.scopes[scope].parent != self.node.scope:
            raise InvalidUsage(
                f"enter_at: {self.node.title} is not in the scope around {self.program.plan.scopes[scope].name!r}; "
                "enter the scopes in between first"
            )
        rounds = "_round"
        while rounds in self.columns:
            rounds += "_"
        if TIME in list_columns(to_term(expression)):
            raise InvalidUsage(
                f"enter_at: {expression} reads {TIME}. A record has to be taken away where it entered, so use its own "
                "columns"
            )
        numbered = self.extend(**{rounds: expression})
        kind = numbered.schema.field(rounds).type
        if not pa.types.is_integer(kind) or is_interned(kind):
            raise InvalidUsage(
                f"enter_at: {expression} gives {kind}, and an iteration is a whole number of up to 63 bits: cast it"
            )
        number = self.program.plan.add(plans.Enter(rounds), (numbered.number,), self.schema, scope).number
        return Stream(self.program, number)

    def _check_root(self, operator: str) -> None:
        """Raise InvalidUsage if the stream is inside an iteration."""
        if self.node.scope != plans.ROOT:
            raise InvalidUsage(f"{operator}: {self.node.title} is inside an iteration; let it leave its scope first")

    def _check_dimension(self, operator: str, dimension: int) -> None:
        """Raise InvalidUsage unless times of the program have a dimension."""
        if (
            isinstance(dimension, bool)
            or not isinstance(dimension, int)
            or not 0 <= dimension < self.program.dimensions
        ):
            raise InvalidUsage(
                f"{operator}: dimension={dimension!r} is not one of the {self.program.dimensions} of this program's "
                "times"
            )

    def __repr__(self) -> str:
        return f"<Stream {self.node.title} of program {self.program.name!r}: {', '.join(self.columns)}>"


class Grouped:
    """The records of a stream by key; see `Stream.group_by`. A group that empties yields nothing, not a zero."""

    def __init__(self, stream: Stream, keys: dict[str, Term]) -> None:
        self._stream = stream
        self._keys = keys
        for name in keys:
            if name in (TIME, "_diff"):
                raise SchemaMismatch(f"group_by: a column cannot be called {name!r}: choose another name")

    def agg(self, **aggregates: Aggregate) -> Stream:
        """Return a record per key with aggregates: `agg(n=lit(1).sum(), worst=col("delay").max())`.

        NULLs are left out. A group exists while the sum of its multiplicities is not zero. A change costs the changed
        records if there are only count, sum and mean; with min, max or median, about the logarithm of its group.
        """
        return self.aggregate(aggregates)

    def aggregate(self, aggregates: Mapping[str, Aggregate], *, is_complete: bool = False) -> Stream:
        """Do what `agg` does; with `is_complete`, a group exists while a count or total is not 0."""
        if not aggregates:
            raise InvalidUsage('agg() needs what to aggregate: agg(total=col("amount").sum())')
        values: dict[str, Term] = {}
        outputs = []
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise InvalidUsage(
                    f"agg: {name}={aggregate} is not an aggregate: end it with .sum(), .count(), .max() …"
                )
            if name in self._keys:
                raise SchemaMismatch(f"agg: {name!r} is a column of the key already; choose another name")
            column = self._choose_free_name(len(values))
            values[column] = aggregate.of
            outputs.append((name, aggregate.kind, column))
        mapped = self._map_terms(values)
        kinds = [(name, find_result_type(kind, mapped.schema.field(of).type, name)) for name, kind, of in outputs]
        return self._reduce(mapped, tuple(values), plans.Aggregates(tuple(outputs), is_complete), pa.schema(kinds))

    def count(self, name: str = "count") -> Stream:
        """Return a record per key with the number of its records."""
        return self.agg(**{name: lit(1).count()})

    def top_k(
        self,
        count: int,
        by: str | Sequence[str],
        *,
        descending: bool | Sequence[bool] = False,
        skip: int = 0,
        nulls_first: Sequence[str] = (),
        counted: plans.Counted = "row_number",
    ) -> Stream:
        """Return the first records of each key in the order of some columns; the other columns break ties.

        Args:
            skip: how many records are passed over first.
            nulls_first: columns in which NULL comes first, in either direction; in others it comes last.
            counted: what count limits. "rank" and "dense_rank" return all records whose rank by this function of SQL is
                at most count, so peers are in or out together; skip is 0 then.
        """
        if counted not in get_args(plans.Counted) or (skip and counted != "row_number"):
            allowed = ", ".join(map(repr, get_args(plans.Counted)))
            raise InvalidUsage(
                f"top_k: counted={counted!r}, skip={skip!r}: give one of {allowed}, and skip with the first"
            )
        if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
            raise InvalidUsage(f"top_k: skip={skip!r} is not a whole number of at least 0")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidUsage(f"top_k: count={count!r} is not a whole number of at least 1")
        names = check_names("top_k", tuple([by] if isinstance(by, str) else by), self._stream.schema)
        down = [descending] * len(names) if isinstance(descending, bool) else list(descending)
        if len(down) != len(names):
            raise InvalidUsage(
                f"top_k: {len(down)} directions for {len(names)} columns: give one for each, or one for all"
            )
        mapped, values = self._map_all_columns()
        return self._reduce(
            mapped,
            values,
            plans.TopK(count, tuple(zip(names, down, strict=True)), skip, tuple(nulls_first), counted),
            select_fields(mapped.schema, values),
        )

    def windows(self, calls: Sequence[plans.WindowFunction]) -> Stream:
        """Return the records, each with the results of window functions over its key."""
        mapped, values = self._map_all_columns()
        added = [pa.field(call.name, call.result) for call in calls]
        columns = pa.schema([*select_fields(mapped.schema, values), *added])
        return self._reduce(mapped, values, plans.Windowed(tuple(calls)), columns)

    def fold(self, calls: Sequence[plans.WindowFunction]) -> Stream:
        """Return a record per key with aggregates of its records in an order."""
        mapped, values = self._map_all_columns()
        columns = pa.schema([pa.field(call.name, call.result) for call in calls])
        return self._reduce(mapped, values, plans.Folded(tuple(calls)), columns)

    def reduce(self, function: Function, *, schema: Columns) -> Stream:
        """Return the records that a function returns for each non-empty group.

        The function is called with the key and a list of pairs (record, multiplicity). It returns pairs of a record,
        with the columns of schema, and its multiplicity. It must return equal results for equal multisets, in whatever
        order.
        """
        check_function(function, "reduce")
        columns = to_record_schema(schema, "reduce")
        mapped, values = self._map_all_columns()
        return self._reduce(mapped, values, plans.UserReduce(function, columns), columns)

    def distinct(self) -> Stream:
        """Return each key of records with positive multiplicity in sum, once."""
        return self._map_terms({}).distinct()

    def _choose_free_name(self, number: int) -> str:
        """Return a column name that the key does not have."""
        name = f"_{number}"
        while name in self._keys:
            name = f"_{name}"
        return name

    def _map_all_columns(self) -> tuple[Stream, tuple[str, ...]]:
        """Return a stream of keys and values, and the names of the values."""
        values: dict[str, Term] = {name: Col(name) for name in self._stream.columns if name not in self._keys}
        return self._map_terms(values), tuple(values)

    def _map_terms(self, values: dict[str, Term]) -> Stream:
        """Return a stream of the keys and of some computed values."""
        return self._stream._map_terms({**self._keys, **values})

    def _reduce(self, mapped: Stream, values: tuple[str, ...], logic: plans.Logic, columns: pa.Schema) -> Stream:
        """Return the stream of a reduction of keys and values by a logic."""
        keys = tuple(self._keys)
        schema = pa.schema([*(mapped.schema.field(name) for name in keys), *columns])
        check_column_names("reduce", schema)
        return mapped._add_node(plans.Reduce(keys, values, logic), [mapped], schema)
