"""Rows of parts: fetched, verified, decoded, and cut to a range of keys; and the claim that keeps their blobs there.

A part is fetched whole if most of it is wanted, or if little is saved by less. Otherwise its footer is fetched first,
which says where its row groups are, and then those that may hold wanted rows (`persist.codecs.part.index`). Each is
verified before it is believed. Footers are kept, because whoever reads one slice of a part soon reads the next.

Memory: what is being decoded ahead takes about a quarter of the budget, one piece at least. A piece is one row group,
or several up to a small part of the budget.
"""

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import InvalidUsage, MissingBlob
from persist.blob.lru import Cache
from persist.blob.protocol import Blob
from persist.blob.threads import Pool
from persist.codecs.order.arrays import copied
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.index import OpenGroups, PartIndex, decode_groups
from persist.codecs.part.key_range import KeyRange
from persist.codecs.part.lending import give_back_freed
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import LeaseExpired
from persist.engine.hold import Claim
from persist.engine.read.parts.caches import Cut, PartCaches, SliceLeftovers, SpilledRows, fetched
from persist.engine.write.part_writer import MEMORY_BUDGET

S = TypeVar("S")
T = TypeVar("T")

ALL_KEYS: KeyRange = KeyRange()
WHOLE_BYTES_MAX = 1 << 20  # Smaller parts are always fetched whole.


class PartReader:
    """Reads parts for one read or many, from any thread.

    Args:
        blob: where they are.
        executor: decodes several parts at a time; None for one after the other.
        caches: what point reads and footers are kept in, shared with other readers; None for its own.
        memory_budget: what a read may take; see `Settings.memory_budget`.
        spilled: where point reads keep what is large, in files; None for nowhere.
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
        """What reads and merges beside whoever reads."""
        return self._executor or Pool(1, "persist-read")

    @cached_property
    def _leftovers(self) -> SliceLeftovers:
        return SliceLeftovers(self.memory_budget // 4)  # Made when it is asked for: a point read never does.

    def keeping_leftovers(self, bytes_max: int) -> "PartReader":
        """Return the same for another read, which keeps so much of what its slices decode and leave to the next ones.

        Slices of many parts that overlap all cut a row group of each: with less room than these take, most of them are
        decoded again for each slice.
        """
        made = copy(self)
        made._leftovers = SliceLeftovers(bytes_max)
        return made

    @property
    def slice_bytes(self) -> int:
        """How much one slice may hold decoded: it is merged within the budget while the next one is read."""
        return self.memory_budget // 5

    @property
    def changes_slice_bytes(self) -> int:
        """The same for updates in the order of times, which are all sorted; the caller still has the slice before."""
        return max(1, self.slice_bytes // 2)

    @property
    def rewrite_slice_bytes(self) -> int:
        """The same where the merged slice is also encoded: merging takes about four times a slice."""
        return self.memory_budget // 8

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
        """Yield the rows of each part whose keys are inside, in the order of parts; see `table`.

        A part that would take more than an eighth of the budget comes in several tables. Columns of strings or bytes
        that coded names may come as dictionaries.
        """
        room = self.memory_budget // 4

        def pieces() -> Iterator[_PartSection]:
            for part in parts:
                size = memory_within(part, keys, schema)
                if part.inline or size + part.bytes <= room // 2:
                    yield _PartSection(part, size + part.bytes, None)
                    continue
                groups = self.index(part, schema).groups_within(*keys.bracket(part, schema))
                for batch in self._batches(part, schema, groups, room // 4):
                    yield _PartSection(part, size * len(batch) // len(groups), batch)

        def read(piece: _PartSection) -> pa.Table:
            if piece.groups is None:
                return self.table(piece.part, schema, columns, filter=filter, keys=keys, coded=coded)
            return self._inside(piece.part, schema, piece.groups, columns, filter, keys, coded)

        def read_in_thread(piece: _PartSection) -> pa.Table:
            rows = read(piece)
            if not keys.is_all:  # In slices: what other slices were decoded to is freed by now.
                give_back_freed(piece.size, self.memory_budget // 16)
            return rows

        if self._executor is None:
            return ((piece.part, read(piece)) for piece in pieces())
        return _in_order(self._executor, read_in_thread, pieces(), room)

    def table(
        self,
        part: Part,
        schema: CollectionSchema,
        columns: Sequence[str],
        *,
        filter: pc.Expression | None = None,
        keys: KeyRange = ALL_KEYS,
        coded: Sequence[str] = (),
    ) -> pa.Table:
        """Return those columns of a part's rows whose keys are inside and which pass filter.

        Raises:
            CorruptBlob: the part is missing or not what its descriptor says.
            InvalidUsage: the filter does not fit the columns, or the budget is too small for a row group.
        """
        if keys.is_all or keys.covers(part, schema):
            if part.inline:
                return decode_part(part.inline, part, schema, columns=columns, filter=filter)

            def decoded(data: bytes) -> pa.Table:
                footers = self._indexes.whole
                return decode_part(data, part, schema, columns=columns, filter=filter, footers=footers, coded=coded)

            return fetched(self.blob, part, decoded)
        return self._cut(part, schema, columns, filter, keys)

    def _cut(
        self,
        part: Part,
        schema: CollectionSchema,
        columns: Sequence[str],
        filter: pc.Expression | None,
        keys: KeyRange,
    ) -> pa.Table:
        """Return the rows of a part that are inside; go on where the slice before this one ended."""
        names = (*columns, *(name for name in schema.key_names if name not in columns))
        start, end = keys.bracket(part, schema)
        left = self._leftovers.take(Cut(part, schema, names, filter, keys.lower))
        if left is None:
            table, following = self._decoded(part, schema, names, filter, start, end)
            first, last = keys.rows(table, schema)
        else:
            table, following = left
            if following < end:
                more, following = self._decoded(part, schema, names, filter, following, end)
                table = pa.concat_tables([table, more])
            first, last = 0, keys.end(table, schema)
        if keys.upper is not None and (last < len(table) or following < part.rows):
            self._leftovers.keep(Cut(part, schema, names, filter, keys.upper), table.slice(last), following)
        return _alone(table.select(list(columns)), first, last)

    def _decoded(
        self,
        part: Part,
        schema: CollectionSchema,
        names: Sequence[str],
        filter: pc.Expression | None,
        start: int,
        end: int,
    ) -> tuple[pa.Table, int]:
        """Return all rows from start to end, and others of their row groups; and the row that follows these."""
        if part.inline or part.footer is None:
            return self.table(part, schema, names, filter=filter), part.rows
        if part.bytes <= WHOLE_BYTES_MAX and self._indexes.known(part) is None:
            table, groups = self._decoded_of_whole(part, schema, names, filter, start, end)
        else:
            groups = self.index(part, schema).groups_within(start, end)
            table = self.groups(part, schema, groups, names, filter=filter)
        if not groups:
            return table, end
        last = self.index(part, schema).groups[groups[-1]]
        return table, last.first_row + last.rows

    def _decoded_of_whole(
        self,
        part: Part,
        schema: CollectionSchema,
        names: Sequence[str],
        filter: pc.Expression | None,
        start: int,
        end: int,
    ) -> tuple[pa.Table, Sequence[int]]:
        """Return the rows of the row groups from start to end, and which these are. Cost: one GET, of the whole part.

        Only these groups are decoded: of very many small parts all of them would be in memory with the first slice.
        """

        def decoded(data: bytes) -> tuple[pa.Table, Sequence[int]]:
            index = self._indexes.of_whole(data, part, schema)
            groups = index.groups_within(start, end)
            if not groups:
                return _no_rows(schema, names), groups
            within = memoryview(data)[index.groups[groups[0]].start : index.groups[groups[-1]].end]
            return self.decoded_groups(part, schema, groups, groups, within, names, filter=filter), groups

        return fetched(self.blob, part, decoded)

    def _inside(
        self,
        part: Part,
        schema: CollectionSchema,
        groups: Sequence[int],
        columns: Sequence[str],
        filter: pc.Expression | None,
        keys: KeyRange,
        coded: Sequence[str],
    ) -> pa.Table:
        """Return the rows of some row groups whose keys are inside."""
        extra = [] if keys.is_all else [name for name in schema.key_names if name not in columns]
        table = self.groups(part, schema, groups, [*columns, *extra], filter=filter, coded=coded)
        if keys.is_all:
            return table
        first, last = keys.rows(table, schema)
        return _alone(table.select(list(columns)), first, last)

    def _batches(
        self, part: Part, schema: CollectionSchema, groups: Sequence[int], bytes_max: int
    ) -> Iterator[Sequence[int]]:
        """Cut consecutive row groups into batches of at most bytes_max decoded, one group at least."""
        index = self.index(part, schema)
        batch: list[int] = []
        rows = 0
        for group in groups:
            rows += index.groups[group].rows
            if batch and part.memory * rows // part.rows > bytes_max:
                yield batch
                batch, rows = [], index.groups[group].rows
            batch.append(group)
        if batch:
            yield batch

    def map(self, call: Callable[[S], T], items: Sequence[S]) -> list[T]:
        """Return what call makes of each item, several at a time."""
        if self._executor is None or len(items) < 2:
            return [call(item) for item in items]
        return list(self._executor.map(call, items))

    def known_index(self, part: Part) -> PartIndex | None:
        """Return the footer of a part if no request is needed for that."""
        return self._indexes.known(part)

    def index(self, part: Part, schema: CollectionSchema) -> PartIndex:
        """Return the footer of a part that is a blob."""
        return self._indexes.get(self.blob, part, schema)

    def groups(
        self,
        part: Part,
        schema: CollectionSchema,
        groups: Sequence[int],
        columns: Sequence[str],
        *,
        filter: pc.Expression | None = None,
        coded: Sequence[str] = (),
    ) -> pa.Table:
        """Return some consecutive row groups of a part that is a blob. Cost: one GET of a range."""
        return self.fetched_groups(part, schema, groups, columns, filter=filter, coded=coded)[0]

    def fetched_groups(
        self,
        part: Part,
        schema: CollectionSchema,
        groups: Sequence[int],
        columns: Sequence[str],
        *,
        filter: pc.Expression | None = None,
        coded: Sequence[str] = (),
        use_threads: bool = True,
    ) -> tuple[pa.Table, bytes]:
        """Return what `groups` does, and the bytes it was made of, for `decoded_groups`."""
        if not groups:
            return _no_rows(schema, columns), b""

        def decoded(data: bytes) -> tuple[pa.Table, bytes]:
            rows = self.decoded_groups(
                part, schema, groups, groups, data, columns, filter=filter, coded=coded, use_threads=use_threads
            )
            return rows, data

        return fetched(self.blob, part, decoded, self._bytes_of(part, schema, groups))

    def open_groups(
        self, part: Part, schema: CollectionSchema, groups: Sequence[int], coded: Sequence[str] = ()
    ) -> OpenGroups:
        """Fetch and verify consecutive row groups of a part whose file has this schema. Cost: one GET of a range."""
        index = self.index(part, schema)

        def opened(data: bytes) -> OpenGroups:
            return OpenGroups(_cut_groups(index, groups, groups, data), index, part.as_stored, schema, coded)

        return fetched(self.blob, part, opened, self._bytes_of(part, schema, groups))

    def _bytes_of(self, part: Part, schema: CollectionSchema, groups: Sequence[int]) -> tuple[int, int]:
        """Return where consecutive row groups begin and end; refuse those that the budget cannot hold."""
        index = self.index(part, schema)
        largest = max(index.groups[n].rows for n in groups) * part.memory // part.rows
        if largest > self.memory_budget:
            raise InvalidUsage(
                f"memory_budget={self.memory_budget} cannot hold a row group of {part.name!r}, which takes {largest} "
                "bytes decoded."
            ).with_remedy(f"Give {{memory_budget:option:{4 * largest}}} or more.")
        return index.groups[groups[0]].start, index.groups[groups[-1]].end

    def decoded_groups(
        self,
        part: Part,
        schema: CollectionSchema,
        groups: Sequence[int],
        wanted: Sequence[int],
        data: bytes | memoryview,
        columns: Sequence[str],
        *,
        filter: pc.Expression | None = None,
        coded: Sequence[str] = (),
        use_threads: bool = True,
    ) -> pa.Table:
        """Return columns of the wanted ones of some consecutive row groups, given the bytes of all of these."""
        index = self.index(part, schema)
        pieces = _cut_groups(index, groups, wanted, data)
        return decode_groups(
            pieces, index, part, schema, columns=columns, filter=filter, coded=coded, use_threads=use_threads
        )


def _cut_groups(
    index: PartIndex, groups: Sequence[int], requested: Sequence[int], data: bytes | memoryview
) -> list[tuple[int, memoryview]]:
    """Return the bytes of the requested row groups, out of those of some consecutive ones."""
    view, start = memoryview(data), index.groups[groups[0]].start
    return [(n, view[index.groups[n].start - start : index.groups[n].end - start]) for n in requested]


def _no_rows(schema: CollectionSchema, names: Sequence[str]) -> pa.Table:
    return pa.schema([schema.arrow.field(name) for name in names]).empty_table()


def _alone(table: pa.Table, first: int, end: int) -> pa.Table:
    """Return the rows from first to end, in buffers of their own if they are less than half of what was decoded.

    A slice of many parts would else keep a row group of each in memory, or more, for a few rows.
    """
    rows = table.slice(first, end - first)
    return rows if 2 * len(rows) >= len(table) else copied(rows)


def memory_within(part: Part, keys: KeyRange, schema: CollectionSchema) -> int:
    """Return about how many bytes the rows of a part that are inside take when decoded."""
    start, end, samples = keys.within(part, schema)
    if not keys.is_all and end - start < part.rows:
        # A bound lies anywhere between two known keys, on the average in the middle.
        between = (part.rows - 1) / max(samples - 1, 1)
        end -= int(between * ((start > 0) + (end < part.rows)) / 2)
    return part.memory * max(end - start, 0) // part.rows


@dataclass(frozen=True)
class _PartSection:
    """Some row groups of a part, or what is wanted of all of it; size is what reading it takes, in bytes."""

    part: Part
    size: int
    groups: Sequence[int] | None


def _in_order(
    executor: Executor, read: Callable[[_PartSection], pa.Table], pieces: Iterator[_PartSection], room: int
) -> Iterator[tuple[Part, pa.Table]]:
    """Yield what read makes of each piece, in order, with as many under way as there is room for, one at least."""
    under_way: deque[tuple[_PartSection, Future[pa.Table]]] = deque()
    taken = 0
    following = next(pieces, None)
    try:
        while following is not None or under_way:
            while following is not None and (not under_way or taken + following.size <= room):
                under_way.append((following, executor.submit(read, following)))
                taken += following.size
                following = next(pieces, None)
            piece, future = under_way.popleft()
            yield piece.part, future.result()
            taken -= piece.size
    finally:
        for _, future in under_way:
            future.cancel()


def ahead(items: Iterator[T], executor: Executor) -> Generator[T, None, None]:
    """Yield the same, none of them None, while an executor makes the next one."""
    future = executor.submit(next, items, None)
    try:
        while (item := future.result()) is not None:
            future = executor.submit(next, items, None)
            yield item
    finally:
        finish([future])


def finish(futures: Sequence["Future[T]"]) -> None:
    """Cancel what has not begun, and wait for the others; their errors are left out."""
    wait([future for future in futures if not future.cancel()])


class ClaimedRead:
    """Ask it for the reader each time something is read: it says so if that cannot be relied on any more.

    Args:
        source: gives what reads parts for the client; raises ClientClosed after its close.
        claim: released when this is closed, or dropped.
        is_needed: tells whether the collection, as it is now, refers to the blob of that key.
        name: of the collection, to tell of the read.
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
        """Return what to read with.

        Raises:
            InvalidUsage: the result this belongs to was closed.
            ClientClosed: its client was.
            LeaseExpired: what it reads may be gone.
        """
        if not self._release.alive:
            raise InvalidUsage("this result was closed, so what it reads may be gone. Ask for it again.")
        source = self._source()
        self._claim.check()
        return source

    def checked(self, reader: PartReader) -> PartReader:
        """Return reader, which came from here, if what it reads can be relied on still; raises as a call does."""
        self()
        return reader

    def move(self, time: int, *, has_planned: bool = False) -> None:
        """Claim from a later time on only; with has_planned, keep the parts of what was planned before, too."""
        self._claim.move(time, has_planned=has_planned)

    def close(self) -> None:
        """Give up the claim; idempotent."""
        self._release()

    def explained(self) -> "_Explained":
        """Raise, in a `with`, LeaseExpired in place of MissingBlob, if the blob is missing because it was collected."""
        return self._explained


class _Explained:
    """Keeps nothing of the block that it is used for, so one serves for all reads: a point read enters one each."""

    __slots__ = ("_is_needed",)

    def __init__(self, is_needed: Callable[[str], bool]) -> None:
        self._is_needed = is_needed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, MissingBlob) and not self._is_needed(error.key):
            raise collected(error) from error


def collected(error: MissingBlob) -> LeaseExpired:
    """Return what to raise for a blob that is missing because nothing refers to it any more."""
    return LeaseExpired(
        f"the blob {error.key!r} was collected: nothing has referred to it for longer than the grace period, and this "
        "read held no lease that kept it"
    )
