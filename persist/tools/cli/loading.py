"""Loads a file into a collection: checks all of it before it writes anything, then writes it in pieces, each once.

Every piece is a commit whose token hashes the file's contents and the options. So the same command, repeated after a
crash, continues after the last commit. Readers see nothing of the file until its times are sealed, which the commit of
the last piece does. Rows without a time are one commit and get its time. Events without a time get the time of their
piece's commit.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import xxhash

import persist
from persist.api.collection import write_rows
from persist.connect.ingest.row_casts import Misfits
from persist.connect.ingest.row_columns import RowColumns
from persist.connect.ingest.row_files import read_pieces
from persist.connect.ingest.row_formats import RowFile
from persist.core.progress import report_work
from persist.core.state_rules.contents import CollectionState
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.write.write_options import WriteMode, WriteOptions
from persist.tools.cli.text import print_remark

PIECE_ROWS = 1_000_000
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Plan:
    """How a command writes a file.

    Attributes:
        time: a number, a moment or the name of a column. None: updates have their own times; rows get the commit's.
        diff: the diff of all rows; None for diffs in the file, or 1 without any.
        seal: the upper to which the last piece seals; None not to seal.
        token: names the load; None for a hash of the file's contents.
        late: "raise" or "collect" for events that come too late; None for updates.
    """

    time: int | str | None = None
    diff: int | None = None
    seal: int | str | None = None
    token: str | None = None
    skip_bad: bool = False
    late: str | None = None
    allow_future: bool = False
    mode: WriteMode = "append"


@dataclass(frozen=True)
class LoadResult:
    """The rows and commits of a load, this run and earlier ones.

    `time`: the time that the commit assigned to rows without one; None if rows had times, or are events.
    """

    rows: int
    skipped: int
    commits: int
    done_before: int
    seqno: int | None
    time: int | None = None


@contextmanager
def open_input(path: str, format: str | None) -> Iterator[RowFile]:
    """Yield a file; `-` is standard input, copied to a temporary file."""
    if path != "-":
        if not os.path.isfile(path):
            raise persist.InvalidUsage(f"there is no file {path!r}: give the path of one, or - for standard input")
        yield RowFile.at(path, format)
        return
    if format is None:
        raise persist.InvalidUsage(
            "standard input has no name that shows its format: give --format csv, json, parquet or arrow"
        )
    with tempfile.NamedTemporaryFile(prefix="persist-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
        file.flush()
        yield RowFile.at(file.name, format, name="standard input")


def check_rows(file: RowFile, columns: RowColumns, *, skip_bad: bool) -> tuple[int, int]:
    """Return the numbers of rows that fit and that do not."""
    misfits, rows = Misfits(), 0
    with report_work("check", file.name) as done:
        for piece in read_pieces(file, columns, misfits):
            rows += len(piece)
            done(len(piece))
    if misfits.count and not skip_bad:
        raise misfits.make_error(file.name, rows, "Nothing was written: mend them, or say --skip-bad to leave them out")
    if misfits.count:
        print_remark(f"Left out: {misfits.count:,} of {rows + misfits.count:,} rows of {file.name}\n{misfits}")
    return rows, misfits.count


def load(collection: "persist.Collection", file: RowFile, columns: RowColumns, plan: Plan) -> LoadResult:
    """Write a file in pieces, a commit each; the first may create the collection. Memory: a piece."""
    token = plan.token or _build_token(collection, file, plan)
    handle = collection.handle
    contents = None if handle.create is not None else handle.contents()
    rows, skipped = check_rows(file, columns, skip_bad=plan.skip_bad)
    has_no_times = plan.late is None and columns.time_column is None and plan.time is None
    if not rows and contents is None:
        handle.submit("create", [handle.commit_time_step()] if has_no_times else []).result()
        handle = replace(handle, create=None)
        collection = persist.Collection(handle)
    if plan.mode == "overwrite" or (plan.mode == "upsert" and rows):
        # Without a time, the same file may be loaded again on purpose: only a token marks a repetition.
        mark = plan.token if has_no_times else f"{token}/0"
        options = WriteOptions(time=plan.time, token=mark, allow_future=plan.allow_future)
        done_before = mark is not None and _has_token(handle, contents, mark)
        future = write_rows(handle, read_rows(file, columns), plan.mode, options, seal=plan.seal)
        return LoadResult(rows, skipped, int(not done_before), int(done_before), future.result(), future.time)
    if has_no_times:
        done_before = _has_token(handle, contents, f"{token}/0")
        future = collection.write(read_rows(file, columns), diff=plan.diff, token=f"{token}/0")
        return LoadResult(
            rows, skipped, int(bool(rows) and not done_before), int(done_before), future.result(), future.time
        )
    pieces = max(1, -(-rows // PIECE_ROWS))
    is_ours = plan.token is None  # Our own token identifies the contents. For other tokens, the library compares that.
    if is_ours and _has_token(handle, contents, f"{token}/{pieces - 1}"):
        return LoadResult(rows, skipped, 0, pieces, None)
    earlier_commits, seqno = sum(_has_token(handle, contents, f"{token}/{n}") for n in range(pieces)), None
    with report_work("write", file.name, total=rows) as done:
        for n, piece in enumerate(_resize_pieces(read_pieces(file, columns, Misfits()), PIECE_ROWS)):
            seal = plan.seal if n == pieces - 1 else None
            if not is_ours or not _has_token(handle, contents, f"{token}/{n}"):
                seqno = _write_piece(collection, piece, plan, f"{token}/{n}", seal)
                collection = persist.Collection(replace(collection.handle, create=None))
            done(len(piece))
    if not rows and plan.seal is not None:
        seqno = collection.seal(plan.seal, allow_future=plan.allow_future).result()
    return LoadResult(rows, skipped, (pieces if rows else 0) - earlier_commits, earlier_commits, seqno)


def _has_token(handle: CollectionHandle, contents: CollectionState | None, token: str) -> bool:
    """Return whether a write with this token was committed before."""
    return contents is not None and handle.remembers_token(contents, token)


def _write_piece(
    collection: "persist.Collection", piece: pa.Table, plan: Plan, token: str, seal: int | str | None
) -> int:
    """Write a piece as updates or events; return the seqno of the commit."""
    if plan.late is None:
        return collection.write(
            piece, time=plan.time, diff=plan.diff, token=token, seal=seal, allow_future=plan.allow_future
        ).result()
    late: Any = plan.late
    return collection.upsert(
        piece, time=plan.time, token=token, seal=seal, late=late, allow_future=plan.allow_future
    ).result()


def has_begun(collection: "persist.Collection", file: RowFile, plan: Plan, token: str | None = None) -> bool:
    """Return whether an earlier run of this load has committed a piece.

    `token`: of a single commit that may have written the whole file instead.
    """
    first = f"{plan.token or _build_token(collection, file, plan)}/0"
    contents = collection.handle.contents()
    return any(collection.handle.remembers_token(contents, name) for name in {first, token or first})


def _resize_pieces(pieces: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the rows in pieces of `rows`; the last may be smaller."""
    waiting: list[pa.Table] = []
    count = 0
    for piece in pieces:
        waiting.append(piece)
        count += len(piece)
        while count >= rows:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, rows)
            waiting, count = [whole.slice(rows)], count - rows
    if count:
        yield pa.concat_tables(waiting)


def _build_token(collection: "persist.Collection", file: RowFile, plan: Plan) -> str:
    """Return the token of a load: a hash of file, collection and options."""
    mode = () if plan.mode == "append" else (plan.mode,)
    way = (plan.time, plan.diff, PIECE_ROWS, plan.skip_bad, plan.late, *mode)
    return f"file {_compute_digest(file, collection.id, file.format, *way)}"


def build_overwrite_token(
    collection: "persist.Collection", file: RowFile, time: int | str, way: tuple[Any, ...]
) -> str:
    """Return the token of an overwrite: a hash of file, collection and options."""
    return f"file over {_compute_digest(file, collection.id, file.format, time, *way)}"


def _compute_digest(file: RowFile, *way: Any) -> str:
    """Return a hash of the bytes of a file and of options."""
    digest = xxhash.xxh3_128()
    with open(file.path, "rb") as source:
        while data := source.read(READ_BYTES):
            digest.update(data)
    digest.update(repr(way).encode())
    return digest.hexdigest()


def read_rows(file: RowFile, columns: RowColumns) -> pa.RecordBatchReader:
    """Return the fitting rows of a file as a stream."""
    pieces = read_pieces(file, columns, Misfits())
    first = next(pieces)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from first.to_batches()
        for piece in pieces:
            yield from piece.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())
