"""What a location, a collection or a column says of itself: a comment and properties, which people and tools give it.

Nothing here has a meaning to the package. Whoever changes it may say which version of it they have seen; then the
change is refused if anybody else came first.
"""

from collections.abc import Container, Mapping

import msgspec

from persist.errors import DescriptionMoved, InvalidUsage
from persist.log import Note, Words

ABOUT_BYTES_MAX = 64 << 10  # As JSON, columns included: it is read with every opening, or with the contents.
NOTE_BYTES_MAX = 64 << 10


class ColumnAbout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of a column."""

    comment: str = ""
    properties: dict[str, str] = {}


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of a location or a collection; its columns are known by their ids.

    Attributes:
        version: how often it was changed.
    """

    comment: str = ""
    properties: dict[str, str] = {}
    columns: dict[str, ColumnAbout] = {}
    version: int = 0


def described(about: About, words: Words, columns: Mapping[str, Words], version: int | None) -> About:
    """Return about after something more was said.

    Raises:
        DescriptionMoved: a version was given, and it is another one by now.
        InvalidUsage: it would take more than `ABOUT_BYTES_MAX`, or a property has no name.
    """
    if version not in (None, about.version):
        raise DescriptionMoved(version, about.version)
    said = dict(about.columns)
    for id_, each in columns.items():
        before = said.pop(id_, ColumnAbout())
        after = ColumnAbout(*_after(before.comment, before.properties, each))
        if after != ColumnAbout():
            said[id_] = after
    comment, properties = _after(about.comment, about.properties, words)
    found = About(comment, properties, said, about.version + 1)
    size = len(msgspec.json.encode(found))
    if size > ABOUT_BYTES_MAX:
        raise InvalidUsage(
            f"comment and properties, those of columns included, would take {size} bytes as JSON, and at most "
            f"{ABOUT_BYTES_MAX} are kept: put what is large into a collection, and its name into a property"
        )
    return found


def without_columns(about: About, ids: Container[str]) -> About:
    """Return about when columns of these ids are gone: nothing is said of them, and that they were is a change."""
    kept = {id_: each for id_, each in about.columns.items() if id_ not in ids}
    if len(kept) == len(about.columns):
        return about
    return msgspec.structs.replace(about, columns=kept, version=about.version + 1)


def _after(comment: str, properties: Mapping[str, str], words: Words) -> tuple[str, dict[str, str]]:
    if "" in words.properties:
        raise InvalidUsage("a property has a name: '' is none")
    said = {**properties, **words.properties}
    kept = {name: value for name, value in said.items() if value is not None}
    return comment if words.comment is None else words.comment, dict(sorted(kept.items()))


def check_note(note: Note) -> None:
    """Raise InvalidUsage if a note is too large to be kept in the log."""
    size = len(note.message.encode()) + sum(len(k.encode()) + len(v.encode()) for k, v in note.metadata.items())
    if size > NOTE_BYTES_MAX:
        raise InvalidUsage(
            f"message and metadata take {size} bytes, and at most {NOTE_BYTES_MAX} go into the log: write what is "
            "large as data, and say here where it is"
        )
