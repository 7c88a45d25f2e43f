"""Which parts a filter can leave out, by the minimum and maximum of their columns.

Arrow can tell whether an expression may be true under a guarantee, and offers that for the fragments of a dataset: so a
part becomes a fragment without a file, guaranteed to lie within its statistics.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow.fs import LocalFileSystem

from persist.blob import CorruptBlob
from persist.codecs.part.decoding import part_lift
from persist.codecs.part.filters import may_compare_with_nan
from persist.codecs.part.part import Part, Scalar
from persist.codecs.types.evolution import Lift, is_written_alike
from persist.codecs.types.scalars import is_flat, scalar_from_json, scalar_to_json
from persist.codecs.types.schema import CollectionSchema


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
    lifted = part_lift(part, schema)
    if lifted is not None:
        return _lifted_guarantee(part, lifted)
    stats = part.stats
    known = (_column_guarantee(name, schema, part, *stats[name]) for name in schema.names if name in stats)
    return reduce(and_, (each for each in known if each is not None), pc.scalar(True))


def _lifted_guarantee(part: Part, lifted: Lift) -> pc.Expression:
    """Return the same of a part of another version of the schema, for columns that are there under any name.

    What a column that is younger than the part has is known, too. Of one that was widened nothing is said, but for
    integers and text, whose values are written alike.
    """
    stats, found = part.stats, []
    for name in lifted.wanted.names:
        source, kind = lifted.sources.get(name), lifted.wanted.arrow.field(name).type
        if source is None:
            if lifted.is_younger and is_flat(kind):
                default = lifted.default(name)
                written: Any = scalar_to_json(default)
                nulls = 0 if default.is_valid else part.rows
                found.append(_column_guarantee(name, lifted.wanted, part, written, written, nulls))
        elif source in stats and is_written_alike(lifted.stored.arrow.field(source).type, kind):
            found.append(_column_guarantee(name, lifted.wanted, part, *stats[source]))
    return reduce(and_, (each for each in found if each is not None), pc.scalar(True))


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
