"""What one entry of the commit log says: the mutations of one or more collections, all of them or none.

    record   = frame "record" { location, seqno, commit, writer, written_ms, mutations }
    mutation = create | append | seal | allow_compaction | destroy

Fields:
    location    32 hex digits, drawn by the writer of seqno 0; every object of a location repeats it
    commit      32 hex digits, drawn anew for every commit: how a client that lost the answer knows its own record
    writer      free text naming the client, for people
    written_ms  the writer's clock, milliseconds since 1970; for people and for retention, never for correctness

Mutations name a collection by its id, which is never used again. A frontier is a list of at most one time.
A long list of parts is stored outside the record (`parts_in`); `persist.part_lists` fills it in before anybody sees
the record.
"""

from typing import Any

import msgspec

from persist.codecs import Part
from persist.envelope import BlobRef, Framed

Frontier = tuple[int, ...]


class _Mutation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"):
    collection: str


class Create(_Mutation, frozen=True, tag="create"):
    """Make a collection, with since and upper at 0."""

    name: str
    schema: dict[str, Any]


class Append(_Mutation, frozen=True, tag="append"):
    """Add the updates of some parts, all at times beyond upper."""

    parts: tuple[Part, ...] = ()
    parts_in: BlobRef | None = None


class Seal(_Mutation, frozen=True, tag="seal"):
    """Advance upper."""

    upper: Frontier


class AllowCompaction(_Mutation, frozen=True, tag="allow_compaction"):
    """Advance since."""

    since: Frontier


class Destroy(_Mutation, frozen=True, tag="destroy"):
    """Remove the collection; its name becomes free."""


Mutation = Create | Append | Seal | AllowCompaction | Destroy


class Record(Framed, frozen=True, kw_only=True, tag="record"):
    """One entry of the commit log."""

    location: str
    seqno: int
    commit: str
    writer: str
    written_ms: int
    mutations: tuple[Mutation, ...]
