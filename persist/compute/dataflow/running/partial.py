"""A program that continues from sealed outputs, and reads from its sources only the keys that changes touch.

Its arrangements are partial (`persist.compute.dataflow.operators.arrangement`), and their requests end here:

    a source          reads the parts that may hold the keys (`persist.compute.dataflow.ports.past`)
    a stored output   is read where another operator requests what an output holds
    a stored group    becomes the state of a reduction, if an output shows it (`persist.compute.dataflow.running.seeds`)

All sources are read as of one time, the last one that the program has processed. So every pass takes in the same times
of each source, and a request returns exactly what an operator would hold if it had run all the time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from persist.compute.dataflow.operators.arrangement import Arrangement
from persist.compute.dataflow.operators.join import JoinOperator
from persist.compute.dataflow.operators.operators import EntryOperator, Operator, SinkOperator
from persist.compute.dataflow.operators.reduce import TotalReduce
from persist.compute.dataflow.plan import plan as plans
from persist.compute.dataflow.plan.origin import reads_time
from persist.compute.dataflow.plan.stages import may_move_times
from persist.compute.dataflow.ports.output import Output
from persist.compute.dataflow.ports.past import Past, Reading
from persist.compute.dataflow.running.graph import Graph
from persist.compute.dataflow.running.seeds import FirstRecords, NullsAndSigns, Seeds
from persist.compute.dataflow.updates.batch import Keys
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.core.progress import check_limits

OPERATORS = (
    plans.Source
    | plans.Constant
    | plans.Linear
    | plans.Concat
    | plans.Consolidate
    | plans.Join
    | plans.Reduce
    | plans.Arrange
    | plans.Persist
)


def explain_why_not_partial(plan: plans.Plan) -> str | None:
    """Return why a program must read its sources in full; None if it need not."""
    if plan.dimensions != 1:
        return f"its times have {plan.dimensions} dimensions"
    for node in plan.nodes.values():
        if node.scope != plans.ROOT:
            return f"{node.title} is recursive"
        if not isinstance(node.operator, OPERATORS):
            return f"{node.title} lives in the program that runs it"
        if may_move_times(plans.list_stages(node)):
            return f"{node.title} changes by itself as time goes on"
    return "it looks at the times of updates" if reads_time(plan) else None  # So no operator depends on times.


@dataclass
class Partial:
    """State of a running program that loads records of sources when operators request their keys.

    Attributes:
        as_of: the time as of which requests read collections.
        entries: the readers of the sources, by the operators through which their updates come.
        pasts: the readers of sources and outputs.
    """

    as_of: int
    entries: dict[EntryOperator, Past] = field(default_factory=dict)
    pasts: list[Past] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        plan: plans.Plan,
        graph: Graph,
        sources: Mapping[int, Past],
        outputs: Sequence[Output],
        domain: Domain,
        as_of: int,
    ) -> "Partial":
        """Make all arrangements of a program partial, so that they load keys on request."""
        state = cls(as_of, {graph.entries[number]: past for number, past in sources.items()}, [*sources.values()])
        for number, entry in graph.entries.items():
            node = plan.nodes[number]
            if isinstance(node.operator, plans.Constant):
                entry.stored = partial(_encode_constants, domain, node.operator.table.select(node.schema.names))
                continue
            entry.stored = sources[number].read
            entry.has_few = partial(getattr, sources[number], "is_small")
        for operator in graph.operators:
            if isinstance(operator, Arrangement):
                operator.become_partial()
        by_operator = {accumulation.operator: accumulation for accumulation in graph.accumulations}
        nulls = NullsAndSigns(plan, sources)
        for output in outputs:
            output.handle = replace(output.handle, is_kept=True)  # Reads of it end soon, and need no lease.
            operator = output.sink.inputs[0]
            if isinstance(operator, EntryOperator) or output.corrects or output.compares or output.upper <= as_of:
                continue
            past = output.read_past(plan.name, as_of)
            state.pasts.append(past)
            operator.stored = partial(_load_stored_contents, operator, past)
            if operator in by_operator:
                seeds = Seeds.try_make(past, by_operator[operator], plan, nulls, domain)
                by_operator[operator].operator.arrangement.seeds = None if seeds is None else seeds.read_states
            if operator in graph.limits and isinstance(operator, TotalReduce):
                first = FirstRecords.try_make(past, operator, graph.limits[operator], nulls)
                operator.read_first = None if first is None else first.read_records
        return state

    def note_changes(self) -> None:
        """Hand readers the sources' updates of the pass that begins, whose keys are likely requested."""
        for entry, past in self.entries.items():
            past.changes = None if entry.out is None or entry.out.nbytes > past.cache_bytes_max else entry.out

    def move(self, as_of: int) -> None:
        """Answer requests as of a later time from now on; the program has processed it."""
        self.as_of = as_of
        for past in self.pasts:
            past.move(as_of)

    def begin_refresh(self, *, refuses: bool) -> None:
        """Begin a refresh: forget the readings of the previous one.

        `refuses`: whether to refuse to read all of a source that is not small.
        """
        for past in self.pasts:
            past.readings = []
        for past in self.entries.values():
            past.refuses = refuses

    def load_all(self, operators: Sequence[Operator]) -> int:
        """Load all arrangements, each source once; return how many updates they have."""
        arrangements = [operator for operator in operators if isinstance(operator, Arrangement)]
        for at, arrangement in enumerate(arrangements, 1):
            check_limits()
            later = {entry for other in arrangements[at:] for entry in _list_entries(other)}
            for entry, past in self.entries.items():
                past.keeps_everything = entry in later
            arrangement.load_all()
            for entry, past in self.entries.items():
                if entry not in later:
                    past.close()
        return sum(arrangement.spine.rows for arrangement in arrangements)

    @property
    def readings(self) -> list[Reading]:
        """What was read from collections since the refresh began."""
        return [reading for past in self.pasts for reading in past.readings]

    def close(self) -> None:
        """Stop reading."""
        for past in self.pasts:
            past.close()


def list_requested_columns(plan: plans.Plan, graph: Graph) -> set[tuple[str, tuple[str, ...]]]:
    """Return (collection, columns) pairs by which refreshes may request records.

    Requests of a reduction that reads a source directly are left out: their size depends on the data.
    """
    requests: set[tuple[str, tuple[str, ...]]] = set()
    nodes = {entry: plan.nodes[number] for number, entry in graph.entries.items()}
    accumulated = {accumulation.operator for accumulation in graph.accumulations}  # An output mostly shows their state.

    def request(operator: Operator, columns: tuple[int, ...]) -> None:
        requested = Keys(columns, np.empty((len(columns), 0), np.int64))
        keys = requested.trace(operator.origins)[0] if operator.origins else requested
        match operator:
            case EntryOperator():
                node = nodes[operator]
                if isinstance(node.operator, plans.Source):
                    names = (node.schema.names[column] for column in columns)
                    requests.add((node.operator.collection, tuple(sorted(names))))
            case JoinOperator():
                path, start_keys = operator.choose_path(requested)
                if start_keys is not None:
                    request(path.start, start_keys.columns)
            case TotalReduce():
                own_keys = tuple(column for column in (keys.columns if keys else ()) if column < operator.keys)
                if own_keys:
                    request(operator.arrangement, own_keys)
            case _ if keys is not None:
                for source in operator.inputs:
                    request(source, keys.columns)

    stored = {operator.inputs[0] for operator in graph.operators if isinstance(operator, SinkOperator)}
    for operator in graph.operators:
        match operator:
            case JoinOperator():
                for path in operator.paths:
                    for step in path.steps:
                        if step.keys:
                            request(step.arrangement, tuple(range(len(step.keys))))
            case TotalReduce() if operator.keys and not (
                isinstance(operator.arrangement.inputs[0], EntryOperator)
                or (operator in stored and operator in accumulated)
            ):
                request(operator.arrangement, tuple(range(operator.keys)))
    return requests


def _list_entries(operator: Operator) -> set[Operator]:
    """Return the sources that an operator reads without an arrangement between."""
    below = [source for source in operator.inputs if not isinstance(source, Arrangement)]
    return {source for source in below if isinstance(source, EntryOperator)}.union(*map(_list_entries, below))


def _load_stored_contents(operator: Operator, past: Past, keys: Keys | None) -> Ints:
    """Return an operator's stored contents for keys; compute them if storage is unreadable."""
    return past.read(keys) if past.is_readable else operator.compute_contents(keys)


def _encode_constants(domain: Domain, table: pa.Table, keys: Keys | None) -> Ints:
    """Return the records of a constant table that have some keys, encoded at each call."""
    rows = [domain.encode(column) for column in table.columns]
    count = table.num_rows
    updates = np.array([*rows, np.zeros(count, np.int64), np.ones(count, np.int64)], np.int64)
    return updates if keys is None else updates[:, keys.selects(updates)]
