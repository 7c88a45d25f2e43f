"""One output of a program: what waits to be written to its collection, and whether what is there is the program's own.

What a program writes can be told apart from what others do in three ways: the upper that a commit expects, the hold of
the program on its sources, and the fingerprint of what the output is computed by. Where these leave a doubt, what the
collection holds is compared with what the program gives. Another copy of the program may have sealed the collection
further: then what it wrote is compared, too, and this copy goes on behind it.

What operators that tell times apart have given is kept in hidden collections, so that a program goes on from there.
Most state of a program is made again from what its sources hold at the last time that its outputs have sealed. What
came when is not to be seen there. So an operator whose results depend on that writes what it has given, which is the
arrangement of its output, to a hidden collection, in the commits of the outputs:

    key    the time from which on the record is there, while that is still to come; NULL once it has come
    value  the columns of the record

For an update that the operator takes at t and gives at u, at t the record is added, with NULL if u is t and with u
otherwise; and at u, if that is later, it is moved from u to NULL. So the contents at any time are what the operator has
given and will give because of all before, and no larger than what that amounts to. They depend on the input alone, not
on the steps in which it was taken in: two copies of a program write the same.

The collection may be compacted up to where the program would begin again, and goes with `Program.drop`. Its name begins
with a dot, so listings leave it out.
"""

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.operators.operators import Operator, Position, SinkOperator
from persist.compute.dataflow.plan.draft import DefinedAs, to_table
from persist.compute.dataflow.plan.origin import PROPERTY
from persist.compute.dataflow.updates.batch import Layout, to_batch
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.core.antichain import END, to_antichain, to_frontier
from persist.core.errors import AsOfCompacted, AsOfNotSealed, OutputConflict, SourceLost
from persist.core.log import kinds
from persist.engine.collection.commit import Commit
from persist.engine.collection.descriptions import about_collection, allow_compaction, describe_step, list_holds
from persist.engine.collection.reads import changes, snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import created_or_loaded, loaded

Traced = Callable[[Ints], tuple[Ints, Ints]]
PREFIX = ".dataflow"


def kept_name(program: str, number: int) -> str:
    """Return what the hidden collection of an operator of a program is called. A program may be called what a
    collection may not."""
    return f"{PREFIX} {_digest(program)} {number}"


def kept_of(engine: Engine, program: str) -> list[str]:
    """Return the hidden collections of a program."""
    return engine.names(f"{PREFIX} {_digest(program)} ")


def due_column(columns: pa.Schema) -> str:
    """Return what the column of the time is called."""
    name = "due"
    while name in columns.names:
        name += "_"
    return name


def kept_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of the hidden collection: those of the records, then the time."""
    return columns.append(pa.field(due_column(columns), pa.int64()))


class KeptLinear(Operator):
    """A linear operator that tells times apart.

    Attributes:
        kept: what changes in the hidden collection because of this pass: words, time from which on, time, diff.
    """

    def __init__(self, at: Position, shape: Traced) -> None:
        super().__init__(at)
        self._shape = shape
        self._restored: Ints | None = None
        self._after: int | None = None
        self.kept: Ints | None = None

    def restore(self, kept: Ints, at: int) -> None:
        """Begin with what was kept as of a time, int64[words + time from which on + diff, n]; what comes up to then is
        part of it."""
        self._restored, self._after = kept, at

    @property
    def is_restored(self) -> bool:
        """Whether what comes up to the time at which it goes on is known to it."""
        return self._after is not None

    def run(self) -> None:
        given = self.inputs[0].out
        if given is not None and self._after is not None:
            given = given[:, given[-2] > self._after]
        made, kept = [], []
        if self._restored is not None:
            assert self._after is not None
            made.append(_given_from(self._restored, self._after))
            kept.append(_come(self._restored))
            self._restored = None
        if given is not None and given.shape[1]:
            updates, origins = self._shape(given)
            made.append(updates)
            kept += _kept_for(updates, given[-2].take(origins))
        self.out = np.concatenate(made, axis=1) if made else None
        self.kept = np.concatenate(kept, axis=1) if kept else None


class KeptOutput(Operator):
    """Gives what the operator keeps."""

    def __init__(self, operator: KeptLinear) -> None:
        super().__init__(Position(f"{operator.title}.kept", [operator], 1, 0))
        self._operator = operator

    def run(self) -> None:
        self.out = self._operator.kept


def _digest(program: str) -> str:
    return blake2b(program.encode(), digest_size=16).hexdigest()


def _given_from(kept: Ints, at: int) -> Ints:
    """Return what was kept as updates [words …, time, diff], from a time on."""
    updates = kept.copy()
    np.maximum(updates[-2], at, out=updates[-2])  # NULL is the least.
    return updates


def _kept_for(updates: Ints, taken: Ints) -> list[Ints]:
    """Return the changes of the hidden collection for updates that were taken at some times."""
    changes = np.empty((len(updates) + 1, updates.shape[1]), np.int64)
    changes[:-3], changes[-1] = updates[:-2], updates[-1]
    changes[-2] = taken
    changes[-3] = np.where(updates[-2] > taken, updates[-2], NULL)
    due = np.concatenate((changes[:-2], changes[-1:]))
    return [changes, _come(due)]


def _come(kept: Ints) -> Ints:
    """Return the changes that come by themselves: records whose time comes are there from then on."""
    due = kept[:, kept[-2] != NULL]
    changes = np.empty((len(due) + 1, 2 * due.shape[1]), np.int64)
    changes[:-3] = np.tile(due[:-2], 2)
    changes[-3] = np.concatenate((due[-2], np.full(due.shape[1], NULL)))
    changes[-2] = np.tile(due[-2], 2)
    changes[-1] = np.concatenate((-due[-1], due[-1]))
    return changes


class Output:
    """One output.

    Attributes:
        upper: of the collection, as far as this copy of the program knows.
        done: up to where this copy of the program has computed it, and found or written it.
        waiting: updates from done on that are not written yet.
        sealed_to: up to where they are complete.
        definition: of a view, by what it is made.
        corrects: the first commit makes of what the collection holds what it should hold.
        compares: before the first commit, what the collection holds is compared with what it should hold.
        jumps_to: the first commit passes over the times before this one, which cannot be read then.
    """

    def __init__(
        self,
        engine: Engine,
        sink: SinkOperator,
        known: CollectionHandle | None,
        definition: DefinedAs | None,
        keeps: KeptLinear | None,
        fingerprint: str | None,
        domain: Domain,
    ) -> None:
        self.handle = _made(engine, sink) if known is None else known
        self._engine = engine
        self.sink = sink
        self.waiting: list[Ints] = []
        self.definition = definition
        self.keeps = keeps
        # What a view is computed by is its definition, and what is kept goes with the outputs.
        self._fingerprint = fingerprint if definition is None and keeps is None else None
        self._says = about_collection(self.handle.contents()).properties.get(PROPERTY)
        self.corrects = False
        self.compares = False
        self.jumps_to: int | None = None
        self._domain = domain
        self._layout = Layout(len(sink.schema), 0, 1)
        self._before: list[Ints] = []
        self._is_new = False
        self.begin(self.handle.contents().upper)

    def gives_up(self, until: int) -> list[kinds.AllowCompaction]:
        """Return the steps by which a commit that seals up to a time gives up the past, if the output keeps none."""
        if self.definition is None or self.definition.has_past:
            return []
        return [kinds.AllowCompaction(self.handle.id, (until - 1,))]

    @property
    def has_changed(self) -> bool:
        """Whether what the collection is computed by is known, and is another thing now."""
        return None not in (self._says, self._fingerprint) and self._says != self._fingerprint

    def describe(self, commit: Commit) -> None:
        """Say in a commit what the collection is computed by, unless it does."""
        if self._fingerprint is not None and self._says != self._fingerprint:
            commit.add(self.handle, [describe_step(self.handle, None, {PROPERTY: self._fingerprint}, None, None)])

    def described(self) -> None:
        """Remember that such a commit was made."""
        self._says = self._fingerprint

    def restore(self, at: int) -> None:
        """Let the operator whose output a hidden collection keeps go on from a time, if it was kept till then.

        Raises:
            SourceLost: another copy of the program has gone on, and compacted it.
        """
        if self.keeps is None or self.corrects or self.upper <= at:
            return
        try:
            kept = self._words(snapshot(self.handle, at, form="diff").to_arrow())
        except AsOfCompacted as error:
            raise SourceLost(self.handle.name, f"it has been compacted ({error})", "Open it again.") from error
        self.keeps.restore(np.delete(kept, -2, axis=0), at)

    def contents(self, at: int) -> Ints | None:
        """Return what the collection holds as of a time, as updates at 0; None if that is not to be had any more."""
        try:
            result = snapshot(self.handle, at, columns=self.sink.schema.names, form="diff", timeout_s=0.0)
            return self._words(result.to_arrow())
        except (AsOfCompacted, AsOfNotSealed):
            return None

    def begin(self, upper: int) -> None:
        """Go on from where the collection is sealed."""
        self.upper = self.began_at = self.done = self.sealed_to = upper
        if self.definition is not None:
            self.corrects = self.definition.since == upper > 0

    def take(self) -> None:
        """Take what the last pass has completed."""
        if self.sink.out is not None:
            updates = self.sink.out
            if self._is_new and (updates[-2] < self.done).any():
                # What comes of constants is there from the beginning, and that is where the output begins.
                updates = updates.copy()
                np.maximum(updates[-2], self.done, out=updates[-2])
                updates = to_batch(updates, self._layout)[1:]
            late = updates[-2] >= self.done
            self.waiting.append(updates if late.all() else updates[:, late])
            if self.corrects or self.compares:
                self._before.append(updates[:, ~late])
        complete = to_frontier(self.sink.frontier)
        if not self._is_new or complete > self.done:  # What begins later has nothing to seal yet.
            self.sealed_to = max(self.sealed_to, complete)

    def correct(self) -> None:
        """Add what makes the collection of a changed program right at the first unsealed time."""
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
        if self.handle.contents().since < self.began_at:
            missing = self._missing()
            if missing.shape[1]:
                raise OutputConflict(
                    self.handle.name,
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
        rows = self._words(snapshot(self.handle, self.began_at - 1, form="diff").to_arrow())
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
                self.handle.name,
                f"it cannot pass over the times from {self.upper} to {to}, which {held[0]} keeps readable: release it",
            )

    def begin_readable(self, at: int) -> None:
        """Let nobody read a new output before a time, because the program says nothing about what was then.

        A view is not read before the time at which it begins, either.

        Raises:
            OutputConflict: somebody keeps such a time readable.
        """
        if self.upper > 0:
            return
        if self.definition is not None:
            at = max(at, self.definition.start)
        self.done, self._is_new = at, True
        if self.handle.contents().since >= at:
            return
        held = self._kept_before(at)
        if held:
            raise OutputConflict(
                self.handle.name,
                f"the program says nothing about the times before {at}, which {held[0]} keeps readable: release it",
            )
        allow_compaction(self.handle, at).result()

    def _kept_before(self, to: int) -> list[str]:
        # A read of this client that has ended keeps its time readable for a while, for the next one.
        self._engine.writer("seal").leases.settle(self.handle.id)
        held = [f"the hold {hold.name or hold.holder!r}" for hold in list_holds(self.handle) if hold.time < to]
        return held + [f"the tag {name!r}" for name, time in self.handle.contents().tags.items() if time < to]

    def updates(self, until: int) -> Ints:
        """Return what waits of times before until, consolidated."""
        parts = []
        for part in self.waiting:
            is_before = part[-2] < until
            parts.append(part if is_before.all() else part[:, is_before])
        if len(parts) == 1:
            return parts[0]  # What is taken of one pass is consolidated.
        every = np.concatenate([np.empty((self._layout.words + 2, 0), np.int64), *parts], axis=1)
        return to_batch(every, self._layout)[1:]

    def table(self, updates: Ints) -> pa.Table:
        """Return updates as the collection takes them."""
        return to_table(updates, self.sink.schema, self._domain)

    def written(self, upper: int) -> None:
        """Forget what is written before upper, which the collection has been sealed to."""
        self.done, self._is_new = upper, False
        self.waiting = [kept for chunk in self.waiting if (kept := chunk[:, chunk[-2] >= upper]).shape[1]]

    def follow(self, actual: int) -> None:
        """Go on behind another copy of the program, which has sealed the collection to actual.

        Raises:
            OutputConflict: what was written is not what this copy would have written.
        """
        if actual < self.upper:
            raise OutputConflict(self.handle.name, f"its upper went back from {self.upper} to {actual}")
        self.upper = actual
        until = min(actual, self.sealed_to)
        if until <= self.done:
            return
        since, theirs = self._theirs(until)
        ours = self.updates(until).copy()
        ours[-2] = np.maximum(ours[-2], since)
        ours[-1] *= -1
        rest = to_batch(np.concatenate((ours, theirs), axis=1), self._layout)[1:]
        if rest.shape[1]:
            rest[-1] *= -1
            raise OutputConflict(
                self.handle.name,
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
            since = self.handle.contents().since
            if since < self.done:
                return 0, self._words(changes(self.handle, self.done, until).to_arrow())
            if not self._is_new or since == END:
                raise AsOfCompacted(self.done - 1, to_antichain(since))
            # The first updates of a new output are its contents at the time at which it begins.
            contents = self._words(snapshot(self.handle, since, form="diff").to_arrow())
            contents[-2] = since
            after = [self._words(changes(self.handle, since + 1, until).to_arrow())] if since + 1 < until else []
            return since, np.concatenate([contents, *after], axis=1)
        except AsOfCompacted as error:
            raise OutputConflict(
                self.handle.name,
                f"another copy of the program has sealed it to {self.upper}, and what it wrote since {self.done} has "
                "been compacted: open the program again",
            ) from error

    def live(self) -> list[tuple[Ints, pa.Schema]]:
        return [(chunk[: self._layout.words], self.sink.schema) for chunk in (*self.waiting, *self._before)]

    def _words(self, table: pa.Table) -> Ints:
        rows = [self._domain.encode(table[name]) for name in self.sink.schema.names]
        times = table["_time"].combine_chunks().to_numpy() if "_time" in table.column_names else np.zeros(len(table))
        updates = np.empty((len(rows) + 2, table.num_rows), np.int64)
        for at, row in enumerate((*rows, times, table["_diff"].combine_chunks().to_numpy())):
            updates[at] = row
        return updates


def _made(engine: Engine, sink: SinkOperator) -> CollectionHandle:
    fields = {field.name: field.type for field in sink.schema}
    key = {name: fields[name] for name in sink.keys}
    value = {name: kind for name, kind in fields.items() if name not in key} or None
    is_there = engine.follower.newest_id_of(sink.collection) is not None
    unit = loaded(engine, sink.collection).schema.timeline if is_there else None
    contents, schema = created_or_loaded(engine, sink.collection, CollectionSchema.of(key or None, value, unit))
    return CollectionHandle(engine, contents.id, contents.name, schema)
