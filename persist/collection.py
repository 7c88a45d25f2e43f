"""One collection, as a client sees it: write, seal, read as of a time, follow changes."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.compact.report import CompactionReport
from persist.engine.evolving import WantedEvolution, evolve
from persist.engine.holding import list_holds, take_hold
from persist.engine.keyed import AskedEvents, keyed_form
from persist.engine.keyed import submit as submit_keyed
from persist.engine.overwriting import delete_steps, overwrite_steps
from persist.engine.telling import (
    About,
    Retained,
    about_collection,
    describe_step,
    drop_tag,
    retained,
    retention_step,
    set_tag,
)
from persist.errors import InvalidUsage, PersistError
from persist.follow import Following
from persist.hold.holds import Hold, HoldInfo
from persist.importing import ImportedVersion, import_delta, import_parquet
from persist.joining import as_of_join
from persist.keyed_operations import KeyedOperations
from persist.listening import begun_listen, begun_subscription
from persist.log.records import AllowCompaction, Destroy, ReleaseHold, Rename
from persist.names import check_name, view_hold
from persist.read.changes import Changes
from persist.read.listen import Listen
from persist.read.plan import Explanation, changes_scan, explained, snapshot_scan
from persist.read.snapshot import Form, Snapshot, check_request, snapshot_slices
from persist.read.upserts import Upserts
from persist.replica.history import LAST
from persist.retention import Retention
from persist.shown import html_table
from persist.state.contents import check_changes_readable
from persist.state.unsealed import Unsealed, unsealed
from persist.timeline import Moment, Timeline, Times, is_moment
from persist.write.future import CommitFuture
from persist.write.operations import Step, check_token, note_steps, with_token

READ_TIMEOUT_S = 30.0


class Collection(KeyedOperations):
    """A handle on one collection; make it with `Client.create_or_load` or `Client.load`.

    It stands for that very collection, by id: after `destroy`, it does not turn into a new one of the same name.

    Attributes:
        handle: what it is made of, for the rest of the package.
        id: unique in the location, for ever.
        name: what it is called.
        schema: its key and value columns.
    """

    @property
    def timeline(self) -> Timeline | None:
        """What times are, if they are moments: it turns moments into times, and back."""
        return self.handle.timeline

    @property
    def upper(self) -> Antichain:
        """The seal frontier: no more updates will come at times not beyond it. Cost: one GET."""
        return self.handle.contents().upper

    @property
    def since(self) -> Antichain:
        """The compaction frontier: the first time that can still be read. Cost: one GET."""
        return self.handle.contents().since

    def write(
        self,
        updates: Any,
        *,
        time: int | Moment | None = None,
        diff: int | None = None,
        token: str | None = None,
        expected_upper: int | Moment | Antichain | None = None,
        seal: int | Moment | Antichain | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Append updates, and perhaps seal, as one commit: all of it or nothing.

        Args:
            updates: `((key, value), time, diff)` tuples, or anything Arrow (`pa.Table`, `pa.RecordBatch`, an object
                with `__arrow_c_stream__`) that has the key and value columns, `_time` and `_diff`. Updates with diff 0
                are dropped. If the collection has a timeline, times may be moments, which must be exact.
            time: that of all updates, which are plain rows then: `(key, value)` tuples, or tables without `_time`. Text
                that does not begin with a day is the name of the column with the time of each row; the column is kept
                if the collection has it, and dropped otherwise.
            diff: of all plain rows; 1 if it is left out and they have no `_diff`.
            token: names this write, so that trying it again, in whatever process, does nothing if it was done before.
                Used again for other updates, it is refused (`TokenReused`); in what order or batches they come does not
                matter, and neither do seal and expected_upper. Remembered while the updates' times are not sealed, and
                of the last `persist.state.collection_rules.TOKENS_KEPT` writes after that; a repetition of an older one
                is refused, because its times are sealed.
            expected_upper: the upper that the collection must have (compare-and-append).
            seal: the upper to seal to; see `seal`.
            message, metadata: a text, and texts by name, that the log keeps with the commit; see `history`.

        Returns:
            a future that resolves when all is durable, or to `UpdateNotBeyondUpper` if an update is at a sealed time,
            `UpperMismatch` if upper is not the expected one, `FrontierRegression` if seal is behind upper, `Locked` or
            `WriterFenced` if another client has the location exclusively, `TokenReused`.

        Raises:
            SchemaMismatch, InvalidUpdate, CodecMismatch: they do not fit the collection; nothing was written.
            ReadOnly, ClientClosed: this client cannot write.
        """
        handle = self.handle
        expected = [] if expected_upper is None else [handle.expect_step(expected_upper)]
        sealing = [] if seal is None else [handle.seal_step(seal)]
        check_token(token)  # Before anything is uploaded.
        notes = note_steps(message, metadata, [self.id])
        writes = handle.write_steps(updates, handle.stamp(time, diff), token=token)
        return handle.submit("write", [*with_token(token, [self.id], [*expected, *writes, *sealing]), *notes])

    def overwrite(
        self,
        rows: Any,
        *,
        time: int | Moment,
        where: pc.Expression | None = None,
        token: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Make plain rows the contents from a time on: the difference to what is there is written and sealed.

        Records that are there already are not touched. Cost and memory: see `persist.engine.overwriting`.

        Args:
            rows: as for `write` with a time.
            time: of the difference; upper is just after it then.
            where: replace only the records for which this filter is true, as it must be for all rows.
            token: as for `write`: of an overwrite that was done before, with the same rows, time and filter, nothing is
                done again, though its time is sealed.
            message, metadata: as for `write`.

        Returns:
            a future that resolves when all is durable; or to `UpperMismatch` or `UpdatesBeyondUpper` if somebody else
            has sealed or written meanwhile. Then nothing was written: read again, and decide anew.

        Raises:
            UpdatesBeyondUpper: somebody has written what is not sealed yet, so what is there is not known.
            UpdateNotBeyondUpper: the time is sealed already.
            SchemaMismatch, InvalidUpdate, InvalidUsage: rows or filter do not fit.
            ReadOnly, ClientClosed: this client cannot write.
        """
        self.handle.engine.writer("overwrite")
        check_request(self.schema, None, where, "diff")
        check_token(token)
        notes = note_steps(message, metadata, [self.id])
        steps = overwrite_steps(self.handle, rows, time, where, token)
        return self.handle.submit("overwrite", [*with_token(token, [self.id], steps), *notes])

    def delete(
        self,
        what: Any,
        *,
        time: int | Moment,
        token: str | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Retract what is there, at a time, which is sealed with it; what is not there is no error.

        Of a keyed collection, add events that delete keys, as `upsert` does; nothing is sealed.

        Args:
            what: keys, as `Snapshot.get` takes them: `[1, 2]`; or a filter, such as `pc.field("amount") > 5`. Of a
                keyed collection, keys; where events are ordered, rows with the key and the columns of order_by.
            time: of the retractions; upper is just after it then.
            token: as for `overwrite`.
            message, metadata: as for `write`.

        Returns, raises: as `overwrite`.
        """
        self.handle.engine.writer("delete")
        if self.handle.keyed is not None:
            return self._delete_keyed(what, time, token, note_steps(message, metadata, [self.id]))
        check_request(self.schema, None, what if isinstance(what, pc.Expression) else None, "diff")
        check_token(token)
        notes = note_steps(message, metadata, [self.id])
        steps = delete_steps(self.handle, what, time, token)
        return self.handle.submit("delete", [*with_token(token, [self.id], steps), *notes])

    def import_parquet(
        self,
        source: Any,
        *,
        time: int | Moment,
        diff: int | None = None,
        seal: int | Moment | Antichain | None = None,
        token: str | None = None,
    ) -> int:
        """Write the rows of Parquet files: a commit for each file, and then the seal. Returns how many were read.

        Nothing is visible before the seal. Memory: the client's budget.

        Args:
            source: a file or a folder, of which `name=value` in paths are columns; a list of files; or a dataset.
            time, diff: as for `write`.
            seal: the upper to seal to in the end; see `seal`.
            token: names the import, so that it goes on where it ended when it is tried again, from whatever process: a
                file of the same name is not read again. A file is told by its path below source.

        Raises:
            InvalidUsage: source is no Parquet; and what `write` raises.
        """
        return import_parquet(self.handle, source, time, diff, seal, token)

    def import_delta(
        self,
        uri: str | os.PathLike[str],
        *,
        first: int | None = None,
        last: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> list[ImportedVersion]:
        """Make the versions of a Delta table times of this collection: those that are not there yet. Needs deltalake.

        The time of a version is its number or, if the collection has a timeline, the moment of its commit, in its unit;
        it is later where something later is sealed. Each is one commit, which seals its time; tried again, from any
        process, the import goes on after the last version. The columns of key and value are those of the table; what
        an old version lacks is NULL. Cost: the first version is read whole, and of each other one the files that the
        version before does not have, and the other way round. Memory: the client's budget.

        Args:
            first, last: the versions wanted, both inclusive; None for all that the table still knows.
            storage_options: as deltalake takes them.

        Returns:
            what was imported by this call.

        Raises:
            InvalidUsage: deltalake is not installed, or cannot read a version.
            SchemaMismatch, InvalidUpdate: its rows do not fit the collection.
            Conflict: somebody else writes to the collection.
        """
        return import_delta(self.handle, uri, first, last, storage_options)

    def seal(
        self, upper: int | Moment | Antichain, *, expected_upper: int | Moment | Antichain | None = None
    ) -> CommitFuture:
        """Promise that no more updates will come at times not beyond upper; `Antichain()` completes it for ever.

        Returns:
            a future that resolves when the seal is durable, or to `FrontierRegression` if upper is behind the
            current one, `UpperMismatch` if that is not expected_upper. A seal to the current upper does nothing.
        """
        expected = [] if expected_upper is None else [self.handle.expect_step(expected_upper)]
        if self.handle.keyed is not None:
            asked = AskedEvents(None, self.handle.frontier("upper", upper), also=tuple(expected))
            return submit_keyed(self.handle, "seal", asked)
        return self.handle.submit("seal", [*expected, self.handle.seal_step(upper)])

    def upserts(
        self,
        lower: int | Moment | Antichain,
        upper: int | Moment | Antichain | None = None,
        *,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Upserts:
        """Return the changes with `lower <= time < upper` as events: iterate over `(key, value or None, time)`.

        Also as Arrow, with `_time` and `_deleted`. What another keyed collection makes of them is the same changes.

        Raises:
            NotKeyed, and what `changes` raises. InvalidUsage, when read: a key has more than one value.
        """
        keyed_form(self.handle)
        return Upserts(self.changes(lower, upper, timeout_s=timeout_s))

    def seal_to(self, upper: int | Moment | Antichain) -> CommitFuture:
        """Seal a keyed collection as far as upper, if it is not sealed that far: `seal_to(max_time - lateness)`.

        How many events came after that is in `late_counts`. Returns a future as `seal` does.
        """
        keyed_form(self.handle)
        if isinstance(upper, int) and upper < 0:
            upper = 0  # Lateness is greater than any time that there was.
        asked = self.handle.frontier("upper", upper)
        return self.seal(max(asked, self.handle.known().upper))

    def allow_compaction(self, since: int | Moment | Antichain) -> CommitFuture:
        """Give up telling times before since apart, as soon as no hold needs them; reads before it fail from then on.

        `Collection.since` tells how far that is: the least of what was allowed and of every live hold.

        Returns:
            a future that resolves when that is durable, or to `FrontierRegression` if since would go back.
        """
        # A moment stays readable: the last time that is not after it does.
        reach = self.handle.as_time("since", since) if is_moment(since) else since
        step = AllowCompaction(self.id, self.handle.frontier("since", reach).elements)
        return self.handle.engine.writer("allow_compaction").allow_compaction(step, self.name)

    def compact(self, *, only_due: bool = False) -> CompactionReport:
        """Make reading cheap, and destroy what since has passed; readers notice nothing. See `persist.compact.planner`.

        A keyframe is made as of the last sealed time, runs of similar size are merged, small writes leave the log, and
        what was retracted before since is written away: `Client.gc` deletes it after the grace period. Cost: reading
        what is rewritten, a PUT for each new part, and a commit for each piece of work. Memory: `memory_budget`.

        Args:
            only_due: do only what `Settings.compaction` says is worth it by now.

        Raises:
            CorruptBlob: a part cannot be believed; nothing that it is part of was replaced.
            DiffOverflow: a multiplicity does not fit int64.
            InvalidUsage: `memory_budget` cannot hold a row group.
            CollectionNotFound, ReadOnly, Unavailable, ClientClosed.
        """
        return self.handle.engine.writer("compact").compact(self.id, self.name, full=not only_due)

    def hold(self, time: int | Moment | Antichain | None = None, *, name: str | None = None) -> Hold:
        """Keep since at or before a time, durably. Cost: a commit, or nothing if something holds it already.

        Args:
            time: where, as a number, a frontier such as `since` or, if the collection has a timeline, a moment; of a
                named hold that exists it may be left out.
            name: makes the hold permanent. Without a name it is released with this client, or when its lease runs out.
                If there is a hold of that name it is returned as it is, and its `time` may be another one.

        Raises:
            AsOfCompacted: since has passed time.
            HoldNotFound: there is no hold of that name, and no time was given to make one.
            ReadOnly: this client only reads.
        """
        return take_hold(self.handle, time, name)

    def holds(self) -> list[HoldInfo]:
        """Return all holds on this collection, of whatever client, least time first. Cost: one GET."""
        return list_holds(self.handle)

    def evolve(
        self,
        *,
        add: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        reorder: Sequence[str] | None = None,
        comments: Mapping[str, str] | None = None,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> int:
        """Change the schema, durably, for every reader and every time from then on; return its version.

        No data is rewritten. Records of before and after cancel: a record that is older than a column has the column's
        default. Dropping a column adds up what it told apart. This handle goes on with the new schema; others keep
        theirs for writing, which works as long as columns are only added. Names are those of before, but in reorder and
        comments, and in defaults, which are of columns that are added.

        Args:
            add: value columns with their types, at the end; a name that was dropped before is another column.
            defaults: what older records have in them; NULL where none is given.
            drop: value columns.
            rename: old names to new ones; they may be exchanged.
            widen: columns with wider types, which hold every value that the present ones hold.
            reorder: all value columns in another order.
            comments: what to say of columns, as `describe` does.
            message, metadata: as for `write`.

        Raises:
            SchemaMismatch: a column is unknown, a name taken, a default does not fit, a type is not wider, or it is a
                key column and may not change like that; the message says what to do instead.
            SchemaMoved: another client has evolved the collection meanwhile.
            ReadOnly: this client only reads.
        """
        wanted = WantedEvolution(add or {}, defaults or {}, drop, rename or {}, widen or {}, reorder)
        notes = note_steps(message, metadata, [self.id])
        self.handle = evolve(self.handle, wanted, comments, notes)
        self.schema = self.handle.schema
        return self.schema.version

    def tag(self, name: str, time: int | Moment | None = None, *, move: bool = False) -> int:
        """Name a sealed time, durably, and keep it readable until the tag is dropped; return the time.

        The name is accepted wherever a time is: `snapshot(as_of="quarter-end")`.

        Args:
            name: does not look like a time. A tag that is there already, at that time, is no error.
            time: None means the latest sealed one.
            move: let a tag that is at another time move, to a later one or back.

        Raises:
            TagMoved: the tag is at another time, and is not to move; or somebody else has moved it meanwhile.
            AsOfCompacted, AsOfNotSealed: the time cannot be read, or not yet.
            InvalidUsage: the name looks like a time, or is none.
            ReadOnly: this client only reads.
        """
        return set_tag(self.handle, name, time, move=move)

    def tags(self) -> dict[str, int]:
        """Return the times that have names, by name. Cost: one GET."""
        return dict(self.handle.contents().tags)

    def drop_tag(self, name: str) -> CommitFuture:
        """Give up a tag: the time may be compacted then.

        Raises:
            TagNotFound: there is none of that name.
            ReadOnly: this client only reads.
        """
        return drop_tag(self.handle, name)

    @property
    def retention(self) -> Retained | None:
        """How much history is kept readable, and what keeps more of it; None if all that is not given up. One GET."""
        return retained(self.handle, self.holds())

    def retain(self, retention: Retention | None) -> CommitFuture:
        """Let since follow upper from now on, so many times behind it, as far as holds and tags let it.

        This happens with every seal, whoever seals. History that nobody can read any more is destroyed by compaction.

        Args:
            retention: how many times before upper stay readable; if the collection has a timeline, also a span such as
                "7 days", or a timedelta. None: since moves only where `allow_compaction` lets it.

        Raises:
            InvalidUsage: it is none of these.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("retain")
        return self.handle.submit("retain", [retention_step(self.handle, retention)])

    @property
    def about(self) -> About:
        """What the collection and its columns say of themselves. Cost: one GET."""
        return about_collection(self.handle.contents())

    @property
    def comment(self) -> str:
        """What the collection is, for people; "" if nobody said. Cost: one GET."""
        return self.about.comment

    @property
    def properties(self) -> Mapping[str, str]:
        """Texts by name that people and tools gave it; see `describe`. Cost: one GET."""
        return self.about.properties

    def describe(
        self,
        comment: str | None = None,
        *,
        properties: Mapping[str, str | None] | None = None,
        columns: Mapping[str, Any] | None = None,
        expected: About | None = None,
    ) -> CommitFuture:
        """Say what the collection is, and its columns; what is not given stays as it is.

        Args:
            comment: a text; "" for none.
            properties: texts by name; None removes one.
            columns: by the name of a column, a comment, or `{"comment": …, "properties": …}`.
            expected: what `about` gave, if nothing may have changed since.

        Returns:
            a future that resolves when that is durable; or to `DescriptionMoved` if somebody else came first, or
            `InvalidUsage` if all of it would take more than 64 KiB.

        Raises:
            SchemaMismatch: there is no such column.
            InvalidUsage: something is no text.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("describe")
        return self.handle.submit("describe", [describe_step(self.handle, comment, properties, columns, expected)])

    def history(self, last: int | None = LAST) -> pa.Table:
        """Return the records of the log that concern the collection, as a table; see `Client.history`.

        Args:
            last: how many records of the log are looked at, newest of all; None for all that are kept.
        """
        return self.handle.engine.history(last, self.id)

    def rename(self, name: str) -> CommitFuture:
        """Call the collection by another name, under which everybody finds it from then on; handles stay valid.

        Returns:
            a future that resolves when that is durable, or to `CollectionExists` if the name is taken.

        Raises:
            InvalidUsage: it is not a good name.
            ReadOnly: this client only reads.
        """
        self.handle.engine.writer("rename")
        return self.handle.submit("rename", [Rename(self.id, check_name(name))])

    def destroy(self) -> CommitFuture:
        """Remove the collection; its name becomes free for a new one at once.

        Its blobs are deleted by garbage collection, when nobody can be reading them any more. A view lets go of what it
        reads in the same commit.

        Raises (the future):
            CollectionNeeded: views read it.
        """
        view = self.handle.known().view
        inputs = dict.fromkeys(view["inputs"], self.name) if view else {}
        steps: list[Step] = [Destroy(self.id), *(ReleaseHold(id_, view_hold(self.id)) for id_ in inputs)]
        return self.handle.engine.submit("destroy", steps, {self.id: self.name, **inputs})

    def snapshot(
        self,
        as_of: int | Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        form: Form = "rows",
        schema: int | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Snapshot:
        """Return the contents as of a time, to be read as Arrow, pandas, Polars, batches or Python rows.

        Args:
            as_of: the time; None means the latest sealed one, and is not waited for. If the collection has a timeline
                it may be a moment: its contents are those of the last time that is not after it.
            columns: the columns wanted; None means all of them.
            filter: a `pyarrow.compute` expression over key and value columns.
            form: "rows" (each record as often as its multiplicity) or "diff" (once, with `_diff`).
            schema: the version of the schema to read with, for a read that gives the same for ever; None is the newest.
            timeout_s: how long to wait for as_of to be sealed; None waits without limit.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
            SchemaMismatch, InvalidUsage: columns or filter do not fit; or a column of an older version is gone.
        """
        check_request(self.handle.reading_schema(schema), columns, filter, form)
        contents, time, reading = self.handle.sealed_and_claimed(as_of, timeout_s)
        try:
            read_as = self.handle.schema_in(contents, schema)
            check_request(read_as, columns, filter, form)
            scan = snapshot_scan(contents, read_as, time, columns, filter)
            scan.check_columns()
        except BaseException:
            reading.close()
            raise

        def explain() -> Explanation:
            return explained(
                contents, scan, form, len(snapshot_slices(scan, form, self.handle.engine.reader().slice_bytes))
            )

        return Snapshot(scan, form, reading, explain)

    def changes(
        self,
        lower: int | Moment | Antichain,
        upper: int | Moment | Antichain | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        times: Times = "int",
        schema: int | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Changes:
        """Return the updates with `lower <= time < upper`, consolidated, in time order.

        Args:
            lower, upper: the bounds, as numbers, frontiers or, if the collection has a timeline, moments. Upper None
                means all that is sealed; then lower may be at the collection's upper, which gives no update.
            times: "timestamp" gives `_time` as timestamps in UTC of the collection's timeline, "int" as numbers.
            schema: as for `snapshot`.
            timeout_s: how long to wait for `upper - 1` to be sealed; None waits without limit.

        Raises:
            AsOfCompacted: history between `lower - 1` and since has been compacted.
            AsOfNotSealed: upper is beyond the collection's upper.
            InvalidUsage: the interval is not `0 <= lower <= upper`.
        """
        lower = self.handle.as_bound("lower", lower)
        if upper is not None:
            upper = self.handle.as_bound("upper", upper, most=TIME_MAX + 1)
            if lower > upper:
                raise InvalidUsage(
                    f"changes({lower}, {upper}) is backwards: the interval is [lower, upper), so lower <= upper"
                )
        check_request(self.handle.reading_schema(schema), columns, filter, "diff")
        moments = self.handle.moments(times)
        contents = self.handle.contents()
        if upper is None:
            # What begins beyond upper is waited for, as far as that.
            upper = max(lower, self.handle.as_bound("upper", contents.upper))
            is_short = contents.upper < lower
        else:
            is_short = upper > lower
        check_changes_readable(contents, lower)
        if is_short and contents.upper.has_beyond(upper - 1):
            contents, _ = self.handle.sealed(upper - 1, timeout_s, until=upper)
            check_changes_readable(contents, lower)
        contents, reading = self.handle.claim(max(0, lower - 1))
        try:
            check_changes_readable(contents, lower)
            read_as = self.handle.schema_in(contents, schema)
            check_request(read_as, columns, filter, "diff")
            scan = changes_scan(contents, read_as, lower, upper, columns, filter)
            scan.check_columns()
            return Changes(scan, reading, moments)
        except BaseException:
            reading.close()
            raise

    def listen(self, as_of: int | Moment | None = None, *, times: Times = "int") -> Listen:
        """Follow the updates after as_of, with progress; since waits for how far that has come.

        Args:
            as_of: the last time of which nothing is wanted; None leaves nothing out, from the very first time on.
            times: as in `changes`.

        Raises:
            AsOfCompacted: as_of is before since, or None and since is not 0 any more.
        """
        return begun_listen(self.handle.newest(), as_of, self.handle.moments(times))

    def subscribe(
        self, as_of: int | Moment | None = None, *, times: Times = "int", timeout_s: float | None = READ_TIMEOUT_S
    ) -> Listen:
        """Return the contents as of a time as the first progress (at time as_of), then what `listen` returns.

        Both are taken at one point of the log, so that no update is seen twice or missed. Where nothing may be sealed
        yet, `listen()` gives everything from the first time on, as soon as it is sealed.

        Args:
            as_of: the time; None means the latest sealed one.
            times: as in `changes`.
            timeout_s: how long to wait for as_of to be sealed; None waits without limit.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
        """
        return begun_subscription(self.handle.newest(), as_of, self.handle.moments(times), timeout_s)

    def follow(self, name: str, *, times: Times = "int") -> Following:
        """Follow the collection as a consumer that resumes: its contents, then changes, from where it left off.

        How far the consumer has come is the permanent hold of that name; see `persist.follow`. Where there is none yet,
        the contents as of the latest sealed time come first. Acknowledge with `Following.ack`, or exactly once, in the
        commit that writes the output, with `MultiWrite.ack`. Whoever follows by this name next takes over at once what
        this one held besides; this one then gets `LeaseExpired` when it polls, if it lives.

        Args:
            name: the consumer's; a hold of that name that was taken by hand counts as acknowledged up to its time.
            times: as in `changes`.

        Raises:
            ReadOnly: this client only reads, so it cannot acknowledge.
        """

        moments = self.handle.moments(times)

        def start(held: int | None) -> Listen:
            consumer = f"{self.id}/{name}"
            contents = self.handle.contents()
            if held is not None or (contents.since == Antichain(0) and contents.upper == Antichain(0)):
                return begun_listen(self.handle, held, moments, consumer)  # The contents come with the first seal.
            latest = None if contents.since < contents.upper else contents.since.time
            return begun_subscription(self.handle, latest, moments, None, consumer)

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
        """Return a frame with the value that the key of each row had at the time of that row.

        A row whose key had nothing then has NULLs, and one whose key had several records comes once for each. Cost: the
        history of the frame's keys, between its times; of other keys only what shares row groups with these.

        Args:
            frame: anything Arrow, a frame of pandas or Polars, a dict of columns, or a list of dicts.
            time: its column of times, or of timestamps, if the collection has a timeline: what held at a moment is what
                held at the last time not after it.
            on: its columns that stand for the key fields, in their order; None for those of the same names.
            columns: the value columns wanted; None means all of them.
            timeout_s: how long to wait for the last of the times to be sealed.

        Raises:
            SchemaMismatch: a column is missing, of another type, or in both.
            AsOfCompacted, AsOfNotSealed: a time cannot be read.
            NegativeMultiplicity: of a record, at the time of a row.
        """
        return as_of_join(self.handle.newest(), frame, time, on, columns, timeout_s)

    def as_time(self, what: str, given: int | Moment) -> int:
        """Return a number as it is, and of a moment the last time not after it; what says in errors what it is.

        Raises:
            InvalidUsage: it is neither, or a moment and the collection has no timeline.
        """
        return self.handle.as_time(what, given)

    def as_bound(self, what: str, given: int | Moment, *, most: int = TIME_MAX) -> int:
        """Like `as_time`, with the first time that is not before a moment: the bound of an interval."""
        return self.handle.as_bound(what, given, most=most)

    @property
    def unsealed(self) -> Unsealed | None:
        """What was written at times that are not sealed, so that nobody can read it yet; None if nothing. One GET."""
        return unsealed(self.handle.contents())

    def __eq__(self, other: object) -> bool:
        """Tell whether both are handles on the same collection of the same location, whichever clients they are of."""
        if not isinstance(other, Collection):
            return NotImplemented
        return (self.id, self.handle.engine.url) == (other.id, other.handle.engine.url)

    def __hash__(self) -> int:
        return hash((self.id, self.handle.engine.url))

    def _repr_html_(self) -> str:
        """Say what this client knows of the collection, without asking the store for news."""
        told = [("location", self.handle.engine.url)]
        with suppress(PersistError):
            contents = self.handle.known()
            about, schema = about_collection(contents), contents.schema
            told += [("comment", about.comment)] if about.comment else []
            told += [*about.properties.items()]
            told += [("since", str(contents.since)), ("upper", str(contents.upper)), ("schema", f"{schema.version}")]
            for name in schema.names:
                role = "key " if name in schema.key_names else ""
                comment = f": {about.columns[name].comment}" if name in about.columns else ""
                told.append((f"{role}{name}", f"{schema.arrow.field(name).type}{comment}"))
        return html_table(f"Collection {self.name}", told)

    def __repr__(self) -> str:
        """Say what this client knows of the collection, without asking the store for news."""
        told = ""
        with suppress(PersistError):
            contents = self.handle.known()
            hidden = unsealed(contents)
            upper = contents.upper.time
            before = upper if self.timeline is None or upper is None else self.timeline.text_of(upper)
            sealed = f"sealed before {before}" if upper else "nothing sealed"
            if contents.upper.is_empty:
                sealed = "complete for ever"
            told = f", {sealed}" + (f", {hidden} not sealed" if hidden is not None else "")
        return f"<Collection {self.name!r} at {self.handle.engine.url}{told}>"
