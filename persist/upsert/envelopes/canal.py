"""Canal's JSON: the rows of a table of MySQL that one statement changed in each message; also what TiCDC writes so.

    message = {"database": …, "table": …, "type": type, "data": [row, …], "old": [{column: value, …}, …] or null,
               "pkNames": [column, …], "mysqlType": {column: type, …}, "isDdl": …, "es": …, "ts": …, …}
    type    = "INIT" | "INSERT" | "UPDATE" | "DELETE" | DDL

All values are text; bytes are text whose characters are the bytes. `old` has the columns that an update changed; it
is null or an empty list where nothing was before. "INIT" is what a table held in the beginning.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from persist.upsert.envelopes.binary import from_latin_1
from persist.upsert.envelopes.binlog import Dialect, events_of
from persist.upsert.envelopes.mysql_types import arrow_type
from persist.upsert.envelopes.wanted import Events, OnError, SchemaLike, Wanted

CANAL = Dialect(
    name="Canal",
    writes=("INIT", "INSERT", "UPDATE"),
    deletes="DELETE",
    skipped=("TIDB_WATERMARK",),
    listed=True,
    key_at="pkNames",
    types_at="mysqlType",
    binary=from_latin_1,
    arrow_type=arrow_type,
)


def canal(
    messages: Any,
    *,
    key: str | Sequence[str] | None = None,
    schema: SchemaLike = None,
    table: str | None = None,
    time: str | None = None,
    metadata: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
) -> Events:
    """Read Canal's messages as events for `Collection.upsert`.

    Each row of a message is an event; an update that changes the key is two: the old key is deleted first. Messages
    about tables are refused.

    Args:
        messages: record batches, a table or a frame with the column "value", in the order of arrival; or a column, or
            a list, of values alone. Keys of messages are not needed, and not looked at.
        key: the columns of the key; those of `pkNames` if None.
        schema: the types of the columns, key included; others are left out. None takes those of `mysqlType`, or text
            where there are none.
        table: "table" or "database.table": messages of others are passed over. None if all are of one.
        time: where the time of an event is, such as "es", or the name of a column beside the messages: it becomes
            `_time`. None if the caller of `upsert` says the time.
        metadata: further columns for the value, such as `{"es": "es"}`.
        on_error: "raise", or "collect" bad messages in `rejected`.

    Raises:
        BadMessage: a message is bad, and on_error="raise".
        InvalidUsage: an option is wrong, or the messages leave open what it would have said.
    """
    return events_of(messages, Wanted.of(key, schema, time, metadata, None, on_error), table, CANAL)
