"""Where tasks find a collection, and how they open its store."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from persist.blob import MissingBlob
from persist.engine import loaded, read_engine
from persist.errors import CollectionNotFound
from persist.read import collected
from persist.storage import Storage, open_storage


@dataclass(frozen=True)
class CollectionAddress:
    """Where a collection is, for tasks: they open the store themselves. The URL is absolute."""

    url: str
    storage: Mapping[str, Any]
    collection: str

    @contextmanager
    def opened(self) -> Iterator[Storage]:
        """Open the store, for reading what a plan names.

        Raises:
            LeaseExpired: a blob that was read in the block is gone, and the collection does not need it any more.
            CorruptBlob: it is gone, and the collection needs it.
        """
        storage = open_storage(self.url, self.storage)
        try:
            yield storage
        except MissingBlob as error:
            if self._is_needed(error.key):
                raise
            raise collected(error) from error
        finally:
            storage.close()

    def _is_needed(self, key: str) -> bool:
        """Tell whether the collection, as it is now, refers to a blob."""
        with read_engine(self.url, self.storage) as engine:
            try:
                return loaded(engine, self.collection).needs(key)
            except CollectionNotFound:
                return False
