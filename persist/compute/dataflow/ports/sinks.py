"""Outputs: collections that a program keeps up to date.

All outputs of a step are one commit: their updates, their new uppers, and the holds of the program on its sources,
which follow them. The commit carries the upper that each output is expected to have, so of two copies of a program that
computed the same step one is refused. The refused copy compares the updates of the other copy with its own. If they are
equal it continues after them; otherwise it raises OutputConflict, because another program writes the collection. So no
update is ever written twice, and no offset is stored: the progress of a program is the uppers of its outputs.

Hidden collections are outputs like the others (`persist.compute.dataflow.ports.output`).

A program is resumed by reading its sources as of the last time that its outputs have sealed. This fills the
arrangements. Results at sealed times are there already, and are dropped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from persist.blob.errors import InvalidUsage
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.compute.dataflow.operators.operators import SinkOperator
from persist.compute.dataflow.plan.draft import Draft
from persist.compute.dataflow.plan.origin import reads_time
from persist.compute.dataflow.plan.plan import Plan, has_inputs, list_sources
from persist.compute.dataflow.ports.output import KeptLinear, Output
from persist.compute.dataflow.ports.sources import Followed, SourceReader, UpperReader
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.core.antichain import END, encode_frontier
from persist.core.errors import CollectionNotFound, HoldMoved, OutputConflict, UpdatesBeyondUpper, UpperMismatch
from persist.core.log import kinds
from persist.core.state_rules.collection_rules import ExpectDefinition, ExpectNothingBeyondUpper
from persist.core.state_rules.contents import get_first_time
from persist.engine.collection.commit import Commit
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine


class Outputs:
    """All outputs of a program.

    Args:
        own: outputs that the program also reads.
        replace: the program has changed: correct the contents of its outputs.
        jump: continue at the latest time that the sources have sealed; skip the times before it.

    Attributes:
        goes_on_from: the last sealed time of all outputs, if the program continues there; None if it begins anew, or
            must follow its sources from an earlier time.
    """

    def __init__(
        self,
        program: Draft,
        engine: Engine,
        sinks: Sequence[SinkOperator],
        kept: Mapping[str, KeptLinear],
        own: Mapping[str, CollectionHandle],
        domain: Domain,
        *,
        replace: bool,
        jump: bool,
    ) -> None:
        self._engine = engine
        self._program = program.name
        self._own = own
        self.every = [
            Output(program, engine, sink, own.get(sink.collection), kept.get(sink.collection), domain) for sink in sinks
        ]
        for output in self.every:
            output.corrects |= replace and output.upper > 0 and output.handle.name not in own
        self.has_pending = False
        self.goes_on_from: int | None = None
        self._replays = False
        self._jumps = jump
        self._sources: list[SourceReader] = []

    @property
    def resume_time(self) -> int | None:
        """The least upper of the sealed outputs, where a restart continues; None if none is sealed."""
        uppers = [output.upper for output in self.every if 0 < output.upper < END]
        return min(uppers, default=None)

    def choose_beginning(
        self, sources: Sequence[SourceReader], conditions: Sequence[UpperReader], plan: Plan, resume_time: int | None
    ) -> int:
        """Return the time as of which all sources are read first.

        Raises:
            InvalidUsage: sources ask for different times.
            OutputConflict: an output is sealed further than its sources.
        """
        self._sources = list(sources)
        requested = {time for source in sources if (time := source.get_requested_time()) is not None}
        if len(requested) > 1:
            raise InvalidUsage(f"the sources ask for as_of {sorted(requested)}: a program begins at one time")
        self._replays = reads_time(plan) and not any(output.keeps for output in self.every)
        for output in self.every:
            output.compares = self._is_of_unknown_origin(output, plan)
        if not sources:
            return 0
        followed: list[Followed] = [*sources, *conditions]
        states = [reader.handle.get_known_state() for reader in followed]  # Loaded just now.
        uppers = [state.upper for state in states]
        sinces = [get_first_time(state) for state in states[: len(sources)]]
        if resume_time is not None:
            self._check_behind(sources, uppers, plan)
            held_times = _list_held_times(sources) if self._replays else []
            begin = min(held_times, default=resume_time - 1)
            starts = [output.definition.start for output in self.every if output.upper == 0 and output.definition]
            if starts and not self._jumps:
                begin = min(begin, max(min(starts), *sinces))
            if self._jumps and not self._replays:
                self._set_jump(sources, min(*uppers, TIME_MAX) - 1)
        elif requested:
            begin = requested.pop()
        else:
            # Holds that are there already are of a view that was made then, or of an attempt that wrote nothing.
            times = [] if self._jumps else _list_held_times(sources)
            begin = max(0, *sinces, min(times, default=min(*uppers, TIME_MAX) - 1))
        is_whole = resume_time is not None and not self._replays and begin == resume_time - 1
        self.goes_on_from = begin if is_whole and all(output.upper > 0 for output in self.every) else None
        for output in self.every:
            output.begin_readable(begin)
            if resume_time is not None and not self._replays:
                output.restore(begin)
        return begin

    def _is_of_unknown_origin(self, output: Output, plan: Plan) -> bool:
        """Return whether nothing proves that this program wrote a sealed output from its present sources.

        The program's hold on a source proves the origin: dropping the source or the program drops the hold. Inputs in
        memory prove nothing, because they are not stored. The fingerprint shows whether the program has changed.
        """
        is_known = output.corrects or output.keeps is not None or output.definition is not None
        is_known |= output.handle.name in self._own
        if is_known or not 0 < output.upper < END or self._replays:
            return False
        if output.has_changed:
            return True
        names = list_sources(plan, output.handle.name)
        held_times = [source.find_held_time() for source in self._sources if source.operator.collection in names]
        return has_inputs(plan, output.handle.name) or (bool(held_times) and None in held_times)

    def _check_behind(self, sources: Sequence[SourceReader], sealed: Sequence[int], plan: Plan) -> None:
        """Raise OutputConflict if an output is sealed further than its sources."""
        uppers = {source.operator.collection: upper for source, upper in zip(sources, sealed, strict=False)}
        for output in self.every:
            if output.upper <= min(sealed):
                continue
            source_uppers = [uppers[name] for name in list_sources(plan, output.handle.name)]
            if source_uppers and output.upper > min(source_uppers):
                raise OutputConflict(
                    output.handle.name,
                    f"it is sealed to {output.upper}, but the sources that it depends on only to {min(source_uppers)}",
                )

    def _set_jump(self, sources: Sequence[SourceReader], to: int) -> None:
        """Let sources and outputs skip all times before one, which then become unreadable."""
        for source in sources:
            source.coarse_to = to
        for output in self.every:
            output.jumps_to = to if 0 < output.upper <= to else None

    def refresh(self) -> None:
        """Read the uppers of the outputs again, before anything is computed."""
        for output in self.every:
            output.begin(output.handle.contents().upper)

    def _find_resume_time(self) -> int | None:
        """Return where a restart would begin after the next commit; None if holds must stay."""
        uppers = [min(max(output.upper, output.sealed_to), TIME_MAX) for output in self.every]
        return None if self._replays or not uppers or min(uppers) < 1 else min(uppers) - 1

    def take(self) -> None:
        """Take the complete updates of the last pass over from all sinks."""
        for output in self.every:
            output.take()
        self.has_pending = any(output.sealed_to > output.done for output in self.every)

    def commit(self) -> int | None:
        """Commit and seal all outputs as far as complete; return the seqno.

        Raises OutputConflict: another program writes an output.
        """
        seqno = None
        for output in self.every:
            output.correct()
            output.compare()
            if output.upper > output.done:
                output.follow(output.upper)
        while any(output.sealed_to > output.upper for output in self.every):
            try:
                seqno = self._commit_complete()
            except UpperMismatch:
                for output in self.every:
                    output.follow(output.handle.contents().upper)
            except (HoldMoved, CollectionNotFound) as error:
                for source in self._sources:
                    source.reload_holds()  # Raises if it is gone.
                if isinstance(error, CollectionNotFound):
                    raise
            except UpdatesBeyondUpper as error:
                name = getattr(error, "collection", None) or ", ".join(output.handle.name for output in self.every)
                raise OutputConflict(name, f"another writer has added updates to it ({error})") from error
        self.has_pending = False
        return seqno

    def commit_parts(self, until: int, stored: Mapping[str, Sequence[Part]]) -> int | None:
        """Commit as one record what tasks computed for times before `until`, and seal all outputs.

        `stored`: the parts of each output, by the name of its collection. They stay if the commit is refused.

        Raises:
            UpperMismatch, UpdatesBeyondUpper, HoldMoved, ViewRedefined: another commit came first; nothing was written.
            OutputConflict: the origin of an output is unknown; nothing was written.
        """
        due = [output for output in self.every if until > max(output.upper, output.done)]
        if not due:
            return None
        for output in due:
            if output.compares:
                raise OutputConflict(
                    output.handle.name,
                    "its contents may come from another program, and tasks cannot compare them. Open the program once "
                    "with program.open(client), which compares, or corrects the output with replace=True",
                )
        for output in due:
            output.sealed_to = until
        return self._commit_outputs(
            due,
            lambda commit, output: commit.add_parts(
                output.handle, list(stored.get(output.sink.collection, ())), keep=True
            ),
        )

    def commit_tables(self, until: int, tables: Mapping[str, pa.Table]) -> int | None:
        """Commit the first updates of all outputs, by the name of the collection, and seal them up to a time.

        Raises as `commit_parts`.
        """
        for output in self.every:
            output.sealed_to = until

        def add(commit: Commit, output: Output) -> None:
            if len(table := tables[output.sink.collection]):
                commit.add(output.handle, output.handle.write_steps(table))

        return self._commit_outputs(self.every, add)

    def _commit_complete(self) -> int | None:
        """Commit complete updates and seal their outputs; return the seqno, if any."""
        due = [output for output in self.every if output.sealed_to > output.upper]
        for output in due:
            output.check_jump()

        def add(commit: Commit, output: Output) -> None:
            updates = output.select_waiting(output.sealed_to)
            if updates.shape[1]:
                commit.add(output.handle, output.handle.write_steps(output.to_table(updates)))

        return self._commit_outputs(due, add)

    def _commit_outputs(self, due: Sequence[Output], add: Callable[[Commit, Output], object]) -> int | None:
        """Seal outputs in one record, with what a function adds to the commit of each; return the seqno."""
        durable = self._find_resume_time()
        with Commit(self._engine) as commit:
            for output in due:
                handle = output.handle
                if output.definition is not None:
                    commit.add(handle, [ExpectDefinition(handle.id, output.definition.number)])
                commit.add(handle, [ExpectNothingBeyondUpper(handle.id, encode_frontier(output.upper))])
                add(commit, output)
                commit.add(handle, [handle.seal_step(output.sealed_to), *output.plan_compaction(output.sealed_to)])
                output.describe(commit)
                if output.jumps_to is not None:
                    commit.add(handle, [kinds.AllowCompaction(handle.id, (output.jumps_to,))])
                elif output.keeps is not None and durable is not None:
                    commit.add(handle, [kinds.AllowCompaction(handle.id, (durable,))])
            self._move_holds(commit, durable)
        for source in self._sources:
            source.note_moved_holds(durable)
        for output in due:
            output.jumps_to = None
            output.note_description()
            output.upper = output.sealed_to
            output.forget_written(output.sealed_to)
        return commit.seqno

    def _move_holds(self, commit: Commit, durable: int | None) -> None:
        """Move the permanent holds to the time at which a restart would begin."""
        holds = {
            (source.handle.id, name): (source.handle, time)
            for source in self._sources
            for name, time in source.named.items()
        }
        for (id_, name), (handle, time) in holds.items():
            if durable is not None and time < durable:
                commit.add(handle, [kinds.SetHold(id_, name, durable, None, time)])

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        """Return all words that wait to be written."""
        return [typed_words for output in self.every for typed_words in output.list_words_in_use()]


def _list_held_times(sources: Iterable[SourceReader]) -> list[int]:
    """Return the times of the permanent holds on sources."""
    return [time for source in sources if (time := source.find_held_time()) is not None]
