"""Point reads: the rows of a snapshot with certain keys, from the few row groups that may hold them.

The sampled keys in a part's descriptor, and then the statistics in its footer (`GroupBounds`), select row groups. Their
keys are decoded, and one search finds all requested keys (`persist.codecs.order.search`). Then the other columns are
decoded, of row groups with a requested key. Keys and columns stay decoded in the client's cache (`DecodedRows`), so a
repeated key costs one search for each part. Parts without sampled keys (nested or very long ones) are read as a whole.

Bloom filters and page indexes do not help: pyarrow writes them, but cannot search in them. In a file sorted by key,
statistics are nearly as exact. Most of a first look-up is the decoding of one row group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.order.ordering import sort_indices
from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate
from persist.codecs.part.decoding import make_filter_error
from persist.codecs.part.filters import list_referenced_columns
from persist.codecs.part.part import Part
from persist.codecs.types.arrow_types import is_flat
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.types.values import to_values
from persist.codecs.updates.small import convert_small_keys
from persist.engine.read.lookups.part_rows import PartRows
from persist.engine.read.lookups.requested_keys import find_distinct_keys, make_key_schema
from persist.engine.read.merging import repeat_rows
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan, add_diff, negate_diffs, sort_by_cost

PART_BYTES_MAX = 64 << 10  # Decoded; a larger part is worth a search of its own.
PARTS_MAX = 64
ROWS_OF_KEY_MAX = 16  # In a part: more are added up as columns.


@dataclass(frozen=True, slots=True)
class Wanted:
    """Distinct keys in order; `keys` is None if the collection has no key columns."""

    rows: int
    keys: SortedKeys | None

    @classmethod
    def of(cls, table: pa.Table, schema: CollectionSchema) -> "Wanted":
        """Convert the result of `find_distinct_keys` for a collection of a schema."""
        names = list(schema.key_names)
        return cls(len(table), SortedKeys(table.select(names)) if names else None)


@dataclass(frozen=True, slots=True)
class _Source:
    """A part, or several tiny parts that are read as one, for one look-up.

    Attributes:
        columns: the columns to read besides the key columns.
        fields: the fields of the key columns, then of the other columns.
        types: the cache key of the column types; see `CollectionSchema.reading`.
        sign: the factor for the diffs of its updates: 1, or -1.
        diff: the common diff of all its rows, multiplied by `sign`; None if diffs differ.
        is_keyframe: whether its records are distinct.
        cuts_time: whether some of its updates may be at times that are not requested.
    """

    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    fields: pa.Schema
    types: str
    sign: int
    diff: int | None
    is_keyframe: bool
    cuts_time: bool


Found = tuple[_Source, pa.Table]  # Updates of a part, as the scan counts them.


class Lookup:
    """Finds the rows of a scan with certain keys; prepared once, for any number of look-ups."""

    def __init__(self, scan: Scan, *, keeps_time: bool = False) -> None:
        """Prepare look-ups in a scan; `read_updates` needs keeps_time."""
        assert scan.keys.is_all, "a slice of the key space would have to be cut out"
        self.scan = scan
        self._keeps_time = keeps_time
        self._keys_alone = scan.schema.compute_once(make_key_schema)
        # Parts of two collections may have the same bytes, and different columns.
        self._types = scan.schema.reading
        self._sources = [self._make_source((part,), is_keyframe=True) for part in scan.base]
        self._sources += [self._make_source(group, is_keyframe=False) for group in _group_tiny_parts(scan)]
        is_whole = scan.filter is None and scan.narrow is None and [*scan.columns] == [*scan.schema.names]
        self._has_plain_rows = (
            is_whole
            and not (keeps_time or any(source.cuts_time for source in self._sources))
            and scan.schema.compute_once(_has_comparable_values)
        )

    def _make_source(self, parts: tuple[Part, ...], *, is_keyframe: bool) -> _Source:
        """Return parts as a source to search, with the columns to read."""
        schema = self.scan.schema
        sign = 1 if is_keyframe else self.scan.sign
        cuts_time = not (is_keyframe or all(map(self.scan.is_inside, parts)))
        names: Sequence[str] = self.scan.columns
        if self.scan.filter is not None:
            rows = pa.schema([schema.arrow.field(name) for name in schema.names])
            names = [*names, *list_referenced_columns(self.scan.filter, rows, names)]
        columns = [name for name in names if name not in schema.key_names]
        if cuts_time or self._keeps_time:
            columns.append("_time")
        if not all(map(attrgetter("is_plain"), parts)) or not (columns or schema.key_names):
            columns.append("_diff")
        diff = None if "_diff" in columns else sign
        fields = pa.schema([schema.arrow.field(name) for name in (*schema.key_names, *columns)])
        is_distinct = is_keyframe and self.scan.keeps_distinct(parts[0])
        types = f"{parts[0].schema} {self._types}" if len(parts) == 1 else self._types
        return _Source(parts, tuple(columns), fields, types, sign, diff, is_distinct, cuts_time)

    def _load_rows(self, source: _Source, reader: PartReader) -> PartRows:
        """Return the searchable rows of the parts of a source."""
        return PartRows(source.parts, self.scan.schema, source.types, source.columns, source.fields, reader)

    def to_lookup_keys(self, keys: Any) -> Wanted:
        """Convert keys for the other methods; see `find_distinct_keys`."""
        return Wanted.of(find_distinct_keys(keys, self.scan.schema), self.scan.schema)

    def record(self, keys: list[Any], reader: PartReader) -> list[tuple[Any, Any]] | None:
        """Return the records of a single key quickly, without a table; None if that is impossible.

        It is impossible if something must be read, if there are several records, or one of multiplicity above 1. The
        caller then uses `read_contents`. 1,000 reads of 360,000 keys with a tail of three parts take 54 µs each, and
        160 without this method.
        """
        if not self._has_plain_rows or len(keys) != 1 or reader.spilled is not None:
            return None
        one_key = convert_small_keys(keys, self._keys_alone)
        if one_key is None:
            return None
        requested = SortedKeys(one_key)
        records: list[tuple[list[Any], int]] = []
        for source in self._sources:
            hits = self._load_rows(source, reader).find_hits_in_memory(requested)
            if hits is None or sum(len(rows) for _, rows in hits) > ROWS_OF_KEY_MAX:
                return None
            for columns, rows in hits:
                for row in rows.tolist():
                    values = self._to_python_values(columns, row)
                    if values is None:
                        return None
                    _add_record(records, values, source.diff or source.sign * columns[-1][row].as_py())
        remaining = [(values, count) for values, count in records if count]
        if not remaining:
            return []
        ((values, count), *more) = remaining
        if more or count != 1:
            return None
        return [(keys[0], values[0] if len(values) == 1 else tuple(values) if values else None)]

    def _to_python_values(self, columns: list[pa.Array], row: int) -> list[Any] | None:
        """Return the values of a row in Python; None if Python has no object for one."""
        values = columns[: len(self.scan.schema.value_names)]
        try:
            return [to_values(_decode_dictionary(column.slice(row, 1)), "a column")[0] for column in values]
        except InvalidUsage:
            return None

    def read_contents(self, request: Wanted, form: str, reader: PartReader) -> pa.Table:
        """Return the contents of requested keys with the types of the scan's results; see `_read_contents`."""
        return self.scan.cast_to_result(self._read_contents(request, form, reader))

    def _read_contents(self, request: Wanted, form: str, reader: PartReader) -> pa.Table:
        """Return the scan's columns and `_diff` of the records with a requested key, consolidated.

        In form "rows", `_diff` may be missing if it is 1 in all rows; then equal records are separate rows. Rows are in
        the order of keys if all key columns are among the columns.
        """
        scan = self.scan
        columns, keys = list(scan.columns), scan.schema.key_names
        source_tables = self._read_updates(request, reader)
        has_keys = {*keys} <= {*columns}
        if columns and form == "rows" and all(source.diff == 1 for source, _ in source_tables):
            if len(source_tables) == 1:
                return source_tables[0][1].select(columns)
            table = pa.concat_tables([scan.empty(columns), *(table.select(columns) for _, table in source_tables)])
            return table.take(sort_indices(table, keys)) if has_keys and len(source_tables) > 1 and keys else table
        if len(source_tables) == 1 and columns:
            ((source, table),) = source_tables
            if source.diff == 1 and source.is_keyframe and {*columns} == {*scan.schema.names}:
                return add_diff(table).select([*columns, "_diff"])
        tables = [add_diff(table, source.diff or 1).select([*columns, "_diff"]) for source, table in source_tables]
        by = (
            [*keys, *sort_by_cost([name for name in columns if name not in keys], scan.schema)] if has_keys else columns
        )
        updates = pa.concat_tables([scan.empty([*columns, "_diff"]), *tables])
        return consolidate(updates, by).select([*columns, "_diff"])

    def read_updates(self, request: Wanted, reader: PartReader) -> pa.Table:
        """Return the consolidated updates with a requested key of a scan of changes, with `_time` and `_diff`."""
        assert self._keeps_time
        columns = [*self.scan.columns, "_time", "_diff"]
        return self.scan.cast_to_result(consolidate(self._join_sources(columns, request, reader), columns[:-1]))

    def read_terms(self, request: Wanted, reader: PartReader) -> pa.Table:
        """Return the rows with a requested key and their `_diff`, without summing equal rows."""
        return self.scan.cast_to_result(self._join_sources([*self.scan.columns, "_diff"], request, reader))

    def _join_sources(self, columns: list[str], request: Wanted, reader: PartReader) -> pa.Table:
        """Return the rows of all sources as one table."""
        source_tables = self._read_updates(request, reader)
        tables = [add_diff(table, source.diff or 1).select(columns) for source, table in source_tables]
        return pa.concat_tables([self.scan.empty(columns), *tables])

    def _read_updates(self, request: Wanted, reader: PartReader) -> list[Found]:
        """Return the updates with a requested key by part; those of cached parts first."""
        updates: list[Found] = []
        cold: list[tuple[_Source, PartRows]] = []
        for source in self._sources if request.rows else ():
            rows = self._load_rows(source, reader)
            if rows.are_in_memory(request.keys):
                updates.append((source, self._select_updates(source, rows.with_keys(request.keys))))
            elif rows.may_hold(request.keys):
                cold.append((source, rows))
        if cold:
            updates += reader.map(
                lambda pair: (pair[0], self._select_updates(pair[0], pair[1].with_keys(request.keys))), cold
            )
        return [(source, table) for source, table in updates if len(table)]

    def _select_updates(self, source: _Source, table: pa.Table) -> pa.Table:
        """Return the updates at the scan's times that pass its filter, with the scan's sign.

        `table`: the rows of a source with a requested key.
        """
        scan = self.scan
        if source.cuts_time:
            table = scan.select_within_time(table)
        if scan.filter is not None:
            table = self._apply_filter(table, scan.filter)
        return negate_diffs(table) if source.diff is None and source.sign < 0 else table

    def _apply_filter(self, table: pa.Table, filter: pc.Expression) -> pa.Table:
        try:
            return table.filter(filter)
        except (pa.ArrowException, ValueError) as error:
            raise make_filter_error(filter, self.scan.schema.arrow, error) from error


def _decode_dictionary(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values


def _has_comparable_values(schema: CollectionSchema) -> bool:
    """Return whether equality in Python is equality of values, and the values need no conversion.

    Times with a zone are excluded: Python compares their local times, which repeat when clocks are put back.
    """
    kinds = schema.types[len(schema.key_names) :]
    has_zones = any(pat.is_timestamp(kind) and kind.tz is not None for kind in kinds)
    is_changed = any(pat.is_decimal(kind) and kind.scale == 0 for kind in kinds)  # Those of whole numbers become int.
    return schema.value.codec_name is None and all(map(is_flat, kinds)) and not has_zones and not is_changed


def _add_record(records: list[tuple[list[Any], int]], values: list[Any], diff: int) -> None:
    """Add a diff to an equal record. NaN equals nothing, so its diffs stay apart."""
    for at, (present, count) in enumerate(records):
        if present == values:
            records[at] = values, count + diff
            return
    records.append((values, diff))


def _group_tiny_parts(scan: Scan) -> Iterator[tuple[Part, ...]]:
    """Yield the parts of the history in order; consecutive tiny parts form one group."""
    tiny: list[Part] = []
    for part in scan.parts:
        is_tiny = bool(scan.schema.key_names) and part.memory <= PART_BYTES_MAX
        if tiny and (not is_tiny or len(tiny) == PARTS_MAX):
            yield tuple(tiny)
            tiny = []
        if is_tiny:
            tiny.append(part)
        else:
            yield (part,)
    if tiny:
        yield tuple(tiny)


def drop_diffs(records: pa.Table, scan: Scan) -> pa.Table:
    """Return the result of `Lookup.read_contents` in form "rows" as rows without `_diff`."""
    if "_diff" not in records.column_names:
        return records
    scan = replace(scan, columns=scan.schema.names)
    return pa.concat_tables([scan.empty(scan.schema.names), *repeat_rows(records, scan)])
