"""The allowed names of collections, permanent holds and tags.

Names stay in the log: they are never part of a key or a path.

Leased holds have ids for names, so a permanent hold's name may not look like an id.
"""

import os
import re
import socket
import uuid
from collections.abc import Iterable

from persist import __version__
from persist.blob.errors import InvalidUsage

NAME_CHARS_MAX = 255
TEXT_CHARS_MAX = 200
HOLDER_CHARS_MAX = 1000

OWN_PREFIX = "."  # Prefix of collections that the library keeps for itself: the state of dataflows.
VIEW_HOLD = "view "  # A permanent hold of this and the id of a view keeps what the view reads.
INDEX_HOLD = "index "  # The same of an index: it keeps what its next refresh reads.
PUBLISHED_HOLD = "published "  # The same for a table with a change feed: it keeps the changes for the next version.
INDEX_PREFIX = f"{OWN_PREFIX}index."  # Prefix of the collection of an index.
GROUPS_PREFIX = f"{OWN_PREFIX}groups."  # Prefix of the views with the groups of another view.
ARRANGEMENT_PREFIXES: tuple[str, ...] = (INDEX_PREFIX, GROUPS_PREFIX)  # The id of the owner follows.
DERIVED_HOLDS: tuple[str, ...] = (VIEW_HOLD, INDEX_HOLD)
LIBRARY_HOLDS: tuple[str, ...] = (*DERIVED_HOLDS, PUBLISHED_HOLD)
DERIVED_FROM = "persist.derived_from"  # A property of clones of views: the ids of what their rows came from.
OWED_PREFIX = f"{OWN_PREFIX}owed."  # Prefix of the collections that list the rest of an erasure.

_ID = re.compile(r"[0-9a-f]{32}")
# A number, a day or the beginning of one, or a time of day.
_LIKE_A_TIME = re.compile(r"[+-]?\.?\d+([.,_eE]\d*)*$|\d{4}-?\d\d|\d{1,2}:\d\d|[+-]?(inf|nan)$", re.IGNORECASE)
_TIME_WORDS = frozenset(
    {"latest", "earliest", "none", "max", "now", "today", "yesterday", "tomorrow", "since", "upper"}
)
AGO = re.compile(r"-\s*(\d{1,9})\s*([a-z]+)|(\d{1,9})\s*([a-z]+)\s+ago", re.IGNORECASE)  # "-1d", "2 hours ago".
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_CLIENT = re.compile(r".*:\d+:[0-9a-f]{8}:(.+)", re.DOTALL)


def make_client_name() -> str:
    """Return a new name for a writing client: its host, its process and its release."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}:{__version__}"


def read_release(client: str) -> str | None:
    """Return the release in a client's name; None without one."""
    match = _CLIENT.fullmatch(client)
    return None if match is None else match[1]


def check_name(name: str) -> str:
    """Return a name; raise InvalidUsage unless a collection may have it."""
    return _check_pattern("collection", name)


def check_free_name(name: str) -> str:
    """Return a name; raise InvalidUsage unless a user may give it to a collection."""
    check_name(name)
    if name.startswith(OWN_PREFIX):
        raise InvalidUsage(
            f"collection name {name!r:.80} is not allowed: names that begin with {OWN_PREFIX!r} are reserved for the "
            "library's own collections, such as the state of a dataflow. Leave the dot out, or put it between words."
        )
    return name


def check_hold_name(name: str) -> str:
    """Return a name; raise InvalidUsage unless a permanent hold may have it."""
    if isinstance(name, str) and is_id(name):
        raise InvalidUsage(f"hold name {name!r} is not allowed: it looks like the id of a lease. Use another name.")
    return _check_pattern("hold", name)


def check_tag_name(name: str) -> str:
    """Return a name; raise InvalidUsage unless a tag may have it: it must not look like a time."""
    if isinstance(name, str) and (_LIKE_A_TIME.match(name.strip()) or is_time_word(name)):
        raise InvalidUsage(
            f"tag name {name!r:.80} is not allowed: it looks like a time, and a tag is given where a time is. Begin it "
            "with a word, such as 'end-of-2026'."
        )
    return _check_pattern("tag", name)


def is_time_word(name: str) -> bool:
    """Return whether a name means a time, such as "latest"; no tag may have it."""
    return name.strip().lower() in _TIME_WORDS or AGO.fullmatch(name.strip()) is not None


def check_printable_text(what: str, text: str) -> str:
    """Return a text; raise InvalidUsage unless it has 1 to `TEXT_CHARS_MAX` printable characters."""
    if not isinstance(text, str) or not 0 < len(text) <= TEXT_CHARS_MAX or not text.isprintable():
        raise InvalidUsage(f"{what}={text!r:.300} is not a text of 1 to {TEXT_CHARS_MAX} printable characters")
    return text


def is_storable_text(value: object) -> bool:
    """Return whether a value is text without surrogates, which cannot be stored."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def make_view_hold_name(view: str) -> str:
    """Return the name of a view's holds, from the view's constant id."""
    return f"{VIEW_HOLD}{view}"


def make_index_hold_name(index: str) -> str:
    """Return the name of an index's hold, from its id."""
    return f"{INDEX_HOLD}{index}"


def make_published_hold_name(table: str) -> str:
    """Return the name of the hold of a published table with a change feed, from its format."""
    return f"{PUBLISHED_HOLD}{table}"


def make_index_name(collection: str, columns: Iterable[int]) -> str:
    """Return the name of a collection's index by columns with these ids."""
    return f"{INDEX_PREFIX}{collection}.{'-'.join(map(str, columns))}"


def make_groups_prefix(view: str) -> str:
    """Return the name prefix of the hidden views with a view's groups."""
    return f"{GROUPS_PREFIX}{view}."


def find_owner(name: str) -> str | None:
    """Return the id of an arrangement's owner from its name; None otherwise."""
    return name.split(".")[2] if name.startswith(ARRANGEMENT_PREFIXES) else None


def find_reader(hold: str) -> str | None:
    """Return the id of the view or index that owns a hold, from the hold's name; None for other holds."""
    return hold.partition(" ")[2] if hold.startswith(DERIVED_HOLDS) else None


def is_id(text: str) -> bool:
    """Return whether text is 32 hex digits, as ids are."""
    return _ID.fullmatch(text) is not None


def _check_pattern(what: str, name: str) -> str:
    """Return a name; raise InvalidUsage if it breaks the rules."""
    reason = _find_name_fault(name)
    if reason is not None:
        sample = repr(name if not isinstance(name, str) else name[:80])
        raise InvalidUsage(
            f"{what} name {sample} is not allowed: {reason}. A name is 1 to {NAME_CHARS_MAX} characters of text, "
            "without '/', '\\', '..', control characters or surrounding spaces."
        )
    return name


def _find_name_fault(name: object) -> str | None:
    """Return the reason why a name is not allowed; None if allowed."""
    if not isinstance(name, str):
        return f"it is a {type(name).__name__}"
    if not name:
        return "it is empty"
    if len(name) > NAME_CHARS_MAX:
        return f"it has {len(name)} characters"
    if "/" in name or "\\" in name:
        return "it contains a path separator"
    if name in (".", "..") or ".." in name:
        return "it contains '..' or is '.'"
    if _CONTROL.search(name):
        return "it contains a control character"
    if name != name.strip():
        return "it begins or ends with a space"
    return None if is_storable_text(name) else "it is not valid Unicode text"


def check_holder(holder: str) -> None:
    """Raise ValueError unless a text may name a client in messages."""
    if not 0 < len(holder) <= HOLDER_CHARS_MAX or not holder.isprintable():
        raise ValueError(
            f"{holder[:200]!r} cannot be the name of a client: it must be 1 to {HOLDER_CHARS_MAX} printable "
            "characters, because people see it"
        )
