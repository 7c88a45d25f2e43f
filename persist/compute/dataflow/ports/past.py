"""What a collection held as of a time, read for some keys: where requests of a partial program end.

A request names columns and their values. A bulk look-up (`persist.engine.read.lookups.matching`) finds the records in
the parts that may hold such values, or in those of an index of the collection. An index is used if it reads much less
by the descriptors of parts, so no I/O is done to choose.

What is read is encoded as the program encodes its sources. A source of few bytes is read whole at its first request,
and kept.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from persist.compute.dataflow.updates.batch import Keys
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import Domain
from persist.compute.index import PAYS, Path, paths_of
from persist.core.errors import AsOfCompacted, CollectionNotFound, LeaseExpired, SourceLost, WouldRecompute
from persist.engine.collection.reads import snapshot
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.lookups.matching import estimate_matching, read_matching
from persist.engine.read.planning.scan import Scan, narrowed_scan
from persist.engine.read.results.snapshot import Snapshot

SMALL_BYTES = 256 << 10  # Decoded: a collection of fewer is read whole.
KEPT_BYTES = 64 << 20  # Of what was requested in a refresh: the same is requested by several operators.
INDEXED_ROWS = 40_000  # That are read for each key that is looked up in an index, at most.
LISTED_MAX = 10_000  # More values are named by their bounds in the filter that prunes parts.


@dataclass(frozen=True, slots=True)
class Reading:
    """One read of a collection for the program.

    Attributes:
        title: of the source.
        columns: by which records were requested; None for all records.
        keys: how many.
        bytes: about how many were decoded.
        least: how many an index by these columns would leave, if there is none.
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
        title: what messages call it.
        handle: with the version of the schema that the program reads.
        columns: names and types of what the program reads.
        refuses: raise WouldRecompute where all records would have to be read of a large collection.

    Attributes:
        readings: what was read since the refresh began.
    """

    def __init__(
        self, program: str, title: str, handle: CollectionHandle, columns: pa.Schema, domain: Domain, as_of: int
    ) -> None:
        self.title = title
        self.refuses = False
        self.readings: list[Reading] = []
        self._program = program
        self._handle = handle
        self._columns = columns
        self._domain = domain
        self._as_of = as_of
        self._snapshot: Snapshot | None = None
        self._bytes: int | None = None
        self._everything: Ints | None = None
        self._requested: dict[tuple[tuple[int, ...], bytes], Ints] = {}
        self._null: dict[str, bool] = {}

    @property
    def is_positive(self) -> bool:
        """Whether descriptors tell that no multiplicity was ever negative. Of a keyed collection, none is."""
        return self._handle.keyed is not None or not any(part.negatives for part in self._scan.all_parts)

    def may_be_null(self, column: str) -> bool:
        """Return whether descriptors leave open that a column had NULLs."""
        if column not in self._null:
            self._null[column] = any(self._has_nulls(part, column) for part in self._scan.all_parts)
        return self._null[column]

    def _has_nulls(self, part: Part, column: str) -> bool:
        schema = self._scan.schema
        count = part.nulls(column, schema)
        if count is None and part.inline and part.schema == schema.version:
            count = decode_part(part.inline, part, schema, columns=[column])[column].null_count
        return count is None or count > 0

    def move(self, as_of: int) -> None:
        """Read as of a later time from now on. What was read is forgotten: its words may lose their meaning."""
        self.close()
        self._as_of = as_of
        self._null = {}

    def close(self) -> None:
        """Stop reading; idempotent."""
        self._bytes = None
        self._everything = None
        self._requested = {}
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

    def contents(self, keys: Keys | None) -> Ints:
        """Return what the collection holds for some keys, or all of it: updates of words, the time and diffs.

        Raises:
            WouldRecompute: all records are requested, and this program refuses that.
            SourceLost: it cannot be read at that time any more.
        """
        with explained(self._handle.name):
            return self._contents(keys)

    def _contents(self, keys: Keys | None) -> Ints:
        if keys is not None and not self.is_small:
            return self._of_keys(keys)
        if keys is None and self.refuses and not self.is_small:
            raise WouldRecompute(self._program, f"all of {self.title} is needed")
        if self._everything is None:
            self.readings.append(Reading(self.title, None, 0, self.bytes))
            assert self._snapshot is not None
            everything = self._encoded(self._snapshot.unsummed())
            if not self.is_small:
                return everything
            self._everything = everything
        return self._everything if keys is None else self._everything[:, keys.selects(self._everything)]

    def _of_keys(self, keys: Keys) -> Ints:
        """Return what it holds for some keys; several operators may request the same."""
        name = keys.columns, keys.words.tobytes()
        if name not in self._requested:
            found = self._read(keys)
            if sum(updates.nbytes for updates in self._requested.values()) + found.nbytes > KEPT_BYTES:
                return found
            self._requested[name] = found
        return self._requested[name]

    def _read(self, keys: Keys) -> Ints:
        names = tuple(self._columns.names[column] for column in keys.columns)
        table = self._as_table(names, keys)
        reader, path = self._handle.engine.reader(), None if table is None else self._path(names)
        least = None if table is None or path is not None else self._least(len(table))
        if table is None:
            table = pa.table({})  # Which reads all records.
        scan = replace(narrowed_scan(self._scan, _pruning(table)) or self._scan, filter=None)
        size = estimate_matching(scan, table)
        if path is not None and PAYS * (by_index := path.bytes_of(table)) <= size:
            size, found = by_index, path.records(table, reader)
        else:
            found = read_matching(scan, table, reader)
        self.readings.append(Reading(self.title, names, keys.words.shape[1], size, least))
        updates = [self._encoded([one]) for one in found]
        chosen = [one[:, keys.selects(one)] for one in updates]
        return np.concatenate([np.empty((len(self._columns) + 2, 0), np.int64), *chosen], axis=1)

    def _least(self, keys: int) -> int:
        """Return about how many bytes an index by the columns of some keys would leave to decode."""
        rows = sum(part.rows for part in self._scan.all_parts)
        return min(self.bytes, keys * INDEXED_ROWS * self.bytes // max(rows, 1))

    def _as_table(self, names: Sequence[str], keys: Keys) -> pa.Table | None:
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
        return pa.table(columns, schema=pa.schema([(name, one.type) for name, one in zip(names, columns, strict=True)]))

    def _path(self, names: Sequence[str]) -> Path | None:
        """Return the index by which records are found by as many of some columns as possible."""
        handle = self._handle
        paths = paths_of(
            handle, handle.folded(handle.known()), self._scan.result_schema, self._as_of, self._columns.names
        )
        fits = [path for path in paths if {*path.columns} <= {*names}]
        return max(fits, key=lambda path: len(path.columns), default=None)

    @property
    def _scan(self) -> Scan:
        if self._snapshot is None:
            handle = self._handle
            with explained(handle.name):
                self._snapshot = snapshot(
                    handle,
                    self._as_of,
                    columns=self._columns.names,
                    form="diff",
                    schema=handle.schema.version,
                    timeout_s=0.0,
                )
        return self._snapshot.scan

    def _encoded(self, tables: "Iterator[pa.Table] | list[pa.Table]") -> Ints:
        """Return the rows of tables as updates at the time that is read."""
        made = [encoded(self._domain, self._columns, table) for table in tables]
        updates = np.empty((len(self._columns) + 2, sum(len(rows[-1]) for rows in made)), np.int64)
        updates[-2] = self._as_of
        end = 0
        for rows in made:
            first, end = end, end + len(rows[-1])
            for into, row in zip((*updates[:-2], updates[-1]), rows, strict=True):
                into[first:end] = row
        return updates


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Say what became of a source, and what to do, where reading the collection of a name fails."""
    try:
        yield
    except SchemaMismatch as error:
        raise SchemaMismatch(
            f"source {name!r} has evolved in what the program reads: {error} Of a program, drop its outputs or "
            "open it with replace=True; of a view, make another one."
        ) from error
    except CollectionNotFound as error:
        raise SourceLost(
            name, "the collection is not there (any more)", "Create it again, or drop the program."
        ) from error
    except AsOfCompacted as error:
        raise SourceLost(
            name,
            f"what the program needs has been compacted ({error})",
            "Somebody has released its hold: drop the program and its outputs, and open it anew.",
        ) from error
    except LeaseExpired as error:
        raise SourceLost(
            name, f"what the program reads is not kept any more ({error})", "Close the program, and open it again."
        ) from error


def encoded(domain: Domain, columns: pa.Schema, table: pa.Table) -> list[Ints]:
    """Return the words of each column of a table, and the diffs."""
    rows = []
    for column in columns:
        values = table[column.name]
        rows.append(domain.encode(values if values.type == column.type else values.cast(column.type)))
    return [*rows, table["_diff"].combine_chunks().to_numpy()]


def _pruning(keys: pa.Table) -> pc.Expression | None:
    """Return a filter that all records with these keys pass, to leave out parts; None if there is none."""
    filters = []
    for name in keys.column_names:
        values = keys[name].combine_chunks()
        if not _is_ordered(values.type):
            continue
        there = values.drop_null()
        if len(there) == 0:
            condition = pc.field(name).is_null()
        else:
            bounds = pc.min_max(there)
            is_listed = len(there) <= LISTED_MAX
            condition = (
                pc.field(name).isin(there)
                if is_listed
                else (pc.field(name) >= bounds["min"]) & (pc.field(name) <= bounds["max"])
            )
            condition = condition | pc.field(name).is_null() if values.null_count else condition
        filters.append(condition)
    return reduce(and_, filters) if filters else None


def _is_ordered(kind: pa.DataType) -> bool:
    """Whether a filter of Arrow compares values as keys are compared; of floats, it does not."""
    return bool(pat.is_integer(kind) or pat.is_string(kind) or pat.is_date(kind) or pat.is_timestamp(kind))
