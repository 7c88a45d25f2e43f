"""One micro-batch of a streaming query as one commit, once: updates for collections, or events for a keyed one.

The record of a batch notes its query id and number in each collection (`persist.core.state_rules.annotations`). A batch
whose outcome is unknown is run again with the same id and number. If it was committed before, nothing is added, and the
new uploads are deleted.

    1. if the batch is committed already: record that this run continues from it, and stop
    2. determine late rows by the present uppers; rows without times get the time of the commit
    3. commit; if another writer has sealed in between, go back to 2

Until the record exists nothing is visible. Output that is rejected for good is deleted; after an error with an unknown
outcome, everything stays until the next run resolves it.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.part.part import Part
from persist.codecs.updates.updates import Stamp
from persist.compute.tasks.batch_times import BatchTimes, store_timely_parts
from persist.compute.tasks.keyed_work import (
    KeyedWork,
    Stored,
    build_handle,
    commit_events,
    commit_pending_events,
    commit_resolution,
    seal_committed,
)
from persist.compute.tasks.planned_write import Target, check_times, log_write
from persist.core.antichain import END, Antichain
from persist.core.errors import (
    Conflict,
    FrontierRegression,
    InvalidUsage,
    LateEvents,
    PersistError,
    QueryMismatch,
    UpdateNotBeyondUpper,
)
from persist.core.log import kinds
from persist.core.state_rules.annotations import is_batch_repeated
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.keyed_rules import list_due_parts
from persist.engine.collection.commit import Commit
from persist.engine.location.engine import Engine
from persist.engine.location.resolver import REASON
from persist.engine.write.retrying import commit_with_retry

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mark:
    """The identity of a batch: its query, its number and the run that writes it."""

    query: str
    batch: int
    run: str
    first: int = 0

    def make_step(self, collection: str, *, again: bool = False) -> kinds.Batch:
        """Return the step that records this batch in a commit."""
        return kinds.Batch(collection, self.query, self.batch, self.run, again)

    def is_done(self, contents: Sequence[CollectionState]) -> bool:
        """Return whether the batch was committed before.

        Raises QueryMismatch: the batch is not the next one of its query in these collections.
        """
        done = [is_batch_repeated(state.queries, self.make_step(state.id)) for state in contents]
        is_known = any(self.query in state.queries for state in contents)
        if not is_known and self.batch not in (0, self.first):
            raise QueryMismatch(self.query, self.batch, None, None)
        return any(done)


@dataclass
class Share:
    """The parts that a batch adds to one collection. Rows without times have 0 until the commit."""

    target: Target
    parts: list[Part]
    upper: int = 0


def commit_batch(engine: Engine, mark: Mark, shares: Sequence[Share], times: BatchTimes) -> None:
    """Commit what tasks have uploaded for a batch, unless it was committed before.

    Raises:
        QueryMismatch: it is not the next batch of the query; nothing was written.
        UpdateNotBeyondUpper: an update is late.
        CollectionNotFound, Locked, WriterFenced, UploadExpired: as `Collection.write`.
    """
    try:
        if not _resume_if_repeated(engine, mark, shares):
            _commit_shares(engine, mark, shares, times)
    except (InvalidUsage, Conflict):
        for share in shares:
            _discard(share.target, share.parts)
        raise


def _resume_if_repeated(engine: Engine, mark: Mark, shares: Sequence[Share]) -> bool:
    """Return whether the batch was committed before; if so, take its query over.

    New uploads are then deleted.
    """
    contents = [share.target.at(engine).contents() for share in shares]
    if not mark.is_done(contents):
        return False
    for share, state in zip(shares, contents, strict=True):
        named = {part.blob for part in state.parts}
        _discard(share.target, [part for part in share.parts if part.blob not in named])
    with Commit(engine) as commit:
        for share, state in zip(shares, contents, strict=True):
            last = state.queries.get(mark.query)
            if last is not None and last.batch == mark.batch and last.runs[-1] != mark.run:
                commit.add(share.target.at(engine), [mark.make_step(state.id, again=True)])
    return True


def _commit_shares(engine: Engine, mark: Mark, shares: Sequence[Share], times: BatchTimes) -> None:
    """Commit the parts of a batch, the seal, and the record of the batch."""
    at_commit = times.is_plain and any(share.parts for share in shares)

    def plan() -> None:
        for share in shares:
            share.upper = share.target.at(engine).contents().upper
        seal = None if times.is_plain else _fit_events(engine, mark, shares, times)
        with Commit(engine) as commit:
            for share in shares:
                handle = share.target.at(engine)
                commit.add(handle, [mark.make_step(handle.id)])
                commit.add_parts(handle, share.parts, keep=True, at_commit=at_commit)
                if not at_commit:
                    check_times(handle, share.parts, allow_future=times.allow_future)
                if seal is not None and share.upper < seal:
                    commit.add(handle, [handle.seal_step(seal)])

    def raise_if_late(error: PersistError) -> None:
        # The time of a commit is late only if a collection is complete for ever.
        if isinstance(error, UpdateNotBeyondUpper) and (at_commit or times.late == "error"):
            raise error

    conflicts = (UpdateNotBeyondUpper, FrontierRegression)
    commit_with_retry(plan, action="write", clock=engine.clock, conflicts=conflicts, prepare=raise_if_late)
    for share in shares:
        log_write(share.target, share.parts)


def _fit_events(engine: Engine, mark: Mark, shares: Sequence[Share], times: BatchTimes) -> int | None:
    """Drop late updates, if the options request it; return the upper to seal to."""
    latest = max((part.time_max for share in shares for part in share.parts), default=None)
    for share in shares if times.late == "drop" else ():
        late = [part for part in share.parts if part.time_min < share.upper]
        if late:
            on_time = [] if share.upper == END else store_timely_parts(engine, share.target, late, share.upper)
            log_late(share.target, mark, sum(p.rows for p in late) - sum(p.rows for p in on_time))
            share.parts = [*(part for part in share.parts if part not in late), *on_time]
            _discard(share.target, late)
    return times.find_seal(latest)


def log_late(target: Target, mark: Mark, rows: int) -> None:
    """Log how many updates were dropped."""
    if rows:
        logger.warning(
            "batch %d of query %s: %d late updates to %r were dropped, because their times were sealed already",
            mark.batch, mark.query, rows, target.name,
        )  # fmt: skip


def _discard(target: Target, parts: Sequence[Part]) -> None:
    """Delete parts that no record names or will name."""
    with target.open_writer() as writer:
        writer.discard(parts)


Planning = Callable[[Stamp | None, int | None, CollectionState], KeyedWork]
Committing = Callable[[KeyedWork], pa.Table | None]


def commit_keyed_batch(
    engine: Engine, mark: Mark, work: KeyedWork, rows: pa.Table, times: BatchTimes, plan: Planning
) -> None:
    """Commit the events of a batch from rows on the driver, unless it was committed before.

    Args:
        work: the plan of the batch.
        plan: makes the plan again, from a time for rows without one, a seal, and the present contents.

    Raises:
        QueryMismatch: it is not the next batch of the query; nothing was written.
        UpdateNotBeyondUpper, LateEvents: an event is late. See `KeyedWork.to_events`.
    """
    more = (mark.make_step(work.target.id),)
    latest = pc.max(rows["_time"]).as_py() if len(rows) and not times.is_plain else None

    def commit(planned: KeyedWork) -> pa.Table | None:
        return commit_events(engine, planned, rows, more, times.late_collection)

    _commit_events(engine, mark, work, latest, times, plan, commit, is_empty=not len(rows))


def commit_large_batch(
    engine: Engine,
    mark: Mark,
    work: KeyedWork,
    latest: int | None,
    times: BatchTimes,
    plan: Planning,
    store: Callable[[KeyedWork, bool], Stored],
) -> None:
    """Commit a batch of events that tasks store, unless it was committed before.

    Args:
        latest: the greatest time of the events; not needed where they have none.
        store: lets tasks store the events, or their updates.

    Raises:
        As `commit_keyed_batch`.
    """
    more = (mark.make_step(work.target.id),)

    def commit(planned: KeyedWork) -> pa.Table | None:
        """Store and commit the events, resolved if possible."""
        if planned.can_resolve:
            stored = store(planned, True)
            if commit_resolution(engine, planned, stored, more, times.late_collection):
                return stored.late_events
        stored = store(planned, False)
        commit_pending_events(engine, planned, stored, more, times.late_collection)
        return stored.late_events

    _commit_events(engine, mark, work, latest, times, plan, commit)


def _commit_events(
    engine: Engine,
    mark: Mark,
    work: KeyedWork,
    latest: int | None,
    times: BatchTimes,
    plan: Planning,
    commit: Committing,
    *,
    is_empty: bool = False,
) -> None:
    """Commit the events of a batch; plan again after conflicts."""

    def plan_and_commit() -> None:
        """Plan from the newest contents, and commit once."""
        contents = build_handle(work, engine).contents()
        if resume_batch(engine, mark, work, contents, times):
            return
        time = _get_upper(contents) if times.is_plain else None
        end = None if is_empty else times.find_seal(time if times.is_plain else latest)
        end = end if end is not None and contents.upper < end else None
        planned = plan(None if time is None else Stamp(time), end, contents)
        takes_all = times.is_plain or times.allow_future  # The time of plain rows is the upper.
        late = commit(replace(planned, collects=times.late != "error", allow_future=takes_all))
        _log_late_events(work, mark, late, times)

    def raise_if_late(error: PersistError) -> None:
        # Another writer has sealed, or moved the late bound. Events with own times stay late.
        is_later = times.is_plain and not isinstance(error, LateEvents)
        if not (is_later or times.late != "error") or build_handle(work, engine).contents().upper == END:
            raise error

    conflicts = (UpdateNotBeyondUpper, FrontierRegression, LateEvents)
    commit_with_retry(plan_and_commit, action="upsert", clock=engine.clock, conflicts=conflicts, prepare=raise_if_late)


def _log_late_events(work: KeyedWork, mark: Mark, late: pa.Table | None, times: BatchTimes) -> None:
    """Log how many late events were dropped, and why."""
    if late is not None and times.late == "drop":
        sealed = pc.sum(pc.equal(late[REASON], "sealed")).as_py()
        logger.warning(
            "batch %d of query %s: %d late events to %r were dropped: %d at sealed times, %d below the late bound",
            mark.batch, mark.query, len(late), work.target.name, sealed, len(late) - sealed,
        )  # fmt: skip


def resume_batch(engine: Engine, mark: Mark, work: KeyedWork, contents: CollectionState, times: BatchTimes) -> bool:
    """Return whether the batch was committed before; if so, record that this run continues from it.

    A large batch may have been committed without its seal. Rows without times of their own are at upper then, and
    sealed here; others are sealed with the next batch.
    """
    if not mark.is_done([contents]):
        return False
    commit_batch(engine, mark, [Share(work.target, [])], BatchTimes(is_plain=True))
    if times.is_plain and contents.upper != END and list_due_parts(contents, contents.upper + 1):
        seal_committed(engine, replace(work, end=contents.upper + 1))
    return True


def _get_upper(contents: CollectionState) -> int:
    """Return a collection's upper. Raises UpdateNotBeyondUpper: it is complete for ever."""
    if contents.upper == END:
        raise UpdateNotBeyondUpper(0, Antichain())
    return contents.upper
