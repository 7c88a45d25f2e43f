"""Filters: adaptation to stored values, the columns that a filter reads, and the parts that it excludes.

Zero is stored as 0.0 (see `persist.codecs.order.ordering`), and -0.0 is the same value. Arrow's comparisons respect
that, but its look-ups in a set of values (`isin`), also on statistics, compare bits. So each set with one zero gets the
other as well.

An expression cannot be taken apart in Python. Arrow pickles an expression as a record batch, in which the set of each
`isin` is a column: zeros are added there.

The minimum and maximum of their columns decide which parts a filter excludes. Arrow can determine whether an expression
may be true under a guarantee, for fragments of a dataset. So a part becomes a fragment without a file, whose guarantee
is its statistics.

Making a fragment takes longer than testing it, and each plan tests thousands of parts. So parts are tested in groups:
first whether any part of a group may match, by the cached bounds of the whole group; then the parts of matching groups.
Ranges of keys are tested in the same way: the bounds of a range are a guarantee as well.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import and_, attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyarrow.fs import LocalFileSystem

from persist.blob.errors import CorruptBlob
from persist.codecs.part.part import Part, Scalar
from persist.codecs.part.printing import print_filter
from persist.codecs.part.shredding import TEST, rewrite_filter
from persist.codecs.types.arrow_types import Bound, decode_scalar, encode_scalar, is_flat, make_key_order
from persist.codecs.types.schema import CollectionSchema
from persist.codecs.types.widening import is_written_alike

_NAN = re.compile(r"(?<!\w)nan(?!\w)", re.IGNORECASE)
_FUNCTION = re.compile(r"(\w+)\(")
_PLAIN_FUNCTIONS = {"invert", "is_null", "is_valid", "is_nan", "is_in", "if_else"}
_PLAIN_FUNCTIONS |= {"starts_with", "ends_with", "match_substring", TEST}
_CHECKSUM, _SCHEMA = attrgetter("checksum"), attrgetter("schema")
_Group = tuple[str, tuple[int, ...]]  # The contents of its parts, and the versions of the schema that wrote them.
GROUP_MAX = 128
GROUPS_KNOWN_MAX, SCHEMAS_MAX = 8192, 16
# Guarantees of groups of parts, by contents, for recently used schemas.
_KNOWN_GROUPS: dict[CollectionSchema, dict[_Group, pc.Expression]] = {}
_SET = "value_set"  # Arrow's name for the set in the options of set look-ups.


def add_both_zeros(filter: pc.Expression) -> pc.Expression:
    """Extend a filter's sets of floats: with either zero, both are members."""
    if "is_in(" not in print_filter(filter):
        return filter
    rebuild, (serialised, *arguments) = filter.__reduce__()
    batch = _decode_literals(serialised)
    columns = [_add_zeros_to_options(column) for column in batch.columns]
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return filter
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    return rebuild(sink.getvalue(), *arguments)


def _decode_literals(serialised: pa.Buffer) -> pa.RecordBatch:
    """Return a serialised filter's literals and function options as one row."""
    return pa.ipc.open_file(serialised).read_all().combine_chunks().to_batches()[0]


def _find_float_set(options: pa.Array) -> int:
    """Return the index of a set of floats in options, or -1."""
    kind = options.type
    at = kind.get_field_index(_SET) if pt.is_struct(kind) else -1
    is_floats = at >= 0 and pt.is_list(kind.field(at).type) and pt.is_floating(kind.field(at).type.value_type)
    return at if is_floats else -1


def _add_zeros_to_options(options: pa.Array) -> pa.Array:
    """Add the other zero to a function's options if its set has 0.0 or -0.0."""
    kind, at = options.type, _find_float_set(options)
    if at < 0:
        return options
    item = kind.field(at).type.value_type
    values = options.field(at).flatten()
    numbers = values.cast(pa.float64()).drop_null().to_numpy()
    zeros = np.signbit(numbers[numbers == 0.0])
    if not len(zeros) or (zeros.any() and not zeros.all()):
        return options
    extended = pa.concat_arrays([values, pa.array([0.0, -0.0], pa.float64()).cast(item)])
    fields = [options.field(field) for field in range(kind.num_fields)]
    fields[at] = pa.ListArray.from_arrays(pa.array([0, len(extended)], pa.int32()), extended, type=kind.field(at).type)
    return pa.StructArray.from_arrays(fields, fields=[kind.field(field) for field in range(kind.num_fields)])


def bind_filter(filter: pc.Expression, schema: pa.Schema) -> None:
    """Raise an error of Arrow unless a filter can be evaluated over columns. Cost: 20 µs, because it is only bound."""
    from pyarrow.dataset import Scanner

    bound = Scanner.from_batches([], schema=schema, columns={"": filter}).projected_schema
    if bound.types != [pa.bool_()]:
        raise pa.ArrowTypeError(f"a condition is true or false, and {filter} is {bound.types[0]}")


def list_referenced_columns(filter: pc.Expression, schema: pa.Schema, besides: Sequence[str] = ()) -> list[str]:
    """Return the columns that a filter reads, other than `besides`; possibly a superset."""
    text = print_filter(filter)
    candidates = [name for name in schema.names if name not in besides]
    named = candidates if "..." in text else [name for name in candidates if name in text]
    try:
        bind_filter(filter, pa.schema([schema.field(name) for name in (*besides, *named)]))
    except (pa.ArrowException, TypeError, ValueError):
        return candidates
    return named


def may_compare_with_nan(filter: pc.Expression) -> bool:
    """Return whether a filter may compare with NaN: it has a NaN literal, or a function that may return NaN."""
    text = print_filter(filter)
    if _NAN.search(text) or not _PLAIN_FUNCTIONS.issuperset(_FUNCTION.findall(text)):
        return True
    return "..." in text and any(
        map(_has_nan, _decode_literals(filter.__reduce__()[1][0]).columns)
    )  # It is cut when printed.


def _has_nan(options: pa.Array) -> bool:
    """Return whether a function's options include a set with NaN."""
    at = _find_float_set(options)
    return at >= 0 and bool(pc.any(pc.is_nan(options.field(at).flatten())).as_py())


def select_matching_parts(parts: Sequence[Part], filter: pc.Expression, schema: CollectionSchema) -> list[Part]:
    """Return the parts that may have a row that passes a filter, in their order. No I/O.

    Cost: O(groups of parts) plus O(parts in groups that may match); the first time, O(parts).
    """
    rewritten = rewrite_filter(filter, schema, None)
    filter, values = (filter, pa.schema([])) if rewritten is None else rewritten
    arrow = pa.schema([*schema.arrow, *values])
    if may_compare_with_nan(filter):
        return list(parts)
    candidates: Sequence[Part] = parts
    if len(parts) > GROUP_MAX:
        groups = _group_parts(parts)
        guarantees_by_group = _load_group_cache(schema)
        guarantees = []
        for group in groups:
            key = "".join(map(_CHECKSUM, group)), tuple(map(_SCHEMA, group))
            guarantee = guarantees_by_group.get(key)
            if guarantee is None:
                if len(guarantees_by_group) >= GROUPS_KNOWN_MAX:
                    guarantees_by_group.clear()
                guarantee = guarantees_by_group[key] = _make_group_guarantee(group, schema)
            guarantees.append(guarantee)
        candidates = [part for at in _select_matching(guarantees, filter, arrow) for part in groups[at]]
    named = list_referenced_columns(filter, arrow, values.names)
    guarantees = [
        _make_guarantee(part, schema, named) & _make_value_guarantee(part, schema, values) for part in candidates
    ]
    matching = _select_matching(guarantees, filter, arrow)
    return [candidates[at] for at in matching]


def select_matching_ranges(
    ranges: Sequence[tuple[Bound | None, Bound | None]],
    filter: pc.Expression,
    schema: CollectionSchema,
    key: Sequence[str],
) -> list[int]:
    """Return the positions of key ranges that may have a matching row. No I/O.

    Cost: some tens of µs for each range.

    Args:
        ranges: the least and the greatest key of each, in the form of descriptors; None for no bound.
        schema: of the filtered rows.
        key: the columns of the keys, by their names in schema.
    """
    if may_compare_with_nan(filter):
        return [*range(len(ranges))]
    kinds = [schema.arrow.field(name).type for name in key]
    return _select_matching(
        [_make_range_condition(least, greatest, key, kinds) for least, greatest in ranges], filter, schema.arrow
    )


def _make_range_condition(
    least: Bound | None, greatest: Bound | None, key: Sequence[str], kinds: Sequence[pa.DataType]
) -> pc.Expression:
    """Return a condition that holds for all keys from least to greatest."""
    guarantees = []
    for at, (name, kind) in enumerate(zip(key, kinds, strict=True)):
        field, is_open = pc.field(name), greatest is None or greatest[at] is None
        if least is None and is_open:
            break
        low, high = (None if bound is None else bound[at] for bound in (least, greatest))
        if least is not None and low is None:  # NULL is the last of all.
            guarantees.append(field.is_null())
        elif not is_open and low is not None:
            guarantees.append(_make_column_guarantee("", kind, name, low, high, 0))
        elif pt.is_floating(kind) or not _is_compared(kind):
            break  # NaN is greater than all numbers, and is not as Arrow compares it.
        elif is_open:
            guarantees.append((field >= decode_scalar(low, kind)) | field.is_null())
        else:
            guarantees.append(field <= decode_scalar(high, kind))
        if least is None or greatest is None or low != high:
            break
    return _conjoin(guarantees)


def _is_compared(kind: pa.DataType) -> bool:
    """Return whether Arrow has comparisons for a type."""
    return not (pt.is_float16(kind) or pt.is_duration(kind) or pt.is_fixed_size_binary(kind))


def _load_group_cache(schema: CollectionSchema) -> dict[_Group, pc.Expression]:
    """Return the cached guarantees of groups of parts, for a schema."""
    groups = _KNOWN_GROUPS.get(schema)
    if groups is None:
        if len(_KNOWN_GROUPS) >= SCHEMAS_MAX:
            _KNOWN_GROUPS.clear()
        groups = _KNOWN_GROUPS[schema] = {}
    return groups


def _group_parts(parts: Sequence[Part]) -> list[Sequence[Part]]:
    """Cut parts into groups of at most `GROUP_MAX`, and about 50 on average.

    A part's content determines whether a group ends with it, so groups stay the same when other parts are added or
    removed.
    """
    groups: list[Sequence[Part]] = []
    ends, start = [at for at, part in enumerate(parts, 1) if part.checksum < "05"], 0
    for end in (*ends, len(parts)):
        groups += (parts[at : min(at + GROUP_MAX, end)] for at in range(start, end, GROUP_MAX))
        start = end
    return groups


def _select_matching(guarantees: Sequence[pc.Expression], filter: pc.Expression, schema: pa.Schema) -> list[int]:
    """Return the ascending positions of guarantees under which a filter may hold."""
    # Here, because importing it imports pandas where there is one, which every worker process would wait for.
    from pyarrow.dataset import FileSystemDataset, ParquetFileFormat

    format_, nowhere = ParquetFileFormat(), LocalFileSystem()
    fragments = [
        format_.make_fragment(str(at), nowhere, partition_expression=guarantee)
        for at, guarantee in enumerate(guarantees)
    ]
    dataset = FileSystemDataset(fragments, schema, format_, nowhere)
    return [int(fragment.path) for fragment in dataset.get_fragments(filter)]


def _make_guarantee(part: Part, schema: CollectionSchema, names: Sequence[str]) -> pc.Expression:
    """Return a condition that all rows of a part meet, from statistics."""
    stats = _load_stats(part, schema)
    return _conjoin(
        _make_stats_guarantee(part.name, schema.arrow, name, part.rows, *stats[name]) for name in names if name in stats
    )


def _make_value_guarantee(part: Part, schema: CollectionSchema, values: pa.Schema) -> pc.Expression:
    """Return a condition on stored JSON values that all rows meet."""
    if not values:
        return pc.scalar(True)
    lifted, stats = part.make_lift(schema), part.stats
    columns = (schema if lifted is None else lifted.stored).names
    return _conjoin(
        _make_stats_guarantee(part.name, values, name, part.rows, *stats[name])
        for name in values.names
        if name in stats and name not in columns
    )


def _make_group_guarantee(parts: Sequence[Part], schema: CollectionSchema) -> pc.Expression:
    """Return a condition that all rows of all these parts meet."""
    rows, stats = sum(part.rows for part in parts), [_load_stats(part, schema) for part in parts]
    guarantees = []
    for name in stats[0]:
        if not all(name in of_part for of_part in stats):
            continue
        order = make_key_order((schema.arrow.field(name).type,))
        bounds = []
        for part, of_part in zip(parts, stats, strict=True):
            least, greatest, nulls = of_part[name]
            if least is not None and greatest is not None:
                bounds.append((least, greatest))
            elif nulls != part.rows:
                break  # It has no bound for this column.
        else:
            try:
                least = min((low for low, _ in bounds), key=lambda value: order([value]), default=None)
                greatest = max((high for _, high in bounds), key=lambda value: order([value]), default=None)
            except (ValueError, ArithmeticError) as error:
                raise CorruptBlob(parts[0].name, f"descriptors have wrong statistics of {name!r}: {error}") from error
            nulls = sum(of_part[name][2] for of_part in stats)
            guarantees.append(_make_stats_guarantee(parts[0].name, schema.arrow, name, rows, least, greatest, nulls))
    return _conjoin(guarantees)


def _conjoin(guarantees: Iterable[pc.Expression | None]) -> pc.Expression:
    """Return the conjunction of the conditions that are not None."""
    return reduce(and_, (guarantee for guarantee in guarantees if guarantee is not None), pc.scalar(True))


def _load_stats(part: Part, schema: CollectionSchema) -> Mapping[str, tuple[Scalar, Scalar, int]]:
    """Return the known statistics of columns: the least and greatest value, and the number of NULLs.

    Statistics of a part of another schema version are matched by column id. A column younger than the part has one
    value, its default. A widened column has no statistics, except integers and text, whose JSON forms stay the same.
    """
    lifted, stats = part.make_lift(schema), part.stats
    if lifted is None:
        return {name: stats[name] for name in schema.names if name in stats}
    bounds: dict[str, tuple[Scalar, Scalar, int]] = {}
    for name in lifted.wanted.names:
        source, kind = lifted.sources.get(name), lifted.wanted.arrow.field(name).type
        if source is None:
            if lifted.is_younger and is_flat(kind):
                default = lifted.get_default(name)
                written: Any = encode_scalar(default)
                bounds[name] = written, written, 0 if default.is_valid else part.rows
        elif source in stats and is_written_alike(lifted.stored.arrow.field(source).type, kind):
            bounds[name] = stats[source]
    return bounds


def _make_stats_guarantee(
    part: str, schema: pa.Schema, name: str, rows: int, least: Scalar, greatest: Scalar, nulls: int
) -> pc.Expression | None:
    """Return a condition that a column meets by its statistics; None if they imply none."""
    if least is None or greatest is None:
        return pc.field(name).is_null() if nulls == rows else None
    return _make_column_guarantee(part, schema.field(name).type, name, least, greatest, nulls)


def _make_column_guarantee(
    part: str, type_: pa.DataType, name: str, least: Scalar, greatest: Scalar, nulls: int
) -> pc.Expression | None:
    """Return the condition that a column is within bounds or NULL. None if Arrow cannot compare it."""
    field = pc.field(name)
    if not _is_compared(type_):
        return None
    try:
        low, high = decode_scalar(least, type_), decode_scalar(greatest, type_)
    except ValueError as error:
        raise CorruptBlob(part, f"its descriptor has wrong statistics of column {name!r}: {error}") from error
    if pt.is_floating(type_) and (pc.is_nan(low).as_py() or pc.is_nan(high).as_py()):
        return None  # NaN lies within no bounds as Arrow compares them.
    if nulls == 0:
        return (field >= low) & (field <= high)
    # Each bound by itself allows for NULL: Arrow makes nothing of a NULL that is allowed for both together.
    return ((field >= low) | field.is_null()) & ((field <= high) | field.is_null())
