"""One micro-batch of a streaming query as one commit, once: to one collection or several.

The record that adds the batch says so for each collection (`persist.state.remembered`), and that makes it happen
once: a batch is run again if nobody knows whether it was committed, with the same query id and batch number.
Then nothing is added; what its tasks uploaded is deleted.

    1. if the batch is there already: say that this run goes on from it, and stop
    2. choose its time, or what is late, by the uppers there are
    3. commit; where another writer has sealed in between, go back to 2

Until the record exists nothing is visible. What is rejected for good is deleted; after an error that does not say
whether the record landed, all is left as it is, for the next run to find out.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from persist.antichain import Antichain
from persist.codecs import Part
from persist.engine import Commit, Engine
from persist.errors import Conflict, FrontierRegression, InvalidUsage, QueryMismatch, UpdateNotBeyondUpper
from persist.log import kinds
from persist.sink.late import retimed, without_late
from persist.sink.times import BatchTimes
from persist.sink.uploads import Target, writing
from persist.state import CollectionState, is_repeated

ATTEMPTS = 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mark:
    """Which batch of which query, in which run; first is the one the query may begin with besides 0."""

    query: str
    batch: int
    run: str
    first: int = 0

    def of(self, collection: str, *, again: bool = False) -> kinds.Batch:
        """Return what makes a commit this batch; again: it was committed before, and this run goes on from there."""
        return kinds.Batch(collection, self.query, self.batch, self.run, again)

    def is_done(self, contents: Sequence[CollectionState]) -> bool:
        """Return whether the batch was committed before.

        Raises:
            QueryMismatch: it cannot be the next one of the query here.
        """
        done = [is_repeated(each.queries, self.of(each.id)) for each in contents]
        is_known = any(self.query in each.queries for each in contents)
        if not is_known and self.batch not in (0, self.first):
            raise QueryMismatch(self.query, self.batch, None, None)
        return any(done)


@dataclass
class Share:
    """What a batch adds to one collection."""

    target: Target
    parts: list[Part]
    upper: Antichain = field(default_factory=lambda: Antichain(0))


def commit_batch(mark: Mark, shares: Sequence[Share], times: BatchTimes) -> None:
    """Commit what tasks have uploaded for a batch, unless it was committed before.

    Raises:
        QueryMismatch: it is not the next batch of the query; nothing was written.
        UpdateNotBeyondUpper: an update is late.
        CollectionNotFound, Locked, WriterFenced, UploadExpired: as `Collection.write`.
    """
    with writing(shares[0].target.location, shares[0].target.storage) as engine:
        try:
            if not _was_done(engine, mark, shares):
                _commit(engine, mark, shares, times)
        except (InvalidUsage, Conflict):
            for share in shares:
                _discard(share.target, share.parts)
            raise


def _was_done(engine: Engine, mark: Mark, shares: Sequence[Share]) -> bool:
    """If the batch was committed before, delete what is here of it, and let this run take over."""
    contents = [share.target.at(engine).contents() for share in shares]
    if not mark.is_done(contents):
        return False
    for share, each in zip(shares, contents, strict=True):
        named = {part.blob for part in each.parts}
        _discard(share.target, [part for part in share.parts if part.blob not in named])
    with Commit(engine) as commit:
        for share, each in zip(shares, contents, strict=True):
            last = each.queries.get(mark.query)
            if last is not None and last.batch == mark.batch and last.runs[-1] != mark.run:
                commit.add(share.target.at(engine), [mark.of(each.id, again=True)])
    return True


def _commit(engine: Engine, mark: Mark, shares: Sequence[Share], times: BatchTimes) -> None:
    for attempt in range(ATTEMPTS):
        for share in shares:
            share.upper = share.target.at(engine).contents().upper
        seal = _fit_plain(engine, shares) if times.is_plain else _fit_events(engine, mark, shares, times)
        try:
            with Commit(engine) as commit:
                for share in shares:
                    handle = share.target.at(engine)
                    commit.add(handle, [mark.of(handle.id)])
                    commit.add_parts(handle, share.parts, keep=True)
                    if seal is not None and share.upper < Antichain(seal):
                        commit.add(handle, [handle.seal_step(seal)])
            return
        except (UpdateNotBeyondUpper, FrontierRegression) as error:
            is_late = isinstance(error, UpdateNotBeyondUpper) and not times.is_plain and times.late == "error"
            if is_late or attempt == ATTEMPTS - 1:
                raise


def _fit_plain(engine: Engine, shares: Sequence[Share]) -> int | None:
    """Give all parts one time that is beyond all uppers; return what to seal to."""
    if not any(share.parts for share in shares):
        return None
    uppers = [share.upper.time for share in shares]
    time = max((upper for upper in uppers if upper is not None), default=0)
    if None in uppers:
        raise UpdateNotBeyondUpper(time, Antichain())
    for share in shares:
        if other := [part for part in share.parts if (part.time_min, part.time_max) != (time, time)]:
            kept = [part for part in share.parts if part not in other]
            _replace(share, other, [*kept, *retimed(engine, share.target, other, time)])
    return time + 1


def _fit_events(engine: Engine, mark: Mark, shares: Sequence[Share], times: BatchTimes) -> int | None:
    """Leave out what is late, if it is to be dropped; return what to seal to."""
    latest = max((part.time_max for share in shares for part in share.parts), default=None)
    for share in shares if times.late == "drop" else ():
        late = [part for part in share.parts if not share.upper.has_beyond(part.time_min)]
        if late:
            lower = share.upper.time
            rest = [] if lower is None else without_late(engine, share.target, late, lower)
            report_late(share.target, mark, sum(p.rows for p in late) - sum(p.rows for p in rest))
            _replace(share, late, [*(part for part in share.parts if part not in late), *rest])
    if latest is None or times.seal == "none":
        return None
    return latest + 1 if times.seal == "max" else max(latest - times.delay, 0)


def report_late(target: Target, mark: Mark, rows: int) -> None:
    """Log how many updates were dropped."""
    if rows:
        logger.warning(
            "batch %d of query %s: %d late updates to %r were dropped, because their times were sealed already",
            mark.batch, mark.query, rows, target.name,
        )  # fmt: skip


def _replace(share: Share, old: list[Part], new: list[Part]) -> None:
    share.parts = new
    _discard(share.target, old)


def _discard(target: Target, parts: Sequence[Part]) -> None:
    """Delete parts that no record names, or will."""
    with target.writer() as writer:
        writer.discard(parts)
