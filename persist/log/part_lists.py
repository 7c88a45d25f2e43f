"""Part lists too large for the record that appends them: kept in an object of their own.

    list/<collection>/<seqno known then, 20 digits>-<xxh3_128 of the object>.json     frame "parts"

In memory an `Append`, or whatever else brings parts, always has its `parts`. On storage, a long list is replaced by
`parts_in`, a pointer with a checksum. The object is written before the record that points to it. Its name begins like
that of an upload (`persist.state.location.check_uploaded` says why) and goes on with its content, so writing it twice
is harmless.
"""

from typing import TypeVar

import msgspec

from persist.blob import Blob, CorruptBlob
from persist.codecs import Part
from persist.log.envelope import Framed, get_framed, put_framed
from persist.log.keys import list_prefix
from persist.log.records import BringsParts, Mutation

PARTS_INLINE_MAX = 256

M = TypeVar("M", bound=Mutation)
A = TypeVar("A", bound=BringsParts)


class PartList(Framed, frozen=True, kw_only=True, tag="parts"):
    """The parts of one mutation."""

    location: str
    collection: str
    parts: tuple[Part, ...]


def move_out(blob: Blob, location: str, append: A, seqno: int) -> A:
    """Return append, with its part list also stored as an object if it is long. Cost: one PUT, or nothing.

    Args:
        seqno: where the record would go now.
    """
    if len(append.parts) <= PARTS_INLINE_MAX:
        return append
    content = PartList(location=location, collection=append.collection, parts=append.parts)
    return msgspec.structs.replace(append, parts_in=put_framed(blob, list_prefix(append.collection, seqno), content))


def as_stored(mutation: M) -> M:
    """Return mutation as it is written, without a part list that is stored elsewhere."""
    if isinstance(mutation, BringsParts) and mutation.parts_in is not None:
        return msgspec.structs.replace(mutation, parts=())
    return mutation


def as_read(blob: Blob, location: str, mutation: M) -> M:
    """Return mutation with its part list, which costs one GET if it is stored elsewhere."""
    if not isinstance(mutation, BringsParts) or mutation.parts_in is None or mutation.parts:
        return mutation
    content = get_framed(blob, mutation.parts_in, PartList)
    if (content.location, content.collection) != (location, mutation.collection):
        raise CorruptBlob(mutation.parts_in.blob, "it belongs to another collection, so blobs were exchanged")
    return msgspec.structs.replace(mutation, parts=content.parts)
