"""A running program: its operators, its inputs, the steps that keep its outputs up to date, and a report for people."""

import threading
import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from os.path import isdir
from typing import Any

import numpy as np
import pyarrow as pa

from persist.blob.errors import Indeterminate, InvalidUsage, Unavailable
from persist.compute.dataflow.plan.draft import Draft
from persist.compute.dataflow.plan.optimise import Statistics, estimate_streams
from persist.compute.dataflow.plan.origin import find_separate
from persist.compute.dataflow.plan.plan import Constant, Input, Plan, Source, Upper, find_early
from persist.compute.dataflow.ports.hints import list_conditions
from persist.compute.dataflow.ports.inputs import Gate, InputHandle
from persist.compute.dataflow.ports.past import Past
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.ports.sinks import Outputs
from persist.compute.dataflow.ports.sources import (
    Followed,
    SourceReader,
    UpperReader,
    choose_step_end,
    poll_all,
    wake_polls,
)
from persist.compute.dataflow.running.graph import Builder
from persist.compute.dataflow.running.partial import Partial, explain_why_not_partial, list_requested_columns
from persist.compute.dataflow.running.reports import OperatorReport, make_reports, render_operators
from persist.compute.dataflow.state.costs import USUAL, Costs
from persist.compute.dataflow.state.spine import Spill, allocate_in_memory
from persist.compute.dataflow.updates.times import meet_all
from persist.compute.dataflow.updates.words import Domain
from persist.core.antichain import Antichain, Time
from persist.core.closing import Closes
from persist.core.expression.term import Term
from persist.core.progress import report_work
from persist.engine.compact import release_unused_memory
from persist.engine.location.engine import Engine

POLL_S = 0.02
UPDATE_BYTES = 1 << 10  # The most memory of an update on its way through usual programs.
IDLE_S = 10.0  # How long `run_forever` waits at a time where nothing happens; `stop` wakes it.


@dataclass(frozen=True, slots=True)
class Options:
    """How a program is run.

    Attributes:
        optimise: rewrite the plan first.
        replace: the program has changed: the first step corrects its outputs, in one commit.
        jump: continue at the latest time that the sources have sealed, to skip times at which the program fails. The
            outputs cannot be read at the skipped times.
        memory_budget: bytes of arrangements that stay in memory; what is merged beyond that goes to mapped files.
        spill_folder: the folder of these files; None for the system's folder for temporary files.
        partial: a program that continues from sealed outputs reads only keys that changes touch, if it can.
            Otherwise its first step loads all that its operators keep.
        costs: the numbers of rows at which operators change their algorithm.
    """

    optimise: bool = True
    replace: bool = False
    jump: bool = False
    memory_budget: int = 4 << 30
    spill_folder: str | PathLike[str] | None = None
    partial: bool = False
    costs: Costs = USUAL

    def __post_init__(self) -> None:
        for name in ("optimise", "replace", "jump", "partial"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidUsage(f"open: {name}={getattr(self, name)!r} is neither True nor False")
        budget, folder = self.memory_budget, self.spill_folder
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
            raise InvalidUsage(f"memory_budget={budget!r} is not a number of bytes: give a whole one from 0 on")
        if not isinstance(self.costs, Costs):
            raise InvalidUsage(f"costs={self.costs!r:.100} are not Costs")
        if folder is not None and not (isinstance(folder, str | PathLike) and isdir(folder)):
            raise InvalidUsage(f"spill_folder={folder!r} is not a folder: make it, or leave it out")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """Return options from keyword arguments. Raises InvalidUsage: an unknown name."""
        unknown = [name for name in given if name not in cls.__dataclass_fields__]
        if unknown:
            names = ", ".join(cls.__dataclass_fields__)
            raise InvalidUsage(f"open: there is no option {unknown[0]!r}; there are {names}")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Step:
    """What one step of a program took in and committed.

    Attributes:
        updates: how many updates of inputs and sources it took in.
        frontier: how far inputs and sources were complete for it.
        seqno: the seqno of the outputs' commit; None if there was none.
    """

    updates: int
    frontier: Antichain
    seqno: int | None


class Running(Closes):
    """A program that runs. One thread at a time may use it; any thread may call `stop`.

    Attributes:
        plan: the plan that the operators run.
        first_seqno: the seqno of the first commit of the last `run`; None if there was none.
        why_whole: why the program reads its sources in full; None if it continues from its sealed outputs.
        sources: the readers of the sources.
        partial: its requests to sources; None if it has read them in full.
    """

    def __init__(
        self, program: Draft, engine: Engine | None, options: Options, known: Mapping[int, Statistics] | None = None
    ) -> None:
        """Open a program; known has statistics of inputs and sources, in place of statistics of collections."""
        self.program = program
        self.plan: Plan = program.optimise() if options.optimise else program.plan.drop_unused()
        self.first_seqno: int | None = None
        self.why_whole: str | None = None
        self._options = options
        self._stopped = threading.Event()
        self._is_broken = False
        self._is_closed = False
        self._has_caught_up = False
        self._complete: list[Antichain] | None = None  # How far inputs and sources were complete for the last pass.
        self._domain = Domain()
        self._spill = Spill(options.memory_budget, options.spill_folder)
        self._why_not_partial = explain_why_not_partial(self.plan)
        kept_names = {
            number: name
            for number in (() if self._why_not_partial is None else find_separate(self.plan))
            if (name := program.name_hidden_collection(number)) is not None
        }
        estimate = estimate_streams(engine, self.plan) if known is None else known.get
        allocate, costs = self._spill.allocate, options.costs
        builder = Builder(
            self.plan, self._domain, program.captures, program.probes, allocate, kept_names, estimate, costs
        )
        self._graph = builder.build_graph()
        self._words = _WordSweep(self._domain, self._list_words_in_use)
        self._gates: dict[int, Gate] = {}
        self._inputs: dict[str, InputHandle] = {}
        self.sources: list[SourceReader] = []
        self._followed: list[Followed] = []
        self._outputs: Outputs | None = None
        self.partial: Partial | None = None
        self._open_ports(engine)

    def _open_ports(self, engine: Engine | None) -> None:
        """Connect inputs, constants, sources and outputs to their places in the graph."""
        dimensions = self.plan.dimensions
        sources: list[tuple[Source, pa.Schema, Gate, list[tuple[Term, ...]]]] = []
        uppers: list[tuple[str, Gate]] = []
        early = find_early(self.plan)
        for number, entry in self._graph.entries.items():
            node = self.plan.nodes[number]
            gate = self._gates[number] = Gate(entry, len(node.schema), dimensions, is_early=number in early)
            if isinstance(node.operator, Input):
                schema = self.program.input_schemas[node.operator.name]
                handle = InputHandle(node.operator.name, schema, gate, self._domain, dimensions)
                self._inputs[node.operator.name] = handle
            elif isinstance(node.operator, Constant):
                table = node.operator.table
                rows = [self._domain.encode(table[name]) for name in node.schema.names]
                times = np.zeros((dimensions, table.num_rows), np.int64)
                gate.add(np.array([*rows, *times, np.ones(table.num_rows, np.int64)], np.int64))
                gate.frontier = Antichain()
            elif isinstance(node.operator, Source):
                sources.append((node.operator, node.schema, gate, list_conditions(self.plan, number)))
            elif isinstance(node.operator, Upper):
                uppers.append((node.operator.collection, gate))
        if engine is None and (sources or uppers or self._graph.sinks):
            raise InvalidUsage(
                f"program {self.program.name!r} reads or writes persisted collections: open it with "
                "program.open(client)"
            )
        if engine is None:
            return
        reason = self._why_not_partial
        try:
            conditions = [UpperReader(engine, *upper) for upper in uppers]
            ports = Ports(
                self.program,
                engine,
                sources,
                self._graph.sinks,
                self._graph.kept,
                self._domain,
                conditions=conditions,
                replace=self._options.replace,
                jump=self._options.jump,
                is_brief=self._options.partial and self._may_be_partial(reason),
            )
        except BaseException:
            self.close()
            raise
        self.sources, self._outputs = ports.sources, ports.outputs
        self._followed = [*self.sources, *conditions]
        try:
            self._become_partial(reason)
            for source in self.sources:
                if source.operator.written:
                    self._inputs[source.operator.collection] = source.open_input()
        except BaseException:
            self.close()
            raise

    def _may_be_partial(self, reason: str | None) -> bool:
        """Return whether the program may start from stored outputs, without its sources' contents.

        `reason`: why the sources must be loaded in full; None if they need not be.
        """
        handles = [self.program.output(sink.collection) for sink in self._graph.sinks]
        return reason is None and all(handle is not None and handle.get_known_state().upper != 0 for handle in handles)

    def _become_partial(self, reason: str | None) -> None:
        """Begin without the sources' contents, and load them on request, unless a reason forbids it."""
        assert self._outputs is not None
        at = self._outputs.goes_on_from
        if reason is None and at is None:
            reason = "an output begins"
        if reason is None and any(output.corrects or output.compares for output in self._outputs.every):
            reason = "an output switches its definition"
        self.why_whole = reason
        if reason is not None or at is None:
            return
        for source in self.sources:
            source.skip_contents()
        for number, gate in self._gates.items():
            if isinstance(self.plan.nodes[number].operator, Constant):
                gate.drop_all()
        self.partial = Partial.of(self.plan, self._graph, self._make_pasts(at), self._outputs.every, self._domain, at)
        if self._options.partial:
            for source in self.sources:
                source.release_snapshot()

    def _load_arrangements(self) -> None:
        """Load what the arrangements lack; then the program reads only changes."""
        if self.partial is None or self._options.partial:
            return
        loaded = self.partial.load_all(self._graph.operators)
        self.partial.close()
        self.partial = None
        for source in self.sources:
            source.release_snapshot()
        self._return_memory(loaded)

    def _make_pasts(self, at: int) -> dict[int, Past]:
        """Return readers of the sources by key, as of a time."""
        nodes = [
            node for number in self._graph.entries if isinstance((node := self.plan.nodes[number]).operator, Source)
        ]
        return {
            node.number: Past(self.plan.name, node.title, source.handle, node.schema, self._domain, at, source.filter)
            for node, source in zip(nodes, self.sources, strict=True)
        }

    def __getitem__(self, name: str) -> InputHandle:
        """Return the input of a name."""
        if name not in self._inputs:
            raise InvalidUsage(f"there is no input {name!r}; the program has {sorted(self._inputs)}")
        return self._inputs[name]

    @property
    def frontier(self) -> Antichain:
        """How far all inputs and sources are complete."""
        return meet_all(gate.frontier for gate in self._gates.values())

    def step(self, *, times: int | None = None, updates: int | None = None) -> Step:
        """Take in what is complete, bring everything up to date, and commit all outputs at once.

        Args:
            times: take at most so many distinct times.
            updates: take the first times only that have so many updates together, but at least one.

        Raises:
            OperatorFailed, NotConverging: the program failed; nothing was written, and it must be opened again.
            SourceLost: a source cannot be read any more.
            OutputConflict: another program writes an output. Unavailable: the store did not answer; the step can be
                repeated.
        """
        self._check_usable()
        if self._outputs is not None and self._outputs.has_pending:
            # The step before was computed, and its commit failed: that is what is left to do of it.
            return Step(0, self.frontier, self._commit())
        poll_all(self._followed, 0.0)
        return self._step_until(self._choose_limit(times, updates))

    def _step_until(self, limit: int | None) -> Step:
        """Run one pass over updates up to a time; commit the outputs."""
        self._load_arrangements()
        count = self._run_pass(limit)
        self._words.run(count)
        seqno = self._commit()
        self._return_memory(count)
        return Step(count, self.frontier, seqno)

    def _run_pass(self, limit: int | None) -> int:
        """Run all operators on complete updates before a limit; return the number of updates."""
        if self.partial is not None:  # All sources are at one time after each pass.
            limits = [time for gate in self._gates.values() if (time := gate.frontier.time) is not None]
            limit = min([*limits, *([] if limit is None else [limit])], default=None)
        count = sum(gate.open(limit) for gate in self._gates.values())
        complete = [entry.frontier for entry in self._graph.entries.values()]
        if not count and complete == self._complete:
            return 0  # Nothing has come, and nothing that waits has become ready.
        self._complete = complete
        self._return_memory(count)  # Reading them has freed memory.
        if self.partial is not None:
            self.partial.note_changes()
        try:
            self._graph.run()
            if self._outputs is not None:
                self._outputs.take()
            self._graph.free_updates()
            if self.partial is not None:
                self.partial.move(self.partial.as_of if limit is None else limit - 1)
        except BaseException:
            self._is_broken = True
            raise
        self._return_memory(count)
        return count

    def _return_memory(self, updates: int) -> None:
        """After many updates, let allocators return free memory to the system."""
        if updates >= self._options.costs.catch_up_updates:
            release_unused_memory()

    def catch_up(self) -> None:
        """Process all that is complete now; ignore what is sealed meanwhile."""
        self.first_seqno = None
        with report_work("refresh", self.program.name, unit="updates") as tell:
            self._catch_up(tell)
            tell(self.step().updates)

    def rehearse(self) -> int:
        """Step without a commit; return how many updates were taken. Close the program then."""
        self._check_usable()
        poll_all(self._followed, 0.0)
        count = self._run_pass(None)
        self._is_broken = True
        return count

    @property
    def state_bytes(self) -> int:
        """How many bytes the operators keep."""
        return sum([operator.bytes() for operator in self._graph.operators])

    def run(self, until: Time | None = None, *, timeout_s: float | None = None) -> None:
        """Step until all times up to until, inclusive, are done; without until, until nothing more is complete.

        `timeout_s`: how long to wait for the sources to be sealed that far; None waits without limit.

        Raises InvalidUsage: an input was not advanced that far, so waiting would not end; or the timeout has passed.
        """
        deadline = None if timeout_s is None else clock.monotonic() + timeout_s
        self.first_seqno = None
        with report_work("refresh", self.program.name, unit="updates") as tell:
            self._catch_up(tell)
            while True:
                done = self.step()
                tell(done.updates)
                if until is None:
                    if not done.updates and not poll_all(self._followed, 0.0):
                        return
                elif not self.frontier.has_beyond(until) or self._stopped.is_set():
                    return
                else:
                    self._wait(until, deadline)

    def _catch_up(self, tell: Callable[[int], object]) -> None:
        """Process a new program's sources in pieces, each with a commit.

        So the history of a new output needs no more memory than the budget, besides the state. Sealed pieces stay if
        this is interrupted. `tell`: receives the number of updates of each piece.
        """
        updates_max = max(self._options.costs.catch_up_updates, self._options.memory_budget // UPDATE_BYTES)
        while not self._has_caught_up:
            self._check_usable()
            until = None if self._options.jump else choose_step_end(self.sources, updates_max)
            if until is None:
                self._has_caught_up = True
                return
            if self._outputs is not None and self._outputs.has_pending:
                self._commit()
            poll_all(self._followed, 0.0, until=until)
            tell(self._step_until(None).updates)

    def run_forever(self, *, backoff_s: float = 0.1, backoff_max_s: float = 30.0) -> None:
        """Step whenever something is complete, until `stop` is called; while the store does not answer, wait and retry.

        A step whose commit is in doubt is retried, too: the outputs know by their upper whether it was done.
        """
        pause = backoff_s
        while not self._stopped.is_set():
            try:
                self.step()
                pause = backoff_s
                self._poll(IDLE_S)
            except (Unavailable, Indeterminate):
                self._stopped.wait(pause)
                pause = min(2 * pause, backoff_max_s)

    def stop(self) -> None:
        """Let `run_forever` or `run` return after the step that is under way; may be called from any thread."""
        self._stopped.set()
        wake_polls(self._followed)

    def state(self) -> list[tuple[str, int, int]]:
        """Return what each operator keeps: its title, how many updates, and how many bytes they take."""
        return [entry for operator in self._graph.operators for entry in operator.list_states()]

    def operators(self) -> list[OperatorReport]:
        """Return all operators, in the order in which they run, with what they read, keep and did so far."""
        return make_reports(self._graph.operators)

    def _repr_html_(self) -> str:
        return render_operators(self.program.name, self.operators())

    def metrics(self) -> dict[str, float]:
        """Return the sizes of what the program holds in memory and in spill files.

        These are the bytes of arrangements, the spilled bytes, the number of interned values, and the bytes of interned
        texts. Other interned values are objects of Python, whose bytes are not counted.
        """
        return {
            "state_bytes": self.state_bytes,
            "spilled_bytes": self._spill.spilled_bytes,
            "interned_values": sum(map(len, self._domain.interners.values())),
            "text_bytes": sum(holder.size for holder in self._domain.interners.values()),
        }

    def close(self) -> None:
        """Stop reading, and free what is held; idempotent. Outputs stay sealed where they are."""
        self._is_closed = True
        self._stopped.set()
        for handle in self._inputs.values():
            handle.stop()
        for source in self.sources:
            source.close()
        if self.partial is not None:
            self.partial.close()
        self.sources, self._followed = [], []

    def _check_usable(self) -> None:
        """Raise InvalidUsage if this was closed, or failed within a step."""
        if self._is_closed:
            raise InvalidUsage(f"program {self.program.name!r} was closed: open it again with program.open(…)")
        if self._is_broken or any(source.has_lost for source in self.sources):
            raise InvalidUsage(
                f"program {self.program.name!r} failed in the middle of a step, so its state may be wrong: close "
                "it, and open it again"
            )

    def _choose_limit(self, times: int | None, updates: int | None) -> int | None:
        """Return the time before which a step takes updates; None for all."""
        if times is None and updates is None:
            return None
        for name, value in (("times", times), ("updates", updates)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidUsage(f"step: {name}={value!r} is not a number of at least 1")
        if self.plan.dimensions != 1:
            raise InvalidUsage(
                "step: times of several dimensions have no first ones; take all, without times or updates"
            )
        complete = np.concatenate(
            [gate.find_complete_times() for gate in self._gates.values()] or [np.empty(0, np.int64)]
        )
        distinct, counts = np.unique(complete, return_counts=True)
        count = len(distinct)
        if times is not None:
            count = min(count, times)
        if updates is not None:
            count = min(count, max(1, int(counts.cumsum().searchsorted(updates, side="right"))))
        return None if count == len(distinct) else int(distinct[count - 1]) + 1

    def _commit(self) -> int | None:
        """Commit the outputs; return the seqno, or None without a commit."""
        if self._outputs is None:
            return None
        seqno = self._outputs.commit()
        self.first_seqno = seqno if self.first_seqno is None else self.first_seqno
        for source in self.sources:
            source.move_leased()
        return seqno

    def _wait(self, until: Time, deadline: float | None) -> None:
        """Poll the sources once. Raises InvalidUsage if waiting cannot reach `until`, or the deadline has passed."""
        for name, handle in self._inputs.items():
            if handle.frontier.has_beyond(until):
                raise InvalidUsage(
                    f"run(until={until!r}): input {name!r} was advanced to {handle.frontier} only, so this would "
                    "never end"
                )
        if deadline is not None and clock.monotonic() > deadline:
            raise InvalidUsage(
                f"run(until={until!r}): after the timeout the sources are sealed up to "
                f"{', '.join(map(str, self.frontier.elements))} only"
            )
        self._poll(POLL_S)

    def _poll(self, timeout_s: float) -> None:
        """Take what sources have sealed, or wait for it until a time-out or `stop`."""
        poll_all(self._followed, timeout_s, self._stopped.is_set)
        if not self._followed:
            self._stopped.wait(timeout_s)

    def _list_words_in_use(self) -> list[tuple[Any, Any]]:
        """Return the words that are in use, with their columns."""
        live = [typed_words for operator in self._graph.operators for typed_words in operator.list_words_in_use()]
        for number, gate in self._gates.items():
            live += [(words, self.plan.nodes[number].schema) for words in gate.list_words()]
        if self._outputs is not None:
            live += self._outputs.list_words_in_use()
        return live


class _WordSweep:
    """Forgets unused interned values, whenever their number has doubled."""

    def __init__(self, domain: Domain, live: Callable[[], list[tuple[Any, Any]]]) -> None:
        self._domain = domain
        self._live = live
        self._least = 1 << 16

    def run(self, updates: int) -> None:
        """Forget unused words once they have doubled."""
        interners = self._domain.interners
        if sum(map(len, interners.values())) < 2 * self._least:
            return
        live_words: dict[Any, list[Any]] = {kind: [] for kind in interners}
        for words, schema in self._live():
            for row, field in zip(words, schema, strict=True):
                if field.type in live_words:
                    live_words[field.type].append(row)
        for kind, rows in live_words.items():
            interners[kind].retain(np.concatenate(rows) if rows else np.empty(0, np.int64))
        self._least = max(1 << 16, sum(map(len, interners.values())))


def list_requested_indexes(program: Draft) -> list[tuple[str, tuple[str, ...]]]:
    """Return (collection, columns) pairs for which an index, or the key, would help refreshes."""
    plan = program.optimise()
    if explain_why_not_partial(plan) is not None:
        return []
    graph = Builder(plan, Domain(), program.captures, program.probes, allocate_in_memory).build_graph()
    return sorted(list_requested_columns(plan, graph))
