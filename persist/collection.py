"""One collection, as a client sees it: write, seal, read as of a time, follow changes."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.antichain import Antichain, as_time
from persist.changes import Changes, read_changes
from persist.codecs import TIME_MAX, CollectionSchema, Part
from persist.errors import AsOfCompacted, AsOfNotSealed, InvalidUsage
from persist.future import CommitFuture
from persist.listen import Listen, Progress
from persist.operations import Step, Write
from persist.records import AllowCompaction, Destroy, Seal
from persist.scan import Scan
from persist.snapshot import Form, Snapshot, check_request, read_snapshot, snapshot_scan
from persist.state import CollectionState

if TYPE_CHECKING:
    from persist.client import Client

READ_TIMEOUT_S = 30.0


class Collection:
    """A handle on one collection; make it with `Client.create_or_load` or `Client.load`.

    It stands for that very collection, by id: after `destroy`, it does not turn into a new one of the same name.

    Attributes:
        client: the client it belongs to.
        id: unique in the location, for ever.
        name: what it is called.
        schema: its key and value columns.
    """

    def __init__(self, client: "Client", id_: str, name: str, schema: CollectionSchema) -> None:
        self.client = client
        self.id = id_
        self.name = name
        self.schema = schema

    @property
    def upper(self) -> Antichain:
        """The seal frontier: no more updates will come at times not beyond it. Cost: one GET."""
        return self._contents().upper

    @property
    def since(self) -> Antichain:
        """The compaction frontier: the first time that can still be read. Cost: one GET."""
        return self._contents().since

    def write(self, updates: Any) -> CommitFuture:
        """Append updates, all or none of them.

        Args:
            updates: `((key, value), time, diff)` tuples, or anything Arrow (`pa.Table`, `pa.RecordBatch`, an object
                with `__arrow_c_stream__`) that has the key and value columns, `_time` and `_diff`. Updates with diff 0
                are dropped.

        Returns:
            a future that resolves when they are durable, or to `UpdateNotBeyondUpper` if one is at a sealed time.

        Raises:
            SchemaMismatch, InvalidUpdate, CodecMismatch: they do not fit the collection; nothing was written.
            ReadOnly, ClientClosed: this client cannot write.
        """
        return self.client._submit("write", self._write_steps(updates), {self.id: self.name})

    def seal(self, upper: int | Antichain) -> CommitFuture:
        """Promise that no more updates will come at times not beyond upper; `Antichain()` completes it for ever.

        Returns:
            a future that resolves when the seal is durable, or to `FrontierRegression` if upper is behind the
            current one. A seal to the current upper does nothing.
        """
        return self.client._submit("seal", [self._seal_step(upper)], {self.id: self.name})

    def allow_compaction(self, since: int | Antichain) -> CommitFuture:
        """Give up telling times before since apart; reads before since fail from then on.

        Returns:
            a future that resolves when that is durable, or to `FrontierRegression` if since would go back.
        """
        step = AllowCompaction(self.id, Antichain.at(since).elements)
        return self.client._submit("allow_compaction", [step], {self.id: self.name})

    def destroy(self) -> CommitFuture:
        """Remove the collection; its name becomes free for a new one, its blobs are left to garbage collection."""
        return self.client._submit("destroy", [Destroy(self.id)], {self.id: self.name})

    def snapshot(
        self,
        as_of: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        form: Form = "rows",
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Snapshot:
        """Return the contents as of a time, to be read as Arrow, pandas, Polars, batches or Python rows.

        Args:
            as_of: the time; None means the latest sealed one.
            columns: the columns wanted; None means all of them.
            filter: a `pyarrow.compute` expression over key and value columns.
            form: "rows" (each record as often as its multiplicity) or "diff" (once, with `_diff`).
            timeout_s: how long to wait for as_of to be sealed; None waits without limit.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
            SchemaMismatch, InvalidUsage: columns or filter do not fit.
        """
        check_request(self.schema, columns, filter, form)
        contents, time = self._sealed(as_of, timeout_s)
        scan = snapshot_scan(contents, self.schema, time, columns, filter)
        return Snapshot(scan, form, self.client._reading)

    def changes(
        self,
        lower: int,
        upper: int,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        timeout_s: float | None = READ_TIMEOUT_S,
    ) -> Changes:
        """Return the updates with `lower <= time < upper`, consolidated, in time order.

        Args:
            timeout_s: how long to wait for `upper - 1` to be sealed; None waits without limit.

        Raises:
            AsOfCompacted: history between `lower - 1` and since has been compacted.
            AsOfNotSealed: upper is beyond the collection's upper.
            InvalidUsage: the interval is not `0 <= lower <= upper`.
        """
        lower, upper = as_time("lower", lower), as_time("upper", upper, most=TIME_MAX + 1)
        check_request(self.schema, columns, filter, "diff")
        if lower > upper:
            raise InvalidUsage(
                f"changes({lower}, {upper}) is backwards: the interval is [lower, upper), so lower <= upper"
            )
        contents = self._contents()
        _check_since(contents, lower)
        if upper > lower and contents.upper.has_beyond(upper - 1):
            contents, _ = self._sealed(upper - 1, timeout_s)
            _check_since(contents, lower)
        return Changes(self._changes_scan(contents, lower, upper, columns, filter), self.client._reading)

    def listen(self, as_of: int) -> Listen:
        """Follow the updates after as_of, with progress.

        Raises:
            AsOfCompacted: as_of is before since.
        """
        as_of = as_time("as_of", as_of)
        _check_since(self._contents(), as_of + 1)
        return self._listen(as_of + 1, None)

    def subscribe(self, as_of: int | None = None, *, timeout_s: float | None = READ_TIMEOUT_S) -> Listen:
        """Return the contents as of a time as the first progress (at time as_of), then what `listen` returns.

        Both are taken at one point of the log, so that no update is seen twice or missed. None means the latest
        sealed time; timeout_s is how long to wait for as_of to be sealed.

        Raises:
            AsOfCompacted, AsOfNotSealed: as_of cannot be read.
        """
        contents, time = self._sealed(as_of, timeout_s)
        scan = snapshot_scan(contents, self.schema, time, None, None)
        [found] = read_snapshot(scan, "diff", *self.client._reading())
        times = pa.repeat(pa.scalar(time, pa.int64()), len(found))
        updates = found.add_column(len(self.schema.names), self.schema.arrow.field("_time"), times)
        return self._listen(time + 1, Progress(updates, Antichain(time + 1)))

    def commit_parts(self, parts: Sequence[Part], *, seal: Antichain | None = None) -> CommitFuture:
        """Append parts that were stored with `persist.part_writer.PartWriter`, and perhaps seal, as one commit.

        For engines whose tasks encode and upload by themselves. Parts of a commit that is rejected are deleted.
        """
        steps: list[Step] = []
        if parts:
            uploaded: Future[tuple[Part, ...]] = Future()
            uploaded.set_result(tuple(parts))
            steps.append(Write(self.id, self.schema, min(part.time_min for part in parts), 0, uploaded))
        if seal is not None:
            steps.append(self._seal_step(seal))
        return self.client._submit("commit_parts", steps, {self.id: self.name})

    def __repr__(self) -> str:
        return f"<Collection {self.name!r} at {self.client.url}>"

    def _write_steps(self, updates: Any) -> list[Step]:
        self.client._check_writable("write")
        step = self.client._write_step(self.id, self.schema, updates)
        return [step] if step is not None else []

    def _seal_step(self, upper: int | Antichain) -> Seal:
        return Seal(self.id, Antichain.at(upper).elements)

    def _contents(self) -> CollectionState:
        self.client._check_open("reading")
        return self.client._follower.current(self.id, self.name)

    def _sealed(self, as_of: int | None, timeout_s: float | None) -> tuple[CollectionState, int]:
        """Wait until as_of (None: any time) is sealed; return the contents of that moment and the time to read."""
        self.client._check_open("reading")
        if as_of is not None:
            as_of = as_time("as_of", as_of)
        if timeout_s is not None and not (isinstance(timeout_s, (int, float)) and timeout_s >= 0):
            raise InvalidUsage(
                f"timeout_s={timeout_s!r} is not a number of seconds; give 0 or more, or None for no limit"
            )
        follower = self.client._follower

        def sealed() -> CollectionState | None:
            contents = follower.known(self.id, self.name)
            if as_of is not None and not contents.since.has_beyond(as_of):
                raise AsOfCompacted(as_of, contents.since)
            return None if contents.upper.has_beyond(as_of or 0) else contents

        contents = follower.wait_for(sealed, timeout_s)
        if contents is None:
            assert timeout_s is not None
            raise AsOfNotSealed(as_of, follower.known(self.id, self.name).upper, timeout_s)
        time = _latest(contents) if as_of is None else as_of
        if not contents.since.has_beyond(time):
            raise AsOfCompacted(time, contents.since)
        return contents, time

    def _changes_scan(
        self,
        contents: CollectionState,
        lower: int,
        upper: int,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> Scan:
        names = self.schema.names if columns is None else tuple(columns)
        return Scan(self.schema, contents.parts, lower, upper, names, filter).pruned()

    def _listen(self, lower: int, first: Progress | None) -> Listen:
        def read(contents: CollectionState, lower: int, upper: int) -> pa.Table:
            return read_changes(self._changes_scan(contents, lower, upper), *self.client._reading())

        return Listen(self.client._follower, self.id, self.name, lower, read, first)


def _latest(contents: CollectionState) -> int:
    """Return the last sealed time of contents, which has one."""
    return TIME_MAX if contents.upper.time is None else contents.upper.time - 1


def _check_since(contents: CollectionState, lower: int) -> None:
    """Raise unless updates from lower on can be told apart: since is at most `lower - 1`, or nothing came before."""
    if lower == 0 and contents.since == Antichain(0):
        return
    if not contents.since.has_beyond(lower - 1):
        raise AsOfCompacted(lower - 1, contents.since, lower)
