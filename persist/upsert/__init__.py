"""Keyed streams in, differential updates out: what becomes of events, as pure functions of columns.

Promises: the same events, arrivals and present rows give the same updates, whoever asks, when, and in however many
steps. Nothing here does I/O or knows the log; `persist.engine.keyed` reads, uploads and commits.

The names that users import are loaded when one of them is used: a client that upserts needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persist.upsert.envelopes import BadMessage, Events, canal, debezium, maxwell
    from persist.upsert.machines import (
        AppendDistinct,
        BeforeDiffers,
        Checked,
        Event,
        History,
        InsertIfAbsent,
        PerKey,
        Sessions,
    )

__all__ = [
    "AppendDistinct",
    "BadMessage",
    "BeforeDiffers",
    "Checked",
    "Event",
    "Events",
    "History",
    "InsertIfAbsent",
    "PerKey",
    "Sessions",
    "canal",
    "debezium",
    "maxwell",
]
_ENVELOPES = ("BadMessage", "Events", "canal", "debezium", "maxwell")


def __getattr__(name: str) -> Any:
    if name in __all__:
        room = "envelopes" if name in _ENVELOPES else "machines"
        return getattr(import_module(f"persist.upsert.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
