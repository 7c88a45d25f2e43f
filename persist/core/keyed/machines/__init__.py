"""Machines in the box, besides that of `upsert`: what else an event may do to its key.

Promises those of `persist.core.keyed.machine`: each is a function of what its keys hold and of the events, the same in
whatever steps these are taken. Vectorised over all keys at once; `PerKey` is not.
"""

from collections.abc import Callable, Mapping
from typing import Any

from persist.core.keyed.machine import Machine
from persist.core.keyed.machines.spans import History, Sessions
from persist.core.keyed.machines.steps import AppendDistinct, Checked, Event, InsertIfAbsent, PerKey

# By name and version, from options to the machine: what is stored says which it was, and nobody has to give it again.
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
