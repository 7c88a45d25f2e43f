"""What the newest records of the log tell the page: how many there are a minute, and who wrote what.

A record never changes, so what is kept of it is read once. The page looks at the last `RECORDS_READ_MAX` records, and
no further back than the log is kept. So of older updates it does not know the writer, and says nothing.

An update is somebody's if just one of these records has rows of its collection at its time. If several have, they are
all named: the log tells times of parts and not of rows.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import persist
from persist.core.log import kinds
from persist.core.log.records import Record, read_record
from persist.core.rendering import moment_text

RECORDS_READ_MAX = 600
MINUTES = 60
SUMS = ("commits", "rows", "bytes")
NAMED_MAX = 3  # Records that are named for one update.


@dataclass(frozen=True, slots=True)
class _Wrote:
    """What a record did to one collection: rows at times from first to last; none if it only sealed."""

    collection: str
    rows: int
    bytes: int
    first: int
    last: int
    message: str | None


@dataclass(frozen=True, slots=True)
class _Known:
    seqno: int
    written_ms: int
    writer: str
    wrote: tuple[_Wrote, ...]

    def as_json(self, message: str | None) -> dict[str, Any]:
        at = moment_text(self.written_ms / 1000)
        return {"record": str(self.seqno), "at": at, "by": self.writer, "message": message}


class Records:
    """The newest records of a location. Safe to use from many threads."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._known: dict[int, _Known] = {}
        self._lock = threading.Lock()

    def commits(self) -> dict[str, Any]:
        """Return how many records each of the last minutes has, by the clocks of their writers."""
        now_minute = int(time.time() // 60)
        minutes: Counter[int] = Counter()
        known, is_whole = self._newest(until_ms=(now_minute - MINUTES) * 60_000)
        for record in known:
            minutes[record.written_ms // 60_000] += 1
        counts = [minutes[minute] for minute in range(now_minute - MINUTES + 1, now_minute + 1)]
        return {"counts": counts, "at_least": not is_whole}

    def authors(self, collection: str, times: Sequence[int | None]) -> list[dict[str, Any] | None]:
        """Return who wrote updates of a collection at some times, None where these records do not tell."""
        known, _ = self._newest()
        all_wrote = [(record, wrote) for record in known for wrote in record.wrote if wrote.collection == collection]
        authors: dict[int | None, dict[str, Any] | None] = {None: None}
        for at in dict.fromkeys(times):
            if at is not None:
                authors[at] = _named(
                    [(record, wrote) for record, wrote in all_wrote if wrote.first <= at <= wrote.last]
                )
        return [authors[at] for at in times]

    def last_of(self) -> Mapping[str, dict[str, Any]]:
        """Return, by the ids of collections, the newest record that wrote to each or sealed it, and sums over all."""
        known, _ = self._newest()
        newest: dict[str, dict[str, Any]] = {}
        for record in known:  # The newest first.
            for wrote in record.wrote:
                about = newest.setdefault(wrote.collection, {**record.as_json(wrote.message), **dict.fromkeys(SUMS, 0)})
                about["commits"] += 1
                about["rows"] += wrote.rows
                about["bytes"] += wrote.bytes
        return newest

    def _newest(self, until_ms: int = 0) -> tuple[list[_Known], bool]:
        """Return the records written after a moment, the newest first; and whether these are all of them."""
        last = self._client.seqno
        first = max(0, last - RECORDS_READ_MAX + 1)
        with self._lock:
            known = {seqno: record for seqno, record in self._known.items() if seqno >= first}
        newest: list[_Known] = []
        is_whole = first == 0
        for seqno in range(last, first - 1, -1):
            if seqno not in known:
                record = read_record(self._client.engine.blob, seqno)
                if record is None:
                    is_whole = True  # It has been truncated: older ones are of no interest here.
                    break
                known[seqno] = _known_of(record)
            if known[seqno].written_ms < until_ms:
                is_whole = True
                break
            newest.append(known[seqno])
        with self._lock:
            self._known = known
        return newest, is_whole


def _known_of(record: Record) -> _Known:
    notes: dict[str, dict[str, None]] = {}
    for mutation in record.mutations:
        if isinstance(mutation, kinds.Note) and mutation.message:
            notes.setdefault(mutation.collection, {})[mutation.message] = None
    wrote = []
    for mutation in record.mutations:
        message = "\n".join(notes.get(mutation.collection, ())) or None
        if isinstance(mutation, kinds.Append | kinds.Pend | kinds.Resolve):
            first = min((part.time_min for part in mutation.parts), default=0)
            last = max((part.time_max for part in mutation.parts), default=-1)
            sums = (sum(part.rows for part in mutation.parts), sum(part.bytes for part in mutation.parts))
            wrote.append(_Wrote(mutation.collection, *sums, first, last, message))
        elif isinstance(mutation, kinds.Seal):
            wrote.append(_Wrote(mutation.collection, 0, 0, 0, -1, message))
    return _Known(record.seqno, record.written_ms, record.writer, tuple(wrote))


def _named(candidates: Sequence[tuple[_Known, _Wrote]]) -> dict[str, Any] | None:
    """Return who wrote something, given the records that may have. If there are several, return what they share."""
    if not candidates:
        return None
    if len(candidates) == 1:
        return candidates[0][0].as_json(candidates[0][1].message)
    numbers = ", ".join(str(record.seqno) for record, _ in candidates[:NAMED_MAX])
    writers = {record.writer for record, _ in candidates}
    messages = {wrote.message for _, wrote in candidates}
    return {
        "record": f"one of {numbers}{', …' if len(candidates) > NAMED_MAX else ''}",
        "at": None,
        "by": writers.pop() if len(writers) == 1 else None,
        "message": messages.pop() if len(messages) == 1 else None,
    }
