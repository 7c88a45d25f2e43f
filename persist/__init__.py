"""Definite, time-varying collections on object storage; see `persist.open`.

The names that users import are those of `persist`. They are loaded when the first of them is used, because
Arrow and NumPy take longer to load than the help of the command line may take in all. A new name is added there.
"""

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from persist import __version__ as __version__

if TYPE_CHECKING:
    from persist import public
    from persist.core import errors as errors
    from persist.public import *  # noqa: F403

    __all__: list[str] = []
    __all__ += public.__all__


class _Package(ModuleType):
    """Keeps an imported room from taking the place of a public name: `fsck`, `ingest`, `egress` are functions."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("fsck", "ingest", "egress") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a function that mentions this package be sent to Spark's workers, as it may that mentions a module."""
        return import_module, (self.__name__,)


if not TYPE_CHECKING:  # Else any name would be right for a type checker.

    def __getattr__(name: str) -> Any:
        if not name.startswith("_") or name == "__all__":
            public = _loaded()
            globals().update({export: getattr(public, export) for export in ("__all__", *public.__all__)})
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _loaded() -> ModuleType:
    """Load the public names. Modules make no circles that could be freed, so nobody looks for any meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module("persist")
    finally:
        if was_enabled:
            gc.enable()


def __dir__() -> list[str]:
    """Offer what users work with, and not the modules that it comes from."""
    return ["__version__", "errors", *_loaded().__all__]


sys.modules[__name__].__class__ = _Package
