"""Contents without a key in shares, each of which fits memory, wherever a process begins with them.

    share [LOWER, UPPER)   the rows whose hash, an integer below `HASHES`, is inside

A hash is of the row's values alone, by `row_hashes`, in the types of the schema version that is sent. So a share is
definite, however the collection is stored by then. A position that says up to which hash rows were sent can be gone on
from after any compaction.

All parts are read once. Their updates are consolidated as far as memory allows, cut by hash, and put into a temporary
file without a name, where the runs of a share are found by where they begin. Then each share is consolidated alone.
So the disk needs room for the contents, compressed by LZ4, and a process that goes on reads all parts once more.

Memory: a chunk and a share, about four times each while they are consolidated.
Rejected: shares in the order of rows. Parts have it, but a position would be a row of any size and any type.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain

import numpy as np
import pyarrow as pa

from persist.codecs import consolidate, int64_array, row_hashes
from persist.errors import InvalidUsage
from persist.read import ClaimedRead, Scan

HASHES = 1 << 32
CHUNK_BYTES = 16 << 20
SHARES_MAX = 1 << 10  # Each of them has a run in the file for each chunk.


def cuts(lower: int, memory: int, share_bytes: int) -> list[int]:
    """Return where shares of contents of so much memory begin, from a hash on, and where the last one ends."""
    left = HASHES - lower
    count = min(SHARES_MAX, max(1, -(-memory * left // (HASHES * share_bytes))))
    return [lower + left * share // count for share in range(count + 1)]


class Shares:
    """The shares of contents between some hashes. For one thread.

    Args:
        scan: the plan of all contents.
        bounds: where shares begin, and where the last one ends.
    """

    def __init__(self, scan: Scan, reading: ClaimedRead, bounds: Sequence[int]) -> None:
        self._scan = scan
        self._reading = reading
        self._bounds = np.array(bounds, np.int64)
        self._file = tempfile.TemporaryFile(prefix="persist-egress-")  # noqa: SIM115  `close` closes it.
        self._runs: list[list[int]] = [[] for _ in bounds[1:]]  # By share: where they begin in the file.
        self._is_read = False

    def rows(self, share: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share, with `_diff`; errors as of `read_snapshot`."""
        if not self._is_read:
            with self._reading.explained():
                self._read()
        runs = [self._run(start) for start in self._runs[share]]
        if runs:
            table = consolidate(pa.concat_tables(runs), self._scan.columns)
            del runs
            yield from self._scan.given_out(table).to_batches()

    def close(self) -> None:
        """Give the file up."""
        with suppress(OSError):  # Of what a full disk has not taken.
            self._file.close()

    def _read(self) -> None:
        reader, wanted = self._reading(), [*self._scan.columns, "_diff"]
        chunk: list[pa.Table] = []
        for table in chain(self._scan.base_rows(reader, wanted), self._scan.updates(reader, wanted)):
            self._reading.checked(reader)
            chunk.append(table)
            if sum(each.nbytes for each in chunk) >= CHUNK_BYTES:
                self._put(chunk)
        if chunk:
            self._put(chunk)
        self._is_read = True

    def _put(self, chunk: list[pa.Table]) -> None:
        """Put the rows of a chunk into the file, share by share; take them from the list."""
        table = consolidate(pa.concat_tables(chunk), self._scan.columns)
        chunk.clear()
        hashes = row_hashes(_as_sent(table, self._scan), self._scan.columns) >> np.uint64(32)
        shares = np.searchsorted(self._bounds, hashes.astype(np.int64), side="right") - 1
        order = np.argsort(shares, kind="stable")
        table = table.take(int64_array(order))
        starts = np.searchsorted(shares[order], np.arange(len(self._bounds)))
        try:
            for share in np.flatnonzero(np.diff(starts)).tolist():
                start, end = starts[share : share + 2].tolist()
                self._runs[share].append(self._file.tell())
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                with pa.ipc.new_stream(self._file, table.schema, options=options) as writer:
                    writer.write_table(table.slice(start, end - start))
            self._file.flush()
        except OSError as error:
            raise InvalidUsage(
                f"contents without a key are sorted in a temporary file, in {tempfile.gettempdir()!r}: {error}. Make "
                "room there, or name another folder by TMPDIR"
            ) from error

    def _run(self, start: int) -> pa.Table:
        self._file.seek(start)
        with pa.ipc.open_stream(self._file) as run:
            return run.read_all()


def _as_sent(table: pa.Table, scan: Scan) -> pa.Table:
    """Return rows in the types that are sent, by whose values they are hashed.

    What does not fit is of no row of the contents: it is consolidated away, so any hash will do that is the same for
    equal rows.
    """
    if scan.narrow is None:
        return table
    try:
        for at, name in enumerate(table.column_names):
            wanted = scan.narrow.arrow.field(name)
            if table.schema.types[at] != wanted.type:
                table = table.set_column(at, wanted, table.column(at).cast(wanted.type, safe=False))
    except pa.ArrowException:
        return scan.given_out(table)
    return table
