"""Reads the contents of a collection as of a time, for some keys, to answer requests of a partial program. A request
has columns and their values. A bulk look-up (`persist.engine.read.lookups.matching`) finds the records in the parts
that may have such values, or in an index of the collection. An index is used if it reads much less by the descriptors
of parts, so the choice needs no I/O.

Records are encoded like the sources of the program. A source of few bytes is read whole at its first request, and kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.errors import SchemaMismatch
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.part import Part
from persist.compute.dataflow.state.costs import USUAL
from persist.compute.dataflow.updates.batch import Keys, find_distinct_columns
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.compute.index import PAYS, IndexPath, is_indexable, plan_paths
from persist.core.errors import AsOfCompacted, CollectionNotFound, LeaseExpired, SourceLost, WouldRecompute
from persist.engine.compact import release_unused_memory
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.lookups.matching import estimate_matching, read_matching
from persist.engine.read.planning.scan import Scan, narrow_scan
from persist.engine.read.planning.snapshot_plan import plan_snapshot
from persist.engine.read.results.snapshot import Snapshot

SMALL_BYTES = 256 << 10  # Decoded: a collection of fewer is read whole.
KEPT_SHARE = 4  # A refresh caches records up to this fraction of the memory budget: several operators request the same.
INDEXED_ROWS = 40_000  # That are read for each key that is looked up in an index, at most.
CHANGED_RATIO = 3  # Keys of all changed records are read if so many times fewer of them are requested, at most.
LISTED_MAX = 10_000  # More values are named by their bounds in the filter that prunes parts.


@dataclass(frozen=True, slots=True)
class Reading:
    """One read of a collection for the program.

    Attributes:
        columns: of the requested keys; None for all records.
        keys: how many keys were requested.
        bytes: about how many bytes were decoded.
        least: if no index by these columns exists, how many bytes the read would decode by one.
    """

    title: str
    columns: tuple[str, ...] | None
    keys: int
    bytes: int
    least: int | None = None

    def __str__(self) -> str:
        if self.columns is None:
            return f"{self.title}: all that it held, about {self.bytes:,} bytes"
        by = ", ".join(self.columns)
        return f"{self.title}: what {self.keys:,} keys of ({by}) held, about {self.bytes:,} bytes"


class Past:
    """Reads a collection as of a time that moves with the program.

    Args:
        title: the name of the source in messages.
        handle: the collection, with the version of its schema that the program reads.
        columns: the columns that the program reads.
        filter: the condition of the records that the program needs; requests may also return other records.

    Attributes:
        refuses: raise WouldRecompute rather than read all records of a large collection.
        keeps_everything: once it has read all records, it keeps them until it moves or is closed.
        readings: what was read since the refresh began.
        changes: the source's updates of this pass. Operators mostly request the keys of these updates.
    """

    def __init__(
        self,
        program: str,
        title: str,
        handle: CollectionHandle,
        columns: pa.Schema,
        domain: Domain,
        as_of: int,
        filter: pc.Expression | None = None,
    ) -> None:
        self.title = title
        self.refuses = False
        self.keeps_everything = False
        self.readings: list[Reading] = []
        self.changes: Ints | None = None
        self._program = program
        self._handle = handle
        self._explained = ExplainLoss(handle)
        self._columns = columns
        self._domain = domain
        self._filter = filter
        self.as_of = as_of
        self._snapshot: Snapshot | None = None
        self._bytes: int | None = None
        self._everything: Ints | None = None
        # By columns: the keys that were read, and all records that have one.
        self._requested: dict[tuple[int, ...], tuple[Ints, Ints]] = {}
        self._null: dict[str, bool] = {}

    @property
    def cache_bytes_max(self) -> int:
        """How many bytes of records are cached in a refresh."""
        return self._handle.engine.reader().memory_budget // KEPT_SHARE

    @property
    def is_readable(self) -> bool:
        """Whether `as_of` is between the collection's since and its upper."""
        contents = self._handle.get_known_state()
        return contents.since <= self.as_of < contents.upper

    @property
    def is_positive(self) -> bool:
        """Whether descriptors prove that no multiplicity was ever negative, as in keyed collections."""
        return self._handle.keyed is not None or not any(part.negatives for part in self._list_parts())

    def may_be_null(self, column: str) -> bool:
        """Return whether a column may contain NULL, by its parts' statistics."""
        if column not in self._null:
            self._null[column] = any(self._has_nulls(part, column) for part in self._list_parts())
        return self._null[column]

    def _list_parts(self) -> list[Part]:
        """Return the parts with updates up to the time."""
        contents = self._handle.fold(self._handle.get_known_state())
        return [part for part in contents.parts if part.time_min <= self.as_of]

    def _has_nulls(self, part: Part, column: str) -> bool:
        """Return whether a column of a part may contain NULL."""
        schema = self._handle.schema
        count = part.count_nulls(column, schema)
        if count is None and part.inline and part.schema == schema.version:
            count = decode_part(part.inline, part, schema, columns=[column])[column].null_count
        return count is None or count > 0

    def move(self, as_of: int) -> None:
        """Read as of a later time from now on; drop all caches."""
        self.close()
        self.as_of = as_of
        self._null = {}

    def close(self) -> None:
        """Stop reading; idempotent."""
        self._bytes = None
        self._everything = None
        self._requested = {}
        self.changes = None
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    @property
    def bytes(self) -> int:
        """About how many bytes the collection takes, decoded."""
        if self._bytes is None:
            self._bytes = self._scan.memory
        return self._bytes

    @property
    def is_small(self) -> bool:
        """Whether requests read all of it."""
        return self.bytes <= SMALL_BYTES

    def read(self, keys: Keys | None) -> Ints:
        """Return the collection's records of some keys, or all, as updates.

        Raises:
            WouldRecompute: all records are requested, and this program refuses that.
            SourceLost: the collection cannot be read as of the time any more.
        """
        with self._explained:
            if keys is not None and self._everything is None and not self.is_small:
                return self._read_keys_once(keys)
            if keys is None and self.refuses and not self.is_small:
                raise WouldRecompute(self._program, f"all of {self.title} is needed")
            if self._everything is None:
                self.readings.append(Reading(self.title, None, 0, self.bytes))
                everything = self._encode_tables(self._open_snapshot().iterate_unsummed())
                if everything.shape[1] >= USUAL.catch_up_updates:
                    release_unused_memory()  # Reading them has freed memory.
                if not (self.keeps_everything or self.is_small):
                    return everything
                self._everything = everything
        return self._everything if keys is None else self._everything[:, keys.selects(self._everything)]

    def _read_keys_once(self, keys: Keys) -> Ints:
        """Return the records of some keys; cached records are not read again."""
        words, base = keys.words, None
        for columns, (read_words, records) in self._requested.items():
            if {*columns} <= {*keys.columns}:
                requested = keys.words.take([keys.columns.index(column) for column in columns], axis=0)
                is_read = Keys(tuple(range(len(columns))), read_words).selects(requested)
                if is_read.all():
                    return records[:, keys.selects(records)]
                if columns == keys.columns:
                    words, base = words[:, ~is_read], (read_words, records)
        if base is None:
            words = self._add_changed(keys)
        records = self._read_keys_from_store(Keys(keys.columns, words))
        is_same = base is None and words.shape == keys.words.shape
        if base is not None:
            words, records = np.concatenate((base[0], words), axis=1), np.concatenate((base[1], records), axis=1)
        others = sum(cached.nbytes for columns, (_, cached) in self._requested.items() if columns != keys.columns)
        if others + records.nbytes <= self.cache_bytes_max:
            self._requested[keys.columns] = words, records
        return records if is_same else records[:, keys.selects(records)]

    def _add_changed(self, keys: Keys) -> Ints:
        """Return the words of keys, or of all keys that change in this pass.

        It returns those that change if they include the keys, and are at most `CHANGED_RATIO` times as many.
        """
        if self.changes is None:
            return keys.words
        changed = find_distinct_columns(self.changes.take(keys.columns, axis=0))
        is_part = keys.words.shape[1] < changed.shape[1] <= CHANGED_RATIO * keys.words.shape[1]
        every = Keys(tuple(range(len(changed))), changed)
        return changed if is_part and every.selects(keys.words).all() else keys.words

    def _read_keys_from_store(self, keys: Keys) -> Ints:
        """Return updates of keys, by an index if that reads less."""
        names = tuple(self._columns.names[column] for column in keys.columns)
        table = self._to_key_table(names, keys)
        reader, path = self._handle.engine.reader(), None if table is None else self._choose_index(names)
        can_help = path is None and all(is_indexable(self._scan.result_schema, name) for name in names)
        least = None
        if table is not None and can_help:
            rows = sum(part.rows for part in self._scan.all_parts)
            least = min(self.bytes, len(table) * INDEXED_ROWS * self.bytes // max(rows, 1))
        if table is None:
            table = pa.table({})  # This reads all records.
        scan = replace(narrow_scan(self._scan, _make_pruning_filter(table)) or self._scan, filter=None)
        size = estimate_matching(scan, table)
        if path is not None and PAYS * (by_index := path.estimate_bytes(table)) <= size:
            size, tables = by_index, path.find_records(table, reader)
        else:
            tables = read_matching(scan, table, reader)
        self.readings.append(Reading(self.title, names, keys.words.shape[1], size, least))
        updates = [self._encode_tables([chunk]) for chunk in tables]
        chosen = [chunk[:, keys.selects(chunk)] for chunk in updates]
        return np.concatenate([np.empty((len(self._columns) + 2, 0), np.int64), *chosen], axis=1)

    def _to_key_table(self, names: Sequence[str], keys: Keys) -> pa.Table | None:
        """Return keys with the types of the collection; None if it cannot hold one of them."""
        columns = []
        for name, words in zip(names, keys.words, strict=True):
            kind = self._scan.result_schema.arrow.field(name).type
            values = self._domain.decode(words, self._columns.field(name).type)
            if values.type != kind:
                try:
                    values = values.cast(kind)
                except pa.ArrowInvalid:
                    return None
            columns.append(values)
        return pa.table(
            columns, schema=pa.schema([(name, column.type) for name, column in zip(names, columns, strict=True)])
        )

    def _choose_index(self, names: Sequence[str]) -> IndexPath | None:
        """Return the index with the most key columns, all among `names`; or None."""
        handle = self._handle
        paths = plan_paths(
            handle, handle.fold(handle.get_known_state()), self._scan.result_schema, self.as_of, self._columns.names
        )
        fits = [path for path in paths if {*path.columns} <= {*names}]
        return max(fits, key=lambda path: len(path.columns), default=None)

    @property
    def _scan(self) -> Scan:
        """The plan of the open read."""
        return self._open_snapshot().scan

    def _open_snapshot(self) -> Snapshot:
        """Return the open read as of the time; begin it if there is none."""
        if self._snapshot is None:
            handle = self._handle
            with self._explained:
                contents, _, reading = handle.wait_and_claim(self.as_of, 0.0)
                scan = plan_snapshot(contents, handle.schema, self.as_of, self._columns.names, self._filter)
                scan.check_columns()
                self._snapshot = Snapshot(scan, "diff", reading, contents, handle.engine.reader().slice_bytes)
        return self._snapshot

    def _encode_tables(self, tables: Iterable[pa.Table]) -> Ints:
        """Return the rows of tables as updates at the time of the read."""
        return encode_contents(self._domain, self._columns, tables, self.as_of)


class ExplainLoss:
    """Context that explains why a source cannot be read, with a remedy. `collection`: the source, or its name."""

    __slots__ = ("_collection",)

    def __init__(self, collection: CollectionHandle | str) -> None:
        self._collection = collection

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, SchemaMismatch | CollectionNotFound | AsOfCompacted | LeaseExpired):
            return
        name = self._collection if isinstance(self._collection, str) else self._collection.name
        match error:
            case SchemaMismatch():
                raise SchemaMismatch(
                    f"source {name!r} has evolved in columns that the program reads: {error} For a program, drop its "
                    "outputs or open it with replace=True; for a view, create another one."
                ) from error
            case CollectionNotFound():
                why, remedy = "the collection is not there (any more)", "Create it again, or drop the program."
            case AsOfCompacted():
                why = f"what the program needs has been compacted ({error})"
                remedy = "Somebody has released its hold: drop the program and its outputs, and open it anew."
            case _:
                why = f"what the program reads is not kept any more ({error})"
                remedy = "Close the program, and open it again."
        raise SourceLost(name, why, remedy) from error


def encode_contents(domain: Domain, columns: pa.Schema, tables: Iterable[pa.Table], time: int) -> Ints:
    """Return the rows of tables as updates at a time: the words of the columns, the time and diffs."""
    encoded = [encode_table(domain, columns, table) for table in tables]
    updates = np.empty((len(columns) + 2, sum(len(rows[-1]) for rows in encoded)), np.int64)
    updates[-2] = time
    end = 0
    for rows in encoded:
        first, end = end, end + len(rows[-1])
        for row, words in zip((*updates[:-2], updates[-1]), rows, strict=True):
            row[first:end] = words
    return updates


def encode_table(domain: Domain, columns: pa.Schema, table: pa.Table) -> list[Ints]:
    """Return the words of each column of a table, and the diffs."""
    rows = []
    for column in columns:
        values = table[column.name]
        rows.append(domain.encode(values if values.type == column.type else values.cast(column.type)))
    return [*rows, table["_diff"].combine_chunks().to_numpy()]


def _make_pruning_filter(keys: pa.Table) -> pc.Expression | None:
    """Return a filter that skips parts without the keys, or None."""
    filters = []
    for name in keys.column_names:
        values = keys[name].combine_chunks()
        if not _is_ordered(values.type):
            continue
        valid = values.drop_null()
        if len(valid) == 0:
            condition = pc.field(name).is_null()
        else:
            bounds = pc.min_max(valid)
            is_listed = len(valid) <= LISTED_MAX
            condition = (
                pc.field(name).isin(valid)
                if is_listed
                else (pc.field(name) >= bounds["min"]) & (pc.field(name) <= bounds["max"])
            )
            condition = condition | pc.field(name).is_null() if values.null_count else condition
        filters.append(condition)
    return reduce(and_, filters) if filters else None


def _is_ordered(kind: pa.DataType) -> bool:
    """Return whether Arrow's filters order values as keys do; floats are ordered differently."""
    return bool(pat.is_integer(kind) or pat.is_string(kind) or pat.is_date(kind) or pat.is_timestamp(kind))
