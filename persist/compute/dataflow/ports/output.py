"""One output of a program: the updates that wait for a commit, and checks that the collection is the program's own.
Three things prove that a program wrote a collection: the upper that a commit expects, the hold of the program on its
sources, and the fingerprint of its operators. If one is missing, the contents of the collection are compared with the
results of the program. If another copy of the program has sealed the collection further, its updates are compared as
well, and this copy goes on behind them.

Most state of a program is computed again from the contents of its sources at the last sealed time of its outputs. These
contents do not show at which times records came. So an operator that depends on times stores the arrangement of its
output in a hidden collection, in the commits of the outputs:

    key    the time from which on the record is there, as long as it is in the future; then NULL
    value  the columns of the record

If the operator turns an update of time t into one of time u, the record is added at t: with NULL if u is t, and
otherwise with u. In the second case it is moved from u to NULL at time u. So the contents at any time are the past and
future output for all input so far. They depend on the input alone, not on the steps that took it in: two copies of a
program write the same.

The collection may be compacted up to where the program would begin again, and `Program.drop` drops it. Its name begins
with a dot, so listings leave it out.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.operators.operators import Operator, Position, SinkOperator
from persist.compute.dataflow.plan.draft import Draft, to_table
from persist.compute.dataflow.plan.origin import PROPERTY, make_fingerprint
from persist.compute.dataflow.ports.past import Past
from persist.compute.dataflow.updates.batch import Layout, to_batch
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import NULL, Domain
from persist.core.antichain import END, to_antichain, to_frontier
from persist.core.errors import AsOfCompacted, OutputConflict, SourceLost
from persist.core.log import kinds
from persist.engine.collection.commit import Commit
from persist.engine.collection.descriptions import (
    allow_compaction,
    get_collection_description,
    list_holds,
    make_describe_step,
)
from persist.engine.collection.reads import changes, snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.engine import Engine
from persist.engine.location.opening import load_handle, load_or_create

Traced = Callable[[Ints], tuple[Ints, Ints]]
PREFIX = ".dataflow"


def make_kept_name(program: str, number: int) -> str:
    """Return the name of the hidden collection of an operator of a program.

    It contains a digest, because a program's name may be invalid as a collection's.
    """
    return f"{PREFIX} {_hash_name(program)} {number}"


def list_hidden_collections(engine: Engine, program: str) -> list[str]:
    """Return the hidden collections of a program."""
    return engine.names(f"{PREFIX} {_hash_name(program)} ")


def choose_due_column(columns: pa.Schema) -> str:
    """Return an unused name for the time column of a hidden collection."""
    name = "due"
    while name in columns.names:
        name += "_"
    return name


def make_kept_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of a hidden collection: the columns of the records, then the time."""
    return columns.append(pa.field(choose_due_column(columns), pa.int64()))


class KeptLinear(Operator):
    """A linear operator that depends on times; a hidden collection stores its output.

    `kept`: rows of changes of the hidden collection: words, the time from which a record counts, time, diff.
    """

    def __init__(self, at: Position, shape: Traced) -> None:
        super().__init__(at)
        self._shape = shape
        self._restored: Ints | None = None
        self._after: int | None = None
        self.kept: Ints | None = None

    def restore(self, kept: Ints, at: int) -> None:
        """Begin with the hidden collection's contents as of `at`, which include all input up to `at`.

        `kept` has the shape int64[words + 2, n]. For each record it has the words, the time from which on it counts,
        and the diff.
        """
        self._restored, self._after = kept, at

    def run(self) -> None:
        """Set `out` to the new results, `kept` to the hidden collection's changes."""
        arrived = self.inputs[0].out
        if arrived is not None and self._after is not None:
            arrived = arrived[:, arrived[-2] > self._after]
        results, changes = [], []
        if self._restored is not None:
            assert self._after is not None
            results.append(_select_results(self._restored, self._after))
            changes.append(_make_due_changes(self._restored))
            self._restored = None
        if arrived is not None and arrived.shape[1]:
            updates, origins = self._shape(arrived)
            results.append(updates)
            changes += _find_kept_changes(updates, arrived[-2].take(origins))
        self.out = np.concatenate(results, axis=1) if results else None
        self.kept = np.concatenate(changes, axis=1) if changes else None


class KeptOutput(Operator):
    """Emits the changes of the hidden collection that stores an operator's output."""

    def __init__(self, operator: KeptLinear) -> None:
        super().__init__(Position(f"{operator.title}.kept", [operator], 1, 0))
        self._operator = operator

    def run(self) -> None:
        self.out = self._operator.kept


def _hash_name(program: str) -> str:
    """Return a digest of the name of a program."""
    return blake2b(program.encode(), digest_size=16).hexdigest()


def _select_results(kept: Ints, at: int) -> Ints:
    """Return stored contents as updates [words …, time, diff], with no time before `at`."""
    updates = kept.copy()
    np.maximum(updates[-2], at, out=updates[-2])  # NULL is the least.
    return updates


def _find_kept_changes(updates: Ints, taken: Ints) -> list[Ints]:
    """Return how an operator's output changes its hidden collection, now and later."""
    changes = np.empty((len(updates) + 1, updates.shape[1]), np.int64)
    changes[:-3], changes[-1] = updates[:-2], updates[-1]
    changes[-2] = taken
    changes[-3] = np.where(updates[-2] > taken, updates[-2], NULL)
    due = np.concatenate((changes[:-2], changes[-1:]))
    return [changes, _make_due_changes(due)]


def _make_due_changes(kept: Ints) -> Ints:
    """Return changes that make waiting records count at their due times.

    A hidden collection stores a record with its due time, and from that time on with NULL instead.
    """
    due = kept[:, kept[-2] != NULL]
    changes = np.empty((len(due) + 1, 2 * due.shape[1]), np.int64)
    changes[:-3] = np.tile(due[:-2], 2)
    changes[-3] = np.concatenate((due[-2], np.full(due.shape[1], NULL)))
    changes[-2] = np.tile(due[-2], 2)
    changes[-1] = np.concatenate((-due[-1], due[-1]))
    return changes


class Output:
    """One output collection, and the updates that are to be written to it.

    Attributes:
        upper: the collection's upper, as last seen by this copy of the program.
        done: the time up to which this copy has computed the output, and compared or written it.
        waiting: updates from `done` on that are not written yet.
        sealed_to: the time up to which the waiting updates are complete.
        corrects: the first commit corrects the contents of the collection.
        compares: the first commit compares the contents of the collection with the results.
        jumps_to: the first commit skips the times before this one, which cannot be read then.
    """

    def __init__(
        self,
        program: Draft,
        engine: Engine,
        sink: SinkOperator,
        own: CollectionHandle | None,
        keeps: KeptLinear | None,
        domain: Domain,
    ) -> None:
        self.handle = own or program.output(sink.collection) or _open_collection(engine, sink)
        self._engine = engine
        self.sink = sink
        self.waiting: list[Ints] = []
        self.definition = program.definition(sink.collection)
        self.keeps = keeps
        # A view has its definition instead, and hidden collections belong to the outputs.
        is_computed = own is None and self.definition is None and keeps is None
        self._fingerprint = make_fingerprint(program.plan, sink.collection) if is_computed else None
        contents = self.handle.contents()
        self._says = get_collection_description(contents).properties.get(PROPERTY)
        self.corrects = False
        self.compares = False
        self.jumps_to: int | None = None
        self._domain = domain
        self._layout = Layout(len(sink.schema), 0, 1)
        self._before: list[Ints] = []
        self._is_new = False
        self.begin(contents.upper)

    def plan_compaction(self, until: int) -> list[kinds.AllowCompaction]:
        """Return the steps that compact an output whose past is not kept."""
        if self.definition is None or self.definition.has_past:
            return []
        return [kinds.AllowCompaction(self.handle.id, (until - 1,))]

    @property
    def has_changed(self) -> bool:
        """Whether the stored fingerprint differs from the program's."""
        return None not in (self._says, self._fingerprint) and self._says != self._fingerprint

    def describe(self, commit: Commit) -> None:
        """Add the fingerprint of the operators to a commit, unless it is stored already."""
        if self._fingerprint is not None and self._says != self._fingerprint:
            commit.add(self.handle, [make_describe_step(self.handle, None, {PROPERTY: self._fingerprint}, None, None)])

    def note_description(self) -> None:
        """Remember that the stored fingerprint is up to date."""
        self._says = self._fingerprint

    def restore(self, at: int) -> None:
        """Restore the operator of a hidden collection as of a time, if the collection is sealed beyond it.

        Raises SourceLost: another copy of the program has gone on, and compacted it.
        """
        if self.keeps is None or self.corrects or self.upper <= at:
            return
        try:
            contents = self._encode_table(snapshot(self.handle, at, form="diff").to_arrow())
        except AsOfCompacted as error:
            raise SourceLost(self.handle.name, f"it has been compacted ({error})", "Open it again.") from error
        self.keeps.restore(np.delete(contents, -2, axis=0), at)

    def read_past(self, program: str, as_of: int) -> Past:
        """Return a reader of the collection by key, as of a time; it takes no lease."""
        handle = replace(self.handle, is_kept=True)
        return Past(program, f"output {handle.name}", handle, self.sink.schema, self._domain, as_of)

    def begin(self, upper: int) -> None:
        """Continue at the upper of the collection."""
        self.upper = self.began_at = self.done = self.sealed_to = upper
        if self.definition is not None:
            self.corrects = self.definition.since == upper > 0

    def take(self) -> None:
        """Take the complete updates of the last pass over from the sink."""
        if self.sink.out is not None:
            updates = self.sink.out
            if self._is_new and (updates[-2] < self.done).any():
                # Results of constants exist from the beginning of the output.
                updates = updates.copy()
                np.maximum(updates[-2], self.done, out=updates[-2])
                updates = to_batch(updates, self._layout)[1:]
            late = updates[-2] >= self.done
            self.waiting.append(updates if late.all() else updates[:, late])
            if self.corrects or self.compares:
                self._before.append(updates[:, ~late])
        complete = to_frontier(self.sink.frontier)
        if not self._is_new or complete > self.done:  # An output that begins later has nothing to seal yet.
            self.sealed_to = max(self.sealed_to, complete)

    def correct(self) -> None:
        """After a change of the program, add the updates that correct the stored results."""
        if not self.corrects or self.sealed_to <= self.began_at:
            return
        self.waiting.append(self._find_missing())
        self.corrects = False
        self._before = []

    def compare(self) -> None:
        """Refuse a collection of unknown origin that differs from the results.

        Raises OutputConflict: they differ, so new updates would not fit.
        """
        if not self.compares or self.sealed_to < self.began_at:
            return
        if self.handle.contents().since < self.began_at:
            missing = self._find_missing()
            if missing.shape[1]:
                raise OutputConflict(
                    self.handle.name,
                    f"it was sealed to {self.began_at} before this program was opened, and what it holds as of "
                    f"{self.began_at - 1} differs from what this program gives, for example by "
                    f"{self.to_table(missing[:, :1]).drop_columns(['_time']).to_pylist()[0]}. If the program has "
                    "inputs in memory, insert all their updates again, from the first one on. If the program or "
                    "its sources have changed, open it with replace=True",
                )
        self.compares = False
        self._before = []

    def _find_missing(self) -> Ints:
        """Return the earlier results that the collection lacks."""
        rows = self._encode_table(snapshot(self.handle, self.began_at - 1, form="diff").to_arrow())
        rows[-1] *= -1
        differences = np.concatenate([*self._before, rows], axis=1)
        differences[-2] = self.began_at
        return to_batch(differences, self._layout)[1:]

    def check_jump(self) -> None:
        """Raise OutputConflict if a hold or tag keeps skipped times of the output readable."""
        to = self.jumps_to
        holders = [] if to is None else self._list_holders(to)
        if holders:
            raise OutputConflict(
                self.handle.name,
                f"it cannot skip the times from {self.upper} to {to}, which {holders[0]} keeps readable: release it",
            )

    def begin_readable(self, at: int) -> None:
        """Make a new output unreadable before the program's first time, where it has no results.

        A view is unreadable before its start as well.

        Raises OutputConflict: a hold or a tag keeps such a time readable.
        """
        if self.upper > 0:
            return
        if self.definition is not None:
            at = max(at, self.definition.start)
        self.done, self._is_new = at, True
        if self.handle.contents().since >= at:
            return
        holders = self._list_holders(at)
        if holders:
            raise OutputConflict(
                self.handle.name,
                f"the program has no results at the times before {at}, which {holders[0]} keeps readable: release it",
            )
        allow_compaction(self.handle, at).result()

    def _list_holders(self, to: int) -> list[str]:
        """Return the holds and tags that keep times before `to` readable, for messages."""
        # A read of this client that has ended keeps its time readable for a while, for the next one.
        self._engine.writer("seal").leases.settle(self.handle.id)
        holders = [f"the hold {hold.name or hold.holder!r}" for hold in list_holds(self.handle) if hold.time < to]
        return holders + [f"the tag {name!r}" for name, time in self.handle.contents().tags.items() if time < to]

    def select_waiting(self, until: int) -> Ints:
        """Return the waiting updates before a time, consolidated."""
        parts = []
        for part in self.waiting:
            is_before = part[-2] < until
            parts.append(part if is_before.all() else part[:, is_before])
        if len(parts) == 1:
            return parts[0]  # The updates of one pass are consolidated.
        every = np.concatenate([np.empty((self._layout.words + 2, 0), np.int64), *parts], axis=1)
        return to_batch(every, self._layout)[1:]

    def to_table(self, updates: Ints) -> pa.Table:
        """Return updates as a table for a write."""
        return to_table(updates, self.sink.schema, self._domain)

    def forget_written(self, upper: int) -> None:
        """Forget updates before upper, to which the collection is sealed now."""
        self.done, self._is_new = upper, False
        self.waiting = [remaining for chunk in self.waiting if (remaining := chunk[:, chunk[-2] >= upper]).shape[1]]

    def follow(self, actual: int) -> None:
        """Skip updates that another copy of the program has committed up to actual.

        Raises OutputConflict: the other copy's updates differ.
        """
        if actual < self.upper:
            raise OutputConflict(self.handle.name, f"its upper went back from {self.upper} to {actual}")
        self.upper = actual
        until = min(actual, self.sealed_to)
        if until <= self.done:
            return
        since, written = self._read_others_updates(until)
        computed = self.select_waiting(until).copy()
        computed[-2] = np.maximum(computed[-2], since)
        computed[-1] *= -1
        differences = to_batch(np.concatenate((computed, written), axis=1), self._layout)[1:]
        if differences.shape[1]:
            differences[-1] *= -1
            raise OutputConflict(
                self.handle.name,
                f"another writer has sealed it to {actual}, and between {self.done} and {until} its updates differ "
                f"from the results of this program, for example by {self.to_table(differences[:, :1]).to_pylist()[0]}",
            )
        self.forget_written(until)

    def _read_others_updates(self, until: int) -> tuple[int, Ints]:
        """Return the updates that another copy of the program has committed.

        The number is the time to which compaction has moved the earlier ones; 0 if all have their times.

        Raises OutputConflict: these updates have been compacted.
        """
        try:
            since = self.handle.contents().since
            if since < self.done:
                return 0, self._encode_table(changes(self.handle, self.done, until).to_arrow())
            if not self._is_new or since == END:
                raise AsOfCompacted(self.done - 1, to_antichain(since))
            # The first updates of a new output are its contents at the time at which it begins.
            contents = self._encode_table(snapshot(self.handle, since, form="diff").to_arrow())
            contents[-2] = since
            after = [self._encode_table(changes(self.handle, since + 1, until).to_arrow())] if since + 1 < until else []
            return since, np.concatenate([contents, *after], axis=1)
        except AsOfCompacted as error:
            raise OutputConflict(
                self.handle.name,
                f"another copy of the program has sealed it to {self.upper}, and what it wrote since {self.done} has "
                "been compacted: open the program again",
            ) from error

    def list_words_in_use(self) -> list[tuple[Ints, pa.Schema]]:
        """Return the words of updates that wait to be committed, with their columns."""
        return [(chunk[: self._layout.words], self.sink.schema) for chunk in (*self.waiting, *self._before)]

    def _encode_table(self, table: pa.Table) -> Ints:
        """Return the rows of a table as updates; without `_time`, at time 0."""
        rows = [self._domain.encode(table[name]) for name in self.sink.schema.names]
        times = table["_time"].combine_chunks().to_numpy() if "_time" in table.column_names else np.zeros(len(table))
        updates = np.empty((len(rows) + 2, table.num_rows), np.int64)
        for at, row in enumerate((*rows, times, table["_diff"].combine_chunks().to_numpy())):
            updates[at] = row
        return updates


def _open_collection(engine: Engine, sink: SinkOperator) -> CollectionHandle:
    """Return the collection of a sink, which is created if missing."""
    fields = {field.name: field.type for field in sink.schema}
    key = {name: fields[name] for name in sink.keys}
    value = {name: kind for name, kind in fields.items() if name not in key} or None
    is_there = engine.find_newest_id(sink.collection) is not None
    unit = load_handle(engine, sink.collection).schema.timeline if is_there else None
    contents, schema = load_or_create(engine, sink.collection, CollectionSchema.of(key or None, value, unit))
    return CollectionHandle(engine, contents.id, contents.name, schema)
