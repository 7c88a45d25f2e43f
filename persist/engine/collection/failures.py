"""Stores the last failure of a collection's source or sink in the collection's properties.

A refresh or a source that fails sets the property `failed` of the collections that it fills, in one record: the time,
the process and the error. A sink sets `failed.<its hold>` of the first of its collections. The next success removes it.
So a process without failures writes nothing. Every client of the location can see why another process stopped.

- The same failure is stored again after `RETOLD_S` at the earliest: a process that restarts again and again does not
  fill the log.
- Conflicts with other clients are not stored, nor failures of the location's own store, which could not store them.
- The text is short. Passwords, quoted texts, and numbers in the messages of functions and other libraries are left out,
  because they may be values of rows. Names of collections and columns stay.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec

from persist.core.errors import (
    ClientClosed,
    CollectionNotFound,
    Conflict,
    Indeterminate,
    OperatorFailed,
    PersistError,
    ReadOnly,
    Unavailable,
)
from persist.core.rendering import hide_passwords, strip_control_characters
from persist.core.state_rules.contents import CollectionState
from persist.engine.collection.descriptions import make_describe_step
from persist.engine.location.collection_handle import CollectionHandle

logger = logging.getLogger(__name__)
FAILED = "failed"  # A property of collections; of a sink, a point and the name of its hold follow.
RETOLD_S = 300.0
TEXT_MAX = 400
NOT_TOLD = (Conflict, Unavailable, Indeterminate, ClientClosed, CollectionNotFound, ReadOnly)
_QUOTED = re.compile(r"(?<!\w)(['\"])(.*?)(?:\1(?!\w)|$)")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\w.,:+-]*")
_ASKED = re.compile(r"(\w+://[^\s?'\"]+)\?[^\s'\"]*")


class Failure(msgspec.Struct, frozen=True):
    """The last failure: its time by the clock of the failed process, that process, and the error."""

    at_ms: int
    by: str
    error: str


def load_failures(contents: CollectionState) -> dict[str, Failure]:
    """Return the present failures by hold of the sink; "" is the source.

    If a user wrote a property of such a name, it is not a failure, and left out.
    """
    failures = {}
    for name, text in contents.about.properties.items():
        if is_failure_property(name):
            with suppress(msgspec.MsgspecError):
                failures[name.removeprefix(FAILED)[1:]] = msgspec.json.decode(text, type=Failure)
    return failures


def is_failure_property(name: str) -> bool:
    """Return whether a property of that name stores a failure."""
    return name == FAILED or name.startswith(FAILED + ".")


@contextmanager
def record_failures(handles: Sequence[CollectionHandle], sink: str = "") -> Iterator[None]:
    """Store a failure of this block in the collections; after a success, remove it.

    `sink`: the hold of the failing sink, or "" for a source or a refresh.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, NOT_TOLD):
            store_failure(handles, error, sink)
        raise
    clear_failure(handles, sink)


def store_failure(handles: Sequence[CollectionHandle], error: Exception, sink: str = "") -> None:
    """Store a failure in collections; if that fails, too, only log it."""
    if not handles:
        return
    engine = handles[0].engine
    now_ms = engine.clock.wall_ms()
    try:
        columns = {name for handle in handles for name in handle.schema.names}
        text = _redact_error(error, {*engine.follower.state.list_names(), *columns})
        failure = Failure(now_ms, engine.writer("tell_failure").name, text)
        stale = [handle for handle in handles if _differs(load_failures(handle.get_known_state()).get(sink), failure)]
        _store_text(stale, sink, msgspec.json.encode(failure).decode())
    except PersistError as problem:
        logger.warning("a failure could not be stored in the location: %s", problem)


def clear_failure(handles: Sequence[CollectionHandle], sink: str = "") -> None:
    """Remove the stored failure from collections that have one."""
    try:
        _store_text([handle for handle in handles if sink in load_failures(handle.get_known_state())], sink, None)
    except CollectionNotFound:
        pass  # Its properties are gone.
    except PersistError as problem:
        logger.warning("the end of a failure could not be stored in the location: %s", problem)


def _differs(before: Failure | None, now: Failure) -> bool:
    """Return whether to store a failure: it has another error, or enough time has passed."""
    return before is None or before.error != now.error or now.at_ms - before.at_ms >= RETOLD_S * 1000


def _store_text(handles: Sequence[CollectionHandle], sink: str, text: str | None) -> None:
    """Commit the text of a failure, or its removal, for some collections."""
    if handles:
        name = f"{FAILED}.{sink}" if sink else FAILED
        steps = [make_describe_step(handle, None, {name: text}, None, None) for handle in handles]
        handles[0].engine.submit("failed", steps, {handle.id: handle.name for handle in handles}).result()


def _redact_error(error: Exception, names: set[str]) -> str:
    """Return an error as one line, without secrets and values; `names` may stay."""
    if isinstance(error, OperatorFailed):
        text, is_ours = f"operator {error.operator} failed: {error.problem}", False
    else:
        text, is_ours = str(error), isinstance(error, PersistError)
    text = _ASKED.sub(r"\1?…", hide_passwords(" ".join(strip_control_characters(text).split())))

    def redact(quoted: re.Match[str]) -> str:
        return quoted[0] if quoted[2] in names else f"{quoted[1]}…{quoted[1]}"

    text = _QUOTED.sub(redact, text)
    if not is_ours:
        text = _NUMBER.sub("…", text)
    text = f"{type(error).__name__}: {text}"
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
