"""Facts that only the log's records have, not the state: authors of changes, and outcomes of operations.

- `build_log_table` returns the records as a table, for people. It begins with the first record that is kept
  (`Settings.log_retention_s`).
- `Submissions` records which operations of other clients are in the log, as far as one reader has read it. A client
  whose operations a server commits sends each with its own id and a number (`persist.engine.write.relay`). A record
  with such operations names them (`persist.core.log.records.Submitted`). `docs/inside/design.md` ("Committing for
  others") explains how client and server derive the outcome of an operation from these records alone. `knows` returns
  whether all records after a seqno were read here.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from msgspec import UNSET

from persist.blob.errors import InvalidUsage
from persist.blob.protocol import Blob
from persist.core.log import kinds
from persist.core.log.records import Record, read_record
from persist.core.state_rules.state import State

LAST = 1000

COLUMNS = pa.schema(
    [
        pa.field("seqno", pa.int64()),
        pa.field("moment", pa.timestamp("ms", "UTC")),
        pa.field("writer", pa.string()),
        pa.field("operations", pa.list_(pa.string())),
        pa.field("collections", pa.list_(pa.string())),
        pa.field("updates", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("message", pa.string()),
        pa.field("metadata", pa.map_(pa.string(), pa.string())),
    ]
)

Map = Callable[[Callable[[int], dict[str, Any] | None], Sequence[int]], Iterator[dict[str, Any] | None]]


def build_log_table(blob: Blob, state: State, last: int | None, collection: str | None, map_all: Map) -> pa.Table:
    """Return a row for each of the last records up to a state; only those of a collection, if given.

    Cost: a GET for each record, and one for each long part list.

    Args:
        last: how many records are read; None for all.
        map_all: calls a function for each of some items, perhaps in parallel, and returns the results in order.
    """
    if last is not None and (isinstance(last, bool) or not isinstance(last, int) or last < 1):
        raise InvalidUsage(f"last={last!r:.100} is not a number of records: give 1 or more, or None for all")
    first = state.control.log_floor if last is None else max(state.control.log_floor, state.seqno + 1 - last)

    def row(seqno: int) -> dict[str, Any] | None:
        record = read_record(blob, seqno)
        # One that is gone was truncated meanwhile.
        if record is None or (collection is not None and all(m.collection != collection for m in record.mutations)):
            return None
        return _make_row(record, state, collection)

    rows = [cells for cells in map_all(row, range(first, state.seqno + 1)) if cells is not None]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def _make_row(record: Record, state: State, collection: str | None) -> dict[str, Any]:
    """Return a record as a row of the log's table."""
    mutations = [step for step in record.mutations if collection in (None, step.collection)]
    parts = [part for step in mutations if isinstance(step, kinds.Append | kinds.Pend) for part in step.parts]
    # A commit to several collections has the same note for each.
    notes = {(n.message, *sorted(n.metadata.items())): n for n in mutations if isinstance(n, kinds.Note)}.values()
    ids = dict.fromkeys(step.collection for step in mutations if step.collection)
    return {
        "seqno": record.seqno,
        "moment": datetime.fromtimestamp(record.written_ms / 1000, UTC),
        "writer": record.writer,
        "operations": [step.__struct_config__.tag for step in mutations if not isinstance(step, kinds.Note)],
        "collections": [id_ if (entry := state.entries.get(id_)) is None else entry.name for id_ in ids],
        "updates": sum(part.rows for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "message": "\n".join(note.message for note in notes if note.message) or None,
        "metadata": [item for note in notes for item in note.metadata.items()],
    }


SUBMITTERS_MAX = 4096
RANGES_MAX = 4096  # Ranges of one submitter; all operations of one request have smaller numbers.


class Submissions:
    """The submissions in records since a seqno. One thread at a time adds; others may read.

    Records are noted before the state moves, so a reader misses none that its state includes.
    """

    def __init__(self, seqno: int) -> None:
        self._since = seqno
        self._ranges: dict[str, tuple[tuple[int, int, int], ...]] = {}  # (first, last, seqno), the newest last.

    def note(self, record: Record) -> None:
        """Add the submissions of the next record."""
        if record.submitted is UNSET:
            return
        for submitted in record.submitted:
            earlier_ranges = self._ranges.pop(submitted.submitter, ())
            self._ranges[submitted.submitter] = (*earlier_ranges, (submitted.first, submitted.last, record.seqno))[
                -RANGES_MAX:
            ]
        while len(self._ranges) > SUBMITTERS_MAX:
            oldest = next(iter(self._ranges))
            self._since = max(self._since, self._ranges.pop(oldest)[-1][2])

    def skip_records(self, seqno: int) -> None:
        """Note that records up to seqno were not read, because a checkpoint replaced them."""
        self._since = max(self._since, seqno)

    def knows(self, after: int) -> bool:
        """Return whether all records after a seqno were added."""
        return self._since <= after

    def find_seqno(self, submitter: str, number: int) -> int | None:
        """Return the seqno of the record with an operation; None if no added record has it."""
        ranges = self._ranges.get(submitter, ())
        return next((seqno for first, last, seqno in ranges if first <= number <= last), None)

    def is_past(self, submitter: str, number: int) -> bool:
        """Return whether an operation without a record can no longer get one."""
        return any(last >= number for _, last, _ in self._ranges.get(submitter, ()))
