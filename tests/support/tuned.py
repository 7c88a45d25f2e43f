"""Settings for tests, which know the knobs that users leave alone beside those that they turn."""

from dataclasses import fields, replace
from typing import Any

import persist
from persist.core.log.fields import Policy
from persist.core.settings import Tuning
from persist.engine.location.opening import change_policy

_KNOBS = frozenset(field.name for field in fields(Tuning))
_POLICY = frozenset(Policy.__struct_fields__)


def tuned(tuning: Any = None, **changed: Any) -> persist.Settings:
    """Return settings in which some values are changed, those of `Tuning` and of the location's policy, too."""
    tuning = tuning or Tuning()
    policy = {name: _whole(changed.pop(name)) for name in _POLICY & changed.keys()}
    knobs = {name: changed.pop(name) for name in _KNOBS & changed.keys()}
    tuning = replace(tuning, **knobs, policy=change_policy(tuning.policy, policy))
    return persist.Settings(tuning=tuning, **changed)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
