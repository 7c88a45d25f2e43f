"""Filters as callers write them, made to mean what they say about the values that are stored; and what they look at.

Zero is stored as 0.0 (see `persist.codecs.order.ordering`), and -0.0 is the same value. Arrow's comparisons know that.
Its look-ups in a set of values (`isin`) go by bits instead, and so does what it concludes from statistics. So each set
that holds the one zero is given the other one, too.

An expression cannot be taken apart in Python. What Arrow makes of it for pickling is a record batch, in which the set
of each `isin` is a column: that is where the zeros are added.
"""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_NAN = re.compile(r"(?<!\w)nan(?!\w)", re.IGNORECASE)
_FUNCTION = re.compile(r"(\w+)\(")
_PLAIN_FUNCTIONS = {"invert", "is_null", "is_valid", "is_nan", "is_in"}
_PLAIN_FUNCTIONS |= {"starts_with", "ends_with", "match_substring"}
_SET = "value_set"  # What Arrow calls the set in the options of a function that looks values up.


def with_both_zeros(filter: pc.Expression) -> pc.Expression:
    """Return a filter in which each set of values that holds 0.0 or -0.0 holds both; itself if there is none."""
    if "is_in(" not in str(filter):
        return filter
    rebuild, (serialised, *others) = filter.__reduce__()
    batch = pa.ipc.open_file(serialised).read_all().combine_chunks().to_batches()[0]
    columns = [_with_both(column) for column in batch.columns]
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return filter
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    return rebuild(sink.getvalue(), *others)


def _with_both(options: pa.Array) -> pa.Array:
    """Return the options of a function, one row, with both zeros in their set if it has one of them."""
    kind = options.type
    at = kind.get_field_index(_SET) if pt.is_struct(kind) else -1
    if at < 0 or not (pt.is_list(kind.field(at).type) and pt.is_floating(kind.field(at).type.value_type)):
        return options
    item = kind.field(at).type.value_type
    values = options.field(at).flatten()
    numbers = values.cast(pa.float64()).drop_null().to_numpy()
    zeros = np.signbit(numbers[numbers == 0.0])
    if not len(zeros) or (zeros.any() and not zeros.all()):
        return options
    both = pa.concat_arrays([values, pa.array([0.0, -0.0], pa.float64()).cast(item)])
    fields = [options.field(each) for each in range(kind.num_fields)]
    fields[at] = pa.ListArray.from_arrays(pa.array([0, len(both)], pa.int32()), both, type=kind.field(at).type)
    return pa.StructArray.from_arrays(fields, fields=[kind.field(each) for each in range(kind.num_fields)])


def columns_of(filter: pc.Expression, schema: pa.Schema, besides: Sequence[str] = ()) -> list[str]:
    """Names of the columns, besides some, over which filter can be computed; more than these if that is hard to say."""
    text = str(filter)
    others = [name for name in schema.names if name not in besides]
    named = others if "..." in text else [name for name in others if name in text]
    try:
        schema.empty_table().select([*besides, *named]).filter(filter)
    except (pa.ArrowException, TypeError, ValueError):
        return others
    return named


def may_compare_with_nan(filter: pc.Expression) -> bool:
    """Whether a filter has NaN among its literals or may compute it: it computes something, or is cut when printed."""
    text = str(filter)
    return bool(_NAN.search(text)) or "..." in text or not _PLAIN_FUNCTIONS.issuperset(_FUNCTION.findall(text))
