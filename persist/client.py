"""A client of one location: a fat client that talks to the object store itself. There is no server."""

import os
import socket
import uuid
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, get_args

from persist.blob import Blob, InvalidUsage, open_blob
from persist.blob.clock import Clock, SystemClock
from persist.codecs import CollectionSchema
from persist.collection import Collection
from persist.committer import Committer
from persist.errors import ClientClosed, CollectionExists, CollectionNotFound, ReadOnly
from persist.follower import Follower
from persist.future import CommitFuture
from persist.multi_write import MultiWrite
from persist.names import check_name
from persist.operations import Step, Write
from persist.records import Create

Mode = Literal["shared", "read"]
IO_THREADS = 4


def open(
    location: str | os.PathLike[str] | Blob,
    *,
    mode: Mode = "shared",
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> "Client":
    """Open a location and return a client for it. Close it, or use it in a `with`.

    Args:
        location: a folder, `s3://bucket/prefix`, `memory://name`, any other URL that fsspec knows, or a `Blob`.
        mode: "shared" (any number of clients write) or "read" (this client writes nothing at all).
        storage_options: for the store, such as `endpoint_url`, `region`, `profile`, `server_side_encryption`.
        clock: replaces the machine's clocks, for tests.

    Cost: one page of LIST and a few GETs; nothing is created before the first write.

    Raises:
        InvalidUsage: the URL, an option or the mode is not known; or the bucket or credentials are missing.
        Corruption: the newest checkpoint or a record after it cannot be believed.
    """
    if mode not in get_args(Mode):
        raise InvalidUsage(f'mode={mode!r} is not a mode of a client: use "shared" or "read"')
    if not isinstance(location, (str, os.PathLike)) and not callable(getattr(location, "create", None)):
        raise InvalidUsage(f"location {location!r} is not a path, a URL or a Blob: give for example s3://bucket/prefix")
    if isinstance(location, (str, os.PathLike)):
        blob = open_blob(os.fspath(location) if isinstance(location, Path) else location, storage_options)
        return _opened(blob, mode, clock, owns_blob=True)
    if storage_options:
        raise InvalidUsage("storage_options go with a URL; this location is a Blob that was opened already")
    return _opened(location, mode, clock, owns_blob=False)


def _opened(blob: Blob, mode: Mode, clock: Clock | None, *, owns_blob: bool) -> "Client":
    try:
        return Client(blob, mode, clock or SystemClock(), owns_blob=owns_blob)
    except BaseException:
        if owns_blob:
            blob.close()
        raise


class Client:
    """Reads and writes the collections of one location; make it with `persist.open`. Safe to use from many threads."""

    def __init__(self, blob: Blob, mode: Mode, clock: Clock, *, owns_blob: bool) -> None:
        self._blob = blob
        self._owns_blob = owns_blob
        self._mode: Mode = mode
        self._closed = False
        self._pid = os.getpid()
        self._follower = Follower(blob, clock)
        self._pool = ThreadPoolExecutor(IO_THREADS, thread_name_prefix="persist-io")
        self._committer: Committer | None = None
        if mode != "read":
            name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
            self._committer = Committer(blob, self._follower, self._pool, clock, name)
            # A client dropped without close must not leave its thread behind.
            weakref.finalize(self, self._committer.request_stop)

    @property
    def url(self) -> str:
        """Where the location is."""
        return self._blob.url

    @property
    def mode(self) -> Mode:
        """ "shared" or "read"."""
        return self._mode

    def collections(self) -> list[str]:
        """Return the names of all collections, sorted. Cost: one GET."""
        self._check_open("collections")
        return list(self._follower.refresh().names())

    def load(self, name: str) -> Collection:
        """Return the collection of that name, with the schema it has.

        Raises:
            CollectionNotFound: there is none.
        """
        self._check_open("load")
        check_name(name)
        state = self._follower.refresh()
        if name not in state.ids:
            raise CollectionNotFound(name, self.url, state.names())
        contents = self._follower.known(state.ids[name], name)
        return Collection(self, contents.id, name, contents.schema)

    def create_or_load(self, name: str, *, key: Any, value: Any = None) -> Collection:
        """Return the collection of that name; create it, empty, if there is none. Idempotent.

        Args:
            name: 1 to 255 characters, no '/', '..' or control characters.
            key, value: a dict of names to Arrow types, a `pa.Schema`, a `Codec`, or None for no columns at all.

        Raises:
            SchemaMismatch, CodecMismatch: it exists with another schema; the message shows the difference.
            ReadOnly: it does not exist, and this client only reads.
        """
        self._check_open("create_or_load")
        check_name(name)
        schema = CollectionSchema.of(key, value)
        while True:
            state = self._follower.refresh()
            id_ = state.ids.get(name)
            contents = self._follower.load(id_) if id_ is not None else None
            if contents is not None:
                return Collection(self, contents.id, name, schema.reconcile(contents.schema, name))
            id_ = uuid.uuid4().hex
            try:
                self._submit("create_or_load", [Create(id_, name, schema.to_json())], {id_: name}).result()
            except CollectionExists:
                continue  # Another client created it in between: load that one.

    def multi_write(self) -> MultiWrite:
        """Return a `with` block whose writes and seals, to any collections of this client, are one commit."""
        self._check_writable("multi_write")
        return MultiWrite(self)

    def close(self) -> None:
        """Finish what was asked for, free threads and sockets, and raise errors that nobody looked at; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._committer is not None:
            self._committer.close()
        self._follower.close()
        self._pool.shutdown(wait=True)
        if self._owns_blob:
            self._blob.close()
        if self._committer is not None:
            self._committer.unobserved.raise_all()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException as unlooked:
            if error is None:
                raise
            # The block's own error is what its handlers wait for.
            error.add_note(f"Besides, writes failed and nobody looked at their errors: {unlooked!r}")

    def __repr__(self) -> str:
        return f"<Client of {self.url}, mode {self._mode!r}{', closed' if self._closed else ''}>"

    def _submit(self, action: str, steps: Sequence[Step], names: dict[str, str]) -> CommitFuture:
        try:
            self._check_writable(action)
            assert self._committer is not None
            return self._committer.submit(steps, names)
        except ClientClosed:
            self._abandon(steps)
            raise

    def _abandon(self, steps: Sequence[Step]) -> None:
        if self._committer is not None:  # A client that only reads has uploaded nothing.
            self._committer.abandon(steps)

    def _write_step(self, id_: str, schema: CollectionSchema, updates: Any) -> Write | None:
        assert self._committer is not None
        return self._committer.write_step(id_, schema, updates)

    def _reading(self) -> tuple[Blob, Executor]:
        self._check_open("reading")
        return self._blob, self._pool

    def _check_open(self, action: str) -> None:
        if self._closed:
            raise ClientClosed(action)
        if os.getpid() != self._pid:
            raise InvalidUsage(
                f"{action} came in process {os.getpid()}, and this client was opened in {self._pid}: its threads did "
                "not come along with the fork. Open a new client in each process."
            )

    def _check_writable(self, action: str) -> None:
        self._check_open(action)
        if self._committer is None:
            raise ReadOnly(action)
