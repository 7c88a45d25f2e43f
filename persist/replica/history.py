"""The records of the log as a table: who did what when, and what they had to say about it.

The log is kept for a while and not for ever (`Settings.log_retention_s`), so the table begins where the log does.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from persist.blob import Blob, InvalidUsage
from persist.log import Record, kinds, read_record
from persist.state import State

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


def log_table(blob: Blob, state: State, last: int | None, collection: str | None, map_all: Map) -> pa.Table:
    """Return a row for each of the last records up to state, or for those among them that name a collection.

    Cost: a GET for each record, and one for each long part list.

    Args:
        last: how many records are looked at; None for all that are kept.
        map_all: calls a function for each of some items, perhaps several at a time, and gives the answers in order.

    Raises:
        InvalidUsage: last is no number of records.
    """
    if last is not None and (isinstance(last, bool) or not isinstance(last, int) or last < 1):
        raise InvalidUsage(f"last={last!r:.100} is not a number of records: give 1 or more, or None for all")
    first = state.control.log_floor if last is None else max(state.control.log_floor, state.seqno + 1 - last)
    names = {id_: entry.name for id_, entry in state.entries.items()}

    def row(seqno: int) -> dict[str, Any] | None:
        record = read_record(blob, seqno)
        # One that is gone was truncated meanwhile.
        if record is None or (collection is not None and all(m.collection != collection for m in record.mutations)):
            return None
        return _row(record, names, collection)

    rows = [found for found in map_all(row, range(first, state.seqno + 1)) if found is not None]
    return pa.Table.from_pylist(rows, schema=COLUMNS)


def _row(record: Record, names: dict[str, str], collection: str | None) -> dict[str, Any]:
    mutations = [each for each in record.mutations if collection in (None, each.collection)]
    parts = [part for each in mutations if isinstance(each, kinds.Append | kinds.Pend) for part in each.parts]
    # A commit to several collections says the same with each of them.
    notes = {(n.message, *sorted(n.metadata.items())): n for n in mutations if isinstance(n, kinds.Note)}.values()
    ids = dict.fromkeys(each.collection for each in mutations if each.collection)
    return {
        "seqno": record.seqno,
        "moment": datetime.fromtimestamp(record.written_ms / 1000, UTC),
        "writer": record.writer,
        "operations": [each.__struct_config__.tag for each in mutations if not isinstance(each, kinds.Note)],
        "collections": [names.get(id_, id_) for id_ in ids],
        "updates": sum(part.rows for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "message": "\n".join(note.message for note in notes if note.message) or None,
        "metadata": [item for note in notes for item in note.metadata.items()],
    }
