"""Files as a sink: each step of a collection is one file, which nobody writes twice.

    COLLECTION/contents-TIME-N.parquet         contents as of a time; N counts the steps
    COLLECTION/LOWER-UPPER.parquet             the changes with LOWER <= time < UPPER
    _persist/NAME/ID/N.json                    step N: where it begins and ends, and its file

A step is first promised, by its object N.json, which is made only if there is none: so of two processes, one decides
where step N ends. Then its file is made, also only if there is none. Whoever finds a promise without its file makes
the file: what lies between two times is definite, so it is the same, whoever reads it. Steps without rows are not
promised, unless they end something; the next one begins where the last promise ended.

A file is made in memory, compressed if it is Parquet.
"""

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from persist.blob import Blob
from persist.codecs import int64_array
from persist.egress.row_files import Nan, row_writer
from persist.egress.sink import Leaving, Piece, Reached, Rows, Standing, sink_name
from persist.errors import Indeterminate, InvalidUsage, SinkMoved, TargetUnavailable, Unavailable
from persist.ingest import without_secrets
from persist.settings import open_storage

SUFFIXES = {"parquet": "parquet", "csv": "csv", "json": "jsonl"}


class FilesConfig(msgspec.Struct, kw_only=True):
    """The options of a folder or a prefix as a target.

    Attributes:
        sink: a folder or the URL of a prefix, as a location may have it: s3://bucket/changes.
        collections: that are sent, each to a folder of its own.
        format: of the files: parquet, csv or json (lines).
        rows: "keys" for the new row of each key and what became of it, "multiset" for updates with `_diff`; else what a
            collection has.
        name: of the hold and of the positions; else it is made of the URL. Two sinks of a location need two names.
        batch_rows: how many updates become one file, at most, if they are of several times.
        nan: what becomes of NaN and infinities in JSON.
        storage_options: for the store of the files.
    """

    sink: str
    collections: list[str]
    format: Literal["parquet", "csv", "json"] = "parquet"
    rows: Rows | None = None
    name: str | None = None
    batch_rows: int = 1_000_000
    nan: Nan = "refuse"
    storage_options: dict[str, Any] = {}


class _Step(msgspec.Struct):
    """A promised step, as it is written: positions, and the key of its file, if it has one."""

    before: str | None
    after: str
    file: str | None


class FilesSink:
    """A sink of files."""

    def __init__(self, config: FilesConfig) -> None:
        self.config = config
        self.name = without_secrets(config.sink)
        where = self.name if "://" in config.sink else os.path.abspath(config.sink)
        self.hold = config.name or sink_name("files", where)
        self.collections = config.collections
        self.rows = config.rows
        self.batch_rows = config.batch_rows
        if config.batch_rows < 1:
            raise InvalidUsage(f"batch_rows={config.batch_rows} must be at least 1")
        self._storage = open_storage(config.sink, config.storage_options)
        self._next: dict[str, int] = {}  # By collection: the number of the step that begins where it is.

    @property
    def _blob(self) -> Blob:
        return self._storage.retried

    def begin(self, location: str, leaving: Sequence[Leaving]) -> Mapping[str, Standing]:
        """Return where the last step of each collection ends, and what it lacks. Cost: log N requests for N steps."""
        found = {}
        with self._answering():
            for each in leaving:
                last = self._last(each)
                self._next[each.id] = last + 1
                step = None if last < 0 else self._step(each, last)
                if step is None:
                    continue
                after = Reached.of(step.after, self.name)
                if step.file is None or self._is_there(step.file):
                    found[each.id] = Standing(after)
                    continue
                self._next[each.id] = last
                assert step.before is not None, "what begins has no file"
                found[each.id] = Standing(Reached.of(step.before, self.name), after)
        return found

    def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
        """Promise and make the file of each piece that has rows."""
        with self._answering():
            return [piece for piece in step if self._taken(piece)]

    def forget(self, location: str, leaving: Sequence[Leaving]) -> None:
        """Delete the promises; the files stay."""
        with self._answering():
            for each in leaving:
                for entry in [*self._blob.list(self._promises(each))]:
                    self._blob.delete(entry.key)

    def close(self) -> None:
        """Close the store."""
        self._storage.close()

    def _taken(self, piece: Piece) -> bool:
        batches = iter(piece.read())
        first = next(batches, None)
        before, after = piece.before, piece.after
        if before is None:
            self._check_empty(piece.leaving)
        if first is None and not piece.is_turn:
            return False
        number = self._next[piece.leaving.id]
        key = None if first is None else self._key(piece, number)
        step = _Step(None if before is None else before.to_json(), after.to_json(), key)
        self._promise(piece.leaving, number, msgspec.json.encode(step))
        if key is not None:
            assert first is not None
            self._blob.create(key, self._made(piece, chain([first], batches)))
        self._next[piece.leaving.id] = number + 1
        return True

    def _promise(self, leaving: Leaving, number: int, promise: bytes) -> None:
        key = self._promise_key(leaving, number)
        if not self._blob.create(key, promise) and self._blob.get(key) != promise:
            raise SinkMoved(
                f"{self.name}: another process sends {leaving.name!r} as {self.hold!r}, and was first. Let one of them "
                "run; if the other one is to go elsewhere, give it a name of its own"
            )

    def _made(self, piece: Piece, batches: Iterator[pa.RecordBatch]) -> bytes:
        out = io.BytesIO()
        writer = None
        for batch in batches:
            rows = _rows(batch, piece)
            writer = writer or row_writer(rows.schema, self.config.format, out, nan=self.config.nan)
            writer.write_batch(rows)
        assert writer is not None
        writer.close()
        return out.getvalue()

    def _key(self, piece: Piece, number: int) -> str:
        before, after = piece.before, piece.after
        assert before is not None
        if before.stage == "copying":
            name = f"contents-{_digits(before.as_of)}-{number:06d}"
        else:
            name = f"{_digits(before.upper)}-{_digits(after.upper)}"
        return f"{piece.leaving.name}/{name}.{SUFFIXES[self.config.format]}"

    def _check_empty(self, leaving: Leaving) -> None:
        found = next(self._blob.list(f"{leaving.name}/"), None)
        if found is not None:
            raise InvalidUsage(
                f"{self.name} has {found.key!r}, which this sink has not made: empty the folder {leaving.name}, or "
                "send to another place"
            )

    def _last(self, leaving: Leaving) -> int:
        """Return the number of the last step, or -1: steps have no gaps, so it is searched for."""
        low, step = -1, 1  # Step `low` is there.
        while self._is_there(self._promise_key(leaving, low + step)):
            low, step = low + step, 2 * step
        while step > 1:
            step //= 2
            if self._is_there(self._promise_key(leaving, low + step)):
                low += step
        return low

    def _step(self, leaving: Leaving, number: int) -> _Step:
        key = self._promise_key(leaving, number)
        written = self._blob.get(key)
        try:
            return msgspec.json.decode(written or b"", type=_Step)
        except msgspec.MsgspecError as error:
            raise InvalidUsage(
                f"{self.name} has {key!r}, which no sink has made: {error}. Give the sink up by --drop, and begin anew"
            ) from None

    def _is_there(self, key: str) -> bool:
        return self._blob.get(key, (0, 1)) is not None

    def _promises(self, leaving: Leaving) -> str:
        return f"_persist/{self.hold}/{leaving.id}/"

    def _promise_key(self, leaving: Leaving, number: int) -> str:
        return f"{self._promises(leaving)}{number:020d}.json"

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except (Unavailable, Indeterminate) as error:
            raise TargetUnavailable(f"{self.name} does not answer: {without_secrets(str(error))}") from None


def _digits(time: int | None) -> str:
    return "end" if time is None else f"{time:020d}"


def _rows(batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
    """Return the columns that a file has: those of the collection, `_time`, and `_change` or `_diff`."""
    assert piece.before is not None
    sign = "_change" if piece.leaving.rows == "keys" else "_diff"
    columns = {name: batch.column(name) for name in piece.schema.names}
    if "_time" in batch.schema.names:
        columns |= {"_time": batch.column("_time"), sign: batch.column(sign)}
    else:
        columns["_time"] = int64_array(np.full(batch.num_rows, piece.before.as_of or 0, np.int64))
        inserted = pa.repeat(pa.scalar("insert"), batch.num_rows)
        columns[sign] = inserted if sign == "_change" else batch.column(sign)
    return pa.RecordBatch.from_arrays([*columns.values()], [*columns])
