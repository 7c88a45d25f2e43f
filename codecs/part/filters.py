"""Filters as callers write them: made to mean what they say of stored values, what they look at, what they leave out.

Zero is stored as 0.0 (see `persist.codecs.order.ordering`), and -0.0 is the same value. Arrow's comparisons know that.
Its look-ups in a set of values (`isin`) go by bits instead, and so does what it concludes from statistics. So each set
that holds the one zero is given the other one, too.

An expression cannot be taken apart in Python. What Arrow makes of it for pickling is a record batch, in which the set
of each `isin` is a column: that is where the zeros are added.

Which parts a filter leaves out follows from the minimum and maximum of their columns. Arrow can tell whether an
expression may be true under a guarantee, and offers that for the fragments of a dataset: so a part becomes a fragment
without a file, guaranteed to lie within its statistics.
"""

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow.fs import LocalFileSystem

from persist.blob import CorruptBlob
from persist.codecs.part.part import Part, Scalar
from persist.codecs.types.arrow_types import is_flat, scalar_from_json, scalar_to_json
from persist.codecs.types.evolution import Lift, is_written_alike
from persist.codecs.types.schema import CollectionSchema

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
    fields = [options.field(field) for field in range(kind.num_fields)]
    fields[at] = pa.ListArray.from_arrays(pa.array([0, len(both)], pa.int32()), both, type=kind.field(at).type)
    return pa.StructArray.from_arrays(fields, fields=[kind.field(field) for field in range(kind.num_fields)])


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


def parts_that_may_match(parts: Sequence[Part], filter: pc.Expression, schema: CollectionSchema) -> list[Part]:
    """Return the parts that may hold a row for which filter is true, in their order. No I/O."""
    if may_compare_with_nan(filter):
        return list(parts)
    # Here, because importing it imports pandas where there is one, which every worker process would wait for.
    from pyarrow.dataset import FileSystemDataset, ParquetFileFormat

    format_, nowhere = ParquetFileFormat(), LocalFileSystem()
    fragments = [
        format_.make_fragment(str(at), nowhere, partition_expression=_guarantee(part, schema))
        for at, part in enumerate(parts)
    ]
    dataset = FileSystemDataset(fragments, schema.arrow, format_, nowhere)
    return [parts[int(fragment.path)] for fragment in dataset.get_fragments(filter)]


def _guarantee(part: Part, schema: CollectionSchema) -> pc.Expression:
    lifted = part.lift(schema)
    if lifted is not None:
        return _lifted_guarantee(part, lifted)
    stats = part.stats
    known = (_column_guarantee(name, schema, part, *stats[name]) for name in schema.names if name in stats)
    return reduce(and_, (guarantee for guarantee in known if guarantee is not None), pc.scalar(True))


def _lifted_guarantee(part: Part, lifted: Lift) -> pc.Expression:
    """Return the same of a part of another version of the schema, for columns that are there under any name.

    What a column that is younger than the part has is known, too. Of one that was widened nothing is said, but for
    integers and text, whose values are written alike.
    """
    stats, guarantees = part.stats, []
    for name in lifted.wanted.names:
        source, kind = lifted.sources.get(name), lifted.wanted.arrow.field(name).type
        if source is None:
            if lifted.is_younger and is_flat(kind):
                default = lifted.default(name)
                written: Any = scalar_to_json(default)
                nulls = 0 if default.is_valid else part.rows
                guarantees.append(_column_guarantee(name, lifted.wanted, part, written, written, nulls))
        elif source in stats and is_written_alike(lifted.stored.arrow.field(source).type, kind):
            guarantees.append(_column_guarantee(name, lifted.wanted, part, *stats[source]))
    return reduce(and_, (guarantee for guarantee in guarantees if guarantee is not None), pc.scalar(True))


def _column_guarantee(
    name: str, schema: CollectionSchema, part: Part, least: Scalar, greatest: Scalar, nulls: int
) -> pc.Expression | None:
    """Return what the statistics promise of a column: its bounds, or that it is NULL; None if nothing useful."""
    type_ = schema.arrow.field(name).type
    field = pc.field(name)
    if least is None or greatest is None:
        return field.is_null() if nulls == part.rows else None
    if pt.is_float16(type_) or pt.is_duration(type_) or pt.is_fixed_size_binary(type_):
        return None  # Arrow cannot compare them.
    try:
        low, high = scalar_from_json(least, type_), scalar_from_json(greatest, type_)
    except ValueError as error:
        raise CorruptBlob(part.name, f"its descriptor has wrong statistics of column {name!r}: {error}") from error
    if pt.is_floating(type_) and (pc.is_nan(low).as_py() or pc.is_nan(high).as_py()):
        return None  # NaN lies within no bounds as Arrow compares them.
    if nulls == 0:
        return (field >= low) & (field <= high)
    # Each bound by itself allows for NULL: Arrow makes nothing of a NULL that is allowed for both together.
    return ((field >= low) | field.is_null()) & ((field <= high) | field.is_null())
