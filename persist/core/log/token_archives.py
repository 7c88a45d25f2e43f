"""Older tokens of a collection, in objects of their own, so that its state does not grow with them.

An object is an upload like a part: the state of the collection names it, and garbage collection deletes it like an
unused part. It has 25 bytes for each write, sorted by the hash of the token, in the form that `docs/inside/format.md`
defines ("Archives of tokens").

The hash of 64 bits replaces the token: among four million tokens, two have the same hash with a probability of 10^-6.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from persist.blob.errors import CorruptBlob
from persist.blob.protocol import Blob
from persist.core.log.fields import TokenArchive, TokenMark
from persist.core.log.framing import Framed, get_framed, store_framed
from persist.core.log.keys import make_archive_prefix

_ROW = np.dtype([("hash", "<u8"), ("time_min", "<i8"), ("digest", "<u8"), ("has_digest", "u1")])


class ArchiveObject(Framed, frozen=True, kw_only=True, tag="tokens"):
    """A stored token archive; see the module's docstring."""

    location: str
    collection: str
    rows: bytes


@dataclass(frozen=True, slots=True)
class ArchivedTokens:
    """The tokens of one archive, in memory: a table of `_ROW`, sorted by hash."""

    rows: np.ndarray

    @classmethod
    def of(cls, marks: Iterable[TokenMark]) -> "ArchivedTokens":
        """Return an archive of marks with distinct tokens."""
        rows = [(_hash_token(m.token), m.time_min, int(m.digest or "0", 16), m.digest is not None) for m in marks]
        return cls(np.sort(np.array(rows, _ROW), order="hash"))

    @classmethod
    def merge(cls, archives: Iterable["ArchivedTokens"]) -> "ArchivedTokens":
        """Return one archive with the tokens of several."""
        return cls(np.sort(np.concatenate([archive.rows for archive in archives]), order="hash"))

    def find_mark(self, token: str) -> TokenMark | None:
        """Return the mark of a token, or None."""
        token_hash = np.uint64(_hash_token(token))
        place = int(np.searchsorted(self.rows["hash"], token_hash))
        if place == len(self.rows) or self.rows["hash"][place] != token_hash:
            return None
        row = self.rows[place]
        return TokenMark(token, int(row["time_min"]), f"{int(row['digest']):016x}" if row["has_digest"] else None)


def store_archive(
    blob: Blob, location: str, collection: str, seqno: int, tokens: ArchivedTokens, *, format: int
) -> TokenArchive:
    """Store an archive for the record at seqno; return the pointer. Cost: a PUT."""
    stored = ArchiveObject(format=format, location=location, collection=collection, rows=tokens.rows.tobytes())
    return TokenArchive(store_framed(blob, make_archive_prefix(collection, seqno), stored), len(tokens.rows))


def read_archive(blob: Blob, location: str | None, collection: str, archive: TokenArchive) -> ArchivedTokens:
    """Return the tokens of a stored archive. Cost: a GET.

    Raises MissingBlob, CorruptBlob: the archive is missing or damaged.
    """
    stored = get_framed(blob, archive.stored, ArchiveObject)
    if (stored.location, stored.collection) != (location, collection):
        raise CorruptBlob(archive.stored.blob, "it belongs to another collection, so blobs were exchanged")
    if len(stored.rows) != archive.count * _ROW.itemsize:
        raise CorruptBlob(archive.stored.blob, f"it does not hold the {archive.count} tokens that belong there")
    rows = np.frombuffer(stored.rows, _ROW)
    if (rows["hash"][1:] < rows["hash"][:-1]).any():
        raise CorruptBlob(archive.stored.blob, "its tokens are not in order")
    return ArchivedTokens(rows)


def _hash_token(token: str) -> int:
    """Return the 64-bit hash by which archives sort a token."""
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), "big")
