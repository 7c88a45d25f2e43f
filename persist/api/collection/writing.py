"""Writing a collection: updates, plain rows, overwrites, retractions, seals and imports; and events, if it is keyed."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from persist.api.collection.describing import CollectionBase
from persist.codecs.types.arrow_types import decode_scalar
from persist.codecs.types.schema import TIME
from persist.codecs.updates.inputs import DELETED
from persist.codecs.updates.updates import Stamp
from persist.core.antichain import Antichain
from persist.core.errors import InvalidUsage
from persist.core.keyed.form import get_watermark_type, is_integer_watermark, watermark_to_int
from persist.core.keyed.partial import Missing
from persist.core.log import kinds
from persist.core.timeline import Moment
from persist.engine.collection.commit import Commit, commit_one
from persist.engine.collection.keyed_events import AskedEvents, check_upserts, convert_events, get_keyed_form
from persist.engine.collection.plain_rows import convert_plain_events
from persist.engine.collection.planned_commits import commit_seal
from persist.engine.collection.planned_commits import submit as submit_keyed
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.location.resolver import Late
from persist.engine.read.results.snapshot import build_filter
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import AtCommit
from persist.engine.write.write_options import WriteMode, WriteOptions, add_token, make_seal_error


class KeyedCalls(CollectionBase):
    """The part of `Collection` for events by key. Others raise `NotKeyed`."""

    def __init__(self, handle: CollectionHandle) -> None:
        super().__init__(handle)
        self._late_counts: Counter[str] = Counter()

    def upsert(
        self,
        events: Any,
        *,
        time: int | Moment | None = None,
        seal: int | Moment | Antichain | None = None,
        token: str | None = None,
        late: Late = "raise",
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Write new values for keys, or delete keys; optionally seal.

        In a collection that is not keyed, each row replaces the present rows of its key.

        In a keyed one, events may come in any order until their times are sealed. Then each becomes an update: the old
        value of its key is retracted, the new one inserted. The result does not depend on the client that seals, nor on
        the moment.

        Args:
            events: `(key, value)` or `(key, value, time)` tuples, where None as the value deletes the key; dicts, or
                anything Arrow with the key and value columns. It may have `_time`, and `_deleted`, which is true where
                the key is deleted. Events without a time get the time of the commit, which seals them.
            time: one time for all events, or the name of the column with the time of each; as for `write`.
            seal: the upper to seal to, if the events have times. Without pending events before it, that is one commit.
            late: the treatment of events at sealed times and below the late bound. "raise" refuses all events;
                "collect" leaves the late ones out, and returns them, with `_reason`, as `late` of the future.

        Returns:
            a future that resolves when all is durable, or to what `write` and `seal` raise, or `LateEvents`.

        Raises:
            NotKeyed: the machine of the collection has other events: use `transition`.
            SchemaMismatch, InvalidUpdate, CodecMismatch: the events do not fit, or a key is NULL; nothing was written.
        """
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        return upsert_rows(self.handle, events, options, seal, late, self._late_counts)

    def transition(
        self,
        events: Any,
        *,
        time: int | Moment | None = None,
        seal: int | Moment | Antichain | None = None,
        token: str | None = None,
        late: Late = "raise",
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Pass events to the machine of a keyed collection, otherwise as `upsert`.

        `events`: as for `upsert`, with the event columns of the machine (`Machine.event_fields`) in place of values.
        """
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        return _commit_events(self.handle, "transition", events, options, seal, late, self._late_counts)

    @property
    def late_counts(self) -> dict[str, int]:
        """The number of late events that this handle collected, by reason.

        The reason "sealed" means a sealed time, and "late" the late bound.
        """
        return dict(self._late_counts)

    @property
    def late_bound(self) -> Any:
        """The `order_by` value below which events are late; None if none are. Cost: one GET.

        It is also None if the bound is below the range of the column's type, or of Python's type.
        """
        form, bound = get_keyed_form(self.handle), self.handle.contents().late_bound
        if bound is None:
            return None
        try:
            return decode_scalar(bound, get_watermark_type(form, self.schema)).as_py()
        except (ValueError, OverflowError):
            return None  # It is a distance behind a value, which may be among the least.

    def advance_late_bound(self, bound: Any) -> CommitFuture:
        """Let events below an `order_by` value be late from now on. It never goes back.

        Raises:
            NotKeyed: the collection is not keyed.
            InvalidUsage: the first column of order_by has neither integers nor times, or the bound does not fit it.
        """
        form = get_keyed_form(self.handle)
        if not form.order_by or not is_integer_watermark(get_watermark_type(form, self.schema)):
            raise InvalidUsage(
                f"late bound {bound!r}: the first column of order_by holds integers or times, and the events of "
                f"{self.name!r} are ordered by {[*form.order_by]}."
            )
        step = kinds.AdvanceLateBound(self.id, watermark_to_int(bound, get_watermark_type(form, self.schema)))
        return self.handle.submit("advance_late_bound", [step])


class WritingCalls(KeyedCalls):
    """The part of `Collection` that writes."""

    def write(
        self,
        updates: Any,
        *,
        time: int | Moment | None = None,
        diff: int | None = None,
        token: str | None = None,
        expected_upper: int | Moment | Antichain | None = None,
        seal: int | Moment | Antichain | None = None,
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Append plain rows, or updates with their own times, as one commit.

        Plain rows without a time get the time of the commit: beyond upper and, on a timeline, the present. The commit
        seals them, so they can be read. Such rows are never late, however many processes write.

        Args:
            updates: plain rows, which are `(key, value)` tuples, or anything Arrow (`pa.Table`, `pa.RecordBatch`, an
                object with `__arrow_c_stream__`), a frame or dicts with the key and value columns. Or updates: `((key,
                value), time, diff)` tuples, or tables that also have `_time` and `_diff`. Updates with diff 0 are
                dropped. If the collection has a timeline, times may be moments, which must be exact.
            time: one time for all rows: a number, a moment, or a word such as "now" or "-1d". The write seals them only
                with `seal`. Other text is the name of the column with the time of each row; the column is kept if the
                collection has it, and dropped otherwise.
            diff: of all plain rows; 1 if it is left out and they have no `_diff`.
            token: names this write, so that trying it again, in whatever process, does nothing if it was done before.
                The same token for other updates is refused (`TokenReused`); the order and batches of updates,
                seal and expected_upper do not matter. A collection remembers its newest four million tokens.
                Once it has forgotten some, a token that it does not know is refused (`TokenForgotten`).
            expected_upper: the upper that the collection must have (compare-and-append).
            allow_future: on a timeline, accept times that are more than a day ahead of the clock. They are mostly a
                mistake: once one is sealed, no write can come before it.
            seal: the upper to seal to, if the rows have times; see `seal`.
            message, metadata: a text, and texts by name, that the log keeps with the commit; see `history`.

        Returns:
            a future that resolves when all is durable; its `time` is the time of the commit. It raises
            `UpdateNotBeyondUpper` if an update is at a sealed time, and `UpperMismatch` if upper is not the expected
            one. It raises `FrontierRegression` if seal is behind upper, and `TokenReused`. If another client has the
            location exclusively, it raises `Locked` or `WriterFenced`.

        Raises:
            SchemaMismatch, InvalidUpdate, CodecMismatch: they do not fit the collection; nothing was written.
        """
        handle = self.handle.with_future_times(allow_future=allow_future)
        for what, named in (("time", time), ("seal", seal)):
            handle.check_plausible(what, named, allow_future=allow_future)
        expected = [] if expected_upper is None else [handle.expect_step(expected_upper)]
        sealing = [] if seal is None else [handle.seal_step(seal)]
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        writes = handle.write_steps(updates, handle.stamp(time, diff), token=token)
        handle.check_write_times(writes, allow_future=allow_future)
        if sealing and any(isinstance(step, AtCommit) for step in writes):
            handle.engine.abandon(writes)
            raise make_seal_error(seal)
        return handle.submit(
            "write", [*add_token(token, [self.id], [*expected, *writes, *sealing]), *options.make_notes([self.id])]
        )

    def update(
        self,
        rows: Any,
        *,
        time: int | Moment | None = None,
        missing: Missing = "error",
        token: str | None = None,
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Change columns of the rows of keys at a time, and seal it.

        Other columns stay as they are.

        One look-up finds the rows, and one commit changes them. If the collection is keyed, pending events at times up
        to `time` are resolved first. A row then counts like an event: it changes nothing if the present row has greater
        values of `order_by`. A row that lacks these columns always counts.

        Args:
            rows: dicts, of which each may have other columns; or a frame, anything Arrow, or a stream of these, without
                the columns that stay. All have the key. A NULL is a value.
            time: the time of the change, or the name of the column with the time of each row. None means the time of
                the commit; if other commits come first, the change is computed again.
            missing: the treatment of rows whose key holds nothing. "error" refuses all rows, and names some keys.
                "insert" inserts such rows, with the default or NULL in columns that they lack. "ignore" skips them.

        Returns: a future, as `overwrite`.

        Raises (if the collection is keyed, the future may):
            InvalidUsage: a key is missing, or holds several rows; or the collection has no key.
            DuplicateKeys: the collection is not keyed, and rows repeat a key at one time.
            SchemaMismatch, InvalidUpdate: the rows do not fit, or lack the key.
            UpdateNotBeyondUpper, UpdatesBeyondUpper, Conflict, ReadOnly, ClientClosed: as `overwrite`.
        """
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        add = partial(Commit.update, handle=self.handle, rows=rows, time=time, missing=missing)
        return commit_one(self.handle, "update", options, add)

    def overwrite(
        self,
        rows: Any,
        *,
        time: int | Moment | None = None,
        where: str | pc.Expression | None = None,
        multiset: bool = False,
        token: str | None = None,
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Replace the contents by rows from a time on.

        `upsert` replaces only the rows of its keys.

        Only the difference to the present contents is written and sealed. If the collection is keyed, pending events at
        times up to `time` are resolved first. The new rows then count whatever their values of `order_by` are. Cost and
        memory: see `persist.engine.collection.plain_rows`.

        Args:
            rows: plain rows, as for `write`.
            time: the time of the difference, which is sealed. None means the time of the commit. Then the difference is
                computed again as long as other clients commit first.
            where: replace only the records for which this condition is true: text, such as "status = 'new'", or a
                `pyarrow.compute` expression. It must be true for all new rows. If another row of a new key does not
                meet it, a plain collection refuses the overwrite, and a keyed one replaces that row.
            multiset: let keys have several rows, if the collection is not keyed.
            token: as for `write`. An overwrite that was done before, with the same rows, time and filter, does nothing
                again, although its time is sealed.

        Returns:
            a future that resolves when all is durable; or to `UpperMismatch` or `UpdatesBeyondUpper` if time is set and
            another client has sealed or written meanwhile. Then nothing was written: read again, and decide anew.

        Raises (if the collection is keyed, the future does):
            DuplicateKeys: rows repeat a key, or have a key of rows that stay.
            UpdatesBeyondUpper: there are unsealed updates, so the contents are not known.
            UpdateNotBeyondUpper: the time is sealed already.
            Conflict: other clients came first a hundred times; nothing was written.
            SchemaMismatch, InvalidUpdate, InvalidUsage: rows or filter do not fit.
        """
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        filter = build_filter(self.schema, where)

        add = partial(Commit.overwrite, handle=self.handle, rows=rows, time=time, where=filter, multiset=multiset)
        return commit_one(self.handle, "overwrite", options, add)

    def delete(
        self,
        keys: Any = None,
        *,
        where: str | pc.Expression | None = None,
        time: int | Moment | None = None,
        token: str | None = None,
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Retract records at a time, and seal it. A missing key is not an error.

        If the collection is keyed, keys are deleted by events, as `upsert` does, and `time` is not sealed. A condition
        is tested after all events up to `time` are resolved, and `time` is sealed.

        Args:
            keys: the keys of the records to retract, as `Snapshot.get` takes them: `[1, 2]`. If the collection is keyed
                with `order_by`, rows with the key and the columns of order_by.
            where: instead of keys, a condition that is true for the records to retract; as for `overwrite`.
            time: the time of the retractions, as for `overwrite`.

        Returns, raises: as `overwrite`.
        """
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        filter = build_filter(self.schema, where)
        add = partial(Commit.delete, handle=self.handle, keys=keys, time=time, where=filter)
        return commit_one(self.handle, "delete", options, add)

    def restore(
        self,
        as_of: int | Moment,
        *,
        time: int | Moment | None = None,
        token: str | None = None,
        allow_future: bool = False,
        message: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> CommitFuture:
        """Write the contents as of a time again, at a later time.

        History and schema stay, so the times in between can be read as before. If the collection is keyed, pending
        events at times up to `time` are resolved first. Cost: reading the changes since as_of twice; for a keyed
        collection, reading the old and the present contents.

        Args:
            as_of: a sealed time, a moment or a tag, which is not compacted.
            time: the time of the change; None means the time of the commit. Then the change is computed again while
                other clients commit first.

        Returns: a future, as `overwrite`.

        Raises (if the collection is keyed, the future may):
            AsOfCompacted, AsOfNotSealed: the collection cannot be read as of that time.
            InvalidUsage: it is a view, whose query determines its contents.
            UpdatesBeyondUpper, UpdateNotBeyondUpper, ReadOnly, ClientClosed: as for `overwrite`.
        """
        options = WriteOptions(time=time, token=token, allow_future=allow_future, message=message, metadata=metadata)
        add = partial(Commit.restore, handle=self.handle, as_of=as_of, time=time)
        return commit_one(self.handle, "restore", options, add)

    def seal(
        self,
        upper: int | Moment | Antichain,
        *,
        expected_upper: int | Moment | Antichain | None = None,
        allow_future: bool = False,
    ) -> CommitFuture:
        """Promise that no more updates come before upper. `Antichain()` completes the collection.

        Args:
            upper: a time, a moment, "now", or a frontier.

        Returns:
            a future that resolves when the seal is durable, or to `FrontierRegression` if upper is behind the current
            one, `UpperMismatch` if that is not expected_upper. A seal to the current upper does nothing.
        """
        self.handle.check_plausible("upper", upper, allow_future=allow_future)
        return commit_seal(self.handle, upper, expected_upper=expected_upper)

    def seal_to(self, upper: int | Moment | Antichain, *, allow_future: bool = False) -> CommitFuture:
        """Seal a keyed collection at least to upper: `seal_to(max_time - lateness)`.

        `late_counts` has the number of events that came later. allow_future is as for `write`. Returns a future as
        `seal`.
        """
        get_keyed_form(self.handle)
        if isinstance(upper, int) and upper < 0:
            upper = 0  # The lateness is greater than every time of an event.
        elif upper != 0:
            self.handle.check_plausible("upper", upper, allow_future=allow_future)
        sealing = AskedEvents(None, self.handle.frontier("upper", upper), is_least=True)
        return submit_keyed(self.handle, "seal", sealing)


def write_rows(
    handle: CollectionHandle,
    rows: Any,
    mode: WriteMode,
    options: WriteOptions,
    *,
    diff: int | None = None,
    seal: int | Moment | Antichain | None = None,
) -> CommitFuture:
    """Write rows to a collection, which the same commit creates if necessary. No row deletes its key."""
    if mode == "upsert":
        return upsert_rows(handle, rows, options, seal, may_delete=False)
    if mode == "append":
        return WritingCalls(handle).write(rows, diff=diff, seal=seal, **options.to_arguments())
    if seal is not None:
        raise InvalidUsage(f"seal={seal!r} is given to an {mode}, which seals just after its time: leave it out")
    if mode == "update":
        return WritingCalls(handle).update(rows, **options.to_arguments())
    return WritingCalls(handle).overwrite(rows, **options.to_arguments())


def upsert_rows(
    handle: CollectionHandle,
    rows: Any,
    options: WriteOptions,
    seal: int | Moment | Antichain | None,
    late: Late = "raise",
    late_counts: Counter[str] | None = None,
    *,
    may_delete: bool = True,
) -> CommitFuture:
    """Upsert as `Collection.upsert`, to a collection that the commit may create.

    Args:
        late_counts: counts the late events that are collected.
        may_delete: whether None in a tuple, or a column `_deleted`, deletes keys. Otherwise None is the value NULL, and
            `_deleted` is refused.
    """
    check_upserts(handle)
    if handle.as_keyed().keyed is not None:
        return _commit_events(handle, "upsert", rows, options, seal, late, late_counts, may_delete=may_delete)
    end = _check_event_arguments(handle, "upsert", options, seal, late)
    if late == "collect":
        raise InvalidUsage(
            f'late="collect" is for keyed collections: an upsert of {handle.name!r} changes the contents at '
            "once, at a time that must not be sealed. Leave time out, and it is never late"
        )
    handle = handle.with_future_times(allow_future=options.allow_future)
    stamp = handle.stamp(options.time, None)

    def add(commit: Commit) -> None:
        if handle.create is not None and options.token is None and _can_stream(rows, stamp):
            if end is not None and stamp is None:
                raise make_seal_error(seal)
            commit.overwrite(handle, rows, time=None if stamp is None else stamp.time, by_key=True)
        else:
            events = convert_plain_events(handle, rows, stamp, may_delete=may_delete)
            if end is not None and events.at_commit and len(events.table):
                raise make_seal_error(seal)
            commit.add_upsert(handle, events)
        if end is not None:
            commit.add_seal(handle, end)

    return commit_one(handle, "upsert", options, add)


def _can_stream(rows: Any, stamp: Stamp | None) -> bool:
    """Return whether rows may exceed memory, and can be sorted in pieces."""
    is_reader = isinstance(rows, pa.RecordBatchReader) and not {TIME, DELETED} & {*rows.schema.names}
    return is_reader and (stamp is None or isinstance(stamp.time, int))


def _commit_events(
    handle: CollectionHandle,
    action: str,
    events: Any,
    options: WriteOptions,
    seal: int | Moment | Antichain | None,
    late: Late,
    late_counts: Counter[str] | None,
    *,
    may_delete: bool = True,
) -> CommitFuture:
    """Commit events of a collection, and perhaps a seal."""
    get_keyed_form(handle)
    end = _check_event_arguments(handle, action, options, seal, late)
    handle = handle.with_future_times(allow_future=options.allow_future)
    converted = convert_events(handle, events, handle.stamp(options.time, None), may_delete=may_delete)
    counts = late_counts if late == "collect" else None
    requested = AskedEvents(converted, end, options.token, tuple(options.make_notes([handle.id])), late=counts)
    return submit_keyed(handle, action, requested)


def _check_event_arguments(
    handle: CollectionHandle, action: str, options: WriteOptions, seal: int | Moment | Antichain | None, late: Late
) -> int | None:
    """Check the arguments of a call that writes events; return the upper to seal to."""
    handle.engine.writer(action)
    for what, named in (("time", options.time), ("seal", seal)):
        handle.check_plausible(what, named, allow_future=options.allow_future)
    if late not in get_args(Late):
        raise InvalidUsage(f'late={late!r} is not a way to treat late events: use "raise" or "collect"')
    return None if seal is None else handle.frontier("upper", seal)
