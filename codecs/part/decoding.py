"""Reads the bytes of a part: checks them against the descriptor, decodes, and lifts rows to the reader's schema.

`persist.codecs.part.part` lists the checks of a reader.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from persist.blob.errors import CorruptBlob, InvalidUsage
from persist.codecs.errors import SchemaMismatch
from persist.codecs.order.arrays import find_min_max, get_int64_values, make_int64_array
from persist.codecs.order.sums import sum_exactly
from persist.codecs.part.file_reader import read_parquet, scan_parquet
from persist.codecs.part.filters import bind_filter, list_referenced_columns
from persist.codecs.part.lending import make_lent_buffer
from persist.codecs.part.part import Part, compute_checksum, decode_batch
from persist.codecs.part.printing import print_filter
from persist.codecs.part.shredding import EXTRACT
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema

T = TypeVar("T")
# The exceptions of pyarrow for bad bytes. RuntimeError is any C++ exception that it does not know.
UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, MemoryError, RuntimeError)


def decode_part(
    data: bytes | memoryview,
    part: Part,
    schema: CollectionSchema,
    *,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
    use_threads: bool = True,
    coded: Sequence[str] = (),
) -> pa.Table:
    """Verify a part's bytes, then read its updates.

    Args:
        data: the bytes of the blob.
        part: its descriptor.
        schema: the collection's.
        columns: the columns of `schema.arrow` to read and return, in this order; all by default.
        filter: keeps the rows for which it is true; over any columns of the schema. Row groups whose
            statistics exclude it are not read.
        use_threads: whether Arrow may decode columns in parallel.
        coded: columns of strings or bytes that may be returned as dictionaries; a hint.

    Raises:
        CorruptBlob: data disagrees with the descriptor, or is not a part of this collection.
        InvalidUsage: an unknown column, or a filter that does not fit the schema.
    """
    columns = schema.arrow.names if columns is None else list(columns)
    check_projection(schema.arrow, columns, filter)
    adapted = read_adapted(
        part,
        schema,
        columns,
        filter,
        lambda part, schema, names, filter, is_lifted: decode_part(
            data,
            part,
            schema,
            columns=names,
            filter=filter,
            use_threads=use_threads,
            coded=() if is_lifted else coded,
        ),
    )
    if adapted is not None:
        return adapted
    verify_checksum(data, part)
    if part.footer is None:
        table = decode_checked(part, lambda: decode_batch(data, part, schema.arrow))
        check_updates(table, part)
        return filter_table(table, filter, columns, schema.arrow)
    buffer = make_lent_buffer(data) if use_threads else pa.py_buffer(data)

    def read(names: Sequence[str], coded: Sequence[str] = ()) -> pa.Table:
        return read_parquet(buffer, part, schema.arrow, names, use_threads=use_threads, coded=coded)

    if filter is None:
        table = decode_checked(part, lambda: read(columns, coded))
        check_updates(table, part)
        return table
    try:
        table = scan_parquet(buffer, part, schema, columns, filter, use_threads=use_threads)
    except UNREADABLE as error:
        # Bad bytes make this read fail too; else the filter failed on a value, as in a division by zero.
        decode_checked(part, lambda: read(schema.arrow.names))
        raise make_filter_error(filter, schema.arrow, error) from error
    check_updates(table, part)
    return table


# Reads columns of the rows of a part that pass a filter, under another schema if the last argument is true.
Read = Callable[[Part, CollectionSchema, list[str], pc.Expression | None, bool], pa.Table]


def read_adapted(
    part: Part, schema: CollectionSchema, columns: Sequence[str], filter: pc.Expression | None, read: Read
) -> pa.Table | None:
    """Read columns of a part that need adaptation, filtered; None if the file has them unchanged.

    Columns of another schema version are lifted; a stamped part gets the time of its descriptor.
    """
    arrow, lifted = schema.arrow, part.make_lift(schema)
    if lifted is None and not part.stamped:
        return None
    of_filter = list_referenced_columns(filter, arrow) if filter is not None else []
    if lifted is not None:
        # Columns that the part has alike are filtered there.
        shapes = dict(zip(lifted.stored.names, lifted.stored.shapes, strict=True))
        is_alike = TIME not in of_filter and all(
            lifted.sources.get(name) == name and shapes[name] == shape
            for name, shape in zip(schema.names, schema.shapes, strict=True)
            if name in of_filter
        )
        within, filter = (filter, None) if is_alike else (None, filter)
        names = [*dict.fromkeys([*columns, *(() if is_alike else of_filter)])]
        # If all of them are younger than the part, its times still provide the number of rows.
        stored = read(part, lifted.stored, lifted.list_source_columns(names) or [TIME], within, True)
        return filter_table(lifted.adapt_table(stored, names), filter, columns, arrow)
    by_time = TIME in of_filter
    names = [name for name in dict.fromkeys([*columns, *(of_filter if by_time else ())]) if name != TIME]
    table = read(part.as_stored, schema, names or [DIFF], None if by_time else filter, False)
    if by_time or TIME in columns:
        times = make_int64_array(np.full(len(table), part.time_min, np.int64))
        table = table.append_column(arrow.field(TIME), times)
    return filter_table(table, filter if by_time else None, columns, arrow)


def filter_table(table: pa.Table, filter: pc.Expression | None, columns: Sequence[str], arrow: pa.Schema) -> pa.Table:
    """Return columns of the rows that pass a filter over a schema; raise InvalidUsage if it fails on a value."""
    if filter is not None:
        try:
            table = table.filter(filter)
        except UNREADABLE as error:
            raise make_filter_error(filter, arrow, error) from error
    return table if table.column_names == [*columns] else table.select([*columns])


def read_part(data: bytes | memoryview, part: Part, schema: CollectionSchema) -> pa.Table:
    """Read all of a part whose bytes match its descriptor, even if their contents contradict each other.

    Raises CorruptBlob: it has other columns or another number of rows.
    """

    arrow = schema.arrow
    if part.footer is None:
        return decode_checked(part, lambda: decode_batch(data, part, arrow))
    return decode_checked(
        part, lambda: read_parquet(make_lent_buffer(data), part, arrow, arrow.names, use_threads=True)
    )


def verify_checksum(data: bytes | memoryview, part: Part) -> None:
    """Raise CorruptBlob unless bytes match the checksum of a part."""
    if len(data) != part.bytes:
        raise CorruptBlob(part.name, f"it has {len(data)} bytes, and its descriptor says {part.bytes}")
    if (checksum := compute_checksum(data)) != part.checksum:
        raise CorruptBlob(part.name, f"its checksum is {checksum}, and its descriptor says {part.checksum}")


def decode_checked(part: Part, read: Callable[[], T]) -> T:
    """Call a decoder; raise CorruptBlob, naming the part, if it fails."""
    try:
        return read()
    except UNREADABLE as error:
        raise CorruptBlob(
            part.name, f"its checksum is right, but it is not a part of this collection: {error}"
        ) from error


def check_updates(table: pa.Table, part: Part) -> None:
    """Check the times and diffs that were read against the bounds in the descriptor."""
    if not table.num_rows:
        return
    if TIME in table.column_names:
        for times in _get_int64_chunks(table, TIME, part):
            least, greatest = find_min_max(times)
            if least < part.time_min or greatest > part.time_max:
                raise CorruptBlob(
                    part.name,
                    f"it holds times from {least} to {greatest}, and its descriptor says "
                    f"{part.time_min} to {part.time_max}",
                )
    if DIFF in table.column_names:
        total = negatives = 0
        has_zeros = False
        for diffs in _get_int64_chunks(table, DIFF, part):
            least, greatest = find_min_max(diffs)
            total += sum_exactly(diffs, least, greatest)
            if least <= 0:
                negatives += int(np.count_nonzero(diffs < 0))
                has_zeros |= not diffs.all()
        if negatives > part.negatives or has_zeros:
            raise CorruptBlob(
                part.name, f"it holds {negatives} negative diffs, or zeros; its descriptor says {part.negatives}"
            )
        if table.num_rows == part.rows and total != part.diff_sum:
            raise CorruptBlob(part.name, f"its diffs sum to {total}, and its descriptor says {part.diff_sum}")


def _get_int64_chunks(table: pa.Table, name: str, part: Part) -> list[npt.NDArray[np.int64]]:
    column = table.column(name)
    if column.null_count:
        raise CorruptBlob(part.name, f"{column.null_count} of its rows have NULL for {name}")
    return [get_int64_values(chunk) for chunk in column.chunks if len(chunk)]


def check_projection(arrow: pa.Schema, columns: Sequence[str], filter: pc.Expression | None) -> None:
    """Raise InvalidUsage for unknown columns or a filter that cannot be evaluated."""
    names = set(arrow.names)
    for name in columns:
        if name not in names:
            problem = "is asked for twice" if name in arrow.names else "does not exist"
            raise InvalidUsage(f"column {name!r} {problem}: choose from {arrow.names}, each once")
        names.remove(name)
    if filter is None:
        return
    try:
        bind_filter(filter, arrow)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise make_filter_error(filter, arrow, error) from error


def make_filter_error(filter: pc.Expression, arrow: pa.Schema, error: Exception) -> InvalidUsage:
    """Return the error for a filter that Arrow cannot evaluate."""
    fields = ", ".join(f"{field.name}: {field.type}" for field in arrow)
    reason, text = " ".join(str(error).split()), print_filter(filter)
    if (
        EXTRACT.removesuffix("_string") in text and "Malformed JSON" in reason
    ):  # Documents are checked when they are written.
        return SchemaMismatch(
            f"filter {text[:200]} looks into documents, and a column of it has been widened to text that is none: "
            f"{reason:.200}. Read with the newest schema."
        )
    return InvalidUsage(
        f"filter {text[:200]} cannot be applied: {reason:.200}. It must be true or false for every "
        f"row, over the columns {fields}."
    )
