"""Reading a collection and keeping it readable: snapshots, changes, following; holds, tags, retention, compaction."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from persist.api.collection.describing import CollectionBase
from persist.api.follow import Following
from persist.compute.index import enable_index_reads
from persist.core.antichain import Antichain, to_time
from persist.core.errors import InvalidUsage
from persist.core.timeline import Moment, Retention, Times
from persist.engine.collection.descriptions import (
    Retained,
    allow_compaction,
    describe_retention,
    list_holds,
    make_retention_step,
    set_tag,
    take_hold,
    untag,
)
from persist.engine.collection.reads import (
    READ_TIMEOUT_S,
    as_of_join,
    begin_listen,
    begin_subscription,
    changes,
    difference,
    snapshot,
    upserts,
)
from persist.engine.compact import CompactionReport
from persist.engine.hold import Hold, HoldInfo
from persist.engine.read.following.changes import Changes, ChangesForm, Difference, Upserts
from persist.engine.read.following.listen import Listen
from persist.engine.read.merging import Form
from persist.engine.read.results.result import make_array_error, make_membership_error
from persist.engine.read.results.snapshot import Snapshot
from persist.engine.write.commit_future import CommitFuture

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class ReadingCalls(CollectionBase):
    """The part of `Collection` that reads."""

    def snapshot(
        self,
        as_of: int | Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        form: Form = "rows",
        schema: int | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Snapshot:
        """Return the contents as of a time. They are read later, in several forms.

        Args:
            as_of: the time; None means the latest sealed one, and is not waited for. If the collection has a timeline
                it may be a moment, which means the last time that is not after it.
            columns: the requested columns; None means all of them.
            where: a condition over key and value columns: text, such as "amount > 5 and status = 'paid'", or a
                `pyarrow.compute` expression. An index finds the rows if that reads less than half as much (see
                `index`); `explain()` shows it.
            form: "rows" (each record as often as its multiplicity) or "diff" (once, with `_diff`).
            schema: the version of the schema to read with, for a read that never changes; None is the newest.
            timeout_s: how long to wait for as_of to be sealed, if it is not; None waits without limit.

        Cost: a look at the log. The first read of a collection by a client that may write is also a commit: it claims
        the contents until the client releases them. Reads at the same time or later need no other claim. The claim
        comes before the read, because a result may stay open for any time. Without it, since may pass as_of at any
        moment, and blobs that compaction replaces are deleted after `grace_s`.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
            SchemaMismatch, InvalidUsage: columns or condition do not fit; or a column of an older version is gone.
        """
        named: dict[str, Any] = {"columns": columns, "where": where, "form": form, "schema": schema}
        contents = enable_index_reads(self.handle, snapshot(self.handle, as_of, **named, timeout_s=timeout_s))
        contents.again = self, named
        return contents

    @overload
    def get(self, keys: list[Any], as_of: int | Moment | None = None) -> list[Any]: ...

    @overload
    def get(
        self, keys: None = None, as_of: int | Moment | None = None, *, where: str, columns: Sequence[str] | None = None
    ) -> pa.Table: ...

    @overload
    def get(self, keys: Any, as_of: int | Moment | None = None) -> Any: ...

    def get(
        self,
        keys: Any = None,
        as_of: int | Moment | None = None,
        *,
        where: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Any:
        """Return the records of keys, in a form that fits the form of the keys: see `Snapshot.get`.

        Args:
            where: in place of keys, a condition as text, such as "customer_id = 5". The result is a table, as from
                `snapshot(as_of, where=where).to_arrow()`.
            columns: the requested columns, with where; None means all of them.

        Raises:
            InvalidUsage: both of keys and where are set, or neither; or where is not a condition.
        """
        if (keys is None) == (where is None) or (where is None and columns is not None):
            raise InvalidUsage("get() takes keys, such as get([1, 2]), or where= with columns=: give one of them")
        if where is not None:
            with self.snapshot(as_of, where=where, columns=columns) as snapshot:
                return snapshot.to_arrow()
        with self.snapshot(as_of) as snapshot:
            return snapshot.get(keys)

    def to_arrow(self) -> pa.Table:
        """Return the contents as of the latest sealed time as one table; see `Snapshot.to_arrow`."""
        with self.snapshot() as snapshot:
            return snapshot.to_arrow()

    def to_pandas(self) -> "pd.DataFrame":
        """Return the contents as of the latest sealed time as a `pandas.DataFrame`; see `Snapshot.to_pandas`."""
        with self.snapshot() as snapshot:
            return snapshot.to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Return the contents as of the latest sealed time as a `polars.DataFrame`; see `Snapshot.to_polars`."""
        with self.snapshot() as snapshot:
            return snapshot.to_polars()

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the contents as of the latest sealed time as a dict for each row; see `Snapshot.to_pylist`."""
        with self.snapshot() as snapshot:
            return snapshot.to_pylist()

    def count(self) -> int:
        """Return the number of rows as of the latest sealed time; see `Snapshot.count`."""
        with self.snapshot() as snapshot:
            return snapshot.count()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the contents as of the latest sealed time in record batches; see `Snapshot.to_batches`."""
        with self.snapshot() as snapshot:
            yield from snapshot

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the contents as of the latest sealed time, so that `pl.DataFrame(orders)` or DuckDB take them."""
        return self.snapshot().__arrow_c_stream__(requested_schema)

    def __array__(self, *args: object, **options: object) -> Any:
        """Refuse what NumPy would make of this; see `Snapshot.__array__`."""
        raise make_array_error(self)

    def __contains__(self, key: object) -> bool:
        """Refuse to look for a key, which a collection may hold several times; see `get`."""
        raise make_membership_error(self, key)

    def head(self, rows: int = 5) -> pa.Table:
        """Return the first rows as of the latest sealed time."""
        with self.snapshot() as snapshot:
            return snapshot.head(rows)

    @property
    def columns(self) -> list[str]:
        """The column names in the order of a view's query, or key first."""
        return [*self.handle.get_reading_schema().columns]

    def __len__(self) -> int:
        """Return the number of rows as of the latest sealed time."""
        with self.snapshot() as snapshot:
            return len(snapshot)

    def __bool__(self) -> bool:
        """Return True: an `if` reads nothing."""
        return True

    def changes(
        self,
        start: int | Moment | Antichain,
        until: int | Moment | Antichain | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        form: ChangesForm = "updates",
        times: Times | None = None,
        schema: int | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Changes:
        """Return the updates with `start <= time < until`, consolidated, in time order.

        Among the updates of one time, those with negative diffs come first.

        Args:
            start, until: the bounds, as numbers, frontiers or, if the collection has a timeline, moments. Until None
                means upper; then start may be upper, which returns no updates.
            form: "updates" (each update with its `_diff`) or "transitions": how keys changed at each time. A row has
                `_change`, which is "insert", "update" or "delete", the new values, and the old values as `_old_…`.
            times: the type of `_time`: "timestamp" for timestamps in UTC, "int" for numbers. None means timestamps if
                the collection has a timeline.
            timeout_s: how long to wait for `until - 1` to be sealed, if it is not; None waits without limit.

        Raises:
            AsOfCompacted: history between `start - 1` and since has been compacted.
            AsOfNotSealed: until is beyond the collection's upper.
            InvalidUsage: the interval is not `0 <= start <= until`.
        """
        return changes(
            self.handle,
            start,
            until,
            columns=columns,
            where=where,
            form=form,
            times=times,
            schema=schema,
            timeout_s=timeout_s,
        )

    def diff(
        self,
        first: int | Moment,
        second: int | Moment,
        *,
        columns: Sequence[str] | None = None,
        where: str | pc.Expression | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Difference:
        """Return the differences between the contents as of two times.

        Rows are as from `changes(form="transitions")`, without `_time`. They have the key, the values as of the second
        time, and the values as of the first time as `_old_…`. `_change` is "insert", "update" or "delete". Memory: the
        updates between the two times.

        Args:
            first, second: times, moments, tags or "latest", in any order.
            columns: the value columns that are compared and shown; None means all of them.

        Raises:
            AsOfCompacted, AsOfNotSealed: one of the times cannot be read.
        """
        return difference(self.handle, first, second, columns, where, timeout_s)

    def upserts(
        self,
        start: int | Moment | Antichain,
        until: int | Moment | Antichain | None = None,
        *,
        schema: int | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Upserts:
        """Return changes with `start <= time < until` as events: (key, value or None, time).

        `to_arrow()` returns them with the columns `_time` and `_deleted`. Another keyed collection that takes these
        events has the same changes. Tombstones are deletion events; in Arrow, they have all their columns. Bounds and
        schema are as for `changes`.

        Raises:
            NotKeyed: the collection is not keyed; and the errors of `changes`.
            InvalidUsage: when read, a key has several values, or the value NULL, which in a tuple means a deletion.
        """
        return upserts(self.handle, start, until, schema=schema, timeout_s=timeout_s)

    def listen(self, as_of: int | Moment | None = None, *, times: Times | None = None) -> Listen:
        """Follow the updates after as_of, with progress. History after the position is kept.

        Memory: `Settings.memory_budget`. So many updates come in several steps, and a large time in several pieces; see
        `Progress`.

        Args:
            as_of: updates after this time are returned; None returns all, from the first time on.

        Raises:
            AsOfCompacted: as_of is before since; or it is None, and since is not 0 any more.
        """
        return begin_listen(self.handle.newest(), as_of, self.handle.moments(times))

    def subscribe(
        self, as_of: int | Moment | None = None, *, times: Times | None = None, timeout_s: float | None = READ_TIMEOUT_S
    ) -> Listen:
        """Return the contents as of a time as the first progress, then updates as `listen` does.

        Contents larger than a fifth of the memory budget come in several steps, of which only the last has an upper
        after as_of.

        Contents and updates join at one point of the log, so no update is repeated or missed. If nothing is sealed yet,
        use `listen()`, which returns everything from the first time on, as soon as it is sealed.

        Args:
            as_of: the time; None means the latest sealed one.
            timeout_s: how long to wait for as_of to be sealed, if it is not; None waits without limit.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
        """
        return begin_subscription(self.handle.newest(), as_of, self.handle.moments(times), timeout_s)

    def follow(self, name: str, *, times: Times | None = None) -> Following:
        """Follow the collection as a named consumer that resumes after its last position.

        The permanent hold of that name stores the position of the consumer; see `persist.api.follow`. A new consumer
        gets the contents as of the latest sealed time first. Each time comes as a whole, in memory. Acknowledge with
        `Following.ack`, or exactly once, in the commit that writes the output, with `MultiWrite.ack`. The next consumer
        of this name takes over at once; the earlier one then gets `LeaseExpired` when it polls.

        Args:
            name: the consumer's name. If a hold of that name exists, its time counts as acknowledged.
        """
        moments = self.handle.moments(times)

        def start(hold_time: int | None) -> Listen:
            """Return the updates after a time; without one, the contents and the updates after them."""
            consumer = f"{self.id}/{name}"
            contents = self.handle.contents()
            newest = self.handle.newest()  # A consumer that restarts reads with the newest schema.
            if hold_time is not None or contents.since == contents.upper == 0:
                return begin_listen(newest, hold_time, moments, consumer)  # The contents come with the first seal.
            latest = None if contents.since < contents.upper else to_time(contents.since)
            return begin_subscription(newest, latest, moments, None, consumer)

        return Following(self.handle, name, start)

    def as_of_join(
        self,
        frame: Any,
        *,
        time: str = "at",
        on: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> pa.Table:
        """Return a frame with the value of each row's key at its time.

        A row whose key had no record then has NULLs. A row whose key had several records is returned once for each.
        Cost: reading the row groups with the history of the frame's keys between its times.

        Args:
            frame: anything Arrow, a frame of pandas or Polars, a dict of columns, or a list of dicts.
            time: the frame's column of times or, if the collection has a timeline, timestamps. A timestamp means the
                last time that is not after it.
            on: the frame's columns for the key fields, in the key's order; None for columns of the same names.
            columns: the requested value columns; None means all of them.
            timeout_s: how long to wait for the last of the times to be sealed.

        Raises:
            SchemaMismatch: a column is missing, has another type, or is in both frame and collection.
            AsOfCompacted, AsOfNotSealed: a time cannot be read.
            NegativeMultiplicity: of a record, at the time of a row.
        """
        return as_of_join(self.handle.newest(), frame, time, on, columns, timeout_s)


class KeepingCalls(CollectionBase):
    """The part of `Collection` that keeps times readable."""

    def hold(self, time: int | Moment | Antichain | None = None, *, name: str | None = None) -> Hold:
        """Keep since at or before a time. Cost: a commit, or nothing if already held.

        Args:
            time: a number, a frontier such as `since` or, if the collection has a timeline, a moment. It may be left
                out for a named hold that exists.
            name: makes the hold permanent. Without a name it is released with this client, or when its lease runs out.
                An existing hold of that name is returned unchanged, even at another `time`.

        Raises:
            AsOfCompacted: since has passed time.
            HoldNotFound: no hold has that name, and time is left out.
        """
        return take_hold(self.handle, time, name)

    def holds(self) -> list[HoldInfo]:
        """Return all clients' holds on this collection, least time first. One GET."""
        return list_holds(self.handle)

    def tag(self, name: str, time: int | Moment | None = None, *, move: bool = False) -> int:
        """Name a sealed time and keep it readable; return the time.

        The name is accepted wherever a time is: `snapshot(as_of="quarter-end")`.

        Args:
            name: does not look like a time. A tag that is there already, at that time, is not an error.
            time: None means the latest sealed one.
            move: let a tag move to another time, later or earlier.

        Raises:
            TagMoved: the tag is at another time, and move is False; or another client has moved it meanwhile.
            AsOfCompacted, AsOfNotSealed: the time cannot be read, or not yet.
            InvalidUsage: the name looks like a time, or is not a name.
        """
        return set_tag(self.handle, name, time, move=move)

    def tags(self) -> dict[str, int]:
        """Return the tagged times by name. Cost: one GET."""
        return dict(self.handle.contents().tags)

    def untag(self, name: str) -> CommitFuture:
        """Drop a tag, so that its time may be compacted. Raises TagNotFound if no tag has that name."""
        return untag(self.handle, name)

    @property
    def retention(self) -> Retained | None:
        """The retention, and what keeps more history; None without retention. One GET."""
        return describe_retention(self.handle, self.holds())

    def retain(self, retention: Retention | None) -> CommitFuture:
        """Let since follow upper at a distance, as holds and tags allow.

        Each seal by any client moves since. Compaction destroys history before since.

        Args:
            retention: how many times before upper stay readable; if the collection has a timeline, also a span such as
                "7 days", or a timedelta. None: since moves only where `allow_compaction` lets it.

        Raises:
            InvalidUsage: it is none of these.
        """
        self.handle.engine.writer("retain")
        return self.handle.submit("retain", [make_retention_step(self.handle, retention)])

    def allow_compaction(self, since: int | Moment | Antichain) -> CommitFuture:
        """Allow compaction of times before since. Reads before it fail then.

        `Collection.since` is the least of the allowed time and of the times of all live holds.

        Returns:
            a future that resolves when that is durable, or to `FrontierRegression` if since would go back.
        """
        return allow_compaction(self.handle, since)

    def compact(self, *, only_due: bool = False) -> CompactionReport:
        """Merge runs and destroy what since has passed. Contents stay the same.

        With `resolve="background"`, events that are sealed become updates first; what readers see stays the same. It
        writes a keyframe as of the last sealed time, merges runs of similar size, and moves small writes from the log
        into parts. New parts leave out records that were retracted before since; `Client.gc` deletes the old ones after
        the grace period. Cost: reading what is rewritten, a PUT for each new part, and a commit for each piece of work.
        Memory: `memory_budget`.

        Args:
            only_due: do only the work that maintenance would do now.

        Raises:
            CorruptBlob: a part is damaged; its run was not replaced.
            DiffOverflow: a multiplicity does not fit int64.
            InvalidUsage: `memory_budget` cannot hold a row group.
        """
        return self.handle.engine.writer("compact").compact(self.id, self.name, full=not only_due)
