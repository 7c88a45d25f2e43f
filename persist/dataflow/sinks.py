"""Outputs: collections that a program keeps up to date.

All outputs of a step are one commit: their updates, their new uppers, and the holds of the program on its sources,
which follow them. The commit carries the upper that each output is expected to have, so of two copies of a program that
computed the same step one is refused. It then looks at what the
other one has written: if that is what it would have written itself it goes on behind it, and otherwise something else
writes the collection. So no update is ever written twice, and no offset is stored anywhere: the outputs' uppers say how
far the program has come.

What tells times apart is kept in hidden collections (`persist.dataflow.kept`), which are outputs like the others.

A program is resumed by reading its sources as of the last time that its outputs have sealed. That gives the
arrangements what they need to know of the past; what comes out of it at sealed times is there already, and is dropped.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from persist.antichain import Antichain as Upper
from persist.blob import InvalidUsage
from persist.client import Client
from persist.codecs import TIME_MAX, CollectionSchema, Part
from persist.collection import Collection
from persist.dataflow.batch import Layout, to_batch
from persist.dataflow.errors import OutputConflict, SourceLost
from persist.dataflow.fingerprint import PROPERTY
from persist.dataflow.kept import KeptLinear
from persist.dataflow.operators import SinkOperator
from persist.dataflow.plan import Plan, has_inputs, sources_of
from persist.dataflow.sources import SourceReader
from persist.dataflow.taps import to_table
from persist.dataflow.timed import reads_time
from persist.dataflow.times import Antichain, Ints
from persist.dataflow.words import Domain
from persist.engine import CollectionHandle
from persist.engine.creating import created_or_loaded
from persist.errors import (
    AsOfCompacted,
    AsOfNotSealed,
    CollectionNotFound,
    HoldMoved,
    UpdatesBeyondUpper,
    UpperMismatch,
)
from persist.multi_write import MultiWrite

NEVER = TIME_MAX + 2  # After every time: the upper of what is complete for ever.


def end_of(upper: Upper | Antichain) -> int:
    """Return the first time that is not complete."""
    found = upper.points[0][0] if isinstance(upper, Antichain) and upper.points else None
    if isinstance(upper, Upper):
        found = upper.time
    return NEVER if found is None else found


class Output:
    """One output.

    Attributes:
        upper: of the collection, as far as this copy of the program knows.
        done: up to where this copy of the program has computed it, and found or written it.
        waiting: updates from done on that are not written yet.
        sealed_to: up to where they are complete.
        definition: of a view, the number of its definition, and the time from which on that holds.
        corrects: the first commit makes of what the collection holds what it should hold.
        compares: before the first commit, what the collection holds is compared with what it should hold.
        jumps_to: the first commit passes over the times before this one, which cannot be read then.
    """

    def __init__(
        self,
        client: Client,
        sink: SinkOperator,
        known: Collection | None,
        definition: tuple[int, int] | None,
        keeps: KeptLinear | None,
        fingerprint: str | None,
        domain: Domain,
    ) -> None:
        self.collection = _made(client, sink) if known is None else known
        self._engine = client.engine
        self.sink = sink
        self.waiting: list[Ints] = []
        self.definition = definition
        self.keeps = keeps
        # What a view is computed by is its definition, and what is kept goes with the outputs.
        self._fingerprint = fingerprint if definition is None and keeps is None else None
        self._says = self.collection.properties.get(PROPERTY)
        self.corrects = False
        self.compares = False
        self.jumps_to: int | None = None
        self._domain = domain
        self._layout = Layout(len(sink.schema), 0, 1)
        self._before: list[Ints] = []
        self._is_new = False
        self.begin(end_of(self.collection.upper))

    @property
    def has_changed(self) -> bool:
        """Whether what the collection is computed by is known, and is another thing now."""
        return None not in (self._says, self._fingerprint) and self._says != self._fingerprint

    def describe(self, multi: MultiWrite) -> None:
        """Say in a commit what the collection is computed by, unless it does."""
        if self._fingerprint is not None and self._says != self._fingerprint:
            multi.describe(self.collection, properties={PROPERTY: self._fingerprint})

    def described(self) -> None:
        """Remember that such a commit was made."""
        self._says = self._fingerprint

    def restore(self, at: int) -> None:
        """Of a hidden collection: let the operator whose output it keeps go on from a time, if it was kept till then.

        Raises:
            SourceLost: another copy of the program has gone on, and compacted it.
        """
        if self.keeps is None or self.corrects or self.upper <= at:
            return
        try:
            kept = self._words(self.collection.snapshot(at, form="diff").to_arrow())
        except AsOfCompacted as error:
            raise SourceLost(self.collection.name, f"it has been compacted ({error})", "Open it again.") from error
        self.keeps.restore(np.delete(kept, -2, axis=0), at)

    def contents(self, at: int) -> Ints | None:
        """Return what the collection holds as of a time, as updates at 0; None if that is not to be had any more."""
        try:
            found = self.collection.snapshot(at, columns=self.sink.schema.names, form="diff", timeout_s=0.0)
            return self._words(found.to_arrow())
        except (AsOfCompacted, AsOfNotSealed):
            return None

    def begin(self, upper: int) -> None:
        """Go on from where the collection is sealed."""
        self.upper = self.began_at = self.done = self.sealed_to = upper
        if self.definition is not None:
            self.corrects = self.definition[1] == upper > 0

    def take(self) -> None:
        """Take what the last pass has completed."""
        if self.sink.out is not None:
            found = self.sink.out
            if self._is_new:
                # What comes of constants is there from the beginning, and that is where the output begins.
                found = found.copy()
                np.maximum(found[-2], self.done, out=found[-2])
            late = found[-2] >= self.done
            self.waiting.append(found[:, late])
            if self.corrects or self.compares:
                self._before.append(found[:, ~late])
        self.sealed_to = max(self.sealed_to, end_of(self.sink.frontier))

    def correct(self) -> None:
        """Of a changed program: add what makes the collection at the first unsealed time what it should be."""
        if not self.corrects or self.sealed_to <= self.began_at:
            return
        self.waiting.append(self._missing())
        self.corrects = False
        self._before = []

    def compare(self) -> None:
        """If it cannot be told who wrote the collection: compare what it holds with what this program gives.

        Raises:
            OutputConflict: they differ, so what comes now would not fit what is there.
        """
        if not self.compares or self.sealed_to < self.began_at:
            return
        if (self.collection.since.time or 0) < self.began_at:
            missing = self._missing()
            if missing.shape[1]:
                raise OutputConflict(
                    self.collection.name,
                    f"it was sealed to {self.began_at} before this program was opened, and what it holds as of "
                    f"{self.began_at - 1} differs from what this program gives, for example by "
                    f"{self.table(missing[:, :1]).drop_columns(['_time']).to_pylist()[0]}. If the program has inputs "
                    "in memory, insert all their updates again, from the first one on. If the program has changed, "
                    "or its sources are not what they were, open it with replace=True",
                )
        self.compares = False
        self._before = []

    def _missing(self) -> Ints:
        """Return what the collection lacks of what the program gave before it began, at the time when it began."""
        rows = self._words(self.collection.snapshot(self.began_at - 1, form="diff").to_arrow())
        rows[-1] *= -1
        both = np.concatenate([*self._before, rows], axis=1)
        both[-2] = self.began_at
        return to_batch(both, self._layout)[1:]

    def check_jump(self) -> None:
        """Raise OutputConflict if somebody keeps times readable that are passed over."""
        to = self.jumps_to
        held = [] if to is None else self._kept_before(to)
        if held:
            raise OutputConflict(
                self.collection.name,
                f"it cannot pass over the times from {self.upper} to {to}, which {held[0]} keeps readable: release it",
            )

    def begin_readable(self, at: int) -> None:
        """Of a new output: let nobody read it before a time, because the program says nothing about what was then.

        Raises:
            OutputConflict: somebody keeps such a time readable.
        """
        if self.upper > 0:
            return
        self.done, self._is_new = at, True
        if (self.collection.since.time or 0) >= at:
            return
        held = self._kept_before(at)
        if held:
            raise OutputConflict(
                self.collection.name,
                f"the program says nothing about the times before {at}, which {held[0]} keeps readable: release it",
            )
        self.collection.allow_compaction(at).result()

    def _kept_before(self, to: int) -> list[str]:
        # A read of this client that has ended keeps its time readable for a while, for the next one.
        self._engine.writer("seal").leases.settle(self.collection.id)
        held = [f"the hold {each.name or each.holder!r}" for each in self.collection.holds() if each.time < to]
        return held + [f"the tag {name!r}" for name, time in self.collection.tags().items() if time < to]

    def updates(self, until: int) -> Ints:
        """Return what waits of times before until, consolidated."""
        found = np.concatenate([np.empty((self._layout.words + 2, 0), np.int64), *self.waiting], axis=1)
        return to_batch(found[:, found[-2] < until], self._layout)[1:]

    def table(self, updates: Ints) -> pa.Table:
        """Return updates as the collection takes them."""
        return to_table(updates, self.sink.schema, self._domain)

    def written(self, upper: int) -> None:
        """Forget what is written before upper, which the collection has been sealed to."""
        self.done, self._is_new = upper, False
        self.waiting = [kept for each in self.waiting if (kept := each[:, each[-2] >= upper]).shape[1]]

    def follow(self, actual: int) -> None:
        """Go on behind another copy of the program, which has sealed the collection to actual.

        Raises:
            OutputConflict: what was written is not what this copy would have written.
        """
        if actual < self.upper:
            raise OutputConflict(self.collection.name, f"its upper went back from {self.upper} to {actual}")
        self.upper = actual
        until = min(actual, self.sealed_to)
        if until <= self.done:
            return
        since, theirs = self._theirs(min(until, TIME_MAX + 1))
        ours = self.updates(until)
        ours[-2] = np.maximum(ours[-2], since)
        ours[-1] *= -1
        rest = to_batch(np.concatenate((ours, theirs), axis=1), self._layout)[1:]
        if rest.shape[1]:
            rest[-1] *= -1
            raise OutputConflict(
                self.collection.name,
                f"somebody else has sealed it to {actual}, and between {self.done} and {until} what is there "
                "differs from "
                f"what this program gives, for example by {self.table(rest[:, :1]).to_pylist()[0]}",
            )
        self.written(until)

    def _theirs(self, until: int) -> tuple[int, Ints]:
        """Return what the collection holds of the times from done to until, and before when these are not told apart.

        Raises:
            OutputConflict: that has been compacted.
        """
        try:
            since = self.collection.since.time or 0
            if since < self.done:
                return 0, self._words(self.collection.changes(self.done, until).to_arrow())
            if not self._is_new:
                raise AsOfCompacted(self.done - 1, Upper(since))
            # The first updates of a new output are its contents at the time at which it begins.
            contents = self._words(self.collection.snapshot(since, form="diff").to_arrow())
            contents[-2] = since
            after = [self._words(self.collection.changes(since + 1, until).to_arrow())] if since + 1 < until else []
            return since, np.concatenate([contents, *after], axis=1)
        except AsOfCompacted as error:
            raise OutputConflict(
                self.collection.name,
                f"another copy of the program has sealed it to {self.upper}, and what it wrote since {self.done} has "
                "been compacted: open the program again",
            ) from error

    def live(self) -> list[tuple[Ints, pa.Schema]]:
        return [(each[: self._layout.words], self.sink.schema) for each in (*self.waiting, *self._before)]

    def _words(self, table: pa.Table) -> Ints:
        rows = [self._domain.encode(table[name]) for name in self.sink.schema.names]
        times = table["_time"].combine_chunks().to_numpy() if "_time" in table.column_names else np.zeros(len(table))
        found = np.empty((len(rows) + 2, table.num_rows), np.int64)
        for at, row in enumerate((*rows, times, table["_diff"].combine_chunks().to_numpy())):
            found[at] = row
        return found


def _made(client: Client, sink: SinkOperator) -> Collection:
    fields = {field.name: field.type for field in sink.schema}
    key = {name: fields[name] for name in sink.keys}
    value = {name: kind for name, kind in fields.items() if name not in key} or None
    unit = client.load(sink.collection).schema.timeline if sink.collection in client else None
    contents, schema = created_or_loaded(client.engine, sink.collection, CollectionSchema.of(key or None, value, unit))
    return Collection(CollectionHandle(client.engine, contents.id, contents.name, schema))


class Outputs:
    """All outputs of a program.

    Args:
        sinks: with the collection of each, if it is there already and is not to be made, and its definition (see
            `Draft.definition`).
        fingerprints: of what each output is computed by (see `persist.dataflow.fingerprint`).
        replace: the program has changed: correct what its outputs hold.
        jump: go on at the latest time that the sources have sealed, and pass over the times before it.

    Attributes:
        goes_on_from: the last time up to which all outputs are sealed that the program goes on from; None if it begins
            anew, or has to follow its sources from an earlier time on.
    """

    def __init__(
        self,
        client: Client,
        program: str,
        sinks: Sequence[tuple[SinkOperator, Collection | None, tuple[int, int] | None]],
        kept: Mapping[str, KeptLinear],
        fingerprints: Mapping[str, str],
        domain: Domain,
        *,
        replace: bool,
        jump: bool,
    ) -> None:
        self._client = client
        self._program = program
        self.every = [
            Output(
                client, sink, known, definition, kept.get(sink.collection), fingerprints.get(sink.collection), domain
            )
            for sink, known, definition in sinks
        ]
        for each in self.every:
            each.corrects |= replace and each.upper > 0
        self.has_pending = False
        self.goes_on_from: int | None = None
        self._replays = False
        self._jumps = jump
        self._sources: list[SourceReader] = []

    @property
    def resume_at(self) -> int | None:
        """The time from which on outputs are not sealed; None if none of them ever was."""
        uppers = [each.upper for each in self.every if 0 < each.upper < NEVER]
        return min(uppers, default=None)

    def begin_at(self, sources: Sequence[SourceReader], plan: Plan, resume_at: int | None) -> int:
        """Return the time as of which all sources are read first.

        Raises:
            InvalidUsage: sources ask for different times.
            OutputConflict: an output is sealed further than its sources.
        """
        self._sources = list(sources)
        asked = {time for each in sources if (time := each.asked()) is not None}
        if len(asked) > 1:
            raise InvalidUsage(f"the sources ask for as_of {sorted(asked)}: a program begins at one time")
        self._replays = reads_time(plan) and not any(each.keeps for each in self.every)
        for output in self.every:
            output.compares = self._is_of_unknown_origin(output, plan)
        if not sources:
            return 0
        uppers = [end_of(each.collection.upper) for each in sources]
        sinces = [each.collection.since.time or 0 for each in sources]
        if resume_at is not None:
            self._check_behind(sources, plan)
            held = [time for each in sources if (time := each.held_at()) is not None]
            begin = min(held) if self._replays and held else resume_at - 1
            if self._jumps and not self._replays:
                self._jump(sources, min(*uppers, TIME_MAX) - 1)
        elif asked:
            begin = asked.pop()
        else:
            # Holds that are there already are of a view that was made then, or of an attempt that wrote nothing.
            held = [] if self._jumps else [time for each in sources if (time := each.held_at()) is not None]
            begin = max(0, *sinces, min(held, default=min(*uppers, TIME_MAX) - 1))
        self.goes_on_from = None if resume_at is None or self._replays else begin
        for output in self.every:
            output.begin_readable(begin)
            if resume_at is not None and not self._replays:
                output.restore(begin)
        return begin

    def _is_of_unknown_origin(self, output: Output, plan: Plan) -> bool:
        """Return whether it cannot be told that a sealed output was written by this program, from what it reads now.

        The program's hold on a source is the sign of it: it goes with the source, and with `Program.drop`. What was
        given to inputs in memory is not kept at all. The fingerprint says whether the program has changed.
        """
        known = output.corrects or output.keeps is not None or output.definition is not None
        if known or not 0 < output.upper < NEVER or self._replays:
            return False
        if output.has_changed:
            return True
        names = sources_of(plan, output.collection.name)
        held = [each.held_at() for each in self._sources if each.operator.collection in names]
        return has_inputs(plan, output.collection.name) or (bool(held) and None in held)

    def _check_behind(self, sources: Sequence[SourceReader], plan: Plan) -> None:
        """Raise OutputConflict if an output is sealed further than the sources that it is made of."""
        uppers = {each.operator.collection: end_of(each.collection.upper) for each in sources}
        for output in self.every:
            own = [uppers[name] for name in sources_of(plan, output.collection.name)]
            if own and output.upper > min(own):
                raise OutputConflict(
                    output.collection.name,
                    f"it is sealed to {output.upper}, and the sources that it is made of to {min(own)} only",
                )

    def _jump(self, sources: Sequence[SourceReader], to: int) -> None:
        for each in sources:
            each.coarse_to = to
        for output in self.every:
            output.jumps_to = to if 0 < output.upper <= to else None

    def refresh(self) -> None:
        """Look again how far the outputs are sealed, before anything was computed."""
        for each in self.every:
            each.begin(end_of(each.collection.upper))

    def _durable(self) -> int | None:
        """The time as of which the program would begin again after the next commit; None if it cannot be moved."""
        uppers = [min(max(each.upper, each.sealed_to), TIME_MAX) for each in self.every]
        return None if self._replays or not uppers or min(uppers) < 1 else min(uppers) - 1

    def take(self) -> None:
        """Take what the last pass has completed."""
        for each in self.every:
            each.take()
        self.has_pending = any(each.sealed_to > each.done for each in self.every)

    def commit(self) -> int | None:
        """Write and seal all outputs as far as they are complete, at once; return the seqno, or None for nothing to do.

        Raises:
            OutputConflict: somebody else writes an output.
        """
        seqno = None
        for each in self.every:
            each.correct()
            each.compare()
            if each.upper > each.done:
                each.follow(each.upper)
        while any(each.sealed_to > each.upper for each in self.every):
            try:
                seqno = self._write()
            except UpperMismatch:
                for each in self.every:
                    each.follow(end_of(each.collection.upper))
            except (HoldMoved, CollectionNotFound) as error:
                for source in self._sources:
                    source.find_named()  # Raises if it is gone.
                if isinstance(error, CollectionNotFound):
                    raise
            except UpdatesBeyondUpper as error:
                name = getattr(error, "collection", None) or ", ".join(each.collection.name for each in self.every)
                raise OutputConflict(name, f"somebody else has written updates to it ({error})") from error
        self.has_pending = False
        return seqno

    def commit_parts(self, until: int, parts: Mapping[str, Sequence[Part]]) -> int | None:
        """Commit what tasks have computed and stored up to a time, exclusive, as one record, and seal all outputs.

        Args:
            parts: of each output, by the name of its collection. They are kept if the commit is refused.

        Raises:
            UpperMismatch, UpdatesBeyondUpper, HoldMoved, ViewRedefined: somebody came between; nothing was written.
            OutputConflict: an output was computed in another way before, or it cannot be told; nothing was written.
        """
        due = [each for each in self.every if until > each.upper]
        if not due:
            return None
        for each in due:
            if each.compares:
                raise OutputConflict(
                    each.collection.name,
                    "it cannot be told that this program has written what it holds, and a step on Spark does not "
                    "compare. Open the program once with program.open(client), which compares, or corrects the output "
                    "with replace=True",
                )
        for each in due:
            each.sealed_to = until
        durable = self._durable()
        with self._client.multi_write() as multi:
            for each in due:
                if each.definition is not None:
                    multi.expect_definition(each.collection, each.definition[0])
                multi.expect_upper(each.collection, Upper(each.upper), alone=True)
                multi.add_parts(each.collection, parts.get(each.sink.collection, ()), keep=True)
                each.describe(multi)
                multi.seal(each.collection, Upper() if until >= NEVER else Upper(until))
            self._move_holds(multi, durable)
        for source in self._sources:
            source.named_moved(durable)
        for each in due:
            each.upper = until
            each.described()
        return multi.seqno

    def _write(self) -> int | None:
        due = [each for each in self.every if each.sealed_to > each.upper]
        for each in due:
            each.check_jump()
        durable = self._durable()
        with self._client.multi_write() as multi:
            for each in due:
                if each.definition is not None:
                    multi.expect_definition(each.collection, each.definition[0])
                multi.expect_upper(each.collection, Upper(min(each.upper, TIME_MAX + 1)), alone=True)
                updates = each.updates(each.sealed_to)
                if updates.shape[1]:
                    multi.write(each.collection, each.table(updates))
                multi.seal(each.collection, Upper() if each.sealed_to >= NEVER else Upper(each.sealed_to))
                each.describe(multi)
                if each.jumps_to is not None:
                    multi.allow_compaction(each.collection, each.jumps_to)
                if each.keeps is not None and durable is not None and each.jumps_to is None:
                    multi.allow_compaction(each.collection, durable)
            self._move_holds(multi, durable)
        for source in self._sources:
            source.named_moved(durable)
        for each in due:
            each.jumps_to = None
            each.described()
            each.upper = each.sealed_to
            each.written(each.sealed_to)
        return multi.seqno

    def _move_holds(self, multi: MultiWrite, durable: int | None) -> None:
        for (collection, name), time in self._held().items():
            if durable is not None and time < durable:
                multi.move_hold(collection, name, durable, expected=time)

    def _held(self) -> dict[tuple[Collection, str], int]:
        """Return where the permanent holds are; a collection that is read twice has one of a name."""
        return {(each.collection, name): time for each in self._sources for name, time in each.named.items()}

    def live(self) -> list[tuple[Ints, pa.Schema]]:
        """Return all words that wait to be written."""
        return [found for each in self.every for found in each.live()]
