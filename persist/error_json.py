"""Errors as JSON, so that whoever asks another process for a commit gets the same error as if it had tried by itself.

    error = {"kind": name of the class, "args": [value, …], "more": {attribute: value}} | {"kind", "text"}
    value = null | bool | int | float | text | [value, …] (a tuple) | {"frontier": [time, …]}
          | {"unsealed": [the fields of an UnsealedWrites]} | {"items": [[key, value], …]} (a dict)

An error that holds other values, or that is of no kind known here, is told by its text, as the next more general kind.
Only classes of this package are made of it, from values of these types: nothing that is read is executed.
"""

from collections.abc import Mapping
from dataclasses import astuple
from importlib import import_module
from typing import Any

from persist.antichain import Antichain
from persist.blob import Conflict, InvalidUsage, PersistError
from persist.errors.beyond_upper import UnsealedWrites
from persist.errors.conflicts import Superseded

_all = import_module("persist.errors")
_KINDS: dict[str, type[PersistError]] = {name: getattr(_all, name) for name in _all.__all__} | {
    "Superseded": Superseded
}
_GENERAL = (InvalidUsage, Conflict)
_SCALARS = (type(None), bool, int, float, str)


def error_to_json(error: PersistError) -> dict[str, Any]:
    """Return what `error_from_json` makes an equal error of."""
    kind = type(error)
    if _KINDS.get(kind.__name__) is kind:
        try:
            more = {name: _value(value) for name, value in vars(error).items() if not name.startswith("__")}
            written = {"kind": kind.__name__, "args": [*map(_value, error.args)], "more": more}
            error_from_json(written)
            return written
        except (TypeError, ValueError):
            pass
    general = next((each.__name__ for each in _GENERAL if isinstance(error, each)), "PersistError")
    return {"kind": general, "text": str(error)}


def error_from_json(written: dict[str, Any]) -> PersistError:
    """Return an error. Raises ValueError if what is written is none."""
    match written:
        case {"kind": str(kind), "text": str(text), **rest} if kind in _KINDS and not rest:
            return _KINDS[kind](text)
        case {"kind": str(kind), "args": list(args), "more": dict(more), **rest} if kind in _KINDS and not rest:
            try:
                error = _KINDS[kind](*map(_read, args))
                vars(error).update({name: _read(value) for name, value in more.items()})
            except (TypeError, AttributeError) as cause:
                raise ValueError(f"an error of kind {kind} is not made of what it says: {cause}") from cause
            return error
    raise ValueError(f"{written!r:.200} is not an error that is known here")


def _value(value: Any) -> Any:
    if isinstance(value, Antichain):
        return {"frontier": [*value.elements]}
    if isinstance(value, UnsealedWrites):
        return {"unsealed": [_value(each) for each in astuple(value)]}
    if isinstance(value, tuple | list):
        return [_value(each) for each in value]
    if isinstance(value, Mapping):
        return {"items": [[_value(each), _value(held)] for each, held in value.items()]}
    if type(value) not in _SCALARS:
        raise TypeError(f"{type(value)} has no written form")
    return value


def _read(value: Any) -> Any:
    match value:
        case {"frontier": list(times), **rest} if not rest and len(times) <= 1:
            return Antichain(*times)
        case {"unsealed": list(given), **rest} if not rest:
            return UnsealedWrites(*map(_read, given))
        case {"items": list(items), **rest} if not rest:
            return {_read(each): _read(held) for each, held in items}
        case list():
            return tuple(map(_read, value))
        case dict():
            raise ValueError(f"{value!r:.200} is no value of an error")
    return value
