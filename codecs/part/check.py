"""Whether a part keeps the promises of its writer: for the examination of a location, not for reading.

`check_part` takes bytes whose length and checksum are those of the descriptor, and says what else is wrong. The
descriptor is computed again by the function that the writer uses, and compared member by member.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from persist.blob import CorruptBlob, IncompatibleVersion
from persist.codecs.order.digits import dense_ranks
from persist.codecs.order.ordering import canonical, order_keys, row_sorter
from persist.codecs.part.decoding import read_part
from persist.codecs.part.describing import describe_batch, describe_part, footer_of
from persist.codecs.part.index import check_index
from persist.codecs.part.part import Part
from persist.codecs.types.arrow_types import leaf_arrays
from persist.codecs.types.scalars import scalar_from_json
from persist.codecs.types.schema import DIFF, TIME, TIME_MAX, CollectionSchema

_COUNTED = ("bytes", "rows", "checksum", "footer", "time_min", "time_max", "negatives", "diff_sum")


@dataclass(frozen=True, slots=True)
class Finding:
    """One promise that is broken: "descriptor", "values", "unsorted" or "unconsolidated", and in what way."""

    kind: Literal["descriptor", "values", "unsorted", "unconsolidated"]
    what: str


def check_part(
    data: bytes | memoryview, part: Part, schema: CollectionSchema
) -> tuple[tuple[Finding, ...], pa.Table | None]:
    """Return what is wrong with a part, and its least and greatest key: a table of two rows, None if unknown.

    Cost: all of the part is decoded and sorted. Memory: the decoded part, and 24 bytes a row.
    """
    try:
        table = read_part(data, part, schema).combine_chunks()
    except CorruptBlob as error:
        return (Finding("descriptor", error.reason),), None
    if table.num_rows == 0:
        return (Finding("descriptor", "it has no row, and there is no such part"),), None
    found = list(_value_findings(table, schema.required))
    if any(table.column(name).null_count for name in (TIME, DIFF)):
        return tuple(found), None  # Nothing else can be computed.
    if not found:
        if part.footer is None:
            found += _descriptor_findings(part, describe_batch(bytes(data), table, schema))
        else:
            found += _descriptor_findings(part, describe_part(data, table, schema))
            found += _index_findings(data, part, schema)
    order, starts = row_sorter(canonical(table), [*schema.names, TIME]).sort()
    moved = np.flatnonzero(order != np.arange(len(order)))
    if len(moved):
        found.append(
            Finding("unsorted", f"{len(moved)} of its {len(order)} rows are not in order, row {moved[0]} first")
        )
    equal = np.flatnonzero(~starts)
    if len(equal):
        rows = sorted((int(order[equal[0] - 1]), int(order[equal[0]])))
        found.append(
            Finding(
                "unconsolidated",
                f"its rows {rows[0]} and {rows[1]} are equal in key, value and time; so are {len(equal) - 1} more",
            )
        )
    keys = table.select(schema.key_names)
    return tuple(found), keys.take(pa.array([order[0], order[-1]]))


def described_bounds(part: Part, schema: CollectionSchema) -> pa.Table | None:
    """Return the least and greatest key as the descriptor has them: two rows; None if it does not say, or nonsense."""
    try:
        if not (keys := part.keys):
            return None
        fields = zip(schema.key.fields, keys[0], keys[-1], strict=True)
        columns = {
            field.name: pa.array([scalar_from_json(each, field.type).as_py() for each in ends], field.type)
            for field, *ends in fields
        }
    except (CorruptBlob, ValueError, pa.ArrowException):
        return None
    return pa.table(columns)


def overlaps(bounds: Sequence[pa.Table], schema: CollectionSchema) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions in bounds (tables of two rows, least and greatest key) that overlap in key.

    Not all pairs that do, but one for each part that overlaps with any before it.
    """
    if len(bounds) < 2:
        return
    if not schema.key_names:  # All rows have the same key.
        yield from ((0, other) for other in range(1, len(bounds)))
        return
    table = canonical(pa.concat_tables(bounds).combine_chunks())
    ranks = dense_ranks(order_keys(table, schema.key_names)).reshape(-1, 2).tolist()
    furthest: int | None = None
    for n in sorted(range(len(bounds)), key=lambda position: ranks[position]):
        if furthest is not None and ranks[n][0] <= ranks[furthest][1]:
            yield furthest, n
        if furthest is None or ranks[n][1] > ranks[furthest][1]:
            furthest = n


def _value_findings(table: pa.Table, required: Sequence[str]) -> Iterator[Finding]:
    for name in required:
        if nulls := table.column(name).null_count:
            yield Finding("values", f"its column {name!r} is not null by the schema, and has {nulls} NULLs")
    for name in (TIME, DIFF):
        if nulls := table.column(name).null_count:
            yield Finding("values", f"its column {name} has {nulls} NULLs")
            return
    times, diffs = table.column(TIME).to_numpy(), table.column(DIFF).to_numpy()
    if outside := int(np.count_nonzero((times < 0) | (times > TIME_MAX))):
        yield Finding("values", f"{outside} of its times are outside [0, {TIME_MAX}]")
    if zeros := int(np.count_nonzero(diffs == 0)):
        yield Finding("values", f"{zeros} of its diffs are 0")
    for field, column in zip(table.schema, table.columns, strict=True):
        if not all(_is_canonical(leaf) for chunk in column.chunks for leaf in leaf_arrays(chunk)):
            yield Finding("values", f"its column {field.name!r} has floats that are not in their one form")


def _is_canonical(array: pa.Array) -> bool:
    if not pt.is_floating(array.type):
        return True
    values = array.drop_null().to_numpy(zero_copy_only=False)
    bits = values.view(f"u{values.dtype.itemsize}")
    nan = np.array(np.nan, dtype=values.dtype).view(bits.dtype)
    return not bool(((np.isnan(values) & (bits != nan)) | ((values == 0) & (bits != 0))).any())


def _descriptor_findings(said: Part, is_: Part) -> Iterator[Finding]:
    for name in _COUNTED:
        if getattr(said, name) != getattr(is_, name):
            yield _differs(name, getattr(said, name), getattr(is_, name))
    try:
        keys, stats = said.keys, said.stats
    except CorruptBlob as error:
        yield Finding("descriptor", error.reason)
        return
    if keys is not None and _text(keys) != _text(is_.keys):
        yield _differs("keys", keys, is_.keys)
    for column, found in stats.items():  # It may leave out any, and must not add one.
        if _text(found) != _text(is_.stats.get(column)):
            yield _differs(f"stats of {column!r}", found, is_.stats.get(column))


def _index_findings(data: bytes | memoryview, part: Part, schema: CollectionSchema) -> Iterator[Finding]:
    if part.footer != footer_of(data):
        return  # Which is a finding already.
    try:
        check_index(data, part, schema)
    except CorruptBlob as error:
        yield Finding("descriptor", error.reason)
    except IncompatibleVersion as error:
        yield Finding("descriptor", f"its index has the version {error.found}, which is not known")


def _differs(name: str, said: object, is_: object) -> Finding:
    return Finding("descriptor", f"its descriptor says {name} {_text(said):.200}, and it is {_text(is_):.200}")


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
