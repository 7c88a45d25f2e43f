"""Texts as SQL (DuckDB's) means them. Characters are code points.

Every function takes arrays of one length, and last the type of its result. What is said by constants nearly always,
such as a pattern or a length, is done once for each that there is, and not once for each record.

LIKE and regular expressions as SQL (DuckDB's) means them: both use RE2, so a pattern means the same in both.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = Any
VALUE_BYTES_MAX = 16 << 20  # A function that makes more of less stops here, and not where memory ends.
PLACE_MAX = 2**32 - 1  # In a text, as in DuckDB.


def by_each(function: Callable[..., Array], text: Array, rest: tuple[Array, ...], kind: pa.DataType) -> Array:
    """Do a function whose other arguments are constants, for each combination of them that there is.

    It sees the texts of that combination only, and none that is NULL.
    """
    known = pc.is_valid(text)
    for column in rest:
        known = pc.and_(known, pc.is_valid(column))
    rows = pc.indices_nonzero(known)
    if not len(rows):
        return pa.nulls(len(text), kind)
    number = np.zeros(len(rows), np.int64)
    coded = [column.take(rows).dictionary_encode() for column in rest]
    for codes in coded:
        number = np.unique(number * len(codes.dictionary) + codes.indices.to_numpy(), return_inverse=True)[1]
    order = np.argsort(number, kind="stable")
    firsts = np.flatnonzero(np.diff(number[order], prepend=-1))
    pieces = []
    for first, last in zip(firsts.tolist(), [*firsts.tolist()[1:], len(order)], strict=True):
        values = [codes.dictionary[codes.indices[int(order[first])].as_py()].as_py() for codes in coded]
        some = (
            text if len(firsts) == 1 and len(rows) == len(text) else text.take(rows.take(pa.array(order[first:last])))
        )
        made = function(some, *values).cast(kind)
        pieces.append(made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made)
    if len(firsts) == 1 and len(rows) == len(text):
        return pieces[0]
    places = np.full(len(text), -1)
    places[rows.to_numpy()[order]] = np.arange(len(rows))
    return pa.concat_arrays(pieces).take(pa.array(places, mask=places < 0))


def check_bytes(sizes: Array, function: str) -> None:
    """Raise ValueError if a value of so many bytes, int64, is larger than a value may be."""
    most = pc.max(sizes).as_py()
    if most is not None and most > VALUE_BYTES_MAX:
        raise ValueError(f"{function} makes a value of more than {VALUE_BYTES_MAX:,} bytes, and a value has no more")


def bytes_of(text: Array) -> Array:
    return pc.cast(pc.binary_length(text), pa.int64())


def _substring(text: Array, *rest: Any) -> Array:
    *bounds, kind = rest
    return by_each(_slice, text, tuple(bounds), kind)


def _slice(text: Array, start: int, length: int = PLACE_MAX) -> Array:
    """Return so many characters from a place on, which counts from 1, or, below nothing, from the end.

    A length below nothing is of the characters before the place. As in DuckDB, the place 0 is before the first.
    """
    if not (-PLACE_MAX - 1 <= start <= PLACE_MAX and -PLACE_MAX - 1 <= length <= PLACE_MAX):
        raise ValueError(f"a place in a text is between {-PLACE_MAX - 1} and {PLACE_MAX}")
    if start == 0:
        start, length = 1, max(length - 1, 0)
    if length == 0:
        return pc.utf8_slice_codeunits(text, 0, 0)
    if start > 0:
        return pc.utf8_slice_codeunits(text, *_bounds(max(start - 1 + length, 0), start - 1, length))
    first, last = (start, start + length) if length > 0 else (start + length, start)
    return pc.utf8_slice_codeunits(text, first, last if last < 0 else None)


def _bounds(before: int, place: int, length: int) -> tuple[int, int]:
    return (place, place + length) if length > 0 else (before, place)


def _left(text: Array, count: Array, kind: pa.DataType) -> Array:
    def one(text: Array, n: int) -> Array:
        if n > PLACE_MAX:
            raise ValueError(f"left() returns up to {PLACE_MAX} characters")
        return pc.utf8_slice_codeunits(text, 0, max(n, -PLACE_MAX))

    return by_each(one, text, (count,), kind)


def _right(text: Array, count: Array, kind: pa.DataType) -> Array:
    def one(text: Array, n: int) -> Array:
        if n <= 0:
            return pc.utf8_slice_codeunits(text, min(-n, PLACE_MAX)) if n else pc.utf8_slice_codeunits(text, 0, 0)
        return pc.utf8_slice_codeunits(text, -min(n, PLACE_MAX))

    return by_each(one, text, (count,), kind)


def _trimmed(side: str) -> Callable[..., Array]:
    def trim(text: Array, *rest: Any) -> Array:
        *characters, kind = rest
        function = {"both": pc.utf8_trim, "left": pc.utf8_ltrim, "right": pc.utf8_rtrim}[side]
        if not characters:
            return function(text, characters=" ")
        return by_each(lambda text, unwanted: function(text, characters=unwanted), text, tuple(characters), kind)

    return trim


def _replace(text: Array, old: Array, new: Array, kind: pa.DataType) -> Array:
    def one(text: Array, old: str, new: str) -> Array:
        if not old:
            return text
        more = len(new.encode()) - len(old.encode())
        if more > 0:
            count = pc.cast(pc.count_substring(text, old), pa.int64())
            check_bytes(pc.add(bytes_of(text), pc.multiply(count, more)), "replace()")
        return pc.replace_substring(text, old, new)

    return by_each(one, text, (old, new), kind)


def _contains(function: Callable[..., Array]) -> Callable[..., Array]:
    def contains(text: Array, other: Array, kind: pa.DataType) -> Array:
        return by_each(lambda text, fragment: function(text, fragment), text, (other,), kind)

    return contains


def _position(text: Array, other: Array, kind: pa.DataType) -> Array:
    pairs = zip(text.to_pylist(), other.to_pylist(), strict=True)
    return pa.array([None if a is None or b is None else a.find(b) + 1 for a, b in pairs], kind)


def _checked_join(texts: Sequence[Array], function: str) -> None:
    sizes = bytes_of(texts[0]).fill_null(0)
    for text in texts[1:]:
        sizes = pc.add(sizes, bytes_of(text).fill_null(0))
    check_bytes(sizes, function)


def _concat(*arguments: Any) -> Array:
    *texts, _ = arguments
    _checked_join(texts, "concat()")
    return pc.binary_join_element_wise(*texts, "", null_handling="replace", null_replacement="")


def _concat_operator(*arguments: Any) -> Array:
    *texts, _ = arguments
    _checked_join(texts, "||")
    return pc.binary_join_element_wise(*texts, pa.scalar("", texts[0].type))


def _joined(separator: Array, *rest: Any) -> Array:
    first, *texts, _ = rest
    joined = first  # Not by Arrow, whose skipping of NULLs leaves out the records that hold nothing else.
    for text in texts:
        _checked_join((joined, text, separator), "concat_ws()")
        both = pc.binary_join_element_wise(joined, text, separator)
        joined = pc.coalesce(both, joined, text)
    return pc.if_else(pc.is_valid(separator), pc.fill_null(joined, ""), None)


def _padded(side: str) -> Callable[..., Array]:
    """Return lpad or rpad: texts of so many characters, filled up, or cut behind."""

    def one(text: Array, count: int, filling: str) -> Array:
        count = max(count, 0)
        length = pc.utf8_length(text)
        if count * len(filling.encode()) > VALUE_BYTES_MAX * max(len(filling), 1):
            raise ValueError(
                f"{side}pad() makes a value of more than {VALUE_BYTES_MAX:,} bytes, and a value has no more"
            )
        if not filling and pc.any(pc.less(length, count)).as_py():
            raise ValueError(f"{side}pad() cannot fill up texts with an empty text")
        padded = pc.utf8_slice_codeunits(text, 0, count)
        # Of texts of one length, the same is missing.
        for distinct_length in pc.unique(length).to_pylist():
            if distinct_length is not None and distinct_length < count:
                missing = (filling * (count - distinct_length))[: count - distinct_length]
                here = (text, missing) if side == "r" else (missing, text)
                padded = pc.if_else(pc.equal(length, distinct_length), pc.binary_join_element_wise(*here, ""), padded)
        return padded

    def pad(text: Array, count: Array, filling: Array, kind: pa.DataType) -> Array:
        return by_each(one, text, (count, filling), kind)

    return pad


def _repeated(text: Array, count: Array, kind: pa.DataType) -> Array:
    count = pc.max_element_wise(count, 0, skip_nulls=False)
    size = bytes_of(text)
    # A text of nothing stays one, however often it comes.
    least = pc.if_else(pc.equal(size, 0), pa.scalar(0, pa.int64()), pc.min_element_wise(count, VALUE_BYTES_MAX + 1))
    check_bytes(pc.multiply(size, pc.if_else(pc.is_null(count), None, least)), "repeat()")
    is_nothing = pc.and_(pc.equal(size, 0), pc.is_valid(count))
    return pc.binary_repeat(text, pc.if_else(is_nothing, pa.scalar(0, pa.int64()), count)).cast(kind)


def _of_each_text(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return a function that Python does once for each text that there is, and for each of its other arguments."""

    def apply(text: Array, *rest: Any) -> Array:
        *others, kind = rest

        def one(text: Array, *values: Any) -> Array:
            codes = text.dictionary_encode()
            made = [
                None if distinct_text is None else function(distinct_text, *values)
                for distinct_text in codes.dictionary.to_pylist()
            ]
            return pa.array(made, kind).take(codes.indices)

        return by_each(one, text, tuple(others), kind) if others else one(text)

    return apply


def _translated(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for at, character in enumerate(old):
        table.setdefault(ord(character), new[at] if at < len(new) else None)
    return text.translate(table)


def _octets(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _character(code: Array, kind: pa.DataType) -> Array:
    try:
        return pa.array([None if code_point is None else chr(code_point) for code_point in code.to_pylist()], kind)
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
    "md5": _of_each_text(lambda text: hashlib.md5(_octets(text), usedforsecurity=False).hexdigest()),
    "sha256": _of_each_text(lambda text: hashlib.sha256(_octets(text)).hexdigest()),
}


_OPTIONS = "cgimnps"  # Of DuckDB. By s, a dot is a newline, too, and by m, n and p it is not, which is the default.


def _like_pattern(pattern: str) -> str:
    """Return a LIKE pattern as a regular expression; a backslash takes the next character as it is."""
    pieces, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and at + 1 < len(pattern):
            at += 1
            pieces.append(re.escape(pattern[at]))
        else:
            pieces.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
        at += 1
    return f"(?s)^{''.join(pieces)}$"


def _like(is_like: bool, ignore_case: bool) -> Callable[..., Array]:
    def like(text: Array, pattern: Array, *rest: Any) -> Array:
        matches = pa.nulls(len(text), pa.bool_())
        for distinct_pattern in pc.unique(pattern).to_pylist():
            if distinct_pattern is None:
                continue
            shape = distinct_pattern if len(rest) > 1 else distinct_pattern.replace("\\", "\\\\")
            if len(rest) > 1:
                _check_escapes(
                    text.filter(pc.fill_null(pc.equal(pattern, distinct_pattern), False)), distinct_pattern, ignore_case
                )
            matched = _matched(text, shape, ignore_case)
            matches = pc.if_else(pc.fill_null(pc.equal(pattern, distinct_pattern), False), matched, matches)
        return matches if is_like else pc.invert(matches)

    return like


def _check_escapes(text: Array, pattern: str, ignore_case: bool) -> None:
    """Raise ValueError if a pattern ends with the beginning of an escape, and a text comes to it."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 0:
        return
    if pc.any(_matched(text, pattern[:-1] + "_%", ignore_case)).as_py():
        raise ValueError(f"the LIKE pattern {pattern!r} ends with its escape character")


def _matched(text: Array, pattern: str, ignore_case: bool) -> Array:
    body = pattern.strip("%")
    if not ignore_case and not any(wildcard in body for wildcard in "%_\\") and body:
        if pattern == body:
            return pc.equal(text, body)
        if pattern == body + "%":
            return pc.starts_with(text, body)
        if pattern == "%" + body:
            return pc.ends_with(text, body)
        if pattern == "%" + body + "%":
            return pc.match_substring(text, body)
    return pc.match_substring_regex(text, _like_pattern(pattern), ignore_case=ignore_case)


def _flagged(pattern: str, options: str, function: str) -> str:
    """Return a pattern that says by itself what DuckDB is told by options."""
    unknown = set(options) - set(_OPTIONS)
    if unknown:
        raise ValueError(f"{function}() has no option {min(unknown)!r} in a view; there are {', '.join(_OPTIONS)}")
    cases, dots = ([option for option in options if option in some] for some in ("ci", "smnp"))
    flags = ("i" if cases[-1:] == ["i"] else "") + ("s" if dots[-1:] == ["s"] else "")
    return f"(?{flags}){pattern}" if flags else pattern


def _matches(text: Array, pattern: Array, *rest: Any) -> Array:
    *options, kind = rest

    def one(text: Array, pattern: str, options: str = "") -> Array:
        return pc.match_substring_regex(text, _flagged(pattern, options, "regexp_matches"))

    return by_each(one, text, (pattern, *options), kind)


def _matches_whole(text: Array, pattern: Array, *rest: Any) -> Array:
    *options, kind = rest

    def one(text: Array, pattern: str, options: str = "") -> Array:
        return pc.match_substring_regex(text, _flagged(rf"\A(?:{pattern})\z", options, "regexp_full_match"))

    return by_each(one, text, (pattern, *options), kind)


def _replaced(text: Array, pattern: Array, new: Array, *rest: Any) -> Array:
    *options, kind = rest

    def one(text: Array, pattern: str, new: str, options: str = "") -> Array:
        shape = _flagged(pattern, options, "regexp_replace")
        matches = pc.cast(pc.count_substring_regex(text, shape), pa.int64()) if "g" in options else 1
        references = len(re.findall(r"\\\d", new))  # Matches do not overlap, so each adds the text once at most.
        size = pc.multiply(bytes_of(text), 1 + references)
        check_bytes(pc.add(size, pc.multiply(matches, len(new.encode()))), "regexp_replace()")
        return pc.replace_substring_regex(text, shape, new, max_replacements=None if "g" in options else 1)

    return by_each(one, text, (pattern, new, *options), kind)


def _extracted(text: Array, pattern: Array, *rest: Any) -> Array:
    *others, kind = rest
    if others and pa.types.is_string(others[0].type):  # The options stand where a group may be.
        others.insert(0, pa.repeat(pa.scalar(0), len(text)))

    def one(text: Array, pattern: str, group: int = 0, options: str = "") -> Array:
        shape, groups = _named_groups(_flagged(pattern, options, "regexp_extract"))
        extracted = pc.extract_regex(text, f"(?P<g0>{shape})")
        if not 0 <= group <= groups:
            return pa.array([""] * len(text))
        return pc.fill_null(pc.struct_field(extracted, f"g{group}"), "")

    return by_each(one, text, (pattern, *others), kind)


def check_constants(function: str, *arguments: Any) -> None:
    """Raise ValueError if what a pattern, its options or a group is by a constant can be so for no text.

    Args:
        arguments: those of a function of PATTERNS: a value for what is a constant, and None for what is not.
    """
    if not function.startswith("regexp"):
        return
    _, pattern, *rest = arguments
    for argument in rest[1 if function == "regexp_replace" else 0 :]:
        if isinstance(argument, str):
            _flagged("", argument, function)
    if pattern is None:
        return
    pc.match_substring_regex("", pattern)
    group, groups = next((argument for argument in rest if isinstance(argument, int)), 0), _named_groups(pattern)[1]
    if not 0 <= group <= groups:
        raise ValueError(f"{function}() is asked for group {group}, and the pattern {pattern!r} has {groups}")


def _named_groups(pattern: str) -> tuple[str, int]:
    """Return a pattern whose groups are named g1, g2, …, as Arrow wants them, and how many there are."""
    pieces: list[str] = []
    groups, at, in_class = 0, 0, False
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            pieces.append(pattern[at : at + 2])
            at += 2
            continue
        if in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            # A bracket that closes is one of the characters where it comes first.
            head = re.match(r"\[\^?\]?", pattern[at:])
            assert head is not None
            pieces.append(head[0])
            at += len(head[0])
            continue
        elif character == "(":
            name = re.match(r"\(\?P?<[^>=!]+>", pattern[at:])
            if name is not None or not pattern.startswith("(?", at):
                groups += 1
                pieces.append(f"(?P<g{groups}>")
                at += len(name[0]) if name is not None else 1
                continue
        pieces.append(character)
        at += 1
    return "".join(pieces), groups


PATTERNS: dict[str, Callable[..., Array]] = {
    "like": _like(True, False),
    "not_like": _like(False, False),
    "ilike": _like(True, True),
    "not_ilike": _like(False, True),
    "regexp_matches": _matches,
    "regexp_full_match": _matches_whole,
    "regexp_replace": _replaced,
    "regexp_extract": _extracted,
}
