"""One micro-batch of events for a keyed collection as one commit, once; for updates there is `batch_commit.py`.

The record that holds the events, what they amount to and the seal says which batch it was, too. So a batch that is run
again, because nobody knows whether it was committed, does nothing.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from persist.antichain import Antichain
from persist.codecs import Stamp
from persist.engine import REASON, Engine
from persist.errors import FrontierRegression, LateEvents, UpdateNotBeyondUpper
from persist.read import PartCaches
from persist.sink.batch_commit import ATTEMPTS, Mark, Share, commit_batch
from persist.sink.keyed_work import (
    KeyedWork,
    Stored,
    commit_events,
    commit_pended,
    commit_resolved,
    handle_of,
    seal_done,
)
from persist.sink.times import BatchTimes
from persist.sink.uploads import writing
from persist.state import CollectionState, due

Planning = Callable[[Stamp | None, Antichain | None, CollectionState], KeyedWork]
Storing = Callable[[KeyedWork, bool], Stored]

logger = logging.getLogger(__name__)


def commit_keyed_batch(
    mark: Mark, work: KeyedWork, rows: pa.Table, times: BatchTimes, plan: Planning, *, caches: PartCaches | None = None
) -> None:
    """Commit the events of a batch that are here, unless it was committed before.

    Args:
        work: as it was planned for the batch.
        plan: plans it again, with the time of rows that have none, a seal, and contents as they are.
        caches: what the batches before it have left of parts; each batch looks keys up in much the same ones.

    Raises:
        QueryMismatch: it is not the next batch of the query; nothing was written.
        UpdateNotBeyondUpper, LateEvents: an event is late.
        What `KeyedWork.to_events` does.
    """
    with writing(work.target.location, work.target.storage, caches) as engine:
        for attempt in range(ATTEMPTS):
            contents = handle_of(work, engine).contents()
            if taken_over(engine, mark, work, contents, times):
                return
            stamp = Stamp(_upper_of(contents)) if times.is_plain else None
            planned = _planned(plan, stamp, _end(rows, contents.upper, times), contents, times)
            try:
                late = commit_events(engine, planned, rows, (mark.of(work.target.id),), times.late_collection)
                _report(work, mark, late, times)
                return
            except (UpdateNotBeyondUpper, FrontierRegression):
                # Another writer has sealed meanwhile. What has a time of its own stays late.
                if attempt == ATTEMPTS - 1 or not (times.is_plain or times.late != "error"):
                    raise


def commit_large_batch(
    mark: Mark, work: KeyedWork, latest: int | None, times: BatchTimes, plan: Planning, store: Storing
) -> None:
    """Commit a batch of events that tasks store, unless it was committed before.

    Args:
        latest: the greatest time of the events; not needed where they have none.
        store: has tasks store the events, or what they amount to.

    Raises:
        As `commit_keyed_batch`.
    """
    with writing(work.target.location, work.target.storage) as engine:
        for attempt in range(ATTEMPTS):
            contents = handle_of(work, engine).contents()
            if taken_over(engine, mark, work, contents, times):
                return
            time = _upper_of(contents) if times.is_plain else None
            end = _end_after(time if times.is_plain else latest, contents.upper, times)
            planned = _planned(plan, None if time is None else Stamp(time), end, contents, times)
            try:
                _report(work, mark, _stored(engine, planned, mark, times, store), times)
                return
            except (UpdateNotBeyondUpper, FrontierRegression, LateEvents):
                # Another writer has sealed, or moved the late bound. What tasks have stored is deleted.
                if attempt == ATTEMPTS - 1 or times.late == "error":
                    raise


def _stored(engine: Engine, planned: KeyedWork, mark: Mark, times: BatchTimes, store: Storing) -> pa.Table | None:
    """Have tasks store a batch, and commit it; return what was late."""
    more = (mark.of(planned.target.id),)
    if planned.can_resolve:
        stored = store(planned, True)
        if commit_resolved(engine, planned, stored, more, times.late_collection):
            return stored.late_events
    stored = store(planned, False)
    commit_pended(engine, planned, stored, more, times.late_collection)
    return stored.late_events


def _planned(
    plan: Planning, stamp: Stamp | None, end: Antichain | None, contents: CollectionState, times: BatchTimes
) -> KeyedWork:
    return replace(plan(stamp, end, contents), collects=times.late != "error")


def _report(work: KeyedWork, mark: Mark, late: pa.Table | None, times: BatchTimes) -> None:
    if late is not None and times.late == "drop":
        sealed = pc.sum(pc.equal(late[REASON], "sealed")).as_py()
        logger.warning(
            "batch %d of query %s: %d late events to %r were dropped: %d at sealed times, %d below the late bound",
            mark.batch, mark.query, len(late), work.target.name, sealed, len(late) - sealed,
        )  # fmt: skip


def taken_over(engine: Engine, mark: Mark, work: KeyedWork, contents: CollectionState, times: BatchTimes) -> bool:
    """If the batch was committed before, say that this run goes on from it, and return True.

    A large batch may have been committed without its seal. Rows without times of their own are at upper then, and
    sealed here; others are sealed with the next batch.
    """
    if not mark.is_done([contents]):
        return False
    commit_batch(mark, [Share(work.target, [])], BatchTimes(is_plain=True))
    if times.is_plain and contents.upper.time is not None:
        end = Antichain(contents.upper.time + 1)
        if due(contents, end.elements):
            seal_done(engine, replace(work, end=end))
    return True


def _upper_of(contents: CollectionState) -> int:
    if contents.upper.time is None:
        raise UpdateNotBeyondUpper(0, contents.upper)
    return contents.upper.time


def _end(rows: pa.Table, upper: Antichain, times: BatchTimes) -> Antichain | None:
    if not len(rows):
        return None
    latest = upper.time if times.is_plain else pc.max(rows["_time"]).as_py()
    return _end_after(latest, upper, times)


def _end_after(latest: int | None, upper: Antichain, times: BatchTimes) -> Antichain | None:
    if latest is None or times.seal == "none":
        return None
    end = Antichain(latest + 1 if times.is_plain or times.seal == "max" else max(latest - times.delay, 0))
    return end if upper < end else None
