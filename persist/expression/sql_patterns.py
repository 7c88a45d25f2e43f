"""LIKE and regular expressions as SQL (DuckDB's) means them: both use RE2, so a pattern means the same in both."""

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.expression.sql_texts import by_each, bytes_of, check_bytes

Array = Any
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
