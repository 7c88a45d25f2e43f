"""Settings for tests, which know the knobs that users leave alone beside those that they turn."""

from dataclasses import fields, replace
from typing import Any

import persist
from persist.core.settings import Tuning

_KNOBS = frozenset(field.name for field in fields(Tuning))


def tuned(tuning: Any = None, **changed: Any) -> persist.Settings:
    """Return settings in which some values are changed; those that are fields of `Tuning` are changed there."""
    knobs = {name: changed.pop(name) for name in _KNOBS & changed.keys()}
    return persist.Settings(tuning=replace(tuning or Tuning(), **knobs), **changed)
