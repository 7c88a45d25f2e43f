"""Writes parts of a target size from ordered rows, which come as tables of any size.

`PartStream` has in memory

    the rows of less than one row group, and the last added table
    + the encoded bytes of the part in progress
    + the key columns of that part's rows (see `describing.Summary`)

but never a whole decoded part. A part is returned only if readers accept it (see `index.check_readable`). The
output depends on the rows alone, not on how they were split into tables (except for rows so large that
`row_group_bytes_max` decides, which Arrow counts slightly differently).

A row group ends at `row_group_rows` rows or `row_group_bytes_max` decoded bytes, whichever is first, or later if a part
would have too many groups (`part.compute_max_groups`). A part ends at the next change of the key after about
`part_bytes_target` encoded bytes, or after `GROUPS_MAX` times `row_group_bytes_max` decoded ones: this limits how far
few bytes can expand. The number of these rows is estimated from the rows already encoded.

`RunStream` takes updates in any order and makes as few runs of them as the order allows. It sorts and consolidates each
table, and appends it to the run in progress, unless keys go back: then a new run begins. So updates sorted by key
become one run, whose parts do not overlap, and others become a run for each table. Within a key the order is free: the
updates of the last key wait for the next key, up to `HELD_BYTES_MAX`; beyond that, the key continues in a new run.
Memory: four times a table, and that of `PartStream`.

Row groups have 64k rows, because a point read decodes one: 5 ms for six columns, 0.5 ms for one of int64. Smaller ones
cost more elsewhere (`docs/inside/performance.md`, "Encodings").
"""

import bisect
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.order.digits import mark_changes
from persist.codecs.order.ordering import make_order_keys, sort_indices
from persist.codecs.order.sums import consolidate
from persist.codecs.part.describing import Summary, describe_batch
from persist.codecs.part.file_writer import FileWriter, can_be_batch, find_misleading_columns, make_file_schema
from persist.codecs.part.index import check_readable
from persist.codecs.part.part import GROUP_ROWS_MIN, GROUPS_MAX, Part, encode_batch
from persist.codecs.part.shredding import choose_values, compute_values
from persist.codecs.types.schema import TIME, CollectionSchema

PART_BYTES_TARGET = 64 << 20
HELD_BYTES_MAX = 16 << 20
ROW_GROUP_ROWS = 64 * 1024
ROW_GROUP_BYTES_MAX = 4 << 20  # A quarter of the least budget of a reader.
# A part that would end this little after a row group ends with it, rather than with a small one.
_SHORT = 0.25
_PROBE_ROWS = 16 * 1024  # Rows that are encoded once more, to measure the bytes of a row.

Encoded = tuple[bytes, Part]


def encode_parts(
    table: pa.Table,
    schema: CollectionSchema,
    *,
    part_bytes_target: int = PART_BYTES_TARGET,
    row_group_rows: int = ROW_GROUP_ROWS,
    row_group_bytes_max: int = ROW_GROUP_BYTES_MAX,
    batch_bytes_max: int = 0,
) -> list[Encoded]:
    """Sort, consolidate and encode updates as parts; descriptors have no blob and no inline bytes yet.

    Cost: one sort, one copy of the table, and the encoded bytes.

    Args:
        table: updates as from `to_updates`: the columns of `schema.arrow`.
        schema: the collection's.
        part_bytes_target, row_group_rows, row_group_bytes_max: as for `PartStream`.
        batch_bytes_max: updates of at most this size become one inline batch (see `part.part`).

    Returns the parts in key order; none if there are no rows or all cancel.

    Raises:
        DiffOverflow: the sum of an update's diffs is outside int64.
        InvalidUpdate: a value that Parquet cannot hold (see `file_writer.FileWriter`).
    """
    summed = consolidate(table, [*schema.names, TIME])
    if not summed.num_rows:
        return []
    summed = pa.Table.from_arrays(summed.columns, schema=schema.arrow)
    if summed.nbytes < batch_bytes_max and can_be_batch(schema.arrow):
        data = encode_batch(summed)
        if len(data) <= batch_bytes_max:
            part = describe_batch(data, summed, schema)
            check_readable(data, part, schema)
            return [(data, part)]
    stream = PartStream(
        schema,
        part_bytes_target=part_bytes_target,
        row_group_rows=row_group_rows,
        row_group_bytes_max=row_group_bytes_max,
    )
    if summed.num_rows > row_group_rows:  # Then it is worth knowing beforehand.
        stream.drop_statistics(find_misleading_columns(summed))
    return stream.add(summed) + stream.finish()


class PartStream:
    """Writes sorted rows as the parts of one run. Their blobs are stored by the caller.

    After an error it cannot be used any more.
    """

    def __init__(
        self,
        schema: CollectionSchema,
        *,
        part_bytes_target: int = PART_BYTES_TARGET,
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes_max: int = ROW_GROUP_BYTES_MAX,
        sources: Sequence[Part] = (),
    ) -> None:
        """Begin a run.

        Args:
            schema: the collection's.
            part_bytes_target: encoded bytes at which the next key starts a new part.
            row_group_rows: the most rows in one row group; more if readers would refuse so many groups.
            row_group_bytes_max: decoded bytes at which a row group ends.
            sources: the parts that the rows come from, if any; a hint. Their statistics on NaN save encoding a part
                twice (see `FileWriter.write`).
        """
        self._schema = schema
        self._part_bytes_target = part_bytes_target
        self._row_group_rows = row_group_rows
        self._row_group_bytes_max = row_group_bytes_max
        self._without_statistics = frozenset(_find_nan_columns(sources, schema))
        self._pending: list[pa.Table] = []
        self._pending_rows = self._pending_bytes = 0
        self._last_key: pa.Table | None = None  # The last key before the pending rows.
        self._writer: FileWriter | None = None
        self._values: tuple[str, ...] = ()  # The names of the values in the part in progress.
        self._summary = Summary(schema)
        self._row_bytes = 0.0  # Encoded, in the part before or a probe; 0 if not known.

    @property
    def held_bytes(self) -> int:
        """About how many bytes the rows and files in memory take."""
        return self._pending_bytes + self._summary.key_bytes + (self._writer.size if self._writer else 0)

    def drop_statistics(self, columns: frozenset[str]) -> None:
        """Omit the minimum and maximum of some float columns from files that begin from now on."""
        self._without_statistics |= columns

    def add(self, table: pa.Table) -> list[Encoded]:
        """Write sorted and consolidated rows that follow all earlier ones.

        Returns the completed parts, in key order.
        """
        if table.num_rows:
            self._pending.append(table)
            self._pending_rows += table.num_rows
            self._pending_bytes += int(table.nbytes)
        if self._pending_rows <= self._row_group_rows and self._pending_bytes <= self._row_group_bytes_max:
            return []
        return self._write(is_last=False)

    def finish(self) -> list[Encoded]:
        """Write the remaining rows; nothing may be added afterwards."""
        done = self._write(is_last=True)
        if self._writer is not None:
            done.append(self._finish_part())
        return done

    def _write(self, *, is_last: bool) -> list[Encoded]:
        """Write all full row groups, and the remaining rows if is_last.

        A group is full once the row after it has arrived.
        """
        done: list[Encoded] = []
        if not self._pending:
            return done
        rows = pa.concat_tables(self._pending) if len(self._pending) > 1 else self._pending[0]
        at, count = 0, len(rows)
        while at < count:
            full = self._find_group_end(rows, at)
            if at + full >= count and not is_last:
                break
            end = min(at + full, count)
            remaining = self._count_remaining_rows(rows.slice(at, end - at))
            is_done = False
            if remaining is not None:
                cut = self._find_next_key(rows, at + remaining)
                if is_done := cut <= end and cut < count:
                    end = cut
            if end > at:
                self._write_group(rows.slice(at, end - at).combine_chunks())
            if is_done:
                done.append(self._finish_part())
            at = end
        if is_last:
            self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
            return done
        if at:
            # Taken, not sliced, so that it does not hold on to the rest.
            self._last_key = rows.select(self._schema.key_names).take([at - 1])
            rows = rows.slice(at)
        self._pending = [rows] if len(rows) else []
        self._pending_rows, self._pending_bytes = len(rows), int(rows.nbytes)
        return done

    def _find_group_end(self, rows: pa.Table, at: int) -> int:
        """Return how many rows from `at` make a full row group. It exceeds the rows if there are too few."""
        groups = len(self._writer.groups) if self._writer else 0
        # With fewer rows in it, readers would not accept this group and one more, however short.
        least = max((groups + 2 - GROUPS_MAX) * GROUP_ROWS_MIN - self._summary.rows, 1)
        full = max(self._row_group_rows, least)
        slices = range(min(full, len(rows) - at) + 1)
        if rows.slice(at, slices[-1]).nbytes <= self._row_group_bytes_max:
            return full
        fits = bisect.bisect_left(slices, self._row_group_bytes_max, key=lambda n: rows.slice(at, n).nbytes)
        return max(fits, least)

    def _count_remaining_rows(self, group: pa.Table) -> int | None:
        """Return after how many rows of the next group the part ends. None if it ends later."""
        if self._writer is None:
            if not self._row_bytes and group.nbytes > self._part_bytes_target:
                probe = group.slice(max(len(group) - _PROBE_ROWS, 0) // 2, _PROBE_ROWS)
                writer = FileWriter(self._schema.compute_once(make_file_schema), probe, sorted_by=0)
                writer.write(probe)
                self._row_bytes = writer.size / len(probe)
            encoded, row_bytes = 0, self._row_bytes
        else:
            if self._summary.memory >= GROUPS_MAX * self._row_group_bytes_max:
                return 0
            encoded = self._writer.size
            row_bytes = encoded / self._summary.rows
        if not row_bytes:
            return None
        rows = math.ceil((self._part_bytes_target - encoded) / row_bytes)
        if rows > len(group) * (1 + _SHORT):
            return None
        if self._writer is not None and rows < len(group) * _SHORT:
            return 0
        return min(max(rows, 1), len(group))

    def _find_next_key(self, rows: pa.Table, position: int) -> int:
        """Return the next row from position on with a new key; the row count without one."""
        keys, window = rows.select(self._schema.key_names), 1024
        preceding = 1
        if position == 0:
            assert self._last_key is not None, "a part has ended before its first row"
            keys, preceding = pa.concat_tables([self._last_key, keys]), 0
        while position < len(rows):
            differs = np.zeros(min(window, len(rows) - position), dtype=np.bool_)
            for key in make_order_keys(keys.slice(position - preceding, len(differs) + 1), self._schema.key_names):
                differs |= mark_changes(key)
            if differs.any():
                return position + int(np.argmax(differs))
            position += len(differs)
            window *= 2
        return len(rows)

    def _write_group(self, group: pa.Table) -> None:
        """Write a row group; start a part if none is open."""
        if self._writer is None:
            self._values = choose_values(group, self._schema)
            self._writer = FileWriter(
                self._schema.compute_once(make_file_schema),
                group,
                sorted_by=len(self._schema.names) + 1,
                without_statistics=self._without_statistics,
            )
        values = compute_values(self._values, group, self._schema) if self._values else None
        self._writer.write(group, values)
        self._summary.add(group, values)

    def _finish_part(self) -> Encoded:
        """Close the open file; return the part's descriptor and bytes."""
        assert self._writer is not None, "only a part that was begun can end"
        data = self._writer.finish()
        part = self._summary.describe(data)
        check_readable(data, part, self._schema)
        self._row_bytes = len(data) / part.rows
        self._without_statistics |= self._writer.without_statistics
        self._writer, self._summary = None, Summary(self._schema)
        return data, part


def _find_nan_columns(sources: Sequence[Part], schema: CollectionSchema) -> Iterator[str]:
    """Yield the float columns in which a part has NaN."""
    for name in schema.names:
        if pt.is_floating(schema.arrow.field(name).type):
            ends = (part.stats.get(name) for part in sources)
            if any(bounds is not None and bounds[1] == "nan" for bounds in ends):
                yield name


class RunStream:
    """Writes updates in any order as parts, whose descriptors have no blob yet. After an error it cannot be used."""

    def __init__(self, schema: CollectionSchema, *, row_group_bytes_max: int = ROW_GROUP_BYTES_MAX) -> None:
        self._schema = schema
        self._group_bytes = row_group_bytes_max
        self._held: pa.Table | None = None
        self._last_key: pa.Table | None = None  # The last key of the run in progress.
        self._stream: PartStream | None = None

    def add(self, table: pa.Table) -> list[Encoded]:
        """Add updates in the form of `to_updates`; return the completed parts.

        Raises:
            DiffOverflow: the sum of an update's diffs is outside int64.
            InvalidUpdate: a value that Parquet cannot hold.
        """
        rows, done = self._consolidate(table), []
        if self._held is not None and len(rows):
            if self._compare_keys(self._held, rows) == 0:
                rows = self._consolidate(pa.concat_tables([self._held, rows]))
            else:
                done = self._write_rows(self._held)
            self._held = None
        last = _find_last_key_start(rows, self._schema)
        pending = rows.slice(last)
        if pending.nbytes > HELD_BYTES_MAX:
            return done + self._write_rows(rows)
        if len(pending):  # As a copy, which does not hold on to the rest.
            self._held = pending.take(pa.array(np.arange(len(pending))))
        return done + self._write_rows(rows.slice(0, last))

    def finish(self) -> list[Encoded]:
        """Return the remaining parts; nothing may be added afterwards."""
        done = self._write_rows(self._held) if self._held is not None else []
        self._held = None
        return done + self._finish_run()

    def _consolidate(self, table: pa.Table) -> pa.Table:
        """Consolidate rows, in the order of the schema's columns."""
        summed = consolidate(table, [*self._schema.names, TIME])
        return pa.Table.from_arrays(summed.columns, schema=self._schema.arrow)

    def _write_rows(self, rows: pa.Table) -> list[Encoded]:
        """Write consolidated rows into the open run, or into a new one."""
        if not len(rows):
            return []
        done = [] if self._last_key is None or self._compare_keys(self._last_key, rows) > 0 else self._finish_run()
        if self._stream is None:
            self._stream = PartStream(self._schema, row_group_bytes_max=self._group_bytes)
        self._stream.drop_statistics(find_misleading_columns(rows))
        self._last_key = rows.select(self._schema.key_names).take([len(rows) - 1])
        return done + self._stream.add(rows)

    def _finish_run(self) -> list[Encoded]:
        """End the open run, and return its last parts."""
        stream, self._stream, self._last_key = self._stream, None, None
        return stream.finish() if stream is not None else []

    def _compare_keys(self, before: pa.Table, after: pa.Table) -> int:
        """Compare the first key of `after` with `before`'s last: 1, 0, -1."""
        names = self._schema.key_names
        if not names:
            return 0
        keys = [before.select(names).slice(len(before) - 1), after.select(names).slice(0, 1)]
        joined = pa.concat_tables(keys).combine_chunks()
        if not any(mark_changes(key).any() for key in make_order_keys(joined, names)):
            return 0
        return 1 if sort_indices(joined, names).to_pylist() == [0, 1] else -1


def _find_last_key_start(rows: pa.Table, schema: CollectionSchema) -> int:
    """Return the first of the sorted rows with the last key."""
    names, count = schema.key_names, len(rows)
    if not names or not count:
        return 0
    window = 1024
    while True:
        start = max(count - window, 0)
        keys = rows.select(names).slice(start).combine_chunks()
        changes = _find_last_change(keys, names)
        if changes or not start:
            return start + changes
        window *= 8


def _find_last_change(keys: pa.Table, names: tuple[str, ...]) -> int:
    """Return the last row whose key differs from the previous row's; 0 without one."""
    last = 0
    for key in make_order_keys(keys, names):
        differs = mark_changes(key)
        last = max(last, len(differs) - int(differs[::-1].argmax()) if differs.any() else 0)
    return last
