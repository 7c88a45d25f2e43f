"""Plans erasures: the parts of a collection that contain records to erase, and the parts that replace them.

Erasure is a rewrite like compaction, by the same part maker, with one difference: some rows are left out. Key and value
alone decide about a record (`ErasedRecords`), so its part, time and diff do not matter. The deciding columns of each
part are read by themselves. A part with such a record is rewritten under the newest schema; its neighbours stay.

In a keyed collection, a condition erases everything of each key that has a record, or a pending event, for which it is
true. A deletion event is not a record, so its NULLs match nothing. If one event of a key were erased alone, the result
of the others would depend on whether they have been resolved. If all are erased, the key has no row at any time.

Like a merge, the work is checked by sums: the diffs of a new part sum to the old part's, less the diffs of the erased
rows.

Writers continue meanwhile. Parts never change, so the result for a part is valid as long as the collection names it. A
`PartEraser` therefore caches results by part. The committing code (`persist.services.erase`) calls it again for newer
parts, until no other record comes first.

Memory: a slice, a row group, and a part in progress, as for compaction.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.order.search import SortedKeys
from persist.codecs.order.sums import sum_exactly
from persist.codecs.part.filters import add_both_zeros, list_referenced_columns, select_matching_parts
from persist.codecs.part.part import Part
from persist.codecs.types.schema import DIFF, TIME, TIME_MAX, CollectionSchema
from persist.core.errors import InvalidUsage, Superseded
from persist.core.keyed.events import list_event_fields, make_event_schema
from persist.core.keyed.machine import DELETED
from persist.core.log import kinds
from persist.core.log.fields import Numbers
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.erasures import list_blobs_unused_after_erasure
from persist.engine.compact.rewriter import LocalPartMaker, Rewrite
from persist.engine.read.parts.reader import PartReader
from persist.engine.read.planning.scan import Scan
from persist.engine.write.part_writer import PartWriter


@dataclass(frozen=True)
class ErasedRecords:
    """The records to erase: all records of some keys, or the records that satisfy a condition.

    Attributes:
        keys: the key columns, as `persist.engine.read.lookups.requested_keys.find_distinct_keys` returns them; or None.
        where: a condition, in place of keys.
        ids: the ids of where's columns, by name; clones and views must have the same ids.
    """

    keys: pa.Table | None
    where: pc.Expression | None
    ids: tuple[int, ...] = ()

    @classmethod
    def select_by_condition(cls, where: pc.Expression, schema: CollectionSchema) -> "ErasedRecords":
        """Return the records of a schema for which a condition is true."""
        return cls(None, where, _list_ids(list_referenced_columns(where, schema.arrow, (TIME, DIFF)), schema))

    @cached_property
    def _sorted(self) -> SortedKeys:
        """The keys of the records to erase, sorted for searches."""
        assert self.keys is not None
        return SortedKeys(self.keys)

    @cached_property
    def filter(self) -> pc.Expression:
        """A filter that is true for these records, and maybe for others, to skip parts."""
        if self.where is not None:
            return add_both_zeros(self.where)
        assert self.keys is not None
        condition = pc.scalar(True)
        for name, values in zip(self.keys.column_names, self.keys.columns, strict=True):
            if pa.types.is_nested(values.type) or values.null_count or pa.types.is_floating(values.type):
                continue  # It narrows down less, and is right for all values.
            condition = condition & pc.field(name).isin(values.combine_chunks())
        return condition

    def columns(self, schema: CollectionSchema) -> list[str]:
        """Return the columns that decide whether a row is erased."""
        if self.keys is not None:
            return [*self.keys.column_names]
        assert self.where is not None
        return list_referenced_columns(self.where, schema.arrow, (TIME, DIFF))

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the rows to erase and the rows that stay, from rows in the order of keys."""
        if self.keys is not None:
            return self._sorted.split(rows)
        goes = pc.coalesce(self.filter, pc.scalar(False))
        return rows.filter(goes), rows.filter(~goes)

    def of(self, schema: CollectionSchema) -> "ErasedRecords":
        """Return these records for a related collection, whose key columns may have other names and types.

        Keys that do not fit its types are left out.
        """
        if self.keys is None:
            return self
        fields = [schema.arrow.field(name) for name in schema.key_names]
        columns, fits = [], pa.chunked_array([pa.repeat(pa.scalar(True), len(self.keys))])
        for values, field in zip(self.keys.columns, fields, strict=True):
            cast = values if values.type == field.type else values.cast(field.type, safe=False)
            if cast is not values:
                fits = pc.and_(fits, pc.fill_null(pc.equal(cast.cast(values.type, safe=False), values), True))
            columns.append(cast)
        keys = pa.Table.from_arrays(columns, schema=pa.schema([pa.field(f.name, f.type) for f in fields]))
        return ErasedRecords(keys.filter(fits), None)

    def is_about(self, schema: CollectionSchema) -> bool:
        """Return whether rows of a schema have the columns that decide about erasure."""
        try:
            self.split(schema.arrow.empty_table())
        except (pa.ArrowException, KeyError):
            return False
        return True

    def drop_erased(self, rows: pa.Table) -> pa.Table:
        """Return rows without the records to erase."""
        return self.split(rows)[1]

    def check(self, schema: CollectionSchema, name: str) -> None:
        """Raise InvalidUsage unless a schema has the columns that decide about erasure.

        A different column of the same name does not count: in a clone, names may have been exchanged.
        """
        if self.where is not None and not (
            self.is_about(schema) and _list_ids(self.columns(schema), schema) == self.ids
        ):
            raise InvalidUsage(
                f"the condition does not apply to the rows of {name}: their columns are {list(schema.names)}, or were "
                "renamed. Erase by keys instead"
            )


@dataclass(frozen=True)
class _Outcome:
    """The result for a part: how many rows are erased, and the new parts. The new parts are None if the part stays."""

    rows: int
    parts: tuple[Part, ...] | None


_Known = tuple[str, str, int, int]


class PartEraser:
    """Plans the erasure of records of one collection, again for each newer state.

    Args:
        collection: the id of the collection.
        maker, writer, reader: make parts, store small ones, and read them.
    """

    def __init__(
        self,
        collection: str,
        records: ErasedRecords,
        maker: LocalPartMaker,
        writer: PartWriter,
        reader: Callable[[], PartReader],
    ) -> None:
        self._collection = collection
        self._wanted = self._records = records
        self._seen: set[_Known] = set()
        self._maker = maker
        self._writer = writer
        self._reader = reader
        self._outcomes: dict[_Known, _Outcome] = {}
        self._schema: CollectionSchema | None = None
        self._reads_blobs = True
        self._lock = threading.Lock()

    def step(
        self, contents: CollectionState, *, by: str, at_ms: int, reason: str, reads_blobs: bool = True
    ) -> kinds.Erase | None:
        """Return the step that erases the records from contents; None if there are none.

        Cost: reading the deciding columns of new parts, and rewriting parts with erased rows.

        Raises:
            Superseded: an unseen part is in a blob, and reads_blobs is false.
            InvalidUsage: the rows or events of the collection lack a column that decides about erasure.
            CorruptBlob: a part is missing or damaged.
        """
        schema, self._reads_blobs = contents.schema, reads_blobs
        if self._schema != schema:
            self.discard()  # Parts are written with the newest columns.
            self._seen.clear()
            self._schema, self._records = schema, self._wanted.of(schema)
        self._wanted.check(schema, repr(contents.name))
        if contents.keyed is not None and self._wanted.where is not None:
            self._find_keys(contents)
        inline_bytes = contents.inline_bytes
        parts: list[Part] = []
        replaced: list[tuple[int, Numbers]] = []
        updates = 0

        def take(number: int, part: Part, outcome: _Outcome) -> None:
            if outcome.parts is not None:
                replaced.append((number, tuple(-1 - len(parts) - n for n in range(len(outcome.parts)))))
                parts.extend(outcome.parts)

        counted = {n for run in contents.history for n in run}
        if contents.history_from:  # Then what came before is in the first keyframe alone.
            counted.update(contents.keyframes[0].parts)
        for number, part, outcome in self._find_touched_parts(contents.numbered, schema, inline_bytes):
            take(number, part, outcome)
            updates += outcome.rows if number in counted else 0
        events = len(parts)
        if contents.pending:
            schema = load_events_schema(contents)
            for number, part, outcome in self._find_touched_parts(contents.pending, schema, inline_bytes):
                # Rows at times that are resolved do not count, and no part is pending for their sake.
                is_waiting = [new_part.time_max >= contents.resolved for new_part in outcome.parts or ()]
                waiting = tuple(
                    new_part for new_part, waits in zip(outcome.parts or (), is_waiting, strict=True) if waits
                )
                take(number, part, _Outcome(outcome.rows, waiting))
                updates += outcome.rows
        if not replaced:
            return None
        step = kinds.Erase(
            contents.id,
            updates,
            by,
            at_ms,
            reason,
            parts=tuple(parts),
            events=len(parts) - events,
            replaced=tuple(replaced),
        )
        return msgspec.structs.replace(step, unused=list_blobs_unused_after_erasure(contents, step))

    def _find_keys(self, contents: CollectionState) -> None:
        """Select all records of the keys that have a record satisfying the condition."""
        names, key_tables = contents.schema.key_names, list[pa.Table]()
        for parts, schema in ((contents.numbered, contents.schema), (contents.pending, load_events_schema(contents))):
            new = [part for part in parts.values() if _identify_part(part) not in self._seen]
            if new and self._wanted.is_about(schema):
                may_match = select_matching_parts(new, self._wanted.filter, schema)
                self._check_read(*may_match)
                is_deleting = [DELETED] if DELETED in schema.names else []
                columns = list(dict.fromkeys([*names, *self._wanted.columns(schema), *is_deleting]))
                tables = self._reader().tables(may_match, schema, columns)
                rows = (drop_deletions(table, contents) for _, table in tables)
                key_tables += [self._wanted.split(table)[0].select(names) for table in rows]
            self._seen.update(map(_identify_part, new))
        keys = pa.concat_tables([contents.schema.arrow.empty_table().select(names), *key_tables])
        if self._records.keys is not None:
            keys = pa.concat_tables([keys, self._records.keys])
        distinct = pa.Table.from_batches([SortedKeys.of(keys, names).batch])
        if self._records.keys is None or len(distinct) > len(self._records.keys):
            self.discard()
            self._records = ErasedRecords(distinct, None)

    @property
    def selected_keys(self) -> int:
        """The number of keys to erase; 0 if a condition decides about each record."""
        return 0 if self._records.keys is None else len(self._records.keys)

    def note_commit(self, step: kinds.Erase | None) -> None:
        """Note that a record names a step's parts; delete the other new parts."""
        named = set() if step is None else {part.blob for part in step.parts}
        self._discard(lambda part: part.blob not in named)

    def discard(self) -> None:
        """Delete the new parts, which no record names."""
        self._discard(lambda part: True)

    def _discard(self, is_unwanted: Callable[[Part], bool]) -> None:
        """Delete the new parts for which a function returns True."""
        with self._lock:
            new_parts = [part for outcome in self._outcomes.values() for part in outcome.parts or ()]
            self._outcomes.clear()
        self._writer.discard(part for part in new_parts if is_unwanted(part))

    def _find_touched_parts(
        self, parts: Mapping[int, Part], schema: CollectionSchema, inline_bytes: int
    ) -> Iterator[tuple[int, Part, _Outcome]]:
        """Yield the parts with records to erase, and their outcomes."""
        new = [part for part in parts.values() if _identify_part(part) not in self._outcomes]
        may_match = (
            {_identify_part(part) for part in select_matching_parts(new, self._records.filter, schema)}
            if new
            else set()
        )
        for number, part in parts.items():
            outcome = self._outcomes.get(_identify_part(part))
            if outcome is None:
                outcome = (
                    self._examine_part(part, schema, inline_bytes)
                    if _identify_part(part) in may_match
                    else _Outcome(0, None)
                )
                self._outcomes[_identify_part(part)] = outcome
            if outcome.parts is not None:
                yield number, part, outcome

    def _examine_part(self, part: Part, schema: CollectionSchema, inline_bytes: int) -> _Outcome:
        """Return how many rows of a part are erased, and its replacement."""
        self._check_read(part)
        rows = diffs = 0
        columns = [*self._records.columns(schema), "_diff"]
        for _, table in self._reader().tables([part], schema, columns):
            goes, _ = self._records.split(table)
            rows += len(goes)
            diffs += sum_exactly(goes["_diff"].to_numpy())
        if not rows:
            return _Outcome(0, None)
        new_parts = self._write_remaining(part, schema, inline_bytes)
        if sum(new_part.diff_sum for new_part in new_parts) != part.diff_sum - diffs:
            self._writer.discard(new_parts)
            raise AssertionError("the diffs of a part's remaining rows are not its diffs less the erased ones")
        return _Outcome(rows, new_parts)

    def _check_read(self, *parts: Part) -> None:
        """Raise Superseded if parts must be fetched, and this call must not fetch any."""
        if not (self._reads_blobs or all(part.inline for part in parts)):
            raise Superseded("a part was added that was not examined: try again")

    def _write_remaining(self, part: Part, schema: CollectionSchema, inline_bytes: int) -> tuple[Part, ...]:
        """Store the remaining rows of a part; return their parts, none if no row remains."""
        if not part.inline:
            scan = Scan(schema, (part,), 0, TIME_MAX + 1, schema.names).prune()
            (run,) = self._maker.make(self._collection, [[Rewrite(scan, keep=self._records.drop_erased)]], [part])
            return run.new
        tables = [table for _, table in self._reader().tables([part], schema, [*schema.names, "_time", "_diff"])]
        remaining_rows = self._records.drop_erased(pa.concat_tables(tables))
        return (
            tuple(self._writer.store_parts(self._collection, remaining_rows, schema, inline_bytes))
            if len(remaining_rows)
            else ()
        )


def drop_deletions(rows: pa.Table, contents: CollectionState) -> pa.Table:
    """Return rows of a part without deletion events, which are not records."""
    if DELETED not in rows.column_names or contents.keyed is None or contents.keyed.tombstone is not None:
        return rows
    return rows.filter(pc.invert(rows[DELETED]))


def _list_ids(columns: list[str], schema: CollectionSchema) -> tuple[int, ...]:
    ids = dict(zip(schema.names, schema.ids, strict=True))
    return tuple(ids[name] for name in sorted(columns) if name in ids)


def load_events_schema(contents: CollectionState) -> CollectionSchema:
    """Return the schema of a keyed collection's pending events, for its newest version."""
    assert contents.keyed is not None, "it has events"
    return make_event_schema(contents.schema, list_event_fields(contents.schema, contents.keyed))


def _identify_part(part: Part) -> _Known:
    """Return the identity of a part in its collection: two schemas may use the same bytes."""
    return part.blob, part.checksum, part.time_min, part.schema
