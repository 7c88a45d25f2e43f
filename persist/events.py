"""Events by key, and messages of change data capture; see `docs/use/events.md`."""

from persist.connect.envelopes import Events, canal, debezium, maxwell, plain
from persist.core.keyed.machines import AppendDistinct, Checked, Event, History, InsertIfAbsent, PerKey, Sessions

__all__ = [
    "AppendDistinct",
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
    "plain",
]
