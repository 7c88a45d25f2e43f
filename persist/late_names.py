"""Names of a room that are loaded when one of them is used, because what they need takes longer than `persist.open`."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def late_names(room: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a room. The room imports the same names for type checkers, so tests see them, too.

    Args:
        room: the name of the package.
        modules: for each module of it, the names that it has.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def late_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(import_module(f"{room}.{module_of[name]}"), name)

    return late_name
