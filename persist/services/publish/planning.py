"""Plans a version of a published table: which files it has for a snapshot, and which rows of them are left out.

    rows of the table  =  rows of existing parts          if no other part changes them, and others can read them
                       -  rows of touched keys            and tombstones: by their row numbers in the part
                       +  rows of new parts               the rows of touched keys, and of parts that others cannot read

`persist.engine.read.merging.Split` finds the parts that no other part changes. A part is used directly if all of its
rows belong to the snapshot, each once, and other programs find the same columns by names and by field ids. Other rows
are copied to new parts: small writes in the log, multiplicities above 1, and rows of parts that also have other times,
or whose columns have other names or types. A part of which most rows are left out is copied as well.

The next version is made from the previous one and the changes since: rows of changed keys are left out of its files,
and the present rows of these keys become a new part. So the cost is in proportion to the changes. If that would be as
much work, or if there are many small files, a version is planned from the beginning, with the parts that compaction has
made meanwhile.

New parts have the form of other parts, but belong to no run. Other programs count rows, but a part has equal records
only once, so repeated records get different values of `_time`, which has no meaning in these parts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.nested import Node, get_column_node, is_extended
from persist.codecs.order.arrays import make_int64_array
from persist.codecs.order.ordering import sort_table
from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import consolidate
from persist.codecs.part.decoding import Request
from persist.codecs.part.filters import list_referenced_columns, select_matching_parts
from persist.codecs.part.part import Part
from persist.codecs.types.schema import CollectionSchema
from persist.core.errors import InvalidUsage, Superseded
from persist.core.keyed.events import make_tombstone_filter
from persist.core.keyed.form import has_one_value
from persist.core.log.keys import get_table_root
from persist.core.state_rules.contents import CollectionState, Publication
from persist.core.state_rules.erasures import count_erasures
from persist.core.state_rules.keyed_rules import load_form
from persist.engine.location.collection_handle import CollectionHandle
from persist.engine.read.lookups.lookup import Lookup
from persist.engine.read.lookups.part_rows import find_places
from persist.engine.read.merging import Split, read_snapshot, repeat_rows
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.read.planning.snapshot_plan import plan_changes_scan, plan_snapshot
from persist.engine.write.part_writer import open_run
from persist.services.publish.bitmaps import Rows

NONE: Rows = np.zeros(0, np.int64)
REPLACES = "replaces"  # An option: the ids of tables that erasures gave up, of which a catalog may have one.
FORMAT_VERSION = "format-version"  # An option of Iceberg tables: "2", the default, or "3".
LEFT_OUT_SHARE = 0.5  # A share of the rows of a part: if more of them are deleted, the others are rewritten.
SMALL_FILES_MAX = 16  # Beyond so many that only the table has, all is planned anew.
CHANGED_SHARE = 0.1  # A share of the rows of a table: if more of them changed, everything is planned anew.
# The names of types that the formats share.
COMMON_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
}


@dataclass(frozen=True)
class PlannedFile:
    """A part of a planned table; `number` is None if it is new. `left_out` are row numbers in it."""

    part: Part
    number: int | None
    left_out: Rows = field(default_factory=lambda: NONE)


@dataclass(frozen=True)
class Plan:
    """The files of a table's next version.

    Attributes:
        contents: the state whose numbers of parts it uses; `erasures` is how many erasures that state has.
        files: new files, and files with more deleted rows than before.
        removed: numbers of the previous version's files that this one drops.
        is_anew: whether `left_out` of a file has all rows to leave out, and not only those added to the previous
            version.
    """

    contents: CollectionState
    erasures: int
    as_of: int
    files: list[PlannedFile]
    removed: list[int]
    is_anew: bool


Store = Callable[[bytes, Part], Part]  # Stores an encoded part; returns its descriptor.


class Planner:
    """Plans versions of one table; `store` stores new parts.

    `left_out_share`: see `LEFT_OUT_SHARE`; 0 if the format cannot leave rows of a part out.
    """

    def __init__(self, handle: CollectionHandle, table: str, store: Store, left_out_share: float) -> None:
        self._handle = handle
        self._table = table
        self._store = store
        self._share = left_out_share

    def plan_next_version(self, publication: Publication | None, as_of: int) -> Plan:
        """Return the plan of the version as of a sealed time.

        Raises:
            AsOfCompacted: the time cannot be read any more.
            NegativeMultiplicity: a record of that time cannot be shown as rows.
            Superseded: meanwhile, the table got another version or was removed, or the collection's columns changed.
        """
        contents, _, reading = self._handle.wait_and_claim(as_of, 0.0)
        try:
            with reading.explain_missing():
                reader = reading()
                scan = plan_snapshot(contents, self._handle.load_schema(contents, None), as_of, None)
                # Others may commit meanwhile: numbers belong to this state, whatever the client learns while it plans.
                newest = self._handle.get_known_state()
                is_moved = newest.published.get(self._table) != publication
                if is_moved or len(newest.earlier) + 1 != scan.schema.version:
                    raise Superseded(f"the {self._table} table of {newest.name!r} was changed meanwhile: try again")
                following = (
                    None if publication is None else self._plan_following(publication, contents, newest, scan, reader)
                )
                return following or self._plan_all(publication, contents, newest, scan, reader)
        finally:
            reading.close()

    def _plan_all(
        self,
        publication: Publication | None,
        contents: CollectionState,
        newest: CollectionState,
        scan: Scan,
        reader: PartReader,
    ) -> Plan:
        """Plan a version without using the files of the previous one."""
        split, numbers = Split.of(scan, "rows"), _get_numbers_by_blob(newest)
        lying = self._list_usable_parts([*split.base, *split.history], scan, numbers)
        touched = self._find_touched_keys(scan, [*split.base_tail, *split.tail], reader)
        dead = self._make_tombstone_filter(contents, scan.schema)
        places = {id(part): find_omitted_rows(part, scan.schema, touched, dead, reader) for part in lying}
        listed = [part for part in lying if len(places[id(part)]) <= self._share * part.rows]
        ids = {id(part) for part in listed}
        files = [PlannedFile(part, numbers[part.blob], places[id(part)]) for part in listed]
        current = None
        if len(listed) == len({part.name for part in (*split.base, *split.history)}) and not split.base_tail:
            current = self._read_newest(contents, scan, split.tail, split.history, touched, reader)
        new = (
            self._store_missing_rows(scan, lambda part: id(part) in ids, reader)
            if current is None
            else self._store_records([current], scan, reader)
        )
        listed_numbers = {file.number for file in files}
        removed = (
            [] if publication is None else [number for number in publication.files if number not in listed_numbers]
        )
        return Plan(newest, count_erasures(contents), scan.as_of, [*files, *new], removed, is_anew=True)

    def _plan_following(
        self,
        publication: Publication,
        contents: CollectionState,
        newest: CollectionState,
        scan: Scan,
        reader: PartReader,
    ) -> Plan | None:
        """Plan the next version from the changes since the previous one; None if `_plan_all` is better."""
        schema, numbers = scan.schema, _get_numbers_by_blob(newest)
        if not (
            schema.key_names and self._share and publication.schema == schema.version and publication.as_of < scan.as_of
        ):
            return None
        if contents.since > publication.as_of:
            return None
        changes = plan_changes_scan(contents, schema, publication.as_of + 1, scan.as_of + 1, None, raw=True)
        parts = {number: newest.get_part(number) for number in publication.files}
        rows = sum(part.rows for part in parts.values())
        small = sum(number in newest.kept for number in parts)
        listed = self._list_usable_parts([part for part in changes.parts if not part.negatives], changes, numbers)
        ids = {id(part) for part in listed}
        unlisted = [part for part in changes.parts if id(part) not in ids]
        if small >= SMALL_FILES_MAX or sum(part.rows for part in unlisted) > CHANGED_SHARE * rows:
            return None
        touched = self._find_touched_keys(changes, unlisted, reader)
        files = [
            PlannedFile(part, number, places)
            for number, part in parts.items()
            if touched is not None and len(places := find_places(touched, part, schema, reader))
        ]
        dead = self._make_tombstone_filter(contents, schema)
        files += [PlannedFile(p, numbers[p.blob], find_omitted_rows(p, schema, touched, dead, reader)) for p in listed]
        if touched is not None:
            current = self._read_newest(contents, changes, unlisted, listed, touched, reader)
            if current is None:
                lookup = Lookup(scan)
                current = lookup.read_contents(
                    lookup.to_lookup_keys(pa.Table.from_batches([touched.batch])), "diff", reader
                )
            files += self._store_records([current], scan, reader)
        return Plan(newest, count_erasures(contents), scan.as_of, files, [], is_anew=False)

    def _list_usable_parts(self, parts: Sequence[Part], scan: Scan, numbers: Mapping[str, int]) -> list[Part]:
        """Return the parts that can be used directly, each blob once."""
        root = get_table_root(self._handle.id)
        lying: dict[str, Part] = {}
        based = {id(part) for part in scan.base}
        for part in parts:
            is_whole = id(part) in based or scan.is_inside(part)
            is_here = part.blob.startswith(root) and part.blob in numbers
            if is_here and is_whole and part.is_plain and is_readable_by_others(part, scan.schema):
                lying.setdefault(part.blob, part)
        return [*lying.values()]

    def _find_touched_keys(self, scan: Scan, tail: Sequence[Part], reader: PartReader) -> SortedKeys | None:
        """Return the keys of updates in `tail` that may cancel rows of other parts; None without any."""
        keys = [*scan.schema.key_names]
        based = {id(part) for part in scan.base}
        if not keys or not tail:
            return None
        tables = [
            *scan.read_base_rows(reader, keys, [part for part in tail if id(part) in based]),
            *scan.updates(reader, keys, [part for part in tail if id(part) not in based]),
        ]
        table = pa.concat_tables([scan.empty(keys), *tables])
        return SortedKeys.of(table, keys) if len(table) else None

    def _read_newest(
        self,
        contents: CollectionState,
        scan: Scan,
        tail: Sequence[Part],
        history: Sequence[Part],
        touched: SortedKeys | None,
        reader: PartReader,
    ) -> pa.Table | None:
        """Return the contents of the keys with updates, if the updates alone determine them.

        If a key has one value at each time (rule 18), its newest updates determine its contents, and values of other
        parts need not be read: with 1% of the keys touched, that is 3 times as fast.

        Args:
            tail: parts with updates of the touched keys.
            history: the scan's parts outside its keyframe.

        Returns:
            None if a key may have several values, if history is read backwards, or if other parts may have newer
            updates of these keys.
        """
        if not has_one_value(contents) or scan.sign != 1 or scan.narrow is not None or touched is None:
            return None
        first = min(part.time_min for part in tail)
        if any(part.time_max >= first and len(find_places(touched, part, scan.schema, reader)) for part in history):
            return None
        schema, names = scan.schema, [*scan.schema.names]
        tables = [*scan.updates(reader, [*names, "_time", "_diff"], tail)]
        table = pa.concat_tables([scan.empty([*names, "_time", "_diff"]), *tables]).combine_chunks()
        if not len(table):
            return table.select([*names, "_diff"])
        order, starts = sort_table(table, [*schema.key_names])
        times, diffs = (table[name].to_numpy()[order] for name in ("_time", "_diff"))
        newest = np.maximum.reduceat(times, np.flatnonzero(starts))[np.cumsum(starts) - 1]
        current = table.take(make_int64_array(order[(times == newest) & (diffs > 0)])).select([*names, "_diff"])
        dead = self._make_tombstone_filter(contents, schema)
        return current if dead is None else current.filter(~dead)

    def _make_tombstone_filter(self, contents: CollectionState, schema: CollectionSchema) -> pc.Expression | None:
        """Return a filter for tombstones, or None without any."""
        form = load_form(contents, schema, resolves=False)
        return None if form is None or form.tombstone is None else make_tombstone_filter(schema, form)

    def _store_missing_rows(
        self, scan: Scan, is_listed: Callable[[Part], bool], reader: PartReader
    ) -> list[PlannedFile]:
        """Return new parts with a scan's rows that listed parts lack."""

        def tables() -> Iterator[pa.Table]:
            for piece in scan.cut_into_slices(reader.rewrite_slice_bytes):
                can_split = scan.schema.key_names or not Split.of(piece, "rows").is_merged
                elsewhere = is_listed if can_split else None
                rows = [table for table in read_snapshot(piece, "rows", reader, elsewhere=elsewhere) if len(table)]
                if rows:
                    yield _add_diffs(pa.concat_tables(rows), scan.schema)

        return self._store_records(tables(), scan, reader)

    def _store_records(self, tables: Iterable[pa.Table], scan: Scan, reader: PartReader) -> list[PlannedFile]:
        """Store records with multiplicities, in key order; return the new parts.

        Raises:
            NegativeMultiplicity: a record has one.
            InvalidUsage: they are more rows than a table may have.
        """
        stream = open_run(reader.memory_budget, scan.schema)
        new_files: list[PlannedFile] = []
        for table in tables:
            if len(table):
                rows = _make_distinct(table, scan)
                new_files += [PlannedFile(self._store(data, part), None) for data, part in stream.add(rows)]
        return [*new_files, *(PlannedFile(self._store(data, part), None) for data, part in stream.finish())]


def _get_numbers_by_blob(contents: CollectionState) -> dict[str, int]:
    """Return the numbers of all parts of a collection, by blob key."""
    return {part.blob: number for number, part in contents.numbered.items()}


def make_foreign_error(url: str, name: str) -> InvalidUsage:
    """Return the error for a file of another program that is where the table should be."""
    return InvalidUsage(
        f"{url} was not written by this library: another program writes to a published table, which holds a copy of "
        f"{name!r}. Stop it, unpublish, and publish again."
    )


def read_format_version(options: Mapping[str, str]) -> int:
    """Return the Iceberg format version of a table's options."""
    return int(options.get(FORMAT_VERSION, "2"))


def check_version(publication: Publication | None, options: Mapping[str, str]) -> None:
    """Raise InvalidUsage if the next version would have an older format."""
    old, new = read_format_version({} if publication is None else publication.options), read_format_version(options)
    if new < old:
        raise InvalidUsage(
            f"the table has version {old} of Iceberg's format, and no table goes back to version {new}: "
            'call unpublish("iceberg"), and publish again'
        )


def compute_omitted_rows(file: PlannedFile, before: Rows | None, is_anew: bool) -> Rows | None:
    """Return all rows of a file to leave out; None if they are the same as before.

    `is_anew`: the plan has all of them, and not only those added to the previous version.
    """
    if is_anew or before is None:
        rows = file.left_out
    else:
        deleted = np.sort(np.concatenate([before, file.left_out]), kind="stable")  # A merge of two runs.
        rows = deleted[np.diff(deleted, prepend=np.array([-1])) > 0]
    return None if before is not None and np.array_equal(before, rows) else rows


def check_columns(schema: CollectionSchema, table: str, type_of: Callable[[pa.DataType], Any], has: str) -> None:
    """Raise InvalidUsage for a column that a published table cannot have.

    It refuses types without a counterpart, nested key columns, and names that differ by case only.

    Args:
        table: the kind of table, for errors.
        type_of: returns the table's type for a type of Arrow, or None if it has none.
        has: a text for errors: the types that the table has.
    """
    folded: dict[str, str] = {}
    for name in schema.names:
        kind = schema.arrow.field(name).type
        if type_of(kind) is None:
            raise InvalidUsage(
                f"column {name!r} of type {kind} has no type in a {table} table that keeps all of its values: {has}. "
                f"Publish a view that leaves it out, or casts it, or add a column of another type with evolve"
            )
        if name in schema.key_names and pt.is_nested(kind):
            raise InvalidUsage(
                f"key column {name!r} is of type {kind}, and rows of a published table are found by flat keys only: "
                "publish a view with another key"
            )
        if (first := folded.setdefault(name.lower(), name)) != name:
            raise InvalidUsage(
                f"columns {first!r} and {name!r} differ by case only, and many readers take them for one: rename one "
                "with evolve"
            )


def find_omitted_rows(
    part: Part, schema: CollectionSchema, touched: SortedKeys | None, dead: pc.Expression | None, reader: PartReader
) -> Rows:
    """Return the row numbers of a part's tombstones, and of its rows with touched keys."""
    places = NONE if touched is None else find_places(touched, part, schema, reader)
    if dead is None or not select_matching_parts([part], dead, schema):
        return places
    table = reader.table(part, Request(schema, list_referenced_columns(dead, schema.arrow)))
    numbered = table.append_column("place", pa.array(np.arange(len(table))))
    return np.union1d(places, numbered.filter(dead)["place"].to_numpy())


def is_readable_by_others(part: Part, schema: CollectionSchema) -> bool:
    """Return whether other programs, which match columns by name or field id, read a part as its collection does.

    Columns and fields that are younger than the part are NULL for them, and so must be their defaults.
    """
    lifted = part.make_lift(schema)
    if lifted is None:
        return True
    for name in schema.names:
        source = lifted.sources.get(name)
        if source is None:
            if name in lifted.stored.names or lifted.get_default(name).is_valid:
                return False
        elif source != name or not _can_readers_fill(
            get_column_node(lifted.stored, name), get_column_node(schema, name)
        ):
            return False
    return True


def _can_readers_fill(before: Node, after: Node) -> bool:
    """Return whether readers fill missing nested fields. deltalake does not within maps."""
    has_map = any(pt.is_map(node.kind) for node in after.walk())
    return before == after if has_map else is_extended(before, after)


def _add_diffs(rows: pa.Table, schema: CollectionSchema) -> pa.Table:
    """Return rows as records with multiplicities."""
    diffs = pa.array(np.ones(len(rows), np.int64))
    return consolidate(rows.append_column(schema.arrow.field("_diff"), diffs), [*schema.names])


def _make_distinct(records: pa.Table, scan: Scan) -> pa.Table:
    """Return each record as often as its multiplicity, in part order."""
    counts = records["_diff"].to_numpy()
    rows = pa.concat_tables(repeat_rows(records, scan))
    occurrence = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = [*rows.columns, pa.chunked_array([occurrence]), pa.chunked_array([np.ones(len(rows), np.int64)])]
    return pa.Table.from_arrays(columns, schema=scan.schema.arrow)
