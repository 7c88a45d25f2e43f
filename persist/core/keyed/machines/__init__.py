"""Built-in machines besides `upsert`: other effects of an event on its key.

All keep the promises of `persist.core.keyed.machine`: results depend only on the present rows and the events, not on
their division into steps. All but `PerKey` are vectorised over all keys.
"""

from collections.abc import Callable, Mapping
from typing import Any

from persist.core.keyed.machine import Machine
from persist.core.keyed.machines.spans import History, Sessions
from persist.core.keyed.machines.steps import AppendDistinct, Checked, Event, InsertIfAbsent, PerKey

# By name and version, functions from stored options to the machine, so that users need not pass it again.
BOXED: dict[tuple[str, int], Callable[[Mapping[str, Any]], Machine]] = {
    (kind.name, kind.version): lambda options, kind=kind: kind(**options)  # type: ignore[misc]
    for kind in (AppendDistinct, Checked, History, InsertIfAbsent, Sessions)
}

__all__ = [
    "BOXED",
    "AppendDistinct",
    "Checked",
    "Event",
    "History",
    "InsertIfAbsent",
    "PerKey",
    "Sessions",
]
