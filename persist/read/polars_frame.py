"""Arrow tables as Polars takes them without a value that changes.

Polars counts milliseconds at least. It multiplies what comes in seconds without looking, and huge values wrap.
"""

import pyarrow as pa
import pyarrow.types as pat

from persist.blob import InvalidUsage
from persist.codecs import children, with_children


def in_milliseconds(table: pa.Table) -> pa.Table:
    """Return a table whose moments and durations in seconds are in milliseconds, at whatever depth: as Polars has them.

    Raises:
        InvalidUsage: one does not fit.
    """
    try:
        wanted = pa.schema([field.with_type(_in_milliseconds(field.type)) for field in table.schema])
        return table if wanted == table.schema else table.cast(wanted)
    except pa.ArrowException as error:
        raise InvalidUsage(
            f"a moment or a duration in seconds does not fit Polars, which counts milliseconds at least: {error}. Read "
            'it as Arrow; times also with times="int"'
        ) from error


def _in_milliseconds(kind: pa.DataType) -> pa.DataType:
    if pat.is_nested(kind):
        inner = [field.type for field in children(kind)]
        made = [_in_milliseconds(each) for each in inner]
        return kind if made == inner else with_children(kind, made)
    if pat.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    return pa.duration("ms") if kind == pa.duration("s") else kind
