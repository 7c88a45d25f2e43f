"""Reads records by an index: its contents for some keys, and the changes between its time and the requested one.

Refreshes look up keys (`IndexPath.find_records`). Reads look up the rows that pass a filter (`find_by_index`). An index
is cut into ranges of its keys, and Arrow determines whether the filter may be true between the least and the greatest
key of each. So any filter reduces what is read: by `=`, `in`, bounds, prefixes of several columns, or these joined by
`and` and `or`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from persist.blob.errors import MissingBlob
from persist.codecs.order.ordering import sort_indices
from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate
from persist.codecs.part.decoding import filter_table
from persist.codecs.part.filters import list_referenced_columns, select_matching_ranges
from persist.codecs.part.key_range import KeyRange
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.compute.index.indexes import load_indexes
from persist.core.names import make_index_hold_name
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import count_erasures
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.following.changes import read_changes
from persist.engine.read.lookups.matching import estimate_matching, read_matching
from persist.engine.read.merging import Form, read_snapshot, repeat_rows
from persist.engine.read.parts.reader import PartReader, make_collected_error
from persist.engine.read.planning.scan import Scan, narrow_scan, negate_diffs
from persist.engine.read.planning.snapshot_plan import plan_changes_scan, plan_snapshot
from persist.engine.read.results.snapshot import Snapshot

PAYS = 2  # An index is used if it reads so many times less.
LEAST_BYTES = 128 << 10  # Below this size, an index makes no noticeable difference.
PIECES = 32  # An index is cut into so many at a time to see which of them a filter passes.


@dataclass(frozen=True)
class IndexPath:
    """A plan for finding records by some columns; it can be pickled.

    Attributes:
        columns: the collection's columns by which records are found, in the order of the index's key.
        names: the collection's names of the columns that are read.
        own: the index's names of the same columns.
        contents: the scan of the index.
        changes: the scan of the collection between the time of the index and the requested one.
        is_ahead: whether the index's time is the later one.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    held_columns: tuple[str, ...]
    contents: Scan
    changes: Scan | None
    is_ahead: bool

    def estimate_bytes(self, keys: pa.Table) -> int:
        """Estimate the decoded bytes that a look-up of some keys reads. No I/O."""
        return estimate_matching(self.contents, self._rename_keys(keys)) + (self.changes.memory if self.changes else 0)

    def find_records(self, keys: pa.Table, reader: PartReader) -> Iterator[pa.Table]:
        """Yield updates that include all records with one of the keys.

        Raises LeaseExpired: a part of the index was deleted meanwhile: no hold protects an index.
        """
        names = [*self.names, "_diff"]
        try:
            for table in read_matching(self.contents, self._rename_keys(keys), reader):
                yield table.select([*self.held_columns, "_diff"]).rename_columns(names)
            if self.changes is not None:
                new = _filter_by_keys(read_changes(self.changes, reader), keys).select(names)
                yield negate_diffs(new) if self.is_ahead else new
        except MissingBlob as error:
            raise make_collected_error(error) from error

    def _rename_keys(self, keys: pa.Table) -> pa.Table:
        """Return keys as a table with the names of the index's key columns."""
        return keys.select([*self.columns]).rename_columns([*self.contents.schema.key_names])


def _filter_by_keys(table: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows with one of the keys."""
    names = keys.column_names
    return SortedKeys.of(keys, names).split(table.take(sort_indices(table, names)))[0]


def plan_paths(
    handle: CollectionHandle,
    contents: CollectionState,
    schema: CollectionSchema,
    as_of: int,
    columns: Sequence[str],
    *,
    adds_key: bool = False,
) -> list[IndexPath]:
    """Return plans to find records by each usable index, from known states.

    Args:
        schema: the version by which the collection is read.
        columns: the columns to return. An index is used if it holds them all, and they include the columns
            that it is ordered by.
        adds_key: also request the columns that an index is ordered by, so that `columns` need not have these.
    """
    paths = []
    for index in load_indexes(handle):
        held_names, by = index.map_names(schema), index.name_columns(schema)
        requested = [*columns, *(name for name in by or () if adds_key and name not in columns)]
        if index.as_of < 0 or by is None or not {*by} <= {*requested} <= held_names.keys():
            continue
        first, last = sorted((index.as_of, as_of))
        if first < contents.since or last >= contents.upper:
            continue
        index_scan = plan_snapshot(
            index.contents, index.handle.schema, index.as_of, [held_names[name] for name in requested]
        )
        new = plan_changes_scan(contents, schema, first + 1, last + 1, requested) if first < last else None
        paths.append(
            IndexPath(
                by,
                tuple(requested),
                index_scan.columns,
                index_scan,
                new if new is not None and new.parts else None,
                index.as_of > as_of,
            )
        )
    return paths


@dataclass(frozen=True)
class IndexScan:
    """A scan that is answered from an index; it can be pickled.

    Attributes:
        scan: the replaced scan.
        path: the plan for reading the index.
        ranges: the slices of the index whose rows may pass the filter.
        changes: the slice of the collection's changes that may pass it; None if there are none.
    """

    scan: Scan
    path: IndexPath
    ranges: tuple[Scan, ...]
    changes: Scan | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that rows are found by."""
        return self.path.columns

    @property
    def memory(self) -> int:
        """The estimated decoded bytes of all scans."""
        return sum(scan.memory for scan in self.all_scans)

    @property
    def all_scans(self) -> tuple[Scan, ...]:
        """The scans of the index and of the collection."""
        return (*self.ranges, *(() if self.changes is None else (self.changes,)))

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts of all scans."""
        return tuple(part for scan in self.all_scans for part in scan.all_parts)

    @property
    def schema(self) -> CollectionSchema:
        """The schema of the results."""
        return self.scan.schema

    def tables(self, form: Form, reader: PartReader) -> Iterator[pa.Table]:
        """Yield the rows that the index finds, with `_diff` or repeated, as form says.

        Raises LeaseExpired: garbage collection deleted a part of the index during the read. Reads of an index are
        short, so they take no hold.
        """
        try:
            table = self._find_matching_rows(reader)
        except MissingBlob as error:
            raise make_collected_error(error) from error
        return iter([table]) if form == "diff" else repeat_rows(table, self.scan)

    def _find_matching_rows(self, reader: PartReader) -> pa.Table:
        """Return the collection's rows that the index finds."""
        path, scan = self.path, self.scan
        names, kinds = [*path.names, "_diff"], scan.empty([*path.names, "_diff"]).schema
        tables = [kinds.empty_table()]
        for piece in self.ranges:
            for table in read_snapshot(piece, "diff", reader):
                table = table.select([*path.held_columns, "_diff"]).rename_columns(names).cast(kinds)
                tables.append(filter_table(table, scan.filter, names, scan.schema.arrow))
        if self.changes is not None:
            new = read_changes(self.changes, reader)
            tables.append((negate_diffs(new) if path.is_ahead else new).select(names).cast(kinds))
        return consolidate(pa.concat_tables(tables), [*scan.columns]).select([*scan.columns, "_diff"])


def find_by_index(handle: CollectionHandle, erasures: int, scan: Scan, bytes_max: int) -> IndexScan | None:
    """Return a plan that answers the scan by an index; None if it would not read much less.

    No I/O besides loading the indexes' states.

    Args:
        erasures: `count_erasures` of the scanned contents. If it has changed since, no index is used.
        bytes_max: the greatest size of the result, because it is in memory at once.
    """
    least = PAYS * LEAST_BYTES
    if scan.filter is None or not scan.columns or scan.narrow is not None or scan.memory < least:
        return None
    peeked = handle.get_known_state()
    if not any(name.startswith(make_index_hold_name("")) for name in peeked.holds):
        return None
    rows = pa.schema([scan.schema.arrow.field(name) for name in scan.schema.names])
    requested = [*scan.columns, *list_referenced_columns(scan.filter, rows, scan.columns)]
    paths = plan_paths(handle, handle.fold(peeked), scan.schema, scan.as_of, requested, adds_key=True)
    if count_erasures(handle.get_known_state()) != erasures:
        return None
    candidates = [candidate for path in paths if (candidate := _plan_lookup(path, scan)) is not None]
    best = min(candidates, key=lambda candidate: candidate.memory, default=None)
    return None if best is None or best.memory > bytes_max or PAYS * best.memory > scan.memory else best


def enable_index_reads(handle: CollectionHandle, snapshot: Snapshot) -> Snapshot:
    """Let a snapshot read by an index if that reads much less; return it."""
    snapshot.find_by_index = partial(find_by_index, handle)
    return snapshot


def _plan_lookup(path: IndexPath, scan: Scan) -> IndexScan | None:
    """Return a plan that finds a scan's rows by an index; or None."""
    changes = path.changes if path.changes is None else narrow_scan(path.changes, scan.filter)
    if path.changes is not None and changes is None:
        return None
    pieces = _select_slices(path, scan, [path.contents])
    while 0 < len(pieces) <= PIECES:
        finer = [piece for coarse in pieces for piece in coarse.slices(PIECES)]
        if len(finer) == len(pieces):
            break
        pieces = _select_slices(path, scan, finer)
    return IndexScan(scan, path, tuple(_join_slices(path.contents, pieces)), changes)


def _select_slices(path: IndexPath, scan: Scan, pieces: Sequence[Scan]) -> list[Scan]:
    """Return the slices of an index whose rows may pass the filter of a scan."""
    bounds = [(piece.keys.lower, piece.keys.upper) for piece in pieces]
    return [pieces[at] for at in select_matching_ranges(bounds, scan.filter, scan.schema, path.columns)]


def _join_slices(whole: Scan, pieces: Sequence[Scan]) -> Iterator[Scan]:
    """Yield slices of a scan in order, with adjacent slices merged."""
    at = 0
    while at < len(pieces):
        first = at
        while at + 1 < len(pieces) and pieces[at].keys.upper == pieces[at + 1].keys.lower:
            at += 1
        yield replace(whole, keys=KeyRange(pieces[first].keys.lower, pieces[at].keys.upper)).prune()
        at += 1
