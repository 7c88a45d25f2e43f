"""Who has written what of a collection is not sealed: the state does not know that, and the log does."""

from collections.abc import Iterator

from persist.blob import Blob, PersistError
from persist.errors import UnsealedWrites, UpdatesBeyondUpper
from persist.log import Record, kinds, read_record
from persist.state import CollectionState, State, unsealed

RECORDS_MAX = 100  # That are looked at: who is refused should not wait long to hear why.


def say_whose(error: UpdatesBeyondUpper, blob: Blob, state: State, collection: str, own: str = "") -> None:
    """Let an error that a commit got in this state say whose the updates are that are not sealed.

    Cost: a GET for each record since the first of theirs, `RECORDS_MAX` at most. What the store does not tell is left
    out.

    Args:
        own: the name of the client that is told.
    """
    entry = state.entries.get(collection)
    contents = None if entry is None else entry.contents
    hidden = None if contents is None else unsealed(contents)
    if contents is None or hidden is None or error.time is None:
        return
    found: dict[tuple[str, int | None], UnsealedWrites] = {}
    left = hidden.updates
    for record in _backwards(blob, state):
        each = _of_record(record, contents, own)
        if each is not None:
            before = found.get((each.writer, each.epoch))
            found[each.writer, each.epoch] = each if before is None else _both(before, each)
            left -= each.updates
        if left <= 0:
            break
    error.with_writes([*found.values()])


def _backwards(blob: Blob, state: State) -> Iterator[Record]:
    first = max(state.control.log_floor, state.seqno + 1 - RECORDS_MAX)
    for seqno in range(state.seqno, first - 1, -1):
        try:
            record = read_record(blob, seqno)
        except PersistError:
            return
        if record is None:  # It was truncated meanwhile.
            return
        yield record


def _of_record(record: Record, contents: CollectionState, own: str) -> UnsealedWrites | None:
    upper = contents.upper.time
    appends = [each for each in record.mutations if isinstance(each, kinds.Append) and each.collection == contents.id]
    parts = [part for each in appends for part in each.parts if upper is not None and part.time_max >= upper]
    if upper is None or not parts:
        return None
    marks = [m for each in record.mutations if isinstance(each, kinds.Tokens) for m in each.tokens]
    return UnsealedWrites(
        writer=record.writer,
        is_own=record.writer == own,
        epoch=record.epoch,
        updates=sum(part.rows for part in parts),
        first=max(min(part.time_min for part in parts), upper),
        last=max(part.time_max for part in parts),
        seqno=record.seqno,
        written_ms=record.written_ms,
        tokens=tuple(mark.token for mark in marks),
    )


def _both(later: UnsealedWrites, earlier: UnsealedWrites) -> UnsealedWrites:
    return UnsealedWrites(
        writer=later.writer,
        is_own=later.is_own,
        epoch=later.epoch,
        updates=later.updates + earlier.updates,
        first=min(later.first, earlier.first),
        last=max(later.last, earlier.last),
        seqno=later.seqno,
        written_ms=later.written_ms,
        tokens=(*later.tokens, *earlier.tokens),
    )
