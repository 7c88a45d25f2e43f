"""A program: its sources, inputs, streams and scopes of iteration.

Several programs can run as one (`open_together`): their plans become one plan, in which sources that read the same
columns of the same collection are one. The running graph makes one arrangement for the same columns by the same key. So
programs share arrangements as operators do, and all outputs are sealed together.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import SchemaMismatch
from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.plan import plan as plans
from persist.compute.dataflow.plan.draft import Draft, make_hold_name
from persist.compute.dataflow.plan.stages import to_record_schema
from persist.compute.dataflow.plan.types import Columns, format_schema
from persist.compute.dataflow.ports.output import list_hidden_collections, make_kept_name
from persist.compute.dataflow.ports.sources import check_writable
from persist.compute.dataflow.running.running import Options, Running
from persist.compute.dataflow.stream import Stream
from persist.core.errors import CollectionNotFound, HoldNotFound, NotConsolidated
from persist.core.expression.term import Expression
from persist.core.names import check_name
from persist.core.timeline import Moment
from persist.engine.collection.descriptions import take_hold
from persist.engine.location.engine import Engine
from persist.engine.location.opening import OnEngine, drop, load_handle, to_engine

ITERATIONS_MAX = 1000


class Program(Draft):
    """A plan under construction: operators on collections, written once.

    Attributes:
        name: names the program's holds and its outputs' owner; unique in a location.
        dimensions: of its times: 1 for integers; n for tuples of n integers, in the product partial order.
        engine: where `source` looks columns up; None before `using` is called.
    """

    def __init__(self, name: str, *, dimensions: int = 1) -> None:
        super().__init__(name, dimensions)
        self.engine: Engine | None = None
        self.local_functions: set[str] = set()  # Names of functions of Python, which only this process has.

    def input(self, name: str, *, key: Any, value: Any = None) -> Stream:
        """Return a collection that users insert into the running program: `running[name].insert(…)`.

        Args:
            key, value: columns with their types, as of `Client.create_or_load`.
        """
        if not isinstance(name, str) or not name or name in self.input_schemas:
            problem = "there is one of that name already" if name in self.input_schemas else "its name is a text"
            raise InvalidUsage(f"input {name!r}: {problem}")
        schema = CollectionSchema.of(key, value)
        self.input_schemas[name] = schema
        columns = pa.schema([schema.arrow.field(column) for column in schema.names])
        return Stream(self, self.plan.add(plans.Input(name, schema.key_names), (), columns).number)

    def source(
        self,
        collection: str,
        *,
        schema: Columns | None = None,
        as_of: int | Moment | None = None,
        unsealed: bool = False,
        written: bool = False,
    ) -> Stream:
        """Return a persisted collection: a snapshot, then its changes.

        Args:
            schema: its columns. They are needed before the collection is read, so that the program is checked where it
                is built; `program.using(client)` finds them by itself.
            as_of: the time of the snapshot; earlier updates count as updates at this time. None: the latest possible
                time. If the collection has a timeline, it may be a moment: the last time that is not after it.
            unsealed: pass records on before their time is sealed, and writes of this client before they are durable. A
                record that never becomes part of a sealed time is retracted. Operators without state work ahead, and
                `Stream.early` shows it; everything else, outputs too, waits for the seal. Not of a keyed collection.
            written: the program writes it: `running[collection].insert(…)` and `advance_to`. A step computes from
                inserted updates before they are durable, and one commit writes them and all outputs. No other program
                may write the collection meanwhile. Needs `using`, and is not of a keyed collection or one with codecs.
        """
        self._check_read(collection)
        for name, value in (("unsealed", unsealed), ("written", written)):
            if not isinstance(value, bool):
                raise InvalidUsage(f"source {collection!r}: {name}={value!r} is neither True nor False")
        if written:
            return self._add_written_source(collection, is_plain=schema is None and as_of is None and not unsealed)
        if schema is None:
            schema = self._look_up_columns(collection)
        fields = to_record_schema(schema, f"source {collection!r}")
        columns = pa.schema([pa.field(field.name, field.type) for field in fields])
        return Stream(self, self.plan.add(plans.Source(collection, as_of, unsealed), (), columns).number)

    def _add_written_source(self, collection: str, *, is_plain: bool) -> Stream:
        """Return a source that the program writes: it is an output as well."""
        if not is_plain:
            raise InvalidUsage(
                f"source {collection!r}: with written=True all of it is read, as far as it is sealed: leave schema, "
                "as_of and unsealed out"
            )
        self.check_output(collection)
        columns = self._look_up_columns(collection)
        assert self.engine is not None
        schema = check_writable(load_handle(self.engine, collection)).schema
        source = self.plan.add(plans.Source(collection, written=True), (), columns)
        self.plan.add(plans.Persist(collection, schema.key_names), (source.number,), columns)
        return Stream(self, source.number)

    def add_upper(self, collection: str) -> Stream:
        """Return a stream without records that is complete as far as a collection is sealed."""
        self._check_read(collection)
        return Stream(self, self.plan.add(plans.Upper(collection), (), pa.schema([])).number)

    def _check_read(self, collection: str) -> None:
        """Raise InvalidUsage if the program cannot read a collection of this name."""
        check_name(collection)
        self.check_source(collection)
        if self.dimensions != 1:
            raise InvalidUsage(
                f"source {collection!r}: times of a collection have one dimension, and those of this program "
                f"{self.dimensions}"
            )

    def constant(self, records: pa.Table) -> Stream:
        """Return records that are there from the first time on, and never change."""
        if not isinstance(records, pa.Table):
            raise InvalidUsage(f"constant: {records!r:.100} is not a pyarrow Table of records")
        columns = to_record_schema(records.schema, "constant")
        return Stream(self, self.plan.add(plans.Constant(records), (), columns).number)

    def using(self, client: OnEngine | Engine) -> "Program":
        """Let `source` look the columns of collections up with a client; returns the program."""
        self.engine = to_engine("Program.using", client)
        return self

    def _look_up_columns(self, collection: str) -> pa.Schema:
        """Return the present columns of a collection in the store."""
        if self.engine is None:
            raise InvalidUsage(
                f"source({collection!r}): its columns are not known. Give them with schema={{…}}, or let the "
                "program look "
                'them up: Program("name").using(client)'
            )
        schema = load_handle(self.engine, collection).schema
        return pa.schema([schema.arrow.field(name) for name in schema.names])

    def scope(self, name: str = "scope", *, limit: int = ITERATIONS_MAX, inside: "int | Scope" = plans.ROOT) -> "Scope":
        """Return a new scope of iteration; see `Scope`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise InvalidUsage(f"scope {name!r}: limit={limit!r} is not a number of iterations of at least 1")
        parent = inside.number if isinstance(inside, Scope) else inside
        number = 1 + max(self.plan.scopes)
        depth = self.plan.scopes[parent].depth + 1
        self.plan.scopes[number] = plans.ScopeInfo(number, parent, name, limit, depth)
        return Scope(self, number)

    def join_all(self, streams: Sequence[Stream], on: str | Sequence[str]) -> Stream:
        """Return the join of several streams on the same columns; as a delta join it keeps nothing intermediate."""
        if len(streams) < 2:
            raise InvalidUsage(f"join_all: {len(streams)} streams; a join is of at least two")
        joined, *later = streams
        for stream in later:
            joined = joined.join(stream, on)
        return joined

    def explain(self, *, optimise: bool = True) -> str:
        """Return the plan as text: as it is run, or with optimise=False as it was written."""
        return str(self.optimise() if optimise else self.plan)

    def open(self, client: OnEngine | Engine | None = None, **options: Any) -> Running:
        """Start the program; see `persist.compute.dataflow.running.running.Running`. Close it, or use it in a `with`.

        Args:
            client: for sources and outputs; None for programs without persisted collections.
            options: see `persist.compute.dataflow.running.running.Options`.
        """
        self.check()
        return Running(self, get_engine(client), Options.of(options))

    def drop(self, client: OnEngine | Engine) -> None:
        """End the program: release its holds on its sources, and drop its hidden collections.

        Its outputs stay as they are; drop them if they should go.

        A copy that still runs goes on, but cannot be resumed when its sources have been compacted. A copy with hidden
        collections ends with CollectionNotFound.
        """
        engine = to_engine("Program.drop", client)
        for node in self.plan.nodes.values():
            if isinstance(node.operator, plans.Source):
                with suppress(CollectionNotFound, HoldNotFound):
                    take_hold(load_handle(engine, node.operator.collection), None, make_hold_name(self.name)).release()
        for name in self.list_kept_names(engine):
            with suppress(CollectionNotFound):
                drop(load_handle(engine, name)).result()

    def name_hidden_collection(self, number: int) -> str | None:
        """Return the name of the hidden collection for the output of a node."""
        return make_kept_name(self.name, number)

    def list_kept_names(self, engine: Engine) -> list[str]:
        """Return the names of all hidden collections of the program."""
        return list_hidden_collections(engine, self.name)

    def check(self) -> None:
        """Raise InvalidUsage if the program is incomplete."""
        for node in self.plan.nodes.values():
            if isinstance(node.operator, plans.Variable) and node.operator.feedback is None:
                raise InvalidUsage(
                    f"variable {node.operator.name!r} of scope {self.plan.scopes[node.scope].name!r} was never set: "
                    "call its set(result)"
                )

    def __repr__(self) -> str:
        return f"<Program {self.name!r}: {len(self.plan.nodes)} operators>"


class Scope:
    """An iteration: collections enter it, variables go round in it, and results leave it when nothing changes any more.

    `number`: the number of the scope in the plan.
    """

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.number = number

    def enter(self, stream: Stream) -> Stream:
        """Return a stream of an enclosing scope inside this one."""
        return stream.enter_scope(self.number)

    def enter_at(self, stream: Stream, expression: Expression) -> Stream:
        """Return a stream of the enclosing scope; each record enters at an iteration.

        A record that enters later meets settled results of the records before it. If labels spread and the least ones
        enter first, a greater label never spreads past a lesser one. (`propagate_at` of differential dataflow's graph
        algorithms.) The numbers only order: an iteration in which nothing changes is skipped.

        `expression`: a whole number from 0 to 2**62 for each record.

        Raises OperatorFailed: when it runs, if a number is negative, greater than 2**62 or NULL.
        """
        return stream.enter_with_rounds(self.number, expression)

    def variable(self, name: str, initial: Stream | None = None, *, schema: Columns | None = None) -> "Looped":
        """Return a collection that is `initial`, or empty, in the first iteration; see `Looped.set`.

        `schema`: its columns, if there is no initial stream.
        """
        if (initial is None) == (schema is None):
            raise InvalidUsage(f"variable {name!r}: give either an initial stream, or the columns with schema={{…}}")
        start = None if initial is None else self.enter(initial)
        columns = start.schema if start is not None else to_record_schema(schema, f"variable {name!r}")
        node = self.program.plan.add(plans.Variable(name), (), columns, self.number)
        whole = Stream(self.program, node.number)
        if start is not None:
            whole = whole.concat(start)
        return Looped(self.program, whole.number, node.number, start)

    def scope(self, name: str = "scope", *, limit: int = ITERATIONS_MAX) -> "Scope":
        """Return a scope nested in this one."""
        return self.program.scope(name, limit=limit, inside=self)

    def leave(self, stream: Stream) -> Stream:
        """Return the final contents of a stream of this scope, in the enclosing scope."""
        if stream.node.scope != self.number:
            raise InvalidUsage(f"leave: {stream.node.title} is not in this scope; its own scope must let it leave")
        parent = self.program.plan.scopes[self.number].parent
        return Stream(
            self.program, self.program.plan.add(plans.Leave(), (stream.number,), stream.schema, parent).number
        )


class Looped(Stream):
    """The stream of a variable of a scope: its collection in each iteration."""

    def __init__(self, program: Program, number: int, variable: int, initial: Stream | None) -> None:
        super().__init__(program, number)
        self._variable = variable
        self._initial = initial

    def set(self, result: Stream) -> None:
        """Define the variable's collection in the next iteration as `result`.

        Raises NotConsolidated: the cycle has no operator that consolidates.
        """
        plan, variable = self.program.plan, self.program.plan.nodes[self._variable]
        assert isinstance(variable.operator, plans.Variable)
        title = f"variable {variable.operator.name!r}"
        if variable.operator.feedback is not None:
            raise InvalidUsage(f"{title} was set already; a variable is set once")
        result = result.enter_scope(variable.scope)
        if (result.schema.names, result.schema.types) != (self.schema.names, self.schema.types):
            raise SchemaMismatch(
                f"{title} has the columns {format_schema(self.schema)}, and is set to "
                f"{format_schema(result.schema)}: map one to the other"
            )
        whole = result if self._initial is None else result.concat(self._initial.negate())
        plan.replace_node(self._variable, operator=plans.Variable(variable.operator.name, whole.number))
        cycle = _find_unconsolidated_cycle(plan, self._variable)
        if cycle:
            plan.replace_node(self._variable, operator=variable.operator)
            raise NotConsolidated(plan.scopes[variable.scope].name, [plan.nodes[number].title for number in cycle])


def _find_unconsolidated_cycle(plan: plans.Plan, variable: int) -> list[int]:
    """Return the nodes of a cycle through a variable on which nothing consolidates; [] if there is none."""
    paths = [[variable]]
    visited: set[int] = set()
    while paths:
        path = paths.pop()
        for number in plans.list_incoming_edges(plan.nodes[path[-1]]):
            if number == variable:
                return path[::-1]
            if number not in visited and not isinstance(plan.nodes[number].operator, plans.Reduce | plans.Consolidate):
                visited.add(number)
                paths.append([*path, number])
    return []


def get_engine(client: OnEngine | Engine | None) -> Engine | None:
    """Return the engine of the client that a program is opened with; None without a client."""
    return None if client is None else to_engine("Program.open", client)


class Together(Draft):
    """Several programs that run as one; sources that are equal are read once.

    Raises:
        InvalidUsage: they differ in dimensions, or share the name of a program, an input or an output; or one reads
        what another writes.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        if not programs or len({program.name for program in programs}) < len(programs):
            raise InvalidUsage(
                f"open_together: {[program.name for program in programs]} are not programs of different names"
            )
        if len({program.dimensions for program in programs}) > 1:
            raise InvalidUsage("open_together: the programs' times have different numbers of dimensions")
        super().__init__(" + ".join(program.name for program in programs)[:100], programs[0].dimensions)
        self._programs = list(programs)
        self._sources: dict[tuple[Any, ...], int] = {}
        self._kept: dict[int, str] = {}
        for program in programs:
            program.check()
            self._add_program(program)
        self._check_disjoint()

    def list_holds(self, collection: str) -> list[str]:
        """Return the names of the holds that the programs that read a collection have on it."""
        names = []
        for program in self._programs:
            reads = any(
                isinstance(node.operator, plans.Source) and node.operator.collection == collection
                for node in program.plan.nodes.values()
            )
            names += program.list_holds(collection) if reads else []
        return names

    def name_hidden_collection(self, number: int) -> str | None:
        """Return the name of a node's hidden collection; None if it stores nothing."""
        return self._kept.get(number)

    def list_kept_names(self, engine: Engine) -> list[str]:
        """Return the names of the hidden collections of all programs."""
        return [name for program in self._programs for name in program.list_kept_names(engine)]

    def _add_program(self, program: Program) -> None:
        """Add a program's nodes under new numbers; equal sources are shared."""
        common = [name for name in program.input_schemas if name in self.input_schemas]
        if common:
            raise InvalidUsage(f"open_together: two programs have an input {common[0]!r}; rename one of them")
        self.input_schemas |= program.input_schemas
        places = {}
        for node in program.plan.nodes.values():
            if isinstance(node.operator, plans.Source):
                names, kinds = tuple(node.schema.names), tuple(map(str, node.schema.types))
                same = (node.operator, node.operator.unsealed, names, kinds)
                if same not in self._sources:
                    self._sources[same] = self.plan.add(node.operator, (), node.schema, name=node.name).number
                places[node.number] = self._sources[same]
        numbers = self.plan.add_plan(program.plan, places)
        for number in program.plan.nodes:
            name = program.name_hidden_collection(number)
            if name is not None:
                self._kept[numbers[number]] = name
        self.captures |= {numbers[number]: observer for number, observer in program.captures.items()}
        self.probes |= {numbers[number]: observer for number, observer in program.probes.items()}

    def _check_disjoint(self) -> None:
        """Raise InvalidUsage if a program reads another one's output."""
        written = [
            node.operator.collection for node in self.plan.nodes.values() if isinstance(node.operator, plans.Persist)
        ]
        read = {
            node.operator.collection
            for node in self.plan.nodes.values()
            if isinstance(node.operator, plans.Source | plans.Upper)
        }
        for name in written:
            if written.count(name) > 1 or name in read:
                problem = "written by two of the programs" if name not in read else "written by one and read by another"
                raise InvalidUsage(
                    f"open_together: collection {name!r} is {problem}; such programs run one after the other"
                )


def open_together(programs: Sequence[Program], client: OnEngine | Engine | None = None, **options: Any) -> Running:
    """Start several programs as one; see `Program.open`. Each can be opened alone, or with others, another time.

    Captures, probes and the names of inputs are as if each ran alone.
    """
    return Running(Together(programs), get_engine(client), Options.of(options))
