"""The options of a commit: time, token and message; and the digests that identify a token's request.

A retry with the same token does nothing if its digest is the same, and is refused if the digest differs
(`persist.core.state_rules.annotations`). Digests are stored, so they are the same in all releases.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage
from persist.codecs.order.digest import DIGEST_MODULUS, hash_text
from persist.core.expression.arrow_terms import format_term, parse_filter_term
from persist.core.log import kinds
from persist.core.log.fields import TokenMark
from persist.core.names import is_storable_text
from persist.core.state_rules.annotations import check_note
from persist.core.timeline import Moment
from persist.engine.write.operations import Asked, Step, Write

TOKEN_CHARS_MAX = 200


WriteMode = Literal["upsert", "append", "overwrite", "update", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The checked options of a commit.

    Attributes:
        time: the time of the write; None for the time of the commit.
        token: names the commit, so that a repetition does nothing.
        allow_future: accept times, and clocks, that are more than a day ahead.
        message, metadata: stored in the log with the commit.

    Raises:
        InvalidUsage: the token is not a text of 1 to `TOKEN_CHARS_MAX` printable characters, or the message or metadata
            is not text, or too large.
    """

    time: int | Moment | None = None
    token: str | None = None
    allow_future: bool = False
    message: str | None = None
    metadata: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_token(self.token)
        if self.message is None and not self.metadata:
            return
        texts = {} if self.metadata is None else self.metadata
        if not (self.message is None or is_storable_text(self.message)) or not isinstance(texts, Mapping):
            raise InvalidUsage(
                f"message={self.message!r:.200} and metadata={self.metadata!r:.200} are not a text and a dict of texts"
            )
        if not all(is_storable_text(text) for item in texts.items() for text in item):
            raise InvalidUsage(f"metadata={self.metadata!r:.200} is not a dict of texts: give each value as a str")
        check_note(self.make_notes([""])[0])

    def to_arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of a writing method."""
        return {name: getattr(self, name) for name in self.__slots__}

    def make_notes(self, collections: Iterable[str]) -> list[kinds.Note]:
        """Return the steps that store the message and metadata in the log for each collection."""
        if self.message is None and not self.metadata:
            return []
        message, metadata = self.message or "", dict(self.metadata or {})
        return [kinds.Note(id_, message, metadata) for id_ in dict.fromkeys(collections)]


def choose_mode(mode: WriteMode | None, *, has_key: bool, has_diffs: bool) -> WriteMode:
    """Return the write mode: by default, rows with a key replace earlier rows of that key."""
    if mode not in (None, *get_args(WriteMode)):
        raise InvalidUsage(
            f'mode={mode!r} is not a way to write: use "upsert", "append", "overwrite", "update" or "error"'
        )
    if mode is None or mode == "error":
        return "upsert" if has_key and not has_diffs else "append"
    if has_diffs and mode != "append":
        raise InvalidUsage(f'mode="{mode}" takes rows without diffs, and these have diffs: use mode="append"')
    return mode


def check_token(token: str | None) -> None:
    """Raise InvalidUsage if token is neither None nor a text of 1 to `TOKEN_CHARS_MAX` printable characters."""
    if token is not None and not (isinstance(token, str) and 0 < len(token) <= TOKEN_CHARS_MAX and token.isprintable()):
        raise InvalidUsage(
            f"token={token!r} is not a text of 1 to {TOKEN_CHARS_MAX} printable characters: give each write one of "
            "its own, and the same one when it is tried again"
        )


def format_filter(where: pc.Expression | None, token: str | None) -> str | None:
    """Return the text of a filter for the digest of a token: equal for equal filters, in all releases.

    None without a filter, or without a token.
    """
    if where is None or token is None:
        return None
    try:
        return format_term(parse_filter_term(where))
    except ValueError as error:
        raise InvalidUsage(
            f"with a token, the filter {where} must be one that can be compared later: {error}. Write the condition as "
            "text, or leave the token out"
        ) from error


def compute_overwrite_digest(rows: int, time: int | None, where: str | None = None) -> int:
    """Return the digest of an overwrite, from its rows' digest by key and value; time None means upper."""
    return rows + hash_text(f"overwrite at {'upper' if time is None else time} where {where}")


def compute_delete_digest(keys: int, time: int | None, where: str | None = None) -> int:
    """Return the digest of a deletion, from the digest of its distinct keys with diff 1, or 0 for a filter."""
    return keys + hash_text(f"delete at {'upper' if time is None else time} where {where}")


def add_token(token: str | None, collections: Iterable[str], steps: Sequence[Step]) -> list[Step]:
    """Return steps, and the steps that store the token in each collection, if there is a token.

    Each collection stores the digest of all requests to it; none if one of them has no digest.
    """
    other_steps: list[Step] = [step for step in steps if not isinstance(step, Asked)]
    if token is None:
        return other_steps
    for id_ in collections:
        writes = [step for step in other_steps if isinstance(step, Write) and step.collection == id_]
        digests = [step.digest for step in steps if isinstance(step, Asked) and step.collection == id_]
        time_min = min((write.time_min for write in writes), default=0)
        digests_present = [digest for digest in digests if digest is not None]
        digest = f"{sum(digests_present) % DIGEST_MODULUS:016x}" if len(digests_present) == len(digests) else None
        other_steps.append(kinds.Tokens(id_, (TokenMark(token, time_min, digest),)))
    return other_steps


def make_seal_error(seal: object) -> InvalidUsage:
    """Return the error for a seal in a write whose rows have no time."""
    return InvalidUsage(
        f"seal={seal!r} is given with rows that have no time: the commit gives them one, and seals just after it. "
        "Leave seal out, or give time=, too."
    )
