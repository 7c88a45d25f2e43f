"""Rewrites parts: reads, merges, encodes and stores them, slice by slice of the key space.

A planned run is a sequence of *pieces* in key order:

    a number    of a part that stays as it is
    a Rewrite   the rows of a `Scan`, consolidated

A `PartMaker` turns pieces into runs. `persist.engine.compact.compactor` decides which runs to make and commits them, so
one process (`LocalPartMaker`) and the tasks of a cluster (`persist.spark.compact`) use the same code.

A new keyframe shares parts with the one before it (`plan_keyframe`). The plan of a read at its time determines what a
keyframe contains. If no history touches the keys of an old keyframe's part, the new keyframe lists that part. A small
part is rewritten with its rewritten neighbours, if these are at least as large: so small parts stay few, and the work
at most doubles. If history touches only a few keys of a large part, the other keys get their own parts. They are
rewritten this once, and shared from then on.

Invariants of a run that was made: its parts are stored, have no key in common and are in key order. A part maker that
fails deletes what it can of its output.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.digits import mark_changes
from persist.codecs.order.ordering import make_order_keys
from persist.codecs.order.sums import consolidate, sum_exactly
from persist.codecs.part.key_range import KeyRange, assign_parts, load_comparable_keys
from persist.codecs.part.part import Part, choose_sample_rows
from persist.codecs.part.stream import PartStream
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.updates.updates import set_time
from persist.core.errors import ClientClosed
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.write.part_writer import PartWriter, open_run


@dataclass(frozen=True)
class Rewrite:
    """A piece of a new run: the consolidated rows of a scan.

    Attributes:
        as_of: the time that all rows get; None if they keep their own.
        is_quiet: no history touches the rows. Quiet and other rows never share a part.
        keep: removes the rows to erase from a table of one part; None if all stay.
    """

    scan: Scan
    as_of: int | None = None
    is_quiet: bool = False
    keep: Callable[[pa.Table], pa.Table] | None = None


RunPiece = int | Rewrite


@dataclass(frozen=True)
class MadeRun:
    """A run that a part maker has written.

    Attributes:
        parts: numbers of the parts that stay, and the new parts, in key order.
        added: the sum of the diffs of all updates that were read from the history.
    """

    parts: tuple[int | Part, ...]
    added: int

    @property
    def new(self) -> tuple[Part, ...]:
        """The new parts."""
        return tuple(part for part in self.parts if isinstance(part, Part))


class PartMaker(Protocol):
    """The protocol of part makers: one process, or the tasks of a cluster."""

    def build_change_test(self, regions: Sequence[Scan]) -> Callable[[Scan], bool]:
        """Return a function that tests whether the history changes the rows of a region."""

    def make(self, collection: str, runs: Iterable[Iterable[RunPiece]], sources: Sequence[Part]) -> list[MadeRun]:
        """Make runs of one collection.

        Args:
            collection: the id of the collection.
            runs: the pieces of each run, consumed one by one as the work proceeds.
            sources: parts that the rows come from, and maybe others; a hint (see `PartStream`).

        Raises:
            CorruptBlob: a part is damaged, or missing (then a MissingBlob).
            DiffOverflow: a sum of diffs does not fit int64.
            Unavailable: the store did not answer.
            ClientClosed: the client is closing.
        """

    def discard(self, parts: Iterable[Part]) -> None:
        """Delete new parts that are not needed."""


class LocalPartMaker:
    """Makes parts in this process, slice after slice, while finished parts are uploaded.

    Small parts join across slices, whatever pieces they come from. Memory is a slice, a row group and a part in
    progress, and a part in upload, whatever the size of the collection.
    """

    def __init__(
        self,
        reader: PartReader,
        writer: PartWriter,
        executor: Executor,
        part_bytes: int,
        stop: threading.Event,
    ) -> None:
        """Make an idle maker.

        Args:
            executor: uploads parts.
            part_bytes: encoded bytes at which the next key starts a new part.
            stop: once it is set, work ends with ClientClosed.
        """
        self._reader = reader
        self._writer = writer
        self._executor = executor
        self._part_bytes = part_bytes
        self._stop = stop

    def build_change_test(self, regions: Sequence[Scan]) -> Callable[[Scan], bool]:
        """See `PartMaker`; a region is read when the function is called for it."""
        return self.is_touched

    def is_touched(self, region: Scan) -> bool:
        """Return whether history changes anything in a region. Cost: reading it up to the first change."""
        for slice_ in self._cut_slices(region):
            if len(self._consolidate(replace(slice_, base=()), region.schema.names, [])):
                return True
        return False

    def make(self, collection: str, runs: Iterable[Iterable[RunPiece]], sources: Sequence[Part]) -> list[MadeRun]:
        """See `PartMaker`."""
        uploads = _Uploads(self._writer, self._executor, collection)
        try:
            return [self._make_run(run, sources, uploads) for run in runs]
        except BaseException:
            self.discard(uploads.finish())
            raise

    def discard(self, parts: Iterable[Part]) -> None:
        """See `PartMaker`."""
        self._writer.discard(parts)

    def _make_run(self, run: Iterable[RunPiece], sources: Sequence[Part], uploads: "_Uploads") -> MadeRun:
        """Make one run: keep, rewrite or merge its pieces."""
        outputs: list[int | Future[Part]] = []
        stream: PartStream | None = None
        added, is_quiet, is_single = 0, False, True
        for piece in run:
            if stream is not None and (isinstance(piece, int) or piece.is_quiet is not is_quiet):
                outputs += uploads.begin(stream.finish())
                stream = None
            if isinstance(piece, int):
                outputs.append(piece)
                continue
            is_quiet = piece.is_quiet
            stream = stream or self._open_stream(piece.scan.schema, sources)
            for slice_ in self._cut_slices(piece.scan):
                table, diffs = self._merge_slice(slice_, piece)
                added += diffs
                is_single = is_single and (
                    (slice_.sign > 0 and all(part.is_single for part in slice_.all_parts))
                    or (piece.as_of is not None and _has_one_row_per_key(table, slice_.schema.key_names))
                )
                outputs += uploads.begin(stream.add(table))
                del table  # Before the next slice is read.
        outputs += uploads.begin(stream.finish()) if stream is not None else []
        parts = (part.result() if isinstance(part, Future) else part for part in outputs)
        return MadeRun(
            tuple(part.mark_single() if is_single and isinstance(part, Part) else part for part in parts), added
        )

    def _open_stream(self, schema: CollectionSchema, sources: Sequence[Part]) -> PartStream:
        """Return a stream that encodes rows as the parts of a run."""
        return open_run(self._reader.memory_budget, schema, part_bytes=self._part_bytes, sources=sources)

    def _cut_slices(self, scan: Scan) -> Iterator[Scan]:
        """Yield the slices of a scan; raise ClientClosed once `stop` is set."""
        for slice_ in scan.cut_into_slices(self._reader.rewrite_slice_bytes):
            if self._stop.is_set():
                raise ClientClosed("compaction")
            yield slice_

    def _merge_slice(self, scan: Scan, piece: Rewrite) -> tuple[pa.Table, int]:
        """Return the consolidated rows of one slice, and the sum of the diffs of its history."""
        names, sums = scan.schema.names, list[int]()
        if piece.as_of is None:
            return self._consolidate(scan, [*names, "_time"], sums, piece.keep), sum(sums)
        return set_time(self._consolidate(scan, names, sums), piece.as_of, scan.schema), sum(sums)

    def _consolidate(
        self,
        scan: Scan,
        names: Sequence[str],
        sums: list[int],
        keep: Callable[[pa.Table], pa.Table] | None = None,
    ) -> pa.Table:
        """Return the consolidated rows of a slice; add the sums of diffs to `sums`."""
        # Nothing else keeps the rows, so that what copies them may have their memory.
        return consolidate(self._read_rows(scan, [*names, "_diff"], sums, keep), names)

    def _read_rows(
        self, scan: Scan, columns: Sequence[str], sums: list[int], keep: Callable[[pa.Table], pa.Table] | None
    ) -> pa.Table:
        """Return all rows of one slice; add the diff sums of its updates to sums."""
        tables = [scan.empty(columns), *scan.read_base_rows(self._reader, columns)]
        for table in scan.updates(self._reader, columns):
            table = table if keep is None else keep(table)
            sums.append(sum_exactly(table["_diff"].to_numpy()))
            tables.append(table)
        return pa.concat_tables(tables)


def _has_one_row_per_key(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Return whether rows sorted by key have one row per key, of multiplicity 1."""
    if not keys or not all(diff == 1 for diff in pc.min_max(rows["_diff"]).as_py().values()):
        return not len(rows)
    differs = [mark_changes(key) for key in make_order_keys(rows.select(keys), keys)]
    return bool(np.logical_or.reduce(differs).all())


class _Uploads:
    """Uploads parts of one collection, one at a time, because each takes memory."""

    def __init__(self, writer: PartWriter, executor: Executor, collection: str) -> None:
        self._writer = writer
        self._executor = executor
        self._collection = collection
        self._begun: list[Future[Part]] = []

    def begin(self, encoded: list[tuple[bytes, Part]]) -> list[Future[Part]]:
        """Upload encoded parts while the caller continues."""
        begun = []
        for data, part in encoded:
            if self._begun:
                self._begun[-1].exception()
            self._begun.append(self._executor.submit(self._writer.put, self._collection, data, part))
            begun.append(self._begun[-1])
        return begun

    def finish(self) -> list[Part]:
        """Wait for the uploads, and return all stored parts."""
        return [upload.result() for upload in self._begun if upload.exception() is None]


WHOLE_FRACTION = 4  # Parts at least this fraction of the target are left as they are where they can be.


def plan_keyframe(scan: Scan, numbers: Mapping[str, int], part_bytes: int, maker: PartMaker) -> Iterator[RunPiece]:
    """Yield the pieces of a keyframe, from a plan of `plan_snapshot`, in key order.

    Args:
        numbers: the numbers of parts, by blob.
        part_bytes: the target size of a part.
        maker: tests whether the history changes a region.
    """
    regions, whole_bytes = _cut_regions(scan), part_bytes // WHOLE_FRACTION
    touches = maker.build_change_test([region for region in regions if _is_worth_testing(region)])
    rewritten = 0  # Bytes of neighbours before that are rewritten, and whose parts may go on.
    for region in regions:
        is_small = rewritten > 0 and _estimate_base_bytes(region) < min(whole_bytes, rewritten + 1)
        is_touched = not _can_list_parts(region) or (
            region.parts and (rewritten or not _is_worth_testing(region) or touches(region))
        )
        if not is_touched and not is_small:
            rewritten = 0
            yield from (numbers[part.blob] for part in region.base)
            continue
        for piece in _cut_stretches(region, whole_bytes):
            yield piece
            rewritten = 0 if piece.is_quiet else rewritten + max(1, _estimate_base_bytes(piece.scan))


def _cut_stretches(region: Scan, quiet_bytes: int) -> list[Rewrite]:
    """Cut a region into key ranges that history may change, and unchanged ones.

    An unchanged range has at least `quiet_bytes` of the keyframe's part.

    Only sampled keys of the part are known, so a changed range may include unchanged rows, two thirty-seconds at most.
    """
    sampled = [load_comparable_keys(part, region.schema) for part in region.all_parts]
    if len(region.base) != 1 or any(keys is None for keys in sampled):
        return [Rewrite(region, region.as_of)]
    [part], [samples, *touching] = region.base, [keys for keys in sampled if keys is not None]
    is_touched = [False] * len(samples)  # From each of the samples on, before the next one.
    for keys in touching:
        first, last = (max(0, bisect_right(samples, key) - 1) for key in (keys[0], keys[-1]))
        is_touched[first : last + 1] = [True] * (last + 1 - first)
    row_bytes, rows = part.bytes / part.rows, [*choose_sample_rows(part.rows, len(samples)), part.rows]
    starts, ends, end = set[int](), set[int](), 0  # Of quiet stretches, as numbers of samples.
    for touched, stretch in groupby(is_touched):
        start, end = end, end + len([*stretch])
        if not touched and (rows[end] - rows[start]) * row_bytes >= quiet_bytes:
            starts.add(start)
            ends.add(end)
    cuts = sorted((starts | ends) - {0, len(samples)})
    bounds = [region.keys.lower, *((part.keys or [])[cut] for cut in cuts), region.keys.upper]
    return [
        Rewrite(replace(region, keys=KeyRange(*within)).prune(), region.as_of, is_quiet=start in starts)
        for start, within in zip([0, *cuts], pairwise(bounds), strict=True)
    ]


def _estimate_base_bytes(scan: Scan) -> int:
    """Estimate the bytes that the keyframe has in a slice of the key space."""
    return sum(part.bytes * scan.bound_row_count(part) // part.rows for part in scan.base)


def _cut_regions(scan: Scan) -> list[Scan]:
    """Cut a plan into key ranges, one for each part of its keyframe."""
    keys = [load_comparable_keys(part, scan.schema) for part in scan.base]
    bounds = [part.keys for part in scan.base]
    if len(scan.base) < 2 or any(ends is None for ends in keys) or any(ends is None for ends in bounds):
        return [scan]
    cuts = [bound[0] for bound in bounds[1:] if bound is not None]
    ranges = [KeyRange(a, b) for a, b in zip([None, *cuts], [*cuts, None], strict=True)]
    pruned = scan.prune()
    history = assign_parts(
        pruned.parts, scan.schema, ranges, [load_comparable_keys(part, scan.schema) for part in pruned.parts]
    )
    return [
        replace(pruned, keys=within, base=(part,), parts=tuple(parts))
        for within, part, parts in zip(ranges, scan.base, history, strict=True)
    ]


def _can_list_parts(region: Scan) -> bool:
    """Return whether a new keyframe may list the parts of a region: none has rows of a later time."""
    return all(part.time_max <= region.as_of for part in region.base)


def _is_worth_testing(region: Scan) -> bool:
    """Return whether testing a region for changes costs far less than rewriting it."""
    if not region.base or not region.parts or not _can_list_parts(region):
        return False
    return sum(region.bound_row_count(part) for part in region.parts) <= region.base[0].rows // 4
