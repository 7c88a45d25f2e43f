"""Where a collection is for tasks, which open its store themselves, and what a query follows of it from where on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from persist.blob import MissingBlob
from persist.engine import loaded, read_engine
from persist.errors import CollectionNotFound
from persist.read import collected
from persist.settings import Storage, open_storage


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


RowsByKey = Literal["transitions", "upserts"]


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What to follow, and from where on: one of as_of and start is set. A time may be "latest", or a timestamp.

    Attributes:
        as_of: begin with the contents as of this time.
        start: begin without contents, with the updates at this time and later.
        columns: those wanted; None for all.
        rows_by_key: make rows by key of what is read: "transitions"; or "upserts", which are of a keyed collection,
            tombstones among them. None for records and updates.
        hold: the name of the permanent hold, "none" for no hold, None to have a name drawn.
        partitions: into how many slices a micro-batch is cut, at most; None for what fits into memory.
        timeout_s: how long as_of may stay unsealed; None for no limit.
        storage: options of the store.
    """

    location: str
    collection: str
    as_of: int | str | None = "latest"
    start: int | str | None = None
    columns: tuple[str, ...] | None = None
    rows_by_key: RowsByKey | None = None
    hold: str | None = None
    partitions: int | None = None
    timeout_s: float | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)
