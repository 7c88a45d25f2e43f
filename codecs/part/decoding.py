"""Reads the bytes of a part: checks them against the descriptor, decodes, and lifts rows to the reader's schema.

`persist.codecs.part.part` lists the checks of a reader.
"""

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.blob.errors import CorruptBlob, InvalidUsage
from persist.codecs.errors import SchemaMismatch
from persist.codecs.order.arrays import find_min_max, get_int64_values, make_int64_array
from persist.codecs.order.sums import sum_exactly
from persist.codecs.part.file_reader import (
    THREADED_VALUES,
    CheckedFooter,
    ValueFilter,
    find_passing_codes,
    find_passing_rows,
    may_be_dictionary,
    open_parquet,
    read_whole_footer,
    restore_types,
    to_stored_schema,
)
from persist.codecs.part.filters import bind_filter, list_referenced_columns
from persist.codecs.part.lending import make_lent_buffer
from persist.codecs.part.part import Part, compute_checksum, decode_batch
from persist.codecs.part.printing import print_filter
from persist.codecs.part.shredding import EXTRACT
from persist.codecs.types.schema import DIFF, TIME, CollectionSchema

P = ParamSpec("P")
T = TypeVar("T")
# The exceptions of pyarrow for bad bytes. RuntimeError is any C++ exception that it does not know.
UNREADABLE = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, MemoryError, RuntimeError)


class Request(msgspec.Struct, frozen=True):
    """The columns to read of parts, and a filter of rows.

    Attributes:
        schema: of the collection.
        columns: columns of `schema.arrow`, in this order.
        filter: keeps the rows for which it is true; over any columns of the schema.
        coded: columns of strings or bytes that may be returned as dictionaries; a hint.
    """

    schema: CollectionSchema
    columns: Sequence[str]
    filter: pc.Expression | None = None
    coded: Sequence[str] = ()


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
        schema, columns, filter, coded: see `Request`. `columns` are all by default; no others are read. Row groups
            whose statistics exclude the filter are not read.
        use_threads: whether Arrow may decode columns in parallel.

    Raises:
        CorruptBlob: data disagrees with the descriptor, or is not a part of this collection.
        InvalidUsage: an unknown column, or a filter that does not fit the schema.
    """
    request = Request(schema, schema.arrow.names if columns is None else columns, filter, coded)

    def read(part: Part, request: Request) -> pa.Table:
        """Verify and read a part whose file has the columns of the request's schema."""
        verify_checksum(data, part)
        arrow = request.schema.arrow
        if part.footer is None:
            table = decode_checked(part, decode_batch, data, part, arrow)
            check_updates(table, part)
            return filter_table(table, request.filter, request.columns, arrow)
        file = decode_checked(part, _open_whole, data, part, request, use_threads)
        return file.decode(None, request, use_threads=use_threads)

    return read_adapted(part, request, read)


# Reads requested rows of a part whose file has the columns of the request's schema.
Read = Callable[[Part, Request], pa.Table]


def read_adapted(part: Part, request: Request, read: Read) -> pa.Table:
    """Return the requested rows of a part in the reader's schema version.

    Columns of another version are converted, and rows of a stamped part get the descriptor's time. Raises InvalidUsage
    as `decode_part`.
    """
    schema, columns, filter = request.schema, request.columns, request.filter
    check_projection(schema.arrow, columns, filter)
    arrow, lifted = schema.arrow, part.make_lift(schema)
    if lifted is None and not part.stamped:
        return read(part, request)
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
        sources = lifted.list_source_columns(names) or [TIME]
        stored = read_adapted(part, Request(lifted.stored, sources, within), read)
        return filter_table(lifted.adapt_table(stored, names), filter, columns, arrow)
    by_time = TIME in of_filter
    names = [name for name in dict.fromkeys([*columns, *(of_filter if by_time else ())]) if name != TIME]
    table = read(part.as_stored, Request(schema, names or [DIFF], None if by_time else filter, request.coded))
    if by_time or TIME in columns:
        times = make_int64_array(np.full(len(table), part.time_min, np.int64))
        table = table.append_column(arrow.field(TIME), times)
    return filter_table(table, filter if by_time else None, columns, arrow)


class OpenFile:
    """The verified file of a part, or row groups of it, to decode some columns of some row groups at a time.

    Args:
        part: of this schema version, and not stamped.
        source: a file object with at least the needed bytes, at their positions in the file.
        read_range: returns the bytes from one position to another.
        coded: see `Request`.

    Raises one of `UNREADABLE`: the file cannot be opened.
    """

    def __init__(
        self,
        part: Part,
        schema: CollectionSchema,
        footer: CheckedFooter,
        source: pa.NativeFile,
        read_range: Callable[[int, int], pa.Buffer],
        coded: Sequence[str] = (),
    ) -> None:
        self._part, self._schema, self._arrow, self._footer = part, schema, schema.arrow, footer
        self._read_range = read_range
        self._coded = [name for name in coded if may_be_dictionary(self._arrow.field(name))]
        self._file = open_parquet(source, footer.metadata, self._coded)

    def read(
        self,
        groups: Sequence[int],
        columns: Sequence[str],
        *,
        use_threads: bool = False,
        chosen: npt.NDArray[np.int64] | None = None,
    ) -> pa.Table:
        """Return columns of some row groups, ascending.

        `chosen`: the rows to return and check, ascending; None for all. Row groups without chosen rows are not decoded.

        Raises CorruptBlob: the bytes are not of a part of this collection, or contradict its descriptor.
        """
        table = decode_checked(self._part, self._read_groups, groups, columns, use_threads, chosen)
        check_updates(table, self._part)
        return table

    def read_whole(self) -> pa.Table:
        """Return all columns and rows, even if they contradict the descriptor; raises one of `UNREADABLE`."""
        return self._read_groups(range(len(self._footer.group_rows)), self._arrow.names, True)

    def decode(self, numbers: Sequence[int] | None, request: Request, *, use_threads: bool) -> pa.Table:
        """Return the requested rows of some row groups. None: all that may match.

        Raises:
            CorruptBlob: as `read`.
            InvalidUsage: the filter fails on a value.
        """
        filter, groups = request.filter, range(len(self._footer.group_rows)) if numbers is None else numbers
        if filter is None:
            return self.read(groups, request.columns, use_threads=use_threads)
        values = ValueFilter.find(filter, self._footer, self._part, self._schema)
        try:
            matching = self._footer.list_matching_groups(filter) if numbers is None else numbers
            table = self._scan(matching, request.columns, filter, values, use_threads)
        except UNREADABLE as error:
            # Bad bytes make this read fail too; else the filter failed on a value, as in a division by zero.
            self.read(groups, self._arrow.names, use_threads=use_threads)
            raise make_filter_error(filter, self._arrow, error) from error
        check_updates(table, self._part)
        return table

    def _read_groups(
        self,
        groups: Sequence[int],
        columns: Sequence[str],
        use_threads: bool,
        chosen: npt.NDArray[np.int64] | None = None,
    ) -> pa.Table:
        """Decode columns of row groups; `chosen`: row numbers within the groups."""
        if chosen is not None:
            counts = np.array([self._footer.group_rows[group] for group in groups], np.int64)
            at = counts.cumsum().searchsorted(chosen, "right")  # The row group of each row.
            counts[at] = 0
            chosen = chosen - counts.cumsum()[at]
            groups = [groups[number] for number in np.unique(at)]
        rows = sum(self._footer.group_rows[group] for group in groups)
        use_threads = use_threads and rows * len(columns) >= THREADED_VALUES
        table = self._file.read_row_groups([*groups], columns=list(columns), use_threads=use_threads)
        if table.num_rows != rows:
            raise ValueError(f"it holds {table.num_rows} rows where its footer says {rows}")
        if chosen is not None:
            table = table.take(make_int64_array(chosen))
        return restore_types(table, self._arrow, to_stored_schema(self._arrow)[1], columns, self._coded)

    def _scan(
        self,
        groups: Sequence[int],
        columns: Sequence[str],
        filter: pc.Expression,
        by_values: ValueFilter | None,
        use_threads: bool,
    ) -> pa.Table:
        """Return the rows of some row groups that pass a filter.

        The columns of the filter are decoded first, and others only of row groups where it keeps some row.
        """
        values = None if by_values is None else by_values.read(groups, self._read_range)
        filter = filter if by_values is None else by_values.filter
        value_names = [] if values is None else values.column_names
        kinds = [] if values is None else [pa.string() if pt.is_dictionary(k) else k for k in values.schema.types]
        fields = pa.schema([*self._arrow, *zip(value_names, kinds, strict=True)])
        tested = list_referenced_columns(filter, fields, value_names)
        others = [name for name in columns if name not in tested]
        if values is None or tested:
            table = self._read_groups(groups, tested or columns, use_threads)
            for name, column, kind in () if values is None else zip(value_names, values.columns, kinds, strict=True):
                table = table.append_column(name, column.cast(kind))
        else:
            table = values
        is_coded = values is not None and not tested and pt.is_dictionary(values.schema.types[0])
        kept = find_passing_codes(table, filter) if is_coded else find_passing_rows(table, filter)
        is_whole = len(kept) == len(table)
        table = table.drop_columns(value_names)
        if not is_whole and table.num_columns:
            table = table.take(make_int64_array(kept))
        if (tested or value_names) and others:
            rest = self._read_groups(groups, others, use_threads, None if is_whole else kept)
            columns_read = [*table.columns, *rest.columns]
            table = pa.Table.from_arrays(columns_read, schema=pa.schema([*table.schema, *rest.schema]))
        return table.select([*columns])


def _open_whole(data: bytes | memoryview, part: Part, request: Request, use_threads: bool) -> OpenFile:
    """Open the file of a part, of which all bytes are there; raises as `OpenFile`."""
    buffer, schema = make_lent_buffer(data) if use_threads else pa.py_buffer(data), request.schema
    footer = read_whole_footer(buffer, part, schema.arrow)
    coded = request.coded if request.filter is None else ()

    def read_range(start: int, end: int) -> pa.Buffer:
        return buffer.slice(start, end - start)

    return OpenFile(part, schema, footer, pa.BufferReader(buffer), read_range, coded)


def filter_table(table: pa.Table, filter: pc.Expression | None, columns: Sequence[str], arrow: pa.Schema) -> pa.Table:
    """Return columns of passing rows; raise InvalidUsage if the filter fails."""
    if filter is not None:
        try:
            table = table.filter(filter)
        except UNREADABLE as error:
            raise make_filter_error(filter, arrow, error) from error
    return table if table.column_names == [*columns] else table.select([*columns])


def read_part(data: bytes | memoryview, part: Part, schema: CollectionSchema) -> pa.Table:
    """Read a verified part whole, even if its contents contradict each other.

    Raises CorruptBlob: the part has other columns or another number of rows.
    """
    if part.footer is None:
        return decode_checked(part, decode_batch, data, part, schema.arrow)
    file = decode_checked(part, _open_whole, data, part, Request(schema, ()), True)
    return decode_checked(part, file.read_whole)


def verify_checksum(data: bytes | memoryview, part: Part) -> None:
    """Raise CorruptBlob unless bytes match the checksum of a part."""
    if len(data) != part.bytes:
        raise CorruptBlob(part.name, f"it has {len(data)} bytes, and its descriptor says {part.bytes}")
    if (checksum := compute_checksum(data)) != part.checksum:
        raise CorruptBlob(part.name, f"its checksum is {checksum}, and its descriptor says {part.checksum}")


def decode_checked(part: Part, read: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call a decoder; an error becomes CorruptBlob and names the part."""
    try:
        return read(*args, **options)
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
    """Return a column's integers by chunk; raise CorruptBlob for NULL."""
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
