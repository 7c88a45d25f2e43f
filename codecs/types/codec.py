"""Codecs: convert Python values to one Arrow column and back; their name and version are stored.

A codec must be *canonical*: equal values have equal encodings, because rows are compared in stored form. A changed
encoding needs a new version. There is no registry: users pass their codec object to `create_or_load`, and its name and
version are checked against the stored ones. No built-in codec can execute what it reads.

`Utf8`, `Binary` and `Int64` store `None` as NULL. `Json` stores `None` as the text `null`.
"""

import json
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import pyarrow as pa

from persist.blob.errors import Corruption
from persist.codecs.errors import InvalidUpdate, SchemaMismatch
from persist.codecs.types.arrow_types import check_type
from persist.codecs.types.values import shorten, to_array, to_values

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Codec(Generic[T]):
    """Converts values of one Python type to one Arrow column, and back.

    A subclass sets `name`, `version` and `arrow_type` and defines `encode` and `decode`; `encode_all` and
    `decode_all` may be overridden for speed. Two values that are equal must have equal encodings. Spark
    pickles the object to its tasks.

    Attributes:
        name: 1 to 64 of A-Z a-z 0-9 _ . -, and not a built-in codec's; stored with the collection.
        version: 1 or more; raise it with every change of the encoding.
        arrow_type: the type of the column.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    arrow_type: ClassVar[pa.DataType]

    def encode(self, value: T) -> Any:
        """Encode one value as input of `pyarrow.array(..., arrow_type)`; raise any error to refuse it."""
        raise NotImplementedError(f"{type(self).__name__} does not define encode")

    def decode(self, stored: Any) -> T:
        """Decode one element of the column (None for NULL)."""
        raise NotImplementedError(f"{type(self).__name__} does not define decode")

    def encode_all(self, values: Sequence[T]) -> pa.Array:
        """Return the column of many values; raises InvalidUpdate naming the index of the first refused."""
        try:
            stored = list(map(self.encode, values))
        except Exception as error:
            self._refuse(values, error)
        return to_array(stored, self.arrow_type, f"codec {self.name!r}")

    def decode_all(self, array: pa.Array | pa.ChunkedArray) -> list[T]:
        """Return the values of a column."""
        return list(map(self.decode, to_values(array, f"codec {self.name!r}")))

    def check_stored(self, column: pa.ChunkedArray) -> None:
        """Raise InvalidUpdate unless each stored value is NULL or the encoding of its value.

        Two encodings of one value would be two records that do not cancel each other. Each distinct value is checked
        once.
        """
        what = f"codec {self.name!r}"
        for row, stored in _iterate_firsts(to_values(column, what)):
            try:
                (again,) = to_values(self.encode_all([self.decode(stored)]), what)
            except Exception as error:
                raise InvalidUpdate(
                    f"update {row} has {shorten(stored)}, which {what} cannot read "
                    f"({str(error) or type(error).__name__}). Give "
                    "what its encode() returns, or tuples, which are encoded by it."
                ) from error
            if again != stored and not (again != again and stored != stored):
                raise InvalidUpdate(
                    f"update {row} has {shorten(stored)}, which {what} writes as {shorten(again)}. Give what its "
                    "encode() returns, or tuples, which are encoded by it."
                )

    def _refuse(self, values: Sequence[T], error: Exception) -> NoReturn:
        """Raise InvalidUpdate for the first value that the codec refuses."""
        for index, value in enumerate(values):
            try:
                self.encode(value)
            except Exception as reason:
                raise InvalidUpdate(
                    f"update {index} has {shorten(value)} ({type(value).__name__}), which codec {self.name!r} cannot "
                    f"encode: {reason or type(reason).__name__}. Give a value it takes."
                ) from reason
        raise InvalidUpdate(f"codec {self.name!r} could not encode the updates: {error}") from error


class _Plain(Codec[T]):
    """A codec that stores values as they are; None is NULL."""

    def encode(self, value: T) -> Any:
        return to_array([value], self.arrow_type, f"codec {self.name!r}")[0].as_py()

    def decode(self, stored: Any) -> T:
        return stored  # type: ignore[no-any-return]

    def encode_all(self, values: Sequence[T]) -> pa.Array:
        return to_array(values, self.arrow_type, f"codec {self.name!r}")

    def decode_all(self, array: pa.Array | pa.ChunkedArray) -> list[T]:
        return to_values(array, f"codec {self.name!r}")

    def check_stored(self, column: pa.ChunkedArray) -> None:
        """Do nothing, because the codec has every value of the column's type."""


class Utf8(_Plain[str]):
    """Text, as Arrow string."""

    name = "utf8"
    arrow_type = pa.string()


class Binary(_Plain[bytes]):
    """Bytes, as Arrow binary."""

    name = "binary"
    arrow_type = pa.binary()


class Int64(_Plain[int]):
    """Integers from -2**63 to 2**63 - 1, as Arrow int64."""

    name = "int64"
    arrow_type = pa.int64()


class Json(Codec[Any]):
    """JSON values as canonical text: keys sorted by code point, no spaces, UTF-8, -0.0 as 0.0.

    Takes None, bool, int, float, str, list, and dict with str keys, and refuses what JSON would change: NaN,
    infinities, tuples, keys that are not text. `1`, `1.0` and `true` are three different values.
    """

    name = "json"
    arrow_type = pa.string()

    def encode(self, value: Any) -> str:
        """Return the canonical text; raise ValueError or TypeError if it would decode to another value."""
        text = _dumps(value)
        again = json.loads(text)
        if again != value:
            raise ValueError("JSON would change it (tuples to lists, or keys to text)")
        return _dumps(_replace_negative_zero(again)) if "-0.0" in text else text

    def decode(self, stored: Any) -> Any:
        """Return the value of a text; None for NULL, which `encode` never returns.

        Raises Corruption for a text that `encode` never returns: not JSON, NaN, an integer of thousands of digits.
        """
        try:
            return None if stored is None else json.loads(stored, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Corruption(
                f"codec 'json' cannot read {shorten(stored)}: {error}. It was not written by it."
            ) from error


class Unit(Codec[None]):
    """A codec without a column: the only value is None."""

    name = "unit"

    def encode(self, value: None) -> None:
        """Return None; raises ValueError for anything else."""
        if value is not None:
            raise ValueError("the only value of unit is None")

    def decode(self, stored: Any) -> None:
        """Return None."""


BUILT_IN: dict[str, type[Codec[Any]]] = {c.name: c for c in (Utf8, Binary, Int64, Json)}


def _iterate_firsts(values: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield each distinct object that is not None, with its first row number."""
    yielded = set()
    for row, value in enumerate(values):
        if value is None or (isinstance(value, Hashable) and value in yielded):
            continue
        if isinstance(value, Hashable):
            yielded.add(value)
        yield row, value


def check_codec(codec_or_class: Codec[Any] | type[Codec[Any]]) -> Codec[Any]:
    """Return the codec object for a codec or its class; raises SchemaMismatch if it cannot be one."""
    try:
        codec = codec_or_class() if isinstance(codec_or_class, type) else codec_or_class
    except TypeError as error:
        raise SchemaMismatch(
            f"codec class {codec_or_class!r} needs arguments ({error}): give an instance of it"
        ) from error
    kind = type(codec).__name__
    name, version = getattr(codec, "name", None), codec.version
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SchemaMismatch(f"codec {kind} has the name {name!r:.80}: set 1 to 64 characters of A-Z a-z 0-9 _ . -")
    if name == Unit.name or BUILT_IN.get(name, type(codec)) is not type(codec):
        raise SchemaMismatch(f"codec {kind} has the name {name!r} of a built-in codec: set a name of its own")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SchemaMismatch(f"codec {kind} has the version {version!r}: set an integer of 1 or more")
    check_type(getattr(codec, "arrow_type", None), f"codec {name!r}")
    return codec


def _dumps(value: Any) -> str:
    """Return a value as canonical JSON text."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def _refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def _replace_negative_zero(value: Any) -> Any:
    """Replace -0.0 by 0.0 in a JSON value."""
    if isinstance(value, list):
        return [_replace_negative_zero(v) for v in value]
    if isinstance(value, dict):
        return {k: _replace_negative_zero(v) for k, v in value.items()}
    return 0.0 if isinstance(value, float) and value == 0.0 else value
