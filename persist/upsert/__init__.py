"""Keyed streams in, differential updates out: what becomes of events, as pure functions of columns.

Promises: the same events, arrivals and present rows give the same updates, whoever asks, when, and in however many
steps. Nothing here does I/O or knows the log; `persist.engine.keyed` reads, uploads and commits.

The names that users import are loaded when one of them is used: a client that upserts needs none of them.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names

if TYPE_CHECKING:
    from persist.upsert.envelopes import (
        Events,
        NumberGuess,
        Unreadable,
        canal,
        debezium,
        exact_fields,
        in_order,
        maxwell,
        parse,
        plain,
        reason_of,
        sifted,
        suspects,
    )
    from persist.upsert.machines import (
        AppendDistinct,
        Checked,
        Event,
        History,
        InsertIfAbsent,
        PerKey,
        Sessions,
    )

from persist.upsert.events import (
    Prepared,
    dead_filter,
    event_fields,
    events_schema,
    in_order_of_arrival,
    is_tombstone,
    lifted_events,
    live_filter,
    marked,
    prepared,
    replaced,
    resolved,
)
from persist.upsert.keyed import (
    Behind,
    Keyed,
    check_same,
    described,
    form_of,
    is_counted,
    late_column,
    machine_of,
    watermark_to_int,
)
from persist.upsert.machine import DELETED, NAME, SEQ, Machine, Replacing
from persist.upsert.taking import EventTable, joined_events, to_events, watermark_below, watermarks_of

_ENVELOPES = ("Events", "canal", "debezium", "maxwell", "plain")
_JSON = ("NumberGuess", "Unreadable", "exact_fields", "in_order", "parse", "reason_of", "sifted", "suspects")
__all__ = [
    "AppendDistinct",
    "Checked",
    "Event",
    "History",
    "InsertIfAbsent",
    "PerKey",
    "Sessions",
    *_ENVELOPES,
    *_JSON,
]
__getattr__ = late_names(
    __name__,
    {
        "envelopes": (*_ENVELOPES, *_JSON),
        "machines": (
            "AppendDistinct",
            "Checked",
            "Event",
            "History",
            "InsertIfAbsent",
            "PerKey",
            "Sessions",
        ),
    },
)
