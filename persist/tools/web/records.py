"""Summarises the newest records for the page: how many each minute, and who wrote updates.

A record never changes, so it is read once, and its summary is kept. The page reads the last `RECORDS_READ_MAX` records
at most, and only those that the log still has. So the writers of older updates are unknown.

The writer of an update is found by the time: the record that has rows of the collection at that time. If several
records have such rows, all are named, because the log has the times of parts, not of rows.
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
from persist.core.rendering import format_moment

RECORDS_READ_MAX = 600
MINUTES = 60
SUMS = ("commits", "rows", "bytes")
NAMED_MAX = 3  # Records that are named for one update.


@dataclass(frozen=True, slots=True)
class _WriteSummary:
    """A record's effect on a collection: its rows, bytes and times, and its message."""

    collection: str
    rows: int
    bytes: int
    first: int
    last: int
    message: str | None


@dataclass(frozen=True, slots=True)
class _RecordSummary:
    """A record: its seqno, moment and writer, and its effect on each collection."""

    seqno: int
    written_ms: int
    writer: str
    wrote: tuple[_WriteSummary, ...]

    def as_json(self, message: str | None) -> dict[str, Any]:
        """Return the record for the page, with a message."""
        at = format_moment(self.written_ms / 1000)
        return {"record": str(self.seqno), "at": at, "by": self.writer, "message": message}


class Records:
    """Summaries of the newest records of a location. Thread-safe."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._known: dict[int, _RecordSummary] = {}
        self._lock = threading.Lock()

    def commits(self) -> dict[str, Any]:
        """Return how many log records were written in each of the last minutes."""
        now_minute = int(time.time() // 60)
        minutes: Counter[int] = Counter()
        records, is_whole = self._list_newest(until_ms=(now_minute - MINUTES) * 60_000)
        for record in records:
            minutes[record.written_ms // 60_000] += 1
        counts = [minutes[minute] for minute in range(now_minute - MINUTES + 1, now_minute + 1)]
        return {"counts": counts, "at_least": not is_whole}

    def authors(self, collection: str, times: Sequence[int | None]) -> list[dict[str, Any] | None]:
        """Return for each time who wrote its updates; None if unknown."""
        records, _ = self._list_newest()
        all_wrote = [(record, wrote) for record in records for wrote in record.wrote if wrote.collection == collection]
        authors: dict[int | None, dict[str, Any] | None] = {None: None}
        for at in dict.fromkeys(times):
            if at is not None:
                authors[at] = _describe_authors(
                    [(record, wrote) for record, wrote in all_wrote if wrote.first <= at <= wrote.last]
                )
        return [authors[at] for at in times]

    def list_newest_writes(self) -> Mapping[str, dict[str, Any]]:
        """Return the newest write of each collection, by id, and totals of its writes."""
        records, _ = self._list_newest()
        newest: dict[str, dict[str, Any]] = {}
        for record in records:  # The newest first.
            for wrote in record.wrote:
                about = newest.setdefault(wrote.collection, {**record.as_json(wrote.message), **dict.fromkeys(SUMS, 0)})
                about["commits"] += 1
                about["rows"] += wrote.rows
                about["bytes"] += wrote.bytes
        return newest

    def _list_newest(self, until_ms: int = 0) -> tuple[list[_RecordSummary], bool]:
        """Return summaries of records after a moment, newest first, and whether they are complete."""
        last = self._client.seqno
        first = max(0, last - RECORDS_READ_MAX + 1)
        with self._lock:
            summaries = {seqno: record for seqno, record in self._known.items() if seqno >= first}
        newest: list[_RecordSummary] = []
        is_whole = first == 0
        for seqno in range(last, first - 1, -1):
            if seqno not in summaries:
                record = read_record(self._client.engine.blob, seqno)
                if record is None:
                    is_whole = True  # It has been truncated: older ones are of no interest here.
                    break
                summaries[seqno] = _summarize(record)
            if summaries[seqno].written_ms < until_ms:
                is_whole = True
                break
            newest.append(summaries[seqno])
        with self._lock:
            self._known = summaries
        return newest, is_whole


def _summarize(record: Record) -> _RecordSummary:
    """Return the summary of a record."""
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
            wrote.append(_WriteSummary(mutation.collection, *sums, first, last, message))
        elif isinstance(mutation, kinds.Seal):
            wrote.append(_WriteSummary(mutation.collection, 0, 0, 0, -1, message))
    return _RecordSummary(record.seqno, record.written_ms, record.writer, tuple(wrote))


def _describe_authors(candidates: Sequence[tuple[_RecordSummary, _WriteSummary]]) -> dict[str, Any] | None:
    """Return the writer, record and message of candidates, as far as they agree; None without any."""
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
