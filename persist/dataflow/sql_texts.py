"""Texts as SQL (DuckDB's) means them. Characters are code points.

Every function takes arrays of one length, and last the type of its result. What is said by constants nearly always,
such as a pattern or a length, is done once for each that there is, and not once for each record.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Array = Any


def by_each(function: Callable[..., Array], text: Array, rest: tuple[Array, ...], kind: pa.DataType) -> Array:
    """Do a function whose other arguments are constants, for each combination of them that there is."""
    table = pa.table({str(at): each for at, each in enumerate(rest)})
    found = pa.nulls(len(text), kind)
    for row in table.group_by(table.column_names).aggregate([]).to_pylist():
        values = [row[name] for name in table.column_names]
        if any(value is None for value in values):
            continue
        here = None
        for column, value in zip(rest, values, strict=True):
            same = pc.equal(column, pa.scalar(value, column.type))
            here = same if here is None else pc.and_(here, same)
        found = pc.if_else(pc.fill_null(here, False), function(text, *values).cast(kind), found)
    return found


def _substring(text: Array, *rest: Any) -> Array:
    *bounds, kind = rest

    def one(text: Array, start: int, length: int | None = None) -> Array:
        if (length is not None and length < 0) or start < 0:
            raise ValueError("substring() takes a start of at least 0 and a length of at least 0 in a view")
        begin = max(start - 1, 0)
        stop = None if length is None else max(start - 1 + length, 0)
        return pc.utf8_slice_codeunits(text, begin, stop)

    return by_each(one, text, tuple(bounds), kind)


def _left(text: Array, count: Array, kind: pa.DataType) -> Array:
    return by_each(lambda text, n: pc.utf8_slice_codeunits(text, 0, n), text, (count,), kind)


def _right(text: Array, count: Array, kind: pa.DataType) -> Array:
    def one(text: Array, n: int) -> Array:
        if n < 0:
            return pc.utf8_slice_codeunits(text, -n)
        return pc.utf8_slice_codeunits(text, -n) if n else pc.utf8_slice_codeunits(text, 0, 0)

    return by_each(one, text, (count,), kind)


def _trimmed(side: str) -> Callable[..., Array]:
    def trim(text: Array, *rest: Any) -> Array:
        *characters, kind = rest
        function = {"both": pc.utf8_trim, "left": pc.utf8_ltrim, "right": pc.utf8_rtrim}[side]
        if not characters:
            return function(text, characters=" ")
        return by_each(lambda text, each: function(text, characters=each), text, tuple(characters), kind)

    return trim


def _replace(text: Array, old: Array, new: Array, kind: pa.DataType) -> Array:
    def one(text: Array, old: str, new: str) -> Array:
        return pc.replace_substring(text, old, new) if old else text

    return by_each(one, text, (old, new), kind)


def _contains(function: Callable[..., Array]) -> Callable[..., Array]:
    def contains(text: Array, other: Array, kind: pa.DataType) -> Array:
        return by_each(lambda text, each: function(text, each), text, (other,), kind)

    return contains


def _position(text: Array, other: Array, kind: pa.DataType) -> Array:
    pairs = zip(text.to_pylist(), other.to_pylist(), strict=True)
    return pa.array([None if a is None or b is None else a.find(b) + 1 for a, b in pairs], kind)


def _concat(*arguments: Any) -> Array:
    *texts, _ = arguments
    return pc.binary_join_element_wise(*texts, "", null_handling="replace", null_replacement="")


def _concat_operator(*arguments: Any) -> Array:
    *texts, _ = arguments
    return pc.binary_join_element_wise(*texts, pa.scalar("", texts[0].type))


def _joined(separator: Array, *rest: Any) -> Array:
    first, *texts, _ = rest
    found = first  # Not by Arrow, whose skipping of NULLs leaves out the records that hold nothing else.
    for each in texts:
        both = pc.binary_join_element_wise(found, each, separator)
        found = pc.coalesce(both, found, each)
    return pc.if_else(pc.is_valid(separator), pc.fill_null(found, ""), None)


def _padded(side: str) -> Callable[..., Array]:
    """Return lpad or rpad: texts of so many characters, filled up, or cut behind."""

    def one(text: Array, count: int, filling: str) -> Array:
        count = max(count, 0)
        length = pc.utf8_length(text)
        if not filling and pc.any(pc.less(length, count)).as_py():
            raise ValueError(f"{side}pad() cannot fill up texts with an empty text")
        found = pc.utf8_slice_codeunits(text, 0, count)
        # Of texts of one length, the same is missing.
        for each in pc.unique(length).to_pylist():
            if each is not None and each < count:
                missing = (filling * (count - each))[: count - each]
                here = (text, missing) if side == "r" else (missing, text)
                found = pc.if_else(pc.equal(length, each), pc.binary_join_element_wise(*here, ""), found)
        return found

    def pad(text: Array, count: Array, filling: Array, kind: pa.DataType) -> Array:
        return by_each(one, text, (count, filling), kind)

    return pad


def _repeated(text: Array, count: Array, kind: pa.DataType) -> Array:
    return pc.binary_repeat(text, pc.max_element_wise(count, 0, skip_nulls=False)).cast(kind)


def _of_each_text(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return a function that Python does once for each text that there is, and for each of its other arguments."""

    def apply(text: Array, *rest: Any) -> Array:
        *others, kind = rest

        def one(text: Array, *values: Any) -> Array:
            codes = text.dictionary_encode()
            made = [None if each is None else function(each, *values) for each in codes.dictionary.to_pylist()]
            return pa.array(made, kind).take(codes.indices)

        return by_each(one, text, tuple(others), kind) if others else one(text)

    return apply


def _translated(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for at, each in enumerate(old):
        table.setdefault(ord(each), new[at] if at < len(new) else None)
    return text.translate(table)


def _character(code: Array, kind: pa.DataType) -> Array:
    try:
        return pa.array([None if each is None else chr(each) for each in code.to_pylist()], kind)
    except (ValueError, OverflowError, UnicodeEncodeError):
        raise ValueError("chr() takes the number of a character: 0 to 1,114,111, without surrogates") from None


TEXTS: dict[str, Callable[..., Array]] = {
    "prefix": _contains(pc.starts_with),
    "suffix": _contains(pc.ends_with),
    "contains": _contains(pc.match_substring),
    "lower": lambda text, kind: pc.utf8_lower(text),
    "upper": lambda text, kind: pc.utf8_upper(text),
    "length": lambda text, kind: pc.utf8_length(text).cast(kind),
    "octets": lambda text, kind: pc.binary_length(text).cast(kind),
    "bits": lambda text, kind: pc.multiply(pc.binary_length(text).cast(kind), pa.scalar(8, kind)),
    "substring": _substring,
    "left": _left,
    "right": _right,
    "trim": _trimmed("both"),
    "ltrim": _trimmed("left"),
    "rtrim": _trimmed("right"),
    "lpad": _padded("l"),
    "rpad": _padded("r"),
    "repeat": _repeated,
    "replace": _replace,
    "translate": _of_each_text(_translated),
    "reverse": lambda text, kind: pc.utf8_reverse(text),
    "position": _position,
    "concat": _concat,
    "concat_operator": _concat_operator,
    "concat_ws": _joined,
    "ascii": _of_each_text(lambda text: ord(text[0]) if text else 0),
    "unicode": _of_each_text(lambda text: ord(text[0]) if text else -1),
    "chr": _character,
    "md5": _of_each_text(lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()),
    "sha256": _of_each_text(lambda text: hashlib.sha256(text.encode()).hexdigest()),
}
