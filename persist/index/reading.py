"""Records found by an index: what it holds of some keys, and what has changed between its time and the one wanted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pyarrow as pa

from persist.blob import MissingBlob
from persist.codecs import CollectionSchema, Side, SortedKeys, canonical, consolidate, sort_indices
from persist.engine import CollectionHandle, snapshot
from persist.errors import LeaseExpired
from persist.expression import equal_values
from persist.index.indexes import indexes_of
from persist.read import (
    Lookup,
    PartReader,
    Scan,
    Snapshot,
    changes_scan,
    collected,
    negated,
    read_changes,
    repeated,
    snapshot_scan,
)
from persist.state import CollectionState
from persist.timeline import Moment

PAYS = 2  # An index is used if it reads so many times less.
KEYS_MAX = 10_000  # That a condition may ask for.


@dataclass(frozen=True)
class Path:
    """How records of a collection as of a time are found by some of its columns. It can be sent to other processes.

    Attributes:
        columns: of the collection, by which they are found, in the order of the index's key.
        names: of the columns that are read.
        own: what the index calls them.
        contents: of the index.
        changes: of the collection, between the time of the index and the one that is wanted.
        is_ahead: whether the index is the later one.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    own: tuple[str, ...]
    contents: Scan
    changes: Scan | None
    is_ahead: bool

    @property
    def key_schema(self) -> pa.Schema:
        """The columns by which records are found, with their types."""
        kinds = self.contents.schema.key_types
        return pa.schema([*zip(self.columns, kinds, strict=True)])

    def bytes_of(self, keys: pa.Table) -> tuple[int, int]:
        """Return about how many bytes, decoded, and of how many parts, looking up some keys reads. No I/O."""
        lookup = Lookup(self.contents)
        size, parts = lookup.bytes_of(lookup.wanted(self._own_keys(keys)))
        if self.changes is not None:
            size, parts = size + self.changes.memory, parts + len(self.changes.all_parts)
        return size, parts

    def records(self, keys: pa.Table, reader: PartReader) -> pa.Table:
        """Return the records with one of some keys, with their multiplicities as `_diff`.

        Raises:
            LeaseExpired: a part of the index was collected meanwhile: nothing holds it, so reads of it are short.
        """
        try:
            return self._records(keys, reader)
        except MissingBlob as error:
            raise collected(error) from error

    def _records(self, keys: pa.Table, reader: PartReader) -> pa.Table:
        lookup = Lookup(self.contents)
        table = lookup.contents(lookup.wanted(self._own_keys(keys)), "diff", reader)
        table = table.select([*self.own, "_diff"]).rename_columns([*self.names, "_diff"])
        if self.changes is None:
            return table
        new = among(read_changes(self.changes, reader), keys)
        if not len(new):
            return table
        new = (negated(new) if self.is_ahead else new).select(table.column_names).cast(table.schema)
        return consolidate(pa.concat_tables([table, new]), [*self.names])

    def _own_keys(self, keys: pa.Table) -> pa.Table:
        return keys.select([*self.columns]).rename_columns([*self.contents.schema.key_names])


def own_path(contents: Scan, count: int) -> Path | None:
    """Return how records of a collection are found by its first key columns, so many of them; None if that cannot be.

    Its parts are in the order of these, too: they are read as those of a collection that has no more key columns.
    """
    schema = contents.schema
    by = schema.key_names[:count]
    is_plain = schema.key.codec_name is None and schema.value.codec_name is None and not schema.known
    if not (0 < count < len(schema.key_names) and is_plain and {*by} <= {*contents.columns}):
        return None
    fields = schema.key.fields
    shorter = replace(schema, key=Side(fields[:count]), value=Side((*fields[count:], *schema.value.fields)))
    names = tuple(contents.columns)
    return Path(by, names, names, replace(contents, schema=shorter), None, False)


def among(table: pa.Table, keys: pa.Table, *, others: bool = False) -> pa.Table:
    """Return the rows that have one of some keys in the columns of these; or the others."""
    names = keys.column_names
    wanted = SortedKeys.of(keys, names)
    inside, outside = wanted.split(table.take(sort_indices(table, names)))
    return outside if others else inside


def paths_of(
    handle: CollectionHandle, contents: CollectionState, schema: CollectionSchema, as_of: int, columns: Sequence[str]
) -> list[Path]:
    """Return how records of a collection as of a time are found by its indexes. No I/O but what is known of these.

    Args:
        schema: the version by which the collection is read.
        columns: that are wanted of it.
    """
    paths = []
    for index in indexes_of(handle):
        own, by = index.names_in(schema), index.columns_in(schema)
        if index.as_of < 0 or by is None or not {*by} <= {*columns} <= own.keys():
            continue
        first, last = sorted((index.as_of, as_of))
        if not (contents.since.has_beyond(first) and not contents.upper.has_beyond(last)):
            continue
        held = snapshot_scan(index.contents, index.handle.schema, index.as_of, [own[name] for name in columns])
        new = changes_scan(contents, schema, first + 1, last + 1, columns) if first < last else None
        paths.append(
            Path(
                by,
                tuple(columns),
                held.columns,
                held,
                new if new is not None and new.parts else None,
                index.as_of > as_of,
            )
        )
    return paths


def matching_rows(
    handle: CollectionHandle, where: str, as_of: int | Moment | None, columns: Sequence[str] | None
) -> pa.Table:
    """Return the rows as of a time for which a condition holds; by an index if that reads less."""
    with snapshot(handle, as_of, columns=columns, where=where) as plain:
        table = _by_index(handle, plain, where)
        return plain.to_arrow() if table is None else table


def _by_index(handle: CollectionHandle, plain: Snapshot, where: str) -> pa.Table | None:
    scan = plain.scan
    paths = [] if scan.narrow is not None else _asked(handle, plain, where)
    sized = [(path.bytes_of(keys)[0], at) for at, (path, keys) in enumerate(paths)]
    size, at = min(sized, default=(0, -1))
    if at < 0 or PAYS * size > scan.memory:
        return None
    path, keys = paths[at]
    try:
        table = path.records(keys, handle.engine.reader()).filter(scan.filter)
    except LeaseExpired:
        return None
    table = consolidate(table.select([*scan.columns, "_diff"]), [*scan.columns])
    return pa.concat_tables([pa.Table.from_batches([], plain.schema), *repeated(table, scan)])


def _asked(handle: CollectionHandle, plain: Snapshot, where: str) -> list[tuple[Path, pa.Table]]:
    """Return the paths by which a condition can be looked up, each with the keys that it asks for."""
    schema = plain.scan.schema
    values = equal_values(where, schema)
    if not values or not plain.scan.columns:
        return []
    contents = handle.folded(handle.known())
    paths = paths_of(handle, contents, schema, plain.as_of, schema.names)
    return [(path, keys) for path in paths if (keys := _keys(path, values)) is not None]


def _keys(path: Path, values: Mapping[str, pa.Array]) -> pa.Table | None:
    """Return the keys of a path among which all are that have some values; None if a column may have any value."""
    if not {*path.columns} <= values.keys():
        return None
    columns: list[Any] = [values[name].to_pylist() for name in path.columns]
    count = 1
    for column in columns:
        count *= len(column)
    if count > KEYS_MAX:
        return None
    rows = [*product(*columns)]
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(path.key_schema)]
    return canonical(pa.Table.from_arrays(arrays, schema=path.key_schema))
