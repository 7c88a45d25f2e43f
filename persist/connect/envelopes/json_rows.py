"""Reads JSON documents of a column of bytes in one pass, and separates bad ones.

`pyarrow.json` reads a stream of objects and stops at the first bad one, without its place. So documents are joined into
one stream, after checks that each document is exactly one row of it:

- each begins with `{` and ends with `}`. No JSON continues between `}` and `{`, even in a string, because a string
  cannot contain the newline between two documents. So two documents cannot become one object;
- there are as many rows as documents, so no document was two objects.

After an error, documents that look bad (`find_suspects`) are separated in one pass, and both sides are read again. A
piece that looks good but fails is halved until the bad documents are alone. Each halving costs a pass over the piece:
n log n in the worst case.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import InvalidUpdate
from persist.codecs.order.arrays import get_int64_values, make_boolean_array, make_int64_array
from persist.codecs.types.arrow_types import JSON, contains_map, iterate_leaf_arrays
from persist.connect.envelopes.json_maps import encode_maps
from persist.connect.envelopes.json_numbers import check_numbers, find_inexact
from persist.connect.envelopes.messages import Unreadable

# Bytes of one call of the parser: large enough for 0.1 ms of preparation, small enough for the caches.
PIECE_BYTES = 8 << 20
REASON_CHARS_MAX = 500
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Bad:
    """A bad message: its number, and the reason."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class SeparatedRows(Generic[T]):
    """The rows of good documents, in pieces with the documents' numbers; and bad documents.

    If documents are bad, the numbers of two pieces may interleave.
    """

    pieces: list[tuple[np.ndarray, T]]
    bad: list[Bad]


def merge_in_order(pieces: list[tuple[np.ndarray, T]], table: pa.Table) -> tuple[np.ndarray, pa.Table]:
    """Merge tables of several pieces by ascending row numbers."""
    rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in pieces)])
    if (np.diff(rows) < 0).any():
        order = np.argsort(rows, kind="stable")
        rows, table = rows[order], table.take(make_int64_array(order))
    return rows, table


def parse(
    texts: pa.Array, fields: pa.Schema | None, others: Literal["ignore", "error", "infer"] = "ignore"
) -> pa.Table:
    """Parse JSON objects; return a row for each, with the fields in `fields`, or all if None.

    Args:
        texts: large_binary without NULL.
        fields: the fields to read; NULL where a document lacks them.
        others: whether other fields of documents are ignored, an error, or inferred columns.
    """
    import pyarrow.json as pj

    _check_ends(texts)
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(texts)], pa.int64()), texts.cast(pa.large_string()))
    stream = pc.binary_join(whole, pa.scalar("\n", pa.large_string()))[0].as_buffer()
    if not np.frombuffer(stream, np.uint8).all():
        raise Unreadable("it is not JSON: it holds a zero byte")
    options = pj.ParseOptions() if fields is None else pj.ParseOptions(fields, False, others)
    reading = pj.ReadOptions(use_threads=False, block_size=stream.size + 1)
    table = pj.read_json(pa.BufferReader(stream), read_options=reading, parse_options=options)
    if table.num_rows != len(texts):
        raise Unreadable("it holds more than one JSON object")
    if fields is not None:
        check_numbers(texts, fields)
        for column in table.columns:
            for leaf in (leaf for chunk in column.chunks for leaf in iterate_leaf_arrays(chunk)):
                if pat.is_decimal(leaf.type):
                    leaf.validate(full=True)  # Reading checks the scale, and not the precision.
    return table


class DocumentReader(Protocol[T_co]):
    """The functions by which `read_separately` reads documents."""

    def read(self, texts: pa.Array) -> T_co:
        """Parse documents; a bad one raises Unreadable, InvalidUpdate or Arrow's error."""

    def find_suspects(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return bool[texts]: documents that look bad. At least one of them is bad."""


def read_separately(texts: pa.Array, reading: DocumentReader[T], rows: np.ndarray | None = None) -> SeparatedRows[T]:
    """Read documents piece by piece, and separate the bad ones.

    `rows` are the numbers of the documents; by default from 0.
    """
    numbers = np.arange(len(texts)) if rows is None else rows
    result: SeparatedRows[T] = SeparatedRows([], [])
    for start, stop in split_pieces(texts):
        _read_halves(texts.slice(start, stop - start), numbers[start:stop], reading, result)
    return result


def _read_halves(
    texts: pa.Array,
    rows: np.ndarray,
    reading: DocumentReader[T],
    result: SeparatedRows[T],
    *,
    looks_alike: bool = False,
) -> None:
    """Read documents into `result`; on an error, separate bad ones by `find_suspects`, then by halves."""
    try:
        result.pieces.append((rows, reading.read(texts)))
    except (Unreadable, InvalidUpdate, pa.ArrowException, UnicodeDecodeError) as error:
        if len(texts) == 1:
            result.bad.append(Bad(int(rows[0]), describe_error(error)))
            return
        odd = None if looks_alike else reading.find_suspects(texts)
        if odd is not None and odd.any() and not odd.all():
            for mask in (~odd, odd):
                _read_halves(texts.filter(make_boolean_array(mask)), rows[mask], reading, result, looks_alike=True)
            return
        middle = len(texts) // 2
        _read_halves(texts.slice(0, middle), rows[:middle], reading, result, looks_alike=True)
        _read_halves(texts.slice(middle), rows[middle:], reading, result, looks_alike=True)


def describe_error(error: Exception) -> str:
    """Return the reason in an error of a parser, without the number of the message."""
    text = str(error)
    if changed := re.search(r"Column\(/?([^)]*)\) changed from (\w+) to (\w+)", text):
        where, expected, is_ = changed.groups()
        what = f"the column {where.replace('/', '.')!r}" if where else "it"
        return f"{what} holds {_add_article(is_)}, where {_add_article(expected)} is expected"
    if twice := re.search(r"Column\(/?([^)]*)\) was specified twice", text):
        return f"the field {twice[1].replace('/', '.')!r} occurs twice in it"
    if failed := re.search(r"Failed to convert JSON to ([^,]+(?:\([^)]*\))?)[,:] (?:couldn't parse:)?(.*)", text):
        return f"{failed[2]} does not fit {failed[1]}"[:REASON_CHARS_MAX]
    if syntax := re.search(r"JSON parse error: (.*?)(?: in row \d+)?$", text, re.DOTALL):
        return f"it is not JSON: {syntax[1].rstrip('.')}"[:REASON_CHARS_MAX]
    if large := re.search(r"Decimal value (\S+) does not fit in precision of (.*?)\.?$", text):
        return f"the number of digits {large[1]} does not fit {large[2]}"
    if isinstance(error, UnicodeDecodeError) or "Invalid UTF8" in text:
        return "it is not UTF-8"
    return re.sub(r"^update \d+ has ", "it has ", text)[:REASON_CHARS_MAX]


def _add_article(kind: str) -> str:
    """Return a noun with "a" or "an"."""
    return f"an {kind}" if kind[0] in "aeio" else f"a {kind}"


def split_pieces(texts: pa.Array) -> Iterator[tuple[int, int]]:
    """Yield bounds of pieces of about PIECE_BYTES. A larger document is its own piece."""
    if not len(texts):
        return
    ends = np.cumsum(get_int64_values(pc.binary_length(texts).cast(pa.int64())))
    start = 0
    while start < len(texts):
        bytes_before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(ends.searchsorted(np.int64(bytes_before + PIECE_BYTES), side="right")))
        yield start, stop
        start = stop


def _check_ends(texts: pa.Array) -> None:
    """Raise Unreadable if a document does not end where its text does."""
    ends = pc.and_(pc.starts_with(texts, b"{"), pc.ends_with(texts, b"}"))
    if pc.all(ends, min_count=0).as_py():
        return
    odd = texts.filter(pc.invert(ends)).cast(pa.large_string())
    trimmed = pc.ascii_trim_whitespace(odd)
    good = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}"))
    if not pc.all(good, min_count=0).as_py():
        first = trimmed.filter(pc.invert(good))[0].as_py()
        raise Unreadable(f"it is not a JSON object: {first!r:.60}" if first else "it is empty")


_STRING_OR_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|NaN|Infinity', re.DOTALL)
_NUMBERS = {b"NaN": b"0e0", b"Infinity": b"0.000000"}  # Their lengths are equal.


def encode_mixed_members(texts: pa.Array, types: Mapping[str, pa.DataType]) -> pa.Array:
    """Return JSON objects for Arrow: values of JSON columns as text, maps as lists.

    A value of a JSON column that is text or null stays unchanged, and so does an unreadable object.
    """
    encoders = {name: encoder for name, kind in types.items() if (encoder := _choose_encoder(kind)) is not None}
    if not encoders:
        return texts
    decode = _make_documents_decoder(tuple(encoders)).decode
    encode = [*encoders.values()]
    return pa.array([text and _encode_members(text, decode, encode) for text in texts.to_pylist()], pa.large_binary())


def _choose_encoder(kind: pa.DataType) -> Callable[[bytes], bytes] | None:
    """Return the function that encodes values of a type; None if they stay as they are."""
    if kind == JSON:
        return lambda value: value if value[:1] in (b'"', b"n") else msgspec.json.encode(value.decode())
    return partial(encode_maps, kind=kind) if contains_map(kind) else None


def _encode_members(text: bytes, decode: Callable[[bytes], Any], encode: Sequence[Callable[[bytes], bytes]]) -> bytes:
    """Return a JSON object whose named members were replaced by `encode`, one function each."""
    readable = text
    try:
        try:
            members = decode(text)
        except msgspec.MsgspecError:  # It does not read NaN and infinities, which columns of floats hold.
            readable = _STRING_OR_NUMBER.sub(lambda found: _NUMBERS.get(found[0], found[0]), text)
            members = decode(readable)
        values = [memoryview(value) for value in msgspec.structs.astuple(members)]
        start = _get_address(readable)
        places = sorted((_get_address(value) - start, len(value), at) for at, value in enumerate(values) if len(value))
        pieces, end = list[bytes](), 0
        for begin, length, at in places:
            pieces += [text[end:begin], encode[at](text[begin : begin + length])]
            end = begin + length
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text
    return b"".join([*pieces, text[end:]])


def _get_address(view: bytes | memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


@lru_cache(maxsize=64)
def _make_documents_decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Return a decoder that returns the named members of an object as raw JSON."""
    members = [(f"m{at}", msgspec.Raw, msgspec.Raw()) for at in range(len(names))]
    rename = {f"m{at}": name for at, name in enumerate(names)}
    return msgspec.json.Decoder(msgspec.defstruct("Documents", members, rename=rename, gc=False))


def find_suspects(texts: pa.Array, fields: pa.Schema) -> npt.NDArray[np.bool_]:
    """Return bool[texts]: documents that are not objects, or have other types than the fields."""
    decode = _make_decoder(fields).decode
    is_suspect = np.zeros(len(texts), np.bool_)
    for at, text in enumerate(texts.to_pylist()):
        try:
            decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            is_suspect[at] = True
    return is_suspect | find_inexact(texts, fields)


@lru_cache(maxsize=64)
def _make_decoder(fields: pa.Schema) -> msgspec.json.Decoder[Any]:
    """Return a decoder that checks documents against the fields."""
    return msgspec.json.Decoder(_make_object_type([*fields]))


def _make_object_type(fields: list[pa.Field]) -> Any:
    """Return an object type; members may be missing or null, and others are skipped."""
    members = [(f"m{at}", _make_document_type(field.type) | None, None) for at, field in enumerate(fields)]
    names = {f"m{at}": field.name for at, field in enumerate(fields)}
    return msgspec.defstruct("Object", members, rename=names, gc=False)


def _make_document_type(kind: pa.DataType) -> Any:
    """Return the msgspec type of JSON values for a column."""
    if pat.is_struct(kind):
        return _make_object_type([*kind])
    if pat.is_list(kind):
        return list[_make_document_type(kind.value_type) | None]  # type: ignore[misc]
    if pat.is_boolean(kind):
        return bool
    if pat.is_integer(kind):
        return int
    if pat.is_floating(kind):
        return float | int
    if pat.is_decimal(kind):
        return str | float | int
    return str if pat.is_string(kind) or pat.is_timestamp(kind) else msgspec.Raw
