"""Maxwell's JSON: one row of a table of MySQL in each message.

    message = {"database": …, "table": …, "type": type, "ts": …, "data": row, "old": {column: value, …}, …}
    type    = "insert" | "update" | "delete" | "bootstrap-insert" | "bootstrap-start" | "bootstrap-complete" | DDL

`old` has the columns that an update changed; `primary_key_columns` is there if Maxwell was told to write it. Moments
are text without a zone, bytes are base64.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from persist.upsert.envelopes.binary import from_base64
from persist.upsert.envelopes.binlog import Dialect, events_of
from persist.upsert.envelopes.mysql_types import arrow_type
from persist.upsert.envelopes.wanted import Events, OnError, SchemaLike, Wanted

MAXWELL = Dialect(
    name="Maxwell",
    writes=("insert", "update", "bootstrap-insert"),
    deletes="delete",
    skipped=("bootstrap-start", "bootstrap-complete", "heartbeat"),
    listed=False,
    key_at="primary_key_columns",
    types_at=None,
    binary=from_base64,
    arrow_type=arrow_type,
)


def maxwell(
    messages: Any,
    *,
    key: str | Sequence[str] | None = None,
    schema: SchemaLike = None,
    table: str | None = None,
    time: str | None = None,
    metadata: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
) -> Events:
    """Read Maxwell's messages as events for `Collection.upsert`.

    An update that changes the key is two events: the old key is deleted first. Messages about tables are refused.

    Args:
        messages: record batches, a table or a frame with the column "value", in the order of arrival; or a column, or
            a list, of values alone. Keys of messages are not needed, and not looked at.
        key: the columns of the key; needed unless the messages have `primary_key_columns`.
        schema: the types of the columns, key included; others are left out. None takes what JSON shows, which may
            differ from one call to the next.
        table: "table" or "database.table": messages of others are passed over. None if all are of one.
        time: where the time of an event is, such as "ts", or the name of a column beside the messages: it becomes
            `_time`. None if the caller of `upsert` says the time.
        metadata: further columns for the value, such as `{"xid": "xid"}`.
        on_error: "raise", or "collect" bad messages in `rejected`.

    Raises:
        BadMessage: a message is bad, and on_error="raise".
        InvalidUsage: an option is wrong, or the messages leave open what it would have said.
    """
    return events_of(messages, Wanted.of(key, schema, time, metadata, None, on_error), table, MAXWELL)
