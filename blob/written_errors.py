"""Encodes errors as data, the form in which they are sent from one process to another.

    error = {"kind": name of a class, "text": its message}
          | {"kind", "text", "args": [value, …], "more": {attribute: value}}
    value = null | bool | int | float | text | [value, …] (a tuple) | {"items": [[key, value], …]} (a dict)
          | {tag: [value, …]} (of a type that `WrittenErrors` is given)

An error with attributes is built again from its arguments. An error that has values of other types, or whose class is
not known to both sides, is encoded as its text and the nearest base class that is known. Only these classes are built,
from values of these types, so decoding executes no code that it is sent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeAlias

from persist.blob.errors import PersistError

WrittenError: TypeAlias = dict[str, Any]
_SCALARS = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Tag:
    """The encoding of a type's values: a name with a list."""

    name: str
    kind: type
    write: Callable[[Any], Sequence[Any]]
    read: Callable[..., Any]


class WrittenErrors:
    """Encodes errors of known classes as data, and decodes them."""

    def __init__(
        self, kinds: Iterable[type[PersistError]], otherwise: type[PersistError], tags: Sequence[Tag] = ()
    ) -> None:
        """Take the classes that both sides know.

        Args:
            otherwise: the class for errors of all other classes.
            tags: types of values besides the plain ones.
        """
        self._kinds = {kind.__name__: kind for kind in (*kinds, otherwise)}
        self._otherwise = otherwise
        self._tags = tags

    def encode_error(self, error: PersistError, hide: Callable[[str], str] = str) -> WrittenError:
        """Encode an error as data that `decode_error` decodes.

        `hide`: removes from each text what the other side may not see.
        """
        kind, text = type(error), hide(str(error))
        if self._kinds.get(kind.__name__) is kind:
            if not is_dataclass(kind) and error.args == (str(error),) and not _get_attributes(error):
                return {"kind": kind.__name__, "text": text}
            try:
                more = {name: self._encode_value(value, hide) for name, value in _get_attributes(error).items()}
                args = [self._encode_value(value, hide) for value in error.args]
                written = {"kind": kind.__name__, "text": text, "args": args, "more": more}
                self.decode_error(written)
                return written
            except (TypeError, ValueError):
                pass
        return {"kind": self._find_general_class(kind).__name__, "text": text}

    def decode_error(self, written: WrittenError) -> PersistError:
        """Decode an error; raise ValueError for an unknown kind."""
        match written:
            case {"kind": str(name), "text": str(text), **rest} if name in self._kinds and not rest:
                kind = self._kinds[name]
                if not is_dataclass(kind):
                    return kind(text)
            case {"kind": str(name), "text": str(), "args": list(args), "more": dict(more), **rest} if (
                name in self._kinds and not rest
            ):
                try:
                    error = self._kinds[name](*map(self._decode_value, args))
                    vars(error).update({name: self._decode_value(value) for name, value in more.items()})
                except (TypeError, AttributeError) as cause:
                    raise ValueError(f"an error of kind {name} cannot be decoded: {cause}") from cause
                return error
        raise ValueError(f"{written!r:.200} is not an error that is known here")

    def _find_general_class(self, kind: type[PersistError]) -> type[PersistError]:
        """Return the nearest known base class whose only argument is a text."""
        shared = (self._kinds.get(base.__name__) for base in kind.__mro__)
        return next((base for base in shared if base is not None and not is_dataclass(base)), self._otherwise)

    def _encode_value(self, value: Any, hide: Callable[[str], str]) -> Any:
        """Encode an attribute of an error, with secrets hidden."""
        if isinstance(value, str):
            return hide(value)
        for tag in self._tags:
            if isinstance(value, tag.kind):
                return {tag.name: [self._encode_value(item, hide) for item in tag.write(value)]}
        if isinstance(value, tuple | list):
            return [self._encode_value(item, hide) for item in value]
        if isinstance(value, Mapping):
            return {
                "items": [
                    [self._encode_value(key, hide), self._encode_value(entry, hide)] for key, entry in value.items()
                ]
            }
        if type(value) not in _SCALARS:
            raise TypeError(f"{type(value)} has no written form")
        return value

    def _decode_value(self, value: Any) -> Any:
        """Decode an attribute of an error."""
        match value:
            case {"items": list(items), **rest} if not rest:
                return {self._decode_value(key): self._decode_value(item) for key, item in items}
            case list():
                return tuple(map(self._decode_value, value))
            case dict():
                for tag in self._tags:
                    if value.keys() == {tag.name} and isinstance(value[tag.name], list):
                        return tag.read(*map(self._decode_value, value[tag.name]))
                raise ValueError(f"{value!r:.200} is not a value of an error")
        return value


def _get_attributes(error: PersistError) -> dict[str, Any]:
    """Return the attributes of an error by name."""
    return {name: value for name, value in vars(error).items() if not name.startswith("__")}
