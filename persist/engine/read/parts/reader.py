"""Reads the rows of parts: fetches, verifies, decodes and cuts them to a range of keys, under a claim on their blobs.

A small part, or one that is mostly requested, is fetched whole. Otherwise its footer is fetched first, which has the
positions of its row groups, then the row groups that may hold requested rows (`persist.codecs.part.index`). Each is
verified before use. Footers are cached, because the next slice of a part is soon read.

Memory: pieces that are decoded ahead take about a quarter of the budget, one piece at least. A piece is one row group,
or several up to a small share of the budget.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage, MissingBlob
from persist.blob.lru import Cache
from persist.blob.protocol import Blob
from persist.blob.threads import Pool
from persist.codecs.order.arrays import copy_table
from persist.codecs.part.decoding import OpenFile, Request, decode_part
from persist.codecs.part.filters import select_matching_ranges
from persist.codecs.part.index import PartIndex, decode_groups, open_groups
from persist.codecs.part.key_range import KeyRange, load_comparable_keys
from persist.codecs.part.lending import release_freed
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import LeaseExpired
from persist.engine.hold import Claim
from persist.engine.read.parts.caches import Cut, PartCaches, SliceLeftovers, SpilledRows, fetch_checked
from persist.engine.write.part_writer import MEMORY_BUDGET

S = TypeVar("S")
T = TypeVar("T")

ALL_KEYS: KeyRange = KeyRange()
WHOLE_BYTES_MAX = 1 << 20  # Smaller parts are always fetched whole.
RANGE_SAMPLES = 4  # A filter is tested between every so many sampled keys of a part.


class PartReader:
    """Reads parts for one read or many, from any thread.

    Args:
        blob: the store of the parts.
        executor: decodes several parts at a time; None for one after the other.
        caches: footers and rows of point reads, shared with other readers; None for separate caches.
        memory_budget: the memory of one read; see `Settings.memory_budget`.
        spilled: files of large rows of point reads, or None.
    """

    def __init__(
        self,
        blob: Blob,
        executor: Executor | None = None,
        caches: PartCaches | None = None,
        memory_budget: int = MEMORY_BUDGET,
        spilled: SpilledRows | None = None,
    ) -> None:
        self.blob = blob
        self.memory_budget = memory_budget
        self._executor = executor
        caches = PartCaches(Cache(memory_budget // 2)) if caches is None else caches
        self.decoded, self._indexes = caches.decoded, caches.indexes
        self.spilled = spilled

    @cached_property
    def pool(self) -> Executor:
        """The executor that reads and merges ahead."""
        return self._executor or Pool(1, "persist-read")

    @cached_property
    def _leftovers(self) -> SliceLeftovers:
        """The rows that were decoded for one slice and belong to the next."""
        return SliceLeftovers(self._compute_share(4))  # Made at first use: a point read has none.

    def with_leftovers(self, bytes_max: int) -> "PartReader":
        """Return a reader for another read, with bytes_max for leftovers of its slices.

        Each slice of many overlapping parts cuts a row group of each part. Without room for these, most of them are
        decoded again for each slice.
        """
        reader = copy(self)
        reader._leftovers = SliceLeftovers(bytes_max)
        return reader

    @property
    def slice_bytes(self) -> int:
        """The decoded size of one slice, in bytes: merging it and reading the next fit the budget."""
        return self._compute_share(5)

    @property
    def changes_slice_bytes(self) -> int:
        """The size of a slice of updates in time order, which are sorted while the caller still has the last slice."""
        return max(1, self.slice_bytes // 2)

    @property
    def rewrite_slice_bytes(self) -> int:
        """The size of a slice that is also encoded again: merging takes about four times a slice."""
        return max(1, self.memory_budget // (11 if self._is_tight else 8))

    @property
    def _is_tight(self) -> bool:
        """Whether the budget is below the default, so that memory matters more than time.

        Then the caller decodes large pieces itself, without Arrow's threads: mimalloc keeps memory that one thread has
        allocated and another has freed.
        """
        return self.memory_budget < MEMORY_BUDGET

    def _compute_share(self, share: int) -> int:
        """Return the budget divided by `share`, or by 8 if the budget is small, in bytes."""
        return self.memory_budget // (8 if self._is_tight else share)

    def tables(
        self,
        parts: Sequence[Part],
        schema: CollectionSchema,
        columns: Sequence[str],
        *,
        filter: pc.Expression | None = None,
        keys: KeyRange = ALL_KEYS,
        coded: Sequence[str] = (),
    ) -> Iterator[tuple[Part, pa.Table]]:
        """Yield the rows of each part within a range of keys, in the order of parts; see `table`.

        A part that would take more than an eighth of the budget comes in several tables. Columns of strings or bytes
        that coded names may come as dictionaries.
        """
        room, request = self._compute_share(4), Request(schema, columns, filter, coded)

        def pieces() -> Iterator[_PartSection]:
            for part in parts:
                size = part.memory if part.inline else estimate_memory_within(part, keys, schema)
                if part.inline or size + part.bytes <= room // 2:
                    yield _PartSection(part, size + part.bytes, None)
                    continue
                groups = self.index(part, schema).list_groups_within(*keys.bracket_rows(part, schema))
                groups_read = groups
                if filter is not None and part.make_lift(schema) is None:
                    matching = {*self.index(part, schema).list_matching_groups(filter)}
                    groups_read = [group for group in groups if group in matching]
                for batch in self._cut_row_groups(part, schema, groups_read, room // 4):
                    yield _PartSection(part, size * len(batch) // len(groups), batch)

        def read(piece: _PartSection) -> pa.Table:
            if piece.groups is None:
                return self.table(piece.part, request, keys)
            return self._select_rows_inside(piece.part, piece.groups, request, keys)

        if self._executor is None:
            return ((piece.part, read(piece)) for piece in pieces())
        alone_bytes = WHOLE_BYTES_MAX if self._is_tight else sys.maxsize
        return _read_in_order(self._executor, read, pieces(), room, self._compute_share(1), alone_bytes)

    def table(self, part: Part, request: Request, keys: KeyRange = ALL_KEYS) -> pa.Table:
        """Return the requested rows of a part whose keys are inside.

        Raises:
            CorruptBlob: the part is missing, or differs from its descriptor.
            InvalidUsage: the filter does not fit the columns, or the budget is too small for a row group.
        """
        if not (keys.is_all or keys.covers(part, request.schema)):
            return self._cut_rows(part, request, keys)
        schema, columns, filter, coded = request.schema, request.columns, request.filter, request.coded
        if part.inline:
            return decode_part(part.inline, part, schema, columns=columns, filter=filter)
        matching = self._select_few_matching_groups(part, schema, filter)
        if matching is not None:
            batches = self._cut_row_groups(part, schema, [*matching], part.memory)
            request = Request(schema, columns, filter)
            tables = [self.fetch_groups(part, batch, request)[0] for batch in batches]
            return pa.concat_tables([_make_empty_rows(schema, columns), *tables])

        def decoded(data: bytes) -> pa.Table:
            threads = not self._is_tight
            return decode_part(data, part, schema, columns=columns, filter=filter, use_threads=threads, coded=coded)

        return fetch_checked(self.blob, part, decoded)

    def _cut_rows(self, part: Part, request: Request, keys: KeyRange) -> pa.Table:
        """Return the rows of a part within a range of keys, from where the last slice ended."""
        schema, columns = request.schema, request.columns
        names = (*columns, *(name for name in schema.key_names if name not in columns))
        with_keys = Request(schema, names, request.filter)
        start, end = keys.bracket_rows(part, schema)
        leftover = self._leftovers.take(Cut(part, with_keys, keys.lower))
        if leftover is None:
            table, following = self._decode_rows(part, with_keys, start, end)
            first, last = keys.find_rows(table, schema)
        else:
            table, following = leftover
            if following < end:
                more, following = self._decode_rows(part, with_keys, following, end)
                table = pa.concat_tables([table, more])
            first, last = 0, keys.find_end(table, schema)
        if keys.upper is not None and (last < len(table) or following < part.rows):
            self._leftovers.keep(Cut(part, with_keys, keys.upper), table.slice(last), following)
        return _slice_or_copy(table.select(list(columns)), first, last)

    def _decode_rows(self, part: Part, request: Request, start: int, end: int) -> tuple[pa.Table, int]:
        """Return the row groups of the rows from start to end, and the row after these groups."""
        if part.inline or part.footer is None:
            return self.table(part, request), part.rows
        if part.bytes <= WHOLE_BYTES_MAX and self._indexes.get_cached(part) is None:
            table, groups = self._decode_whole(part, request, start, end)
        else:
            groups = self.index(part, request.schema).list_groups_within(start, end)
            table, _ = self.fetch_groups(part, groups, request)
        if not groups:
            return table, end
        last = self.index(part, request.schema).groups[groups[-1]]
        return table, last.first_row + last.rows

    def _decode_whole(self, part: Part, request: Request, start: int, end: int) -> tuple[pa.Table, Sequence[int]]:
        """Return the row groups of the rows from start to end, and their numbers. Cost: one GET, of the whole part.

        Only these groups are decoded, because otherwise the first slice of very many small parts would have all of
        their rows in memory.
        """

        def decoded(data: bytes) -> tuple[pa.Table, Sequence[int]]:
            """Decode the row groups of a whole part that lie in the range."""
            index = self._indexes.of_whole(data, part, request.schema)
            groups = index.list_groups_within(start, end)
            if not groups:
                return _make_empty_rows(request.schema, request.columns), groups
            within = memoryview(data)[index.groups[groups[0]].start : index.groups[groups[-1]].end]
            return self.decode_groups(part, groups, groups, within, request), groups

        return fetch_checked(self.blob, part, decoded)

    def _select_rows_inside(self, part: Part, groups: Sequence[int], request: Request, keys: KeyRange) -> pa.Table:
        """Return the rows of some row groups within a range of keys."""
        if keys.is_all:
            return self.fetch_groups(part, groups, request)[0]
        schema, columns = request.schema, request.columns
        names = [*columns, *(name for name in schema.key_names if name not in columns)]
        table, _ = self.fetch_groups(part, groups, Request(schema, names, request.filter, request.coded))
        return _slice_or_copy(table.select(list(columns)), *keys.find_rows(table, schema))

    def _select_few_matching_groups(
        self, part: Part, schema: CollectionSchema, filter: pc.Expression | None
    ) -> Sequence[int] | None:
        """Return the only row groups with rows that may pass the filter; None to fetch the whole part.

        The keys in the descriptor show whether the footer is worth a request of its own. Each request for consecutive
        row groups has to save as much as a request costs.
        """
        if filter is None or part.footer is None or part.bytes <= WHOLE_BYTES_MAX or part.make_lift(schema) is not None:
            return None
        if self.get_cached_index(part) is None:
            keys = None if load_comparable_keys(part, schema) is None else part.keys
            ranges = [*pairwise((keys or [])[::RANGE_SAMPLES])]
            if 2 * len(select_matching_ranges(ranges, filter, schema, schema.key_names)) >= len(ranges):
                return None
        index = self.index(part, schema)
        groups = index.list_matching_groups(filter)
        skipped_bytes = part.bytes - sum(index.groups[group].end - index.groups[group].start for group in groups)
        requests = sum(group != before + 1 for before, group in pairwise([-2, *groups]))
        return groups if skipped_bytes > requests * WHOLE_BYTES_MAX else None

    def _cut_row_groups(
        self, part: Part, schema: CollectionSchema, groups: Sequence[int], bytes_max: int
    ) -> Iterator[Sequence[int]]:
        """Cut row groups into consecutive ones of at most bytes_max decoded, one group at least."""
        index = self.index(part, schema)
        batch: list[int] = []
        rows = 0
        for group in groups:
            rows += index.groups[group].rows
            if batch and (part.memory * rows // part.rows > bytes_max or group != batch[-1] + 1):
                yield batch
                batch, rows = [], index.groups[group].rows
            batch.append(group)
        if batch:
            yield batch

    def map(self, call: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Return the results of a call for each item, several at a time."""
        if self._executor is None or len(items) < 2:
            return [call(item) for item in items]
        return list(self._executor.map(call, items))

    def get_cached_index(self, part: Part) -> PartIndex | None:
        """Return the footer of a part if it is cached."""
        return self._indexes.get_cached(part)

    def index(self, part: Part, schema: CollectionSchema) -> PartIndex:
        """Return the footer of a part that is a blob."""
        return self._indexes.get(self.blob, part, schema)

    def fetch_groups(
        self, part: Part, groups: Sequence[int], request: Request, *, use_threads: bool = True
    ) -> tuple[pa.Table, bytes]:
        """Return requested rows of some consecutive row groups of a part that is a blob, and the bytes of these groups.

        `decode_groups` takes the bytes. Cost: one GET of a range.
        """
        if not groups:
            return _make_empty_rows(request.schema, request.columns), b""

        def decoded(data: bytes) -> tuple[pa.Table, bytes]:
            return self.decode_groups(part, groups, groups, data, request, use_threads=use_threads), data

        return fetch_checked(self.blob, part, decoded, self._find_byte_range(part, request.schema, groups))

    def open_groups(
        self, part: Part, schema: CollectionSchema, groups: Sequence[int], coded: Sequence[str] = ()
    ) -> OpenFile:
        """Fetch and verify row groups of a part whose file has this schema.

        Cost: one GET, also of gaps between them.
        """
        index = self.index(part, schema)

        def opened(data: bytes) -> OpenFile:
            return open_groups(_split_groups(index, groups, groups, data), index, part.as_stored, schema, coded)

        return fetch_checked(self.blob, part, opened, self._find_byte_range(part, schema, groups))

    def _find_byte_range(self, part: Part, schema: CollectionSchema, groups: Sequence[int]) -> tuple[int, int]:
        """Return the byte range of consecutive row groups; raise InvalidUsage if one exceeds the budget."""
        index = self.index(part, schema)
        largest = max(index.groups[n].rows for n in groups) * part.memory // part.rows
        if largest > self.memory_budget:
            raise InvalidUsage(
                f"memory_budget={self.memory_budget} cannot hold a row group of {part.name!r}, which takes {largest} "
                "bytes decoded."
            ).with_remedy(f"Give {{memory_budget:option:{4 * largest}}} or more.")
        return index.groups[groups[0]].start, index.groups[groups[-1]].end

    def decode_groups(
        self,
        part: Part,
        groups: Sequence[int],
        wanted: Sequence[int],
        data: bytes | memoryview,
        request: Request,
        *,
        use_threads: bool = True,
    ) -> pa.Table:
        """Return requested rows of the row groups `wanted`, from the bytes of the consecutive `groups`."""
        index = self.index(part, request.schema)
        pieces = _split_groups(index, groups, wanted, data)
        return decode_groups(pieces, index, part, request, use_threads=use_threads and not self._is_tight)


def _split_groups(
    index: PartIndex, groups: Sequence[int], requested: Sequence[int], data: bytes | memoryview
) -> list[tuple[int, memoryview]]:
    """Return the numbers and bytes of the requested row groups, from the bytes of consecutive ones."""
    view, start = memoryview(data), index.groups[groups[0]].start
    return [(n, view[index.groups[n].start - start : index.groups[n].end - start]) for n in requested]


def _make_empty_rows(schema: CollectionSchema, names: Sequence[str]) -> pa.Table:
    return pa.schema([schema.arrow.field(name) for name in names]).empty_table()


def _slice_or_copy(table: pa.Table, first: int, end: int) -> pa.Table:
    """Return the rows from first to end; a copy if they are less than half of the decoded ones.

    A plain slice would keep the whole decoded row group in memory for a few rows.
    """
    rows = table.slice(first, end - first)
    return rows if 2 * len(rows) >= len(table) else copy_table(rows)


def estimate_memory_within(part: Part, keys: KeyRange, schema: CollectionSchema) -> int:
    """Estimate the decoded size of the rows of a part within a range of keys, in bytes."""
    if keys.is_all:
        return part.memory
    start, end, samples = keys.bracket_samples(part, schema)
    if end - start < part.rows:
        # A bound lies anywhere between two known keys, on the average in the middle.
        between = (part.rows - 1) / max(samples - 1, 1)
        end -= int(between * ((start > 0) + (end < part.rows)) / 2)
    return part.memory * max(end - start, 0) // part.rows


@dataclass(frozen=True)
class _PartSection:
    """Some row groups of a part, or None for all requested rows; size is the memory to read it, in bytes."""

    part: Part
    size: int
    groups: Sequence[int] | None


def _read_in_order(
    executor: Executor,
    read: Callable[[_PartSection], pa.Table],
    pieces: Iterator[_PartSection],
    room: int,
    freed_bytes: int,
    alone_bytes: int,
) -> Iterator[tuple[Part, pa.Table]]:
    """Yield the table of each piece, in order; read ahead as far as memory allows, at least one piece.

    An inline part is in memory and small, so it is decoded by the caller.

    Args:
        freed_bytes: after so many allocated bytes, the allocator returns freed memory to the system.
        alone_bytes: a piece of at least this size is read by the caller.
    """
    under_way: deque[tuple[_PartSection, Future[pa.Table] | None]] = deque()
    bytes_ahead = 0
    following = next(pieces, None)
    try:
        while following is not None or under_way:
            while following is not None and (not under_way or bytes_ahead + following.size <= room):
                is_own = bool(following.part.inline) or following.size >= alone_bytes
                future = None if is_own else executor.submit(read, following)
                under_way.append((following, future))
                bytes_ahead += following.size
                following = next(pieces, None)
            piece, future = under_way.popleft()
            yield piece.part, read(piece) if future is None else future.result()
            bytes_ahead -= piece.size
            release_freed(freed_bytes)  # The caller's thread has freed rows, too.
    finally:
        for _, future in under_way:
            if future is not None:
                future.cancel()


def read_ahead(items: Iterator[T], executor: Executor) -> Generator[T, None, None]:
    """Yield items (never None), while an executor computes the next one."""
    future = executor.submit(next, items, None)
    try:
        while (item := future.result()) is not None:
            future = executor.submit(next, items, None)
            yield item
    finally:
        cancel_and_wait([future])


def cancel_and_wait(futures: Sequence["Future[T]"]) -> None:
    """Cancel the calls that have not begun, and wait for the others; ignore their errors."""
    wait([future for future in futures if not future.cancel()])


class ClaimedRead:
    """A reader with a claim on its blobs; calling it returns the reader, or raises if the claim is lost.

    Args:
        source: returns the client's reader of parts; raises ClientClosed after its close.
        claim: released when this is closed or freed.
        is_needed: tests whether the newest state of the collection refers to a blob.
        name: the name of the collection, for reports of progress.
    """

    def __init__(
        self,
        source: Callable[[], PartReader],
        claim: Claim,
        is_needed: Callable[[str], bool],
        name: str = "",
    ) -> None:
        self.name = name
        self._source = source
        self._claim = claim
        self._explained = _Explained(is_needed)
        self._release = weakref.finalize(self, claim.release)

    def __call__(self) -> PartReader:
        """Return the reader.

        Raises:
            InvalidUsage: the result of the read was closed.
            ClientClosed: its client was closed.
            LeaseExpired: the blobs may be deleted.
        """
        if not self._release.alive:
            raise InvalidUsage("this result was closed, so what it reads may be gone. Ask for it again.")
        source = self._source()
        self._claim.check()
        return source

    def check(self, reader: PartReader) -> PartReader:
        """Return `reader`, which an earlier call returned, if the claim still holds; raise as a call does."""
        self()
        return reader

    def move(self, time: int, *, has_planned: bool = False) -> None:
        """Move the claim to a later time; with has_planned, also keep the parts of earlier plans."""
        self._claim.move(time, has_planned=has_planned)

    def close(self) -> None:
        """Release the claim; idempotent."""
        self._release()

    def explain_missing(self) -> "_Explained":
        """Return a context that raises LeaseExpired in place of MissingBlob, if the blob was deleted as unneeded."""
        return self._explained


class _Explained:
    """A stateless context that raises LeaseExpired if a missing blob was deleted as unneeded."""

    __slots__ = ("_is_needed",)

    def __init__(self, is_needed: Callable[[str], bool]) -> None:
        self._is_needed = is_needed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MissingBlob) and not self._is_needed(error.key):
            raise make_collected_error(error) from error


def make_collected_error(error: MissingBlob) -> LeaseExpired:
    """Return the error for a blob that was deleted because nothing refers to it."""
    return LeaseExpired(
        f"the blob {error.key!r} was collected: nothing has referred to it for longer than the grace period, and this "
        "read held no lease that kept it"
    )
