"""Files as a sink: each step of a collection is one file or several.

    COLLECTION/contents-TIME-N.parquet         contents as of a time; N counts the files of a collection.
    COLLECTION/LOWER-UPPER.parquet             the changes with LOWER <= time < UPPER.
    COLLECTION/LOWER-UPPER-ROW.parquet         these changes from row number ROW on, if they need several files.
    _persist/NAME/ID/N.json                    file N: begin and end of its step, and its rows

A process first promises a file, by its object N.json, which it creates only if it does not exist. So only one of two
processes decides where file N ends. Then it creates the file, also only if it does not exist. A process that finds a
promise without its file creates it. The changes between two times and their order are definite, so each process writes
the same file. If rows of a step remain, the process continues with the next file. Steps without rows have no promise,
unless they end a copy or a collection; the next step begins where the last promise ended.

Files are Parquet, Arrow IPC, CSV or JSON lines. Memory: a file, compressed if it is Parquet, and a copy of it. Contents
have no definite order, so each step of contents is one file, which the feed keeps small. Changes are split at
`file_bytes`.
"""

import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.protocol import Blob
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.types.objects import find_unwritable, to_dicts
from persist.connect.egress.sink import Leaving, Piece, Reached, Standing, build_sink_name, make_moved_error
from persist.connect.ingest.source import PositiveInt
from persist.core.errors import Indeterminate, InvalidUsage, TargetUnavailable, Unavailable
from persist.core.rendering import hide_passwords
from persist.core.settings import open_storage

Nan = Literal["refuse", "null"]  # NaN and infinities in JSON: an error, or null.


SUFFIXES = {"parquet": "parquet", "csv": "csv", "json": "jsonl"}
ROWS_MAX = 2**63  # More than any step has.
CHUNK_BYTES = 8 << 20  # Decoded: so much is encoded at a time, which is a row group of Parquet.


class FilesConfig(msgspec.Struct, kw_only=True):
    """The options of a folder or a prefix as a target; `docs/use/egress.md` explains them."""

    sink: str
    collections: list[str]
    format: Literal["parquet", "csv", "json"] = "parquet"
    name: str | None = None
    batch_rows: PositiveInt = 1_000_000
    file_bytes: PositiveInt = 64 << 20
    nan: Nan = "refuse"
    storage_options: dict[str, Any] = {}


class _Step(msgspec.Struct, omit_defaults=True):
    """A stored promise of the next file: the positions of its step, and its key if there is one.

    Attributes:
        rows: the interval `[first, end)` of the step's rows in the file; None for all.
        goes_on: whether the next promise has more rows of the step.
    """

    before: str | None
    after: str
    file: str | None
    rows: tuple[int, int] | None = None
    goes_on: bool = False


class FilesSink:
    """A sink of files."""

    def __init__(self, config: FilesConfig) -> None:
        self.config = config
        self.name = hide_passwords(config.sink)
        where = self.name if "://" in config.sink else os.path.abspath(config.sink)
        self.hold = config.name or build_sink_name("files", where)
        self.collections = config.collections
        self.batch_rows = config.batch_rows
        self._storage = open_storage(config.sink, config.storage_options)
        self._next: dict[str, int] = {}  # By collection: the number of the file that begins where it is.
        self._open: dict[str, tuple[_Step, bool]] = {}  # The last promise of a step that is not whole; is its file?

    @property
    def _blob(self) -> Blob:
        return self._storage.retried

    def begin(self, location: str, leaving: Sequence[Leaving]) -> Mapping[str, Standing]:
        """Return the target's positions by collection id. Cost: log N requests for N steps."""
        standings = {}
        self._open.clear()
        with self._translate_errors():
            for collection in leaving:
                last = self._find_last_step(collection)
                self._next[collection.id] = last + 1
                step = None if last < 0 else self._load_step(collection, last)
                if step is None:
                    continue
                after = Reached.of(step.after, self.name)
                is_made = step.file is None or self._is_there(step.file)
                if is_made and not step.goes_on:
                    standings[collection.id] = Standing(after)
                    continue
                self._next[collection.id] = last + is_made
                self._open[collection.id] = step, is_made
                assert step.before is not None, "what begins has no file"
                standings[collection.id] = Standing(Reached.of(step.before, self.name), after)
        return standings

    def take(self, step: Sequence[Piece]) -> Sequence[Piece]:
        """Store a promise of each file, and then the file, for each piece with rows."""
        with self._translate_errors():
            return [piece for piece in step if self._apply(piece)]

    def forget(self, location: str, leaving: Sequence[Leaving]) -> None:
        """Delete the promises. Files stay."""
        with self._translate_errors():
            for collection in leaving:
                for entry in [*self._blob.list(self._get_promise_prefix(collection))]:
                    self._blob.delete(entry.key)

    def close(self) -> None:
        """Close the store."""
        self._storage.close()

    def _apply(self, piece: Piece) -> bool:
        """Write a piece as files; return whether it moved the target's position."""
        rows = _Rows(piece, min(CHUNK_BYTES, self.config.file_bytes))
        if piece.before is None:
            self._check_empty(piece.leaving)
        if piece.leaving.id in self._open:
            self._resume(piece, rows)
        elif rows.is_at_end():
            if piece.is_turn:
                self._write_promise(piece, None)
            return piece.is_turn
        while not rows.is_at_end():
            first = rows.at
            data = self._encode(rows, None, piece.leaving.name)
            goes_on = not rows.is_at_end()
            share = (first, rows.at) if first or goes_on else None
            key = self._build_key(piece, share)
            self._write_promise(piece, key, share, goes_on=goes_on)
            self._create_file(piece, key, data)
        return True

    def _resume(self, piece: Piece, rows: "_Rows") -> None:
        """Complete the step of an earlier process: create its promised file, skip its written rows."""
        step, is_made = self._open.pop(piece.leaving.id)
        first, end = step.rows or (0, None)
        rows.skip(first if end is None or not is_made else end)
        piece.count -= rows.at
        data = b"" if is_made else self._encode(rows, ROWS_MAX if end is None else end, piece.leaving.name)
        if rows.at != end if end is not None else not data:
            raise self._build_mismatch_error(piece, step)
        if not is_made:
            assert step.file is not None, "what has no file is made"
            self._create_file(piece, step.file, data)
        if rows.is_at_end() == step.goes_on:
            raise self._build_mismatch_error(piece, step)

    def _build_mismatch_error(self, piece: Piece, step: _Step) -> InvalidUsage:
        """Return the error for rows that differ from the promised ones."""
        return InvalidUsage(
            f"{self.name}: what {piece.leaving.name!r} has of this step is not what was promised with {step.file!r}: "
            "the collection was put back to an earlier state. Give the sink up by --drop, empty its folder, and begin "
            "anew"
        )

    def _create_file(self, piece: Piece, key: str, data: bytes) -> None:
        """Create a file with bytes, and count it."""
        self._blob.create(key, data)
        self._next[piece.leaving.id] += 1

    def _write_promise(
        self, piece: Piece, file: str | None, rows: tuple[int, int] | None = None, *, goes_on: bool = False
    ) -> None:
        """Store what the next file will contain, before it is written."""
        leaving, position_before = piece.leaving, piece.before
        written = None if position_before is None else position_before.to_json()
        promise = msgspec.json.encode(_Step(written, piece.after.to_json(), file, rows, goes_on))
        key = self._get_promise_key(leaving, self._next[leaving.id])
        if not self._blob.create(key, promise) and self._blob.get(key) != promise:
            raise make_moved_error(self, leaving.name)
        if file is None:
            self._next[leaving.id] += 1

    def _encode(self, rows: "_Rows", end: int | None, name: str) -> bytes:
        """Return the bytes of a file with the rows up to number `end`; None means as many as fit."""
        out = io.BytesIO()
        writer = None
        bytes_max = self.config.file_bytes if end is None and rows.is_definite else math.inf
        while out.tell() < bytes_max and (batch := rows.take_until(ROWS_MAX if end is None else end)) is not None:
            writer = writer or make_row_writer(batch.schema, self.config.format, out, nan=self.config.nan)
            try:
                writer.write_batch(batch)
            except InvalidUsage as error:
                raise InvalidUsage(f"{self.name} cannot take the collection {name!r}: {error}") from None
        if writer is not None:
            writer.close()
        return out.getvalue()

    def _build_key(self, piece: Piece, rows: tuple[int, int] | None) -> str:
        """Return the key of a file: its collection, times and first row."""
        position_before, after = piece.before, piece.after
        assert position_before is not None
        if position_before.stage == "copying":
            name = f"contents-{_format_time(position_before.as_of)}-{self._next[piece.leaving.id]:06d}"
        else:
            name = f"{_format_time(position_before.upper)}-{_format_time(after.upper)}"
        if rows is not None:
            name += f"-{rows[0]:012d}"
        return f"{piece.leaving.name}/{name}.{SUFFIXES[self.config.format]}"

    def _check_empty(self, leaving: Leaving) -> None:
        """Raise InvalidUsage if the folder of a new target has files."""
        entry = next(self._blob.list(f"{leaving.name}/"), None)
        if entry is not None:
            raise InvalidUsage(
                f"{self.name} has {entry.key!r}, which this sink has not made: empty the folder {leaving.name}, or "
                "send to another place"
            )

    def _find_last_step(self, leaving: Leaving) -> int:
        """Return the number of the last promise, or -1, by binary search: numbers have no gaps."""
        low, step = -1, 1  # Step `low` is there.
        while self._is_there(self._get_promise_key(leaving, low + step)):
            low, step = low + step, 2 * step
        while step > 1:
            step //= 2
            if self._is_there(self._get_promise_key(leaving, low + step)):
                low += step
        return low

    def _load_step(self, leaving: Leaving, number: int) -> _Step:
        """Return a stored promise. Raises InvalidUsage if it is not one."""
        key = self._get_promise_key(leaving, number)
        written = self._blob.get(key)
        try:
            return msgspec.json.decode(written or b"", type=_Step)
        except msgspec.MsgspecError as error:
            raise InvalidUsage(
                f"{self.name} has {key!r}, which no sink has made: {error}. Give the sink up by --drop, and begin anew"
            ) from None

    def _is_there(self, key: str) -> bool:
        return self._blob.get(key, (0, 1)) is not None

    def _get_promise_prefix(self, leaving: Leaving) -> str:
        """Return the prefix of the keys of a collection's promises."""
        return f"_persist/{self.hold}/{leaving.id}/"

    def _get_promise_key(self, leaving: Leaving, number: int) -> str:
        return f"{self._get_promise_prefix(leaving)}{number:020d}.json"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise TargetUnavailable in place of the store's errors."""
        try:
            yield
        except (Unavailable, Indeterminate) as error:
            raise TargetUnavailable(f"{self.name} does not answer: {hide_passwords(str(error))}") from None


class _Rows:
    """The remaining rows of a step, in the form of files; `at` is the number of rows returned or skipped.

    `is_definite` is whether each read returns the same order.
    """

    def __init__(self, piece: Piece, chunk_bytes: int) -> None:
        """Take a step, and the bytes of a chunk."""
        self.at = 0
        self.is_definite = piece.before is not None and piece.before.stage == "following"
        self._piece = piece
        self._batches = iter(piece.read())
        self._bytes = chunk_bytes
        self._left: pa.RecordBatch | None = None

    def is_at_end(self) -> bool:
        """Return whether all rows were read."""
        if self._left is None or not self._left.num_rows:
            self._left = next(self._batches, None)
        return self._left is None

    def take_until(self, end: int) -> pa.RecordBatch | None:
        """Return the next rows, all before row number `end`; None if there are none."""
        batch = self._take_rows(end)
        return None if batch is None else _make_file_rows(batch, self._piece)

    def skip(self, end: int) -> None:
        """Skip the rows before row number `end`."""
        while self._take_rows(end) is not None:
            pass

    def _take_rows(self, end: int) -> pa.RecordBatch | None:
        """Return the next rows, within a size; None at the end."""
        if self.at >= end or self.is_at_end():
            return None
        waiting = self._left
        assert waiting is not None
        fits = max(1, waiting.num_rows * self._bytes // max(1, waiting.nbytes))
        some = waiting.slice(0, min(fits, end - self.at))
        self._left = waiting.slice(some.num_rows)
        self.at += some.num_rows
        return some


def _format_time(time: int | None) -> str:
    """Return a time as 20 digits, which sort as text; None as "end"."""
    return "end" if time is None else f"{time:020d}"


def _make_file_rows(batch: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
    """Return a file's columns: the collection's, `_time`, and `_change` or `_diff`."""
    assert piece.before is not None
    sign = "_change" if piece.leaving.is_keyed else "_diff"
    columns = {name: batch.column(name) for name in piece.schema.names}
    if "_time" in batch.schema.names:
        columns |= {"_time": batch.column("_time"), sign: batch.column(sign)}
    else:
        columns["_time"] = make_int64_array(np.full(batch.num_rows, piece.before.as_of or 0, np.int64))
        inserted = pa.repeat(pa.scalar("insert"), batch.num_rows)
        columns[sign] = inserted if sign == "_change" else batch.column(sign)
    return pa.RecordBatch.from_arrays([*columns.values()], [*columns])


class RowWriter(Protocol):
    """Writes batches to a file that the caller closes."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""

    def close(self) -> None:
        """Write the remaining rows."""


def make_row_writer(schema: pa.Schema, format: str, file: BinaryIO, *, nan: Nan = "null") -> RowWriter:
    """Return a writer of parquet, arrow, csv, or else JSON lines."""
    if format == "parquet":
        import pyarrow.parquet as pq

        return pq.ParquetWriter(file, schema, compression="zstd")  # type: ignore[no-any-return]
    if format == "arrow":
        return pa.ipc.new_stream(file, schema)  # type: ignore[no-any-return]
    if format == "csv":
        return CsvWriter(schema, file)
    return JsonLinesWriter(file, nan=nan)


class CsvWriter:
    """Writes rows as CSV with a header. Bytes must be UTF-8."""

    def __init__(self, schema: pa.Schema, file: BinaryIO, *, with_head: bool = True) -> None:
        import pyarrow.csv as csv

        self._schema = pa.schema([_widen_field(field) for field in schema])
        try:
            self._writer = csv.CSVWriter(file, self._schema, write_options=csv.WriteOptions(include_header=with_head))
        except pa.ArrowException as error:
            raise InvalidUsage(
                f"CSV cannot hold a column of these: {error}. Use the format json, parquet or arrow"
            ) from error

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        if (name := find_unwritable(batch)) is not None:
            raise InvalidUsage(
                f"the column {name!r} has a date too far away to be written as CSV. Use the format json, parquet or "
                "arrow, or leave the column out"
            )
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
                try:
                    column.cast(pa.string())
                except pa.ArrowInvalid:
                    raise InvalidUsage(
                        f"the column {name!r} has bytes that are not UTF-8, which CSV cannot hold. Use the format json "
                        "(base64), parquet or arrow, or leave the column out"
                    ) from None
        columns = [_show_digits(column) for column in batch.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Write the remaining rows."""
        self._writer.close()


def _widen_field(field: pa.Field) -> pa.Field:
    """Return a field with float64 in place of float32."""
    return field.with_type(pa.float64()) if pa.types.is_float32(field.type) else field


def _show_digits(column: pa.Array) -> pa.Array:
    """Return float32 as doubles: of a float32, Arrow does not write all whole digits."""
    if not pa.types.is_float32(column.type):
        return column
    short = column.cast(pa.string()).cast(pa.float64())
    return pc.if_else(pc.less(pc.abs(column), 2.0**24), short, column.cast(pa.float64()))


class JsonLinesWriter:
    """Writes each row as a line of JSON. On a terminal, it uses ASCII only."""

    def __init__(self, file: BinaryIO, *, nan: Nan = "null") -> None:
        self._file = file
        self._nan: Nan = nan
        self._is_ascii = file.isatty()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        lines: Iterable[bytes] = encode_json_lines(batch, nan=self._nan)
        if self._is_ascii:
            lines = (json.dumps(json.loads(line)).encode() for line in lines)
        self._file.writelines(line + b"\n" for line in lines)

    def close(self) -> None:
        """Finish writing. The caller closes the file."""
        self._file.flush()


def encode_json_lines(batch: pa.RecordBatch | pa.Table, *, nan: Nan = "null") -> list[bytes]:
    """Return each row as a JSON object. Types without a JSON form become text.

    `nan`: the treatment of NaN and infinities.
    """
    import msgspec

    if nan == "refuse":
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not are_finite(column):
                raise InvalidUsage(
                    f'the column {name!r} has NaN or an infinity, and JSON has none. Say nan = "null" to send null for '
                    "them, which readers cannot distinguish from NULL then, or use the format parquet"
                )

    encode: Any = msgspec.json.Encoder(enc_hook=str).encode
    return [*map(encode, to_dicts(batch))]


def are_finite(column: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether a column has neither NaN nor infinities, which JSON does not have."""
    kind = column.type
    if pa.types.is_floating(kind):
        return not pc.any(pc.invert(pc.is_finite(column)), min_count=0).as_py()
    if not pa.types.is_nested(kind) or pa.types.is_dictionary(kind):
        return True
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return all(are_finite(part) for chunk in chunks for part in _list_inner_values(chunk))


def _list_inner_values(column: pa.Array) -> list[pa.Array]:
    """Return the values directly inside of nested ones, except those under NULL."""
    if pa.types.is_struct(column.type):
        return column.flatten()  # type: ignore[no-any-return]
    if pa.types.is_map(column.type):
        maps = column.drop_null()
        return [maps.keys, maps.items]
    return [column.flatten()]
