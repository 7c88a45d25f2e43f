"""A program under construction: its plan, and its captures and probes. A capture keeps the updates of a stream, and a
probe shows how far a stream is complete."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage
from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.plan.optimise import optimise_plan
from persist.compute.dataflow.plan.plan import Persist, Plan, Source, Upper
from persist.compute.dataflow.updates.batch import Layout, to_batch
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.core.antichain import Antichain, Time
from persist.core.names import check_free_name, check_hold_name
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle


def to_time_columns(times: Ints) -> dict[str, pa.Array]:
    """Return times as columns: `_time`, or `_time_0`, `_time_1` … if they have several dimensions."""
    if len(times) == 1:
        return {"_time": pa.array(times[0])}
    return {f"_time_{number}": pa.array(row) for number, row in enumerate(times)}


def to_table(updates: Ints, schema: pa.Schema, domain: Domain) -> pa.Table:
    """Return updates as Arrow: the columns, the times, `_diff`."""
    columns = {field.name: domain.decode(updates[at], field.type) for at, field in enumerate(schema)}
    columns |= to_time_columns(updates[len(schema) : -1])
    columns["_diff"] = pa.array(updates[-1])
    return pa.table(columns)


class DefinedAs(NamedTuple):
    """The definition of an output that is a view.

    Attributes:
        since: the time from which the definition holds.
        start: the time at which the view begins.
        has_past: whether past times stay readable; otherwise each commit compacts them.
    """

    number: int
    since: int
    start: int
    has_past: bool = True


class Captured:
    """The complete updates of a stream, in memory, while its program runs.

    `early`: also show updates whose time is not complete, marked by a column `_early`.
    """

    def __init__(self, early: bool = False) -> None:
        self._early = early
        self._schema: pa.Schema | None = None
        self._domain: Domain | None = None
        self._complete: list[Ints] = []
        self._waiting: Callable[[], list[Ints]] = list
        self._layout = Layout(0, 0, 1)

    def attach(self, schema: pa.Schema, domain: Domain, dimensions: int, waiting: Callable[[], list[Ints]]) -> None:
        """Reset the capture for a newly opened program."""
        self._schema, self._domain, self._complete, self._waiting = schema, domain, [], waiting
        self._layout = Layout(len(schema), 0, dimensions)

    def add(self, updates: Ints) -> None:
        """Take complete, consolidated updates."""
        self._complete.append(updates)

    def updates(self) -> pa.Table:
        """Return all updates so far: the columns, `_time`, `_diff`, in time order; `_early` last, if it is shown."""
        schema, domain = self._check_attached()
        updates, complete = self.live(), None
        if self._early:
            waiting = to_batch(np.concatenate([updates[:, :0], *self._waiting()], axis=1), self._layout)[1:]
            complete, updates = updates.shape[1], np.concatenate((updates, waiting), axis=1)
        order = np.lexsort(updates[len(schema) : -1][::-1])
        table = to_table(updates[:, order], schema, domain)
        return table if complete is None else table.append_column("_early", pa.array(order >= complete))

    def take(self) -> pa.Table:
        """Return the updates since the last call, and forget them; early ones come again."""
        updates = self.updates()
        self._complete = []
        return updates

    def rows(self) -> list[tuple[tuple[object, ...], Time, int]]:
        """Return all complete updates as Python tuples (record, time, diff), in time order."""
        schema, _ = self._check_attached()
        table = self.updates()
        if self._early:
            table = table.filter(pc.invert(table["_early"])).drop_columns(["_early"])
        columns = [column.to_pylist() for column in table.columns]
        words = len(schema)
        times = columns[words] if len(columns) == words + 2 else list(zip(*columns[words:-1], strict=True))
        records = list(zip(*columns[:words], strict=True)) if words else [()] * len(table)
        return list(zip(records, times, columns[-1], strict=True))

    def live(self) -> Ints:
        """Return the words of all captured updates."""
        schema, _ = self._check_attached()
        rows = len(schema) + self._layout.dimensions + 1
        return np.concatenate(self._complete, axis=1) if self._complete else np.empty((rows, 0), np.int64)

    def _check_attached(self) -> tuple[pa.Schema, Domain]:
        """Return the columns and the domain. Raises InvalidUsage: the program was never opened."""
        if self._schema is None or self._domain is None:
            raise InvalidUsage("this capture holds nothing yet: open its program with program.open(client)")
        return self._schema, self._domain


class Probed:
    """The frontier of a stream in the running program."""

    def __init__(self) -> None:
        self.frontier: Antichain | None = None

    def attach(self, frontier: Antichain) -> None:
        """Set the frontier that the probe reports."""
        self.frontier = frontier

    def done(self, time: Time) -> bool:
        """Return whether no more updates come at times up to time."""
        if self.frontier is None:
            raise InvalidUsage("this probe knows nothing yet: open its program with program.open(client)")
        return not self.frontier.has_beyond(time)


def make_hold_name(program: str) -> str:
    """Return the name of a program's permanent hold."""
    return f"dataflow {program}"


class Draft:
    """The plan of a program, and its captures and probes by the number of their node.

    `name`: names the program's holds; unique in a location.
    """

    def __init__(self, name: str, dimensions: int) -> None:
        if not isinstance(name, str) or not name or not name.isprintable() or len(name) > 100:
            raise InvalidUsage(f"program name {name!r} is not a text of 1 to 100 printable characters")
        try:
            check_hold_name(make_hold_name(name))
        except InvalidUsage as error:
            raise InvalidUsage(f"program name {name!r} cannot be part of the name of its holds: {error}") from error
        if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 1 <= dimensions <= 16:
            raise InvalidUsage(f"dimensions={dimensions!r} is not a number of dimensions: give 1 to 16")
        self.name = name
        self.dimensions = dimensions
        self.plan = Plan(name, dimensions)
        self.captures: dict[int, Captured] = {}
        self.probes: dict[int, Probed] = {}
        self.input_schemas: dict[str, CollectionSchema] = {}

    def scope(self, name: str, *, limit: int, inside: Any) -> Any:
        """Return a new scope of iteration. `Program` implements it, because scopes return streams."""
        raise NotImplementedError

    def add_upper(self, collection: str) -> Any:
        """Return a stream without records that is complete as far as a collection is sealed."""
        raise NotImplementedError

    def optimise(self) -> Plan:
        """Return an equivalent plan that does less: the plan that operators run."""
        return optimise_plan(self.plan)

    def make_outline(self) -> Plan:
        """Return a plan that shows each output's sources, and whether it reads times."""
        return self.plan.drop_unused()

    def list_holds(self, collection: str) -> list[str]:
        """Return the names of the permanent holds on a source; [] without outputs."""
        has_outputs = any(isinstance(node.operator, Persist) for node in self.plan.nodes.values())
        return [make_hold_name(self.name)] if has_outputs else []

    def load_source(self, engine: Engine, collection: str) -> CollectionHandle:
        """Return the handle of the collection that a source reads."""
        return load_handle(engine, collection)

    def makes_holds(self) -> bool:
        """Return whether opening the program makes its missing holds."""
        return True

    def output(self, collection: str) -> CollectionHandle | None:
        """Return the collection of an output; None if it does not exist yet."""
        return None

    def definition(self, collection: str) -> DefinedAs | None:
        """Return the definition of an output that is a view; None for other outputs.

        An output that is sealed to the definition's time `since` was computed by an earlier definition: its first
        commit corrects its contents.
        """
        return None

    def name_hidden_collection(self, number: int) -> str | None:
        """Return the name of the hidden collection with the output of a node; None if there is none."""
        return None

    def list_kept_names(self, engine: Engine) -> list[str]:
        """Return the names of all hidden collections of the program, in any of its versions."""
        return []

    def add_probe(self, number: int) -> Probed:
        """Return the probe of a node, which shows how far its output is complete."""
        return self.probes.setdefault(number, Probed())

    def add_capture(self, number: int, *, early: bool = False) -> Captured:
        """Return the capture of a node, which keeps its output in memory."""
        return self.captures.setdefault(number, Captured(early))

    def check_output(self, collection: str) -> None:
        """Raise InvalidUsage if the program writes or reads a collection already, or may not have that name."""
        if self.output(collection) is None:
            check_free_name(collection)
        for node in self.plan.nodes.values():
            match node.operator:
                case Persist(other, _) if other == collection:
                    raise InvalidUsage(f"persist: the program writes collection {collection!r} already")
                case Source(other, _) | Upper(other) if other == collection:
                    raise InvalidUsage(
                        f"persist: the program reads collection {collection!r}, so it cannot write it too; for "
                        "recursion use iterate()"
                    )

    def check_source(self, collection: str) -> None:
        """Raise InvalidUsage if the program writes a collection that it is about to read."""
        for node in self.plan.nodes.values():
            if isinstance(node.operator, Persist) and node.operator.collection == collection:
                raise InvalidUsage(
                    f"source: the program writes collection {collection!r}, so it cannot read it too; use the stream "
                    "that it persists"
                )
