"""What a task does to write: rows become updates, updates parts, and parts are uploaded; no record names them yet.

Names are drawn anew for every upload, so a task that fails, is killed or runs twice leaves at most blobs that nobody
refers to; those of a task that fails by itself are deleted at once, others are garbage. Updates that come sorted by key
become parts that do not overlap (see `persist.codecs.part.stream`), and while one part is uploaded the next is
encoded.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persist.codecs import DIGEST_MODULUS, CollectionSchema, Part, RunStream, digest_of
from persist.engine import CollectionHandle, Engine, OpenOptions, open_engine
from persist.log import KeyedForm
from persist.read import PartCaches
from persist.settings import Settings, open_storage
from persist.write import PartWriter

BUFFER_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Target:
    """The very collection that a job writes to: by id, not another that has got its name meanwhile.

    Attributes:
        seqno: the next one of the log when the job was planned; uploads are named by it.
    """

    location: str
    storage: Mapping[str, Any]
    id: str
    name: str
    schema: CollectionSchema
    keyed: KeyedForm | None
    seqno: int

    @classmethod
    def of(cls, handle: CollectionHandle, location: str, storage: Mapping[str, Any]) -> "Target":
        seqno = handle.engine.follower.next_seqno()
        return cls(location, storage, handle.id, handle.name, handle.schema, handle.keyed, seqno)

    def at(self, engine: Engine) -> CollectionHandle:
        """Return the collection as a handle of an engine."""
        return CollectionHandle(engine, self.id, self.name, self.schema, self.keyed)

    @contextmanager
    def writer(self) -> Iterator[PartWriter]:
        """Open the store for uploads, without reading anything."""
        storage = open_storage(self.location, self.storage)
        try:
            yield PartWriter(storage.blob, lambda: self.seqno)
        finally:
            storage.close()


def writing(location: str, storage: Mapping[str, Any], caches: PartCaches | None = None) -> Engine:
    """Open a location for one commit: the engine does nothing in the background.

    Args:
        caches: what engines of the same location before it have left of parts, for those that come after it.
    """
    return open_engine(location, storage, OpenOptions(settings=Settings(background=False), caches=caches))


def upload(target: Target, tables: Iterable[pa.Table]) -> tuple[Part, ...]:
    """Store the updates of one task; return the descriptors of their parts.

    Raises:
        DiffOverflow, InvalidUpdate: of what `encode_parts` raises.
        Unavailable: the store did not take a part.
    """
    with target.writer() as writer, Uploads(writer, target.id) as uploads:
        stream = RunStream(target.schema)
        for table in tables:
            uploads.put(stream.add(table))
        uploads.put(stream.finish())
        return uploads.parts()


@dataclass
class DigestSum:
    """The digest of tables that pass, by some of their columns; None if there are no columns to take it by."""

    by: tuple[str, ...]
    total: int | None = None

    def __post_init__(self) -> None:
        self.total = 0 if self.by else None

    def passed(self, table: pa.Table) -> pa.Table:
        if self.total is not None:
            self.total = (self.total + digest_of(table, self.by)) % DIGEST_MODULUS
        return table


def digests_added(digests: Iterable[int | None]) -> int | None:
    """Return the digest of everything that several tasks have had; None if one of them is unknown."""
    total = 0
    for digest in digests:
        if digest is None:
            return None
        total += digest
    return total % DIGEST_MODULUS


class Uploads:
    """Parts on their way to the store, one at a time, beside what the caller does; deleted if the block raises."""

    def __init__(self, writer: PartWriter, collection: str) -> None:
        self._writer = writer
        self._collection = collection
        self._thread = ThreadPoolExecutor(1, "persist-upload")
        self._begun: list[Future[Part]] = []

    def put(self, encoded: Iterable[tuple[bytes, Part]]) -> None:
        """Begin to upload parts; wait until at most one is on its way, because each takes memory."""
        for data, part in encoded:
            if self._begun:
                self._begun[-1].result()
            self._begun.append(self._thread.submit(self._writer.put, self._collection, data, part))

    def parts(self) -> tuple[Part, ...]:
        """Wait for all of them and return their descriptors."""
        return tuple(upload.result() for upload in self._begun)

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._thread.shutdown(wait=True)
        if kind is not None:
            self._writer.discard(upload.result() for upload in self._begun if upload.exception() is None)


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield tables of about BUFFER_BYTES_MAX bytes; none for no rows."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= BUFFER_BYTES_MAX:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)
