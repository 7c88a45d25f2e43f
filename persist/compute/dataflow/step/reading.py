"""What a step reads of a collection, with an estimate of the bytes, and what descriptors tell without reading.

A source stage needs of the past what `touched.py` says. If that is said by the whole key of the collection, the keys
are looked up: a task has some of them, in order, and reads the row groups that may hold one. Otherwise slices of the
collection are scanned, of the parts that may have such records, and what is not needed is left out at once. Where an
index of the collection has the columns that say what is needed, the records are looked up there, if that reads less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from persist.codecs.order.digest import row_hashes
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.compute.dataflow.step.keys import Condition, Known, filter_of, keys_for
from persist.compute.dataflow.step.stages import Keys
from persist.compute.dataflow.step.tasks import Slice, SourceSlices
from persist.compute.dataflow.step.touched import Need
from persist.compute.index import PAYS, Path, among, own_path
from persist.compute.tasks.stream_source import CollectionAddress
from persist.engine.collection.reads import changes, snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.lookups.lookup import Lookup, Wanted
from persist.engine.read.planning.scan import Scan, narrowed_scan

LOOKED_UP_KEYS = 50_000  # For each task that looks up, at least.
INDEXED_ROWS = 40_000  # That are read for each key that is looked up in an index, at most.
SPARSE = 20  # Rows for each key that is looked up, at least, if that reads no less than a scan.
SPARSE_TIMES = 4  # As much is decoded, at most, by looking a few keys up in several orders.
MISSED_BYTES = 1 << 20  # Below that, nobody misses an index.


@dataclass(frozen=True)
class Reading:
    """What a step reads of a source.

    Attributes:
        contents: as of a time.
        changes: after it; None if there are none.
        columns: of the source, with the types that the plan takes them for.
        paths: by which records are found that indexes have.
        read: look-ups that were made in this step already, to find keys. None of them gives what one before it gives.
    """

    address: CollectionAddress
    handle: CollectionHandle
    contents: Scan
    changes: Scan | None
    as_of: int
    columns: pa.Schema
    paths: Sequence[Path] = ()
    read: list[Slice] = field(default_factory=list)

    @property
    def contents_bytes(self) -> int:
        """What the contents take decoded."""
        return self.contents.memory

    @property
    def changes_bytes(self) -> int:
        """What the changes take decoded."""
        return 0 if self.changes is None else self.changes.memory

    @property
    def changed(self) -> int:
        """At most how many updates there are after the contents."""
        return 0 if self.changes is None else sum(part.rows for part in self.changes.all_parts)

    def sliced(self, need: Need, known: Known, parallel: int) -> tuple[SourceSlices, int]:
        """Return what tasks read if that is needed of the contents, and about how many bytes that is, decoded."""
        size, slices = self._needed(need, known, parallel)
        if self.changes is not None:
            slices += [Slice(scan, is_changes=True) for scan in self.changes.slices(self.changes.task_count(parallel))]
        condition = Condition.of(need, known)
        size += self.changes_bytes
        return SourceSlices(self.address, slices, size, self.as_of, self.columns, condition), size

    def told(self, need: Need, known: Known, title: str) -> str:
        """Return as text what is read if that is needed of the contents."""
        size, _ = self._needed(need, known, 1)
        if not size:
            of_past = "nothing of the past"
        elif need is None:
            of_past = f"all of the past, {size:,} bytes"
        else:
            by = " or ".join(sorted({", ".join(term.columns) or "whatever changes" for term in need}))
            of_past = f"of the past what touched keys hold, by {by}, {size:,} of {self.contents_bytes:,} bytes"
        return f"{title}: {self.changes_bytes:,} bytes of changes, and {of_past}"

    def missing(self, need: Need, known: Known) -> list[str]:
        """Return as text the indexes that would save most of reading the contents, with what they would save."""
        size, _ = self._needed(need, known, 1)
        lines = []
        for columns, keys in self._wanted_keys(need, known):
            rows = sum(part.rows for part in self.contents.all_parts)
            least = min(self.contents_bytes, len(keys) * INDEXED_ROWS * self.contents_bytes // max(rows, 1))
            is_new = len({*columns}) == len(columns) and self._path(columns) is None
            if is_new and size > MISSED_BYTES and 2 * least <= size:
                by = ", ".join(repr(name) for name in columns)
                lines.append(f"an index would save about {size - least:,} bytes: {self.handle.name}.index({by})")
        return lines

    def has_many(self, columns: Keys) -> bool:
        """Return whether it can be told that a few values of these columns are those of a small part of the contents.

        It is, by the keys that are known of the parts that are in the order of these columns: most of them differ.
        """
        path = self._path(columns)
        if path is None:
            return bool(columns) and {*self.contents.schema.key_names} <= {*columns}
        width = len(path.columns)
        known = [str(bound[:width]) for part in path.contents.all_parts for bound in part.keys or ()]
        return 2 * len({*known}) > len(known) > 0

    def _wanted_keys(self, need: Need, known: Known) -> list[tuple[Keys, pa.Table]]:
        """Return the keys of which records are needed, by the columns that have them; none if these do not say it."""
        need = None if need is None else frozenset(term for term in need if len(known[term.keys].hashes))
        if need is None or any(not term.columns for term in need):
            return []
        tables: dict[Keys, list[pa.Table]] = {}
        for term in sorted(need, key=repr):
            kinds = self.contents.given.arrow
            schema = pa.schema([(name, kinds.field(name).type) for name in term.columns])
            keys = keys_for(term, known).as_keys(schema, nulls=True)
            if keys is None:
                return []
            tables.setdefault(term.columns, []).append(keys)
        return [(columns, pa.concat_tables(of_columns)) for columns, of_columns in tables.items()]

    def _path(self, columns: Keys) -> Path | None:
        """Return the path by which records with some values in some columns are found: by as many of these as can be.

        What is found by fewer is among what is read; the condition of what is needed leaves the rest out.
        """
        key = self.contents.schema.key_names
        count = next((at for at, name in enumerate(key) if name not in columns), len(key))
        own = [path] if (path := own_path(self.contents, count)) is not None else []
        fits = [path for path in (*own, *self.paths) if {*path.columns} <= {*columns}]
        return max(fits, key=lambda path: len(path.columns), default=None)

    def _by_indexes(self, need: Need, known: Known) -> tuple[int, list[Slice]] | None:
        """Return about how many bytes it takes to find the needed records by indexes, and the slices that find them.

        None if an index is missing. A record that is found in several ways is given by the first of them.
        """
        by_path: dict[Keys, tuple[Path, list[pa.Table]]] = {}
        for columns, keys in self._wanted_keys(need, known):
            path = self._path(columns)
            if path is None:
                return None
            of_path = keys.select([columns.index(name) for name in path.columns])  # One may be there twice.
            by_path.setdefault(path.columns, (path, []))[1].append(of_path)
        wanted = [(path, _distinct(pa.concat_tables(tables))) for path, tables in by_path.values()]
        size = sum(path.bytes_of(keys)[0] for path, keys in wanted)
        return (size, self._looked_up(wanted)) if wanted else None

    def _looked_up(self, wanted: Sequence[tuple[Path | None, pa.Table]], count: int = 1) -> list[Slice]:
        """Return what looks keys up, each by a path or as the whole key, that was not done in this step already.

        What one leaves out because another one gives it, that one has to give: so all that were made before are there.

        Args:
            count: of new ones for each path.
        """
        used, new = 0, list[Slice]()
        for path, keys in wanted:
            for at, piece in enumerate(self.read):
                assert piece.keys is not None
                if len(keys) and piece.keys.column_names == keys.column_names and _is_by(piece, path):
                    left = among(keys, piece.keys, others=True)
                    used = max(used, at + 1) if len(left) < len(keys) else used
                    keys = left
            if not len(keys):
                continue
            without = tuple(piece.keys for piece in (*self.read, *new) if piece.keys is not None)
            cuts = [len(keys) * at // count for at in range(count + 1)]
            parts = [keys.slice(start, end - start) for start, end in pairwise(cuts)]
            new += [Slice(self.contents, keys=part, path=path, without=without) for part in parts]
        return [*(self.read if new else self.read[:used]), *new]

    def unread_bytes(self, slices: Sequence[Slice]) -> int:
        """Return about how many bytes slices of the contents read, decoded, that were not read in this step already."""
        return sum(
            piece.scan.memory if piece.keys is None else self._lookup_bytes(piece.path, piece.keys)
            for piece in slices
            if not piece.is_changes and not any(piece is one for one in self.read)
        )

    def _lookup_bytes(self, path: Path | None, keys: pa.Table) -> int:
        lookup = Lookup(self.contents)
        return path.bytes_of(keys)[0] if path is not None else lookup.bytes_of(lookup.wanted(keys))[0]

    def _needed(self, need: Need, known: Known, parallel: int) -> tuple[int, list[Slice]]:
        if need is not None:
            need = frozenset(term for term in need if len(known[term.keys].hashes))
            if not need:
                return 0, []
        keys = self._keys(need, known)
        if keys is not None:
            lookup = Lookup(self.contents)
            size, parts = lookup.bytes_of(Wanted.of(keys, self.contents.schema))
            rows = sum(part.rows for part in self.contents.all_parts)
            if 2 * size <= self.contents_bytes or not parts or SPARSE * len(keys) <= rows:
                count = max(1, min(parallel, len(keys) // LOOKED_UP_KEYS))
                return size, self._looked_up([(None, keys)], count) if parts else []
        scan = narrowed_scan(self.contents, filter_of(need, known, self.columns)) or self.contents
        by_indexes = self._by_indexes(need, known)
        if by_indexes is not None and (PAYS * by_indexes[0] <= scan.memory or self._is_sparse(by_indexes)):
            return by_indexes
        return scan.memory, [Slice(part_scan) for part_scan in scan.slices(scan.task_count(parallel))]

    def _is_sparse(self, by_indexes: tuple[int, list[Slice]]) -> bool:
        """Return whether few keys are looked up: then of most rows only the keys are decoded."""
        size, slices = by_indexes
        keys = sum(len(piece.keys) for piece in slices if piece.keys is not None)
        rows = sum(part.rows for part in self.contents.all_parts)
        return size <= SPARSE_TIMES * self.contents_bytes and SPARSE * keys <= rows

    def _keys(self, need: Need, known: Known) -> pa.Table | None:
        """Return the keys to look up, in order, if whole keys say what is needed."""
        names = self.contents.schema.key_names
        if not need or not names or any(term.columns != names for term in need):
            return None
        schema = pa.schema([self.contents.schema.arrow.field(name) for name in names])
        schema = pa.schema([pa.field(field.name, field.type) for field in schema])
        tables = [keys_for(term, known).as_keys(schema) for term in need]
        if any(table is None for table in tables):
            return None
        wanted = Lookup(self.contents).wanted(pa.concat_tables([table for table in tables if table is not None]))
        return schema.empty_table() if wanted.keys is None else pa.Table.from_batches([wanted.keys.batch])


def _is_by(piece: Slice, path: Path | None) -> bool:
    return piece.path is path or (piece.path is not None and path is not None and piece.path.columns == path.columns)


def _distinct(keys: pa.Table) -> pa.Table:
    """Return keys once each, in an order of their own: what is found by the same ones is not read again."""
    _, first = np.unique(row_hashes(keys, keys.column_names), return_index=True)
    return keys.take(pa.array(first))


class Past:
    """A source before a step, and what is new in it. No I/O but for small parts, which are in the log.

    Args:
        as_of: when the past is.
        until: the step takes in what comes before this time.
    """

    def __init__(self, handle: CollectionHandle, as_of: int, until: int) -> None:
        self._handle, self._as_of, self._until = handle, as_of, until
        self._null: dict[str, bool] = {}
        # No `cached_property`: up to Python 3.11, the steps of all views would wait for each other's requests.
        self._stays_positive: bool | None = None
        self._scan: Scan | None = None

    @property
    def was_positive(self) -> bool:
        """Whether it can be told that no multiplicity was negative."""
        return self._is_keyed or not any(part.negatives for part in self._contents.all_parts)

    @property
    def stays_positive(self) -> bool:
        """Whether no multiplicity becomes negative, either, if none was."""
        if self._is_keyed or self._until <= self._as_of + 1:
            return True
        if self._stays_positive is None:
            with changes(self._handle, self._as_of + 1, min(self._until, TIME_MAX + 1)) as new:
                self._stays_positive = not any(part.negatives for part in new.scan.all_parts)
        return self._stays_positive

    @property
    def only_grows(self) -> bool:
        """Whether it can be told that nothing is retracted: of a keyed collection, that is only if nothing happens."""
        return self._until <= self._as_of + 1 or (not self._is_keyed and self.stays_positive)

    def may_be_null(self, column: str) -> bool:
        """Return whether it cannot be told that a column had no NULLs."""
        if column not in self._null:
            self._null[column] = any(self._nulls(part, column) for part in self._contents.all_parts)
        return self._null[column]

    @property
    def _is_keyed(self) -> bool:
        return self._handle.keyed is not None

    @property
    def _contents(self) -> Scan:
        if self._scan is None:
            version = self._handle.schema.version
            with snapshot(self._handle, self._as_of, form="diff", schema=version) as contents:
                self._scan = contents.scan
        return self._scan

    def _nulls(self, part: Part, column: str) -> bool:
        """Return whether a part may have NULLs in a column. One of another version of the schema may."""
        schema = self._contents.schema
        known = part.nulls(column, schema)
        if known is None and part.inline and part.schema == schema.version:
            known = decode_part(part.inline, part, schema, columns=[column])[column].null_count
        return known is None or known > 0
