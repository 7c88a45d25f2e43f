"""Numbers of JSON in float columns: detects inexact ones, and finds exact types.

`pyarrow.json` silently rounds a whole number beyond 2^53 to the nearest double, and reads one beyond float32 as
infinity. A search of the bytes finds such numbers; only documents with such numbers are read again, slowly.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.types.arrow_types import list_inner_fields
from persist.codecs.types.texts import is_exact_float
from persist.connect.envelopes.messages import Unreadable

_LONG = {64: rb"(?:^|[^0-9.])[0-9]{16,}(?![0-9eE])", 32: rb"(?:^|[^0-9.])[0-9]{8,}"}
_FAR = rb"|[eE][+-]?[0-9]{2}|0\.0{30}"
DIGITS_MAX = 38


def check_numbers(texts: pa.Array, fields: pa.Schema) -> None:
    """Raise Unreadable if a float column would round a number in a JSON document."""
    bits = _find_least_bits(pa.struct(list(fields)))
    if bits is None or not len(texts):
        return
    doubtful = re.compile(_LONG[64 if bits == 64 else 32] + _FAR)
    if doubtful.search(_view_bytes(texts)) is None:
        return
    for text in texts.to_pylist():
        if doubtful.search(text):
            for path, number, width in _find_numbers(text, fields):
                if not is_exact_float(number, width):
                    raise Unreadable(f"column {path!r} of type {_FLOATS[width]} would round {number:.60}")


_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}


def infer_exact_fields(fields: pa.Schema, read: Callable[[], Iterable[pa.Array]]) -> pa.Schema:
    """Return inferred fields, with decimals where doubles would round numbers of the documents."""
    doubtful = re.compile(_LONG[64] + _FAR)
    if _find_least_bits(pa.struct(list(fields))) is None or not any(
        doubtful.search(_view_bytes(texts)) for texts in read()
    ):
        return fields
    guesses: dict[str, NumberGuess] = {}
    for texts in read():
        for text in texts.to_pylist():
            for path, number, _ in _find_numbers(text, fields):
                guesses.setdefault(path, NumberGuess()).add(number)
    return pa.schema([(field.name, _replace_inexact(field.type, field.name, guesses)) for field in fields])


def _replace_inexact(kind: pa.DataType, path: str, guesses: "dict[str, NumberGuess]") -> pa.DataType:
    """Return a type in which floats are replaced as the numbers at their paths require."""
    if pat.is_struct(kind):
        return pa.struct([(f.name, _replace_inexact(f.type, f"{path}.{f.name}", guesses)) for f in kind])
    if pat.is_list(kind):
        return pa.list_(_replace_inexact(kind.value_type, f"{path}[]", guesses))
    return guesses[path].infer_type(path) if pat.is_floating(kind) and path in guesses else kind


@dataclass(slots=True)
class NumberGuess:
    """Chooses the type of a column from its numbers: double if that is exact, or else decimal.

    Attributes:
        inexact: a number that a double rounds.
        odd: a number that no decimal can represent.
        whole, scale: digits before and behind the point.
    """

    inexact: str | None = None
    odd: str | None = None
    whole: int = 0
    scale: int = 0

    def add(self, number: str) -> None:
        """Take one more number of the column into account."""
        if not is_exact_float(number):
            self.inexact = self.inexact or number
        whole, _, fraction = number.lstrip("+-").partition(".")
        if not (whole + fraction).isdigit():
            self.odd = self.odd or number
        self.whole, self.scale = max(self.whole, len(whole)), max(self.scale, len(fraction))

    def infer_type(self, path: str) -> pa.DataType:
        """Return float64, or a decimal for all numbers; raise InvalidUsage without one."""
        if self.inexact is None:
            return pa.float64()
        if self.odd is None and self.whole + self.scale <= DIGITS_MAX:
            return pa.decimal128(DIGITS_MAX, self.scale)
        also = "" if self.odd in (None, self.inexact) else f" beside {self.odd:.60}"
        raise InvalidUsage(
            f"column {path!r} has the number {self.inexact:.60}{also}, which a double would round, and no decimal of "
            f"{DIGITS_MAX} digits holds all numbers of the column. Write them as text, or mend them"
        )


def _view_bytes(texts: pa.Array) -> memoryview:
    """Return all bytes of a large_binary array, without a copy."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
    return memoryview(texts.buffers()[2] or b"")[offsets[0] : offsets[-1]]


@lru_cache(maxsize=256)
def _find_least_bits(kind: pa.DataType) -> int | None:
    """Return the bits of the narrowest float inside of a type; None without floats."""
    if pat.is_floating(kind):
        return int(kind.bit_width)
    bits = [
        nested_bits
        for field in (list_inner_fields(kind) if pat.is_nested(kind) else ())
        if (nested_bits := _find_least_bits(field.type))
    ]
    return min(bits, default=None)


def _find_numbers(text: bytes, fields: pa.Schema) -> Iterator[tuple[str, str, int]]:
    """Yield each number of a document that becomes a float: (text, path, bits)."""
    try:
        document = _make_decoder(fields).decode(text)
    except msgspec.MsgspecError:  # The parser reports the problem.
        return
    for at, field in enumerate(fields):
        yield from _find_numbers_inside(getattr(document, f"m{at}", None), field.type, field.name)


def _find_numbers_inside(value: Any, kind: pa.DataType, path: str) -> Iterator[tuple[str, str, int]]:
    """Yield each number for a float, with its path and bit width."""
    if value is None:
        return
    if isinstance(value, msgspec.Raw):
        number = bytes(value).decode()
        if number[:1] in "-0123456789":
            yield path, number, kind.bit_width
    elif isinstance(value, list):
        for item in value:
            yield from _find_numbers_inside(item, kind.value_type, f"{path}[]")
    else:
        for at, field in enumerate(kind):
            yield from _find_numbers_inside(getattr(value, f"m{at}", None), field.type, f"{path}.{field.name}")


@lru_cache(maxsize=64)
def _make_decoder(fields: pa.Schema) -> msgspec.json.Decoder[Any]:
    """Return a decoder that reads only the members that contain floats."""
    return msgspec.json.Decoder(_make_object_type([*fields]))


def _make_object_type(fields: list[pa.Field]) -> Any:
    """Return an object type with the members that contain floats. Others are skipped."""
    members_with_floats = [(f"m{at}", field) for at, field in enumerate(fields) if _find_least_bits(field.type)]
    members = [(name, _make_member_type(field.type), None) for name, field in members_with_floats]
    return msgspec.defstruct(
        "Object", members, rename={name: field.name for name, field in members_with_floats}, gc=False
    )


def _make_member_type(kind: pa.DataType) -> Any:
    """Return the msgspec type of a member: numbers stay text."""
    if pat.is_floating(kind):
        return msgspec.Raw  # Also of null.
    return (_make_object_type([*kind]) if pat.is_struct(kind) else list[_make_member_type(kind.value_type)]) | None  # type: ignore[misc]


def find_inexact(texts: pa.Array, fields: pa.Schema) -> npt.NDArray[np.bool_]:
    """Return bool[texts]: documents with a number that a float would round."""
    if _find_least_bits(pa.struct(list(fields))) is None:
        return np.zeros(len(texts), np.bool_)
    numbers = ([(n, bits) for _, n, bits in _find_numbers(text, fields)] for text in texts.to_pylist())
    return np.array(
        [any(not is_exact_float(n, bits) for n, bits in numbers_in_row) for numbers_in_row in numbers], np.bool_
    )
