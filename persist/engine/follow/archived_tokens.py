"""Finds earlier uses of a token, in a collection's state or in archives, which a client reads once.

Archives never change, so a client that writes with tokens reads each archive once, also those of other clients. Memory:
25 bytes for each token, if the client's cache has room.
"""

from persist.blob.lru import Cache, Kind
from persist.blob.protocol import Blob
from persist.core.log.fields import TokenArchive
from persist.core.log.token_archives import ArchivedTokens, read_archive
from persist.core.state_rules.annotations import Remembered
from persist.core.state_rules.contents import CollectionState


class TokenMemory:
    """Finds earlier uses of tokens; every method may be called from any thread."""

    def __init__(self, blob: Blob, cache: Cache) -> None:
        self._blob = blob
        self._archives: Kind[str, ArchivedTokens] = cache.add_kind(lambda tokens: int(tokens.rows.nbytes))

    def find(self, location: str | None, contents: CollectionState, token: str | None) -> Remembered | None:
        """Return the earlier use of a token, or None. Cost: a GET for each archive not read before.

        Raises:
            MissingBlob, CorruptBlob: an archive is missing or damaged.
        """
        if token is None or token in contents.tokens:
            return None if token is None else contents.tokens[token]
        for archive in reversed(() if contents.archives is None else contents.archives.stored):
            mark = self.read(location, contents.id, archive).find_mark(token)
            if mark is not None:
                return Remembered(mark.time_min, mark.digest)
        return None

    def read(self, location: str | None, collection: str, archive: TokenArchive) -> ArchivedTokens:
        """Return the tokens of an archive, at the cost and with the errors of `find`."""
        tokens = self._archives.get(archive.stored.blob)
        if tokens is None:
            tokens = read_archive(self._blob, location, collection, archive)
            self.keep(archive, tokens)
        return tokens

    def keep(self, archive: TokenArchive, tokens: ArchivedTokens) -> None:
        """Remember the tokens of an archive that this client has read or stored."""
        self._archives.put(archive.stored.blob, tokens)
