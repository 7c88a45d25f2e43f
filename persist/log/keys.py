"""The grammar of blob keys: which names a location's blobs have, and what a name says.

A name that is not in the grammar is refused where it comes in, so that no record can make anybody read, write or
delete a blob outside the collection it belongs to.
"""

import re
from collections.abc import Iterable

from persist.codecs import Part
from persist.log.records import Append, Replace

_UPLOAD = re.compile(r"(?:part|list)/(?P<collection>[0-9a-f]{32})/(?P<seqno>[0-9]{20})-[0-9a-f]{32}\.(?:parquet|json)")

_IMMUTABLE = ("part/", "list/", "state/")


def check_keys(append: Append | Replace) -> list[str]:
    """Return the keys of all blobs that append brings, after checking that all it names are its collection's uploads.

    Raises:
        ValueError: one is not, or a part has no bytes, or twice.
    """
    keys = check_parts(append.collection, append.parts)
    if append.parts_in is not None:
        if not is_upload(append.parts_in.blob, append.collection):
            raise ValueError(_no_upload(append.parts_in.blob, append.collection))
        keys.append(append.parts_in.blob)
    for key in append.unused if isinstance(append, Replace) else ():
        if not is_upload(key, append.collection):
            raise ValueError(_no_upload(key, append.collection))
    return keys


def check_parts(collection: str, parts: Iterable[Part]) -> list[str]:
    """Return the keys of parts that are not inline; raise ValueError if one is no upload to that collection."""
    keys = []
    for part in parts:
        if bool(part.blob) == bool(part.inline):
            raise ValueError(f"a part of collection {collection} has its bytes in no place or in two")
        if part.blob:
            if not is_upload(part.blob, collection):
                raise ValueError(_no_upload(part.blob, collection))
            keys.append(part.blob)
    return keys


def is_immutable(key: str) -> bool:
    """Tell whether the blob at key never changes, and no other ever comes to be there, so that it may be cached.

    Those are parts, part lists and state objects, whose names are random or the checksum of what they hold. Checkpoints
    are not among them: an opening client reads one, once, and their names come again when a location is emptied and
    made anew at the same URL, or when a bad one is rebuilt.
    """
    return key.startswith(_IMMUTABLE)


def is_upload(key: str, collection: str) -> bool:
    """Tell whether key is the name of a part or part list of that collection."""
    found = _UPLOAD.fullmatch(key)
    return found is not None and found["collection"] == collection


def _no_upload(key: str, collection: str) -> str:
    return f"{key[:200]!r} is not the name of an upload to collection {collection}"


def uploaded_seqno(key: str) -> int | None:
    """Return the seqno that a part's or list's name begins with; None if it is no such name."""
    found = _UPLOAD.fullmatch(key)
    return None if found is None else int(found["seqno"])
