"""What a Delta table has types for, and what a failed export to one leaves behind.

Delta has signed integers, float32 and float64, decimals of at most 38 digits, days, microseconds and UTC. The package
deltalake casts to these what is near to them: it cuts nanoseconds and takes unsigned integers for signed ones of the
same width. So a type passes only if all its values come back from Delta as equal values. Lengths that are fixed, the
name of a time zone and the width of offsets are lost on the way, and no value with them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.types as pt

from persist.blob import InvalidUsage


def check_delta_types(schema: pa.Schema) -> None:
    """Refuse columns that Delta has no type for.

    Raises:
        InvalidUsage: names the first one.
    """
    for field in schema:
        lost = _unknown(field.type)
        if lost is not None:
            inside = "" if lost == field.type else f", because of {lost} in it"
            raise InvalidUsage(
                f"Delta has no type for column {field.name!r} of type {field.type}{inside}, so nothing was written: "
                "leave it out with columns=, or export to Parquet, which keeps all types. Delta has bool, int8 to "
                "int64, float32, float64, decimal128, strings, binary, dates, timestamps to the microsecond, and "
                "lists, maps and structs of those"
            )


def _unknown(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that Delta does not have: a type itself, or one inside it."""
    if pt.is_nested(kind):
        found = (_unknown(kind.field(at).type) for at in range(kind.num_fields))
        return next((each for each in found if each is not None), None)
    is_known = (
        pt.is_boolean(kind) or pt.is_signed_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)
        or pt.is_decimal128(kind) or pt.is_date(kind) or (pt.is_timestamp(kind) and kind.unit != "ns")
        or pt.is_string(kind) or pt.is_large_string(kind)
        or pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind)
    )  # fmt: skip
    return None if is_known else kind


@contextmanager
def no_empty_folder(uri: str) -> Iterator[None]:
    """Delete the folder of a table that a failure has left empty, if it was not there before.

    Only what is empty goes: files may be those of somebody else who makes the table at the same time.
    """
    is_url = "://" in uri
    from urllib.request import url2pathname  # Here, because it loads HTTP and TLS, which nothing else needs.

    path = url2pathname(urlsplit(uri).path) if uri.startswith("file://") else uri
    was_there = (is_url and not uri.startswith("file://")) or os.path.lexists(path)
    try:
        yield
    except BaseException:
        if not was_there:
            for folder in (os.path.join(path, "_delta_log"), path):
                with suppress(OSError):
                    os.rmdir(folder)
        raise
