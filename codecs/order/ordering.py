"""The order of rows and the equality of values, for every supported Arrow type.

`docs/inside/format.md` ("Order, equality and values") defines both. Two rows are equal when neither sorts before the
other, so NULL equals NULL and NaN equals NaN. Arrow's own kernels distinguish -0.0 from 0.0 and NaNs by their bits, so
`make_canonical` is called before anything is stored or compared.

Rows in a part and the key ranges of parts have this order, so the order belongs to the storage format.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from persist.codecs.order.arrays import get_boolean_values, get_stored_numbers, make_int64_array
from persist.codecs.order.digits import Flags, Rows, compute_dense_ranks, sort_rows
from persist.codecs.types.arrow_types import has_floats

_OFFSET_BYTES_MAX = 2**31 - 1


def make_canonical(table: pa.Table) -> pa.Table:
    """Rewrite -0.0 to 0.0 and every NaN to one bit pattern, nested floats included.

    Returns table itself when nothing needs rewriting; costs one pass over its floats.
    """
    for i, field in enumerate(table.schema):
        if has_floats(field.type):
            stored = table.column(i).chunks
            chunks = [_make_canonical_array(chunk) for chunk in stored]
            if any(new is not old for new, old in zip(chunks, stored, strict=True)):
                table = table.set_column(i, field, pa.chunked_array(chunks, type=field.type))
    return table


def make_order_keys(table: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    """Return for each named column a flat array with the same order, for Acero.

    Flat columns stay unchanged (float16 widens to float32); nested ones become dense int64 ranks, which are comparable
    within one call only. Floats must be canonical.
    """
    return [_make_order_key(combine_chunks(table.column(name))) for name in names]


def sort_table(table: pa.Table, names: Sequence[str]) -> tuple[Rows, Flags]:
    """Sort the rows of a canonical table by the named columns; see `sort_rows`."""
    return sort_rows(make_order_keys(table, names))


def sort_indices(table: pa.Table, names: Sequence[str]) -> pa.Array:
    """Return the row numbers of a canonical table in the order of the named columns, int64[n]; stable."""
    if not names:
        return make_int64_array(np.arange(table.num_rows, dtype=np.int64))
    return make_int64_array(sort_table(table, names)[0])


def combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, with 64-bit offsets if its bytes need them."""
    if column.num_chunks == 1:
        return column.chunk(0)
    kind = column.type
    if (pt.is_string(kind) or pt.is_binary(kind)) and column.nbytes > _OFFSET_BYTES_MAX:
        column = column.cast(pa.large_string() if pt.is_string(kind) else pa.large_binary())
    array = column.combine_chunks()
    return array.chunk(0) if isinstance(array, pa.ChunkedArray) else array


def _make_order_key(array: pa.Array) -> pa.Array:
    """Return a flat array that sorts like this array."""
    if pt.is_float16(array.type):
        return array.cast(pa.float32())
    if not pt.is_nested(array.type):
        return array
    return pa.array(compute_dense_ranks(_build_nested_keys(_compact_array(array))))


def _build_nested_keys(array: pa.Array) -> list[pa.Array]:
    """Return flat arrays that together sort like a nested array."""
    is_null = array.is_null()
    if pt.is_struct(array.type):
        fields = [array.field(i) for i in range(array.type.num_fields)]
        return [is_null, *(_mask_nulls(_make_order_key(field), is_null) for field in fields)]
    if pt.is_map(array.type):
        elements = compute_dense_ranks([_make_order_key(array.keys), _make_order_key(array.items)])
    else:
        elements = compute_dense_ranks([_make_order_key(array.values)])
    return [is_null, _mask_nulls(_encode_lists(array, elements), is_null)]


def _encode_lists(array: pa.Array, element_ranks: Rows) -> pa.Array:
    """Return bytes that sort like the lists: big-endian ranks of elements."""
    data = pa.py_buffer(element_ranks.astype(">i8"))
    if pt.is_fixed_size_list(array.type):
        offsets = np.arange(len(array) + 1, dtype=np.int64) * (array.type.list_size * 8)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64) * 8
    return pa.Array.from_buffers(pa.large_binary(), len(array), [None, pa.py_buffer(offsets), data])


def _mask_nulls(array: pa.Array, is_null: pa.Array) -> pa.Array:
    """Return an array with NULL wherever its parent is NULL."""
    if is_null.true_count == 0:
        return array
    return pc.if_else(is_null, pa.scalar(None, array.type), array)


def _compact_array(array: pa.Array) -> pa.Array:
    """Return a nested array whose children have no unused elements."""
    return array.take(pa.array(np.arange(len(array), dtype=np.int64)))


def _make_canonical_array(array: pa.Array) -> pa.Array:
    """Return an array with canonical floats; the array itself if it is canonical already."""
    kind = array.type
    if not has_floats(kind):
        return array
    if not pt.is_nested(kind):
        return _make_canonical_floats(array)
    compact = _compact_array(array)
    children = _list_children(compact)
    rewritten = [_make_canonical_array(child) for child in children]
    if all(new is old for new, old in zip(rewritten, children, strict=True)):
        return array
    if pt.is_map(kind):
        rewritten = [pa.StructArray.from_arrays(rewritten, fields=[kind.key_field, kind.item_field])]
    own_buffers = 1 if pt.is_struct(kind) or pt.is_fixed_size_list(kind) else 2
    buffers = compact.buffers()[:own_buffers]
    return pa.Array.from_buffers(kind, len(compact), buffers, children=rewritten)


def _list_children(compact: pa.Array) -> list[pa.Array]:
    """Return the arrays directly inside a nested array."""
    if pt.is_struct(compact.type):
        return [compact.field(i) for i in range(compact.type.num_fields)]
    if pt.is_map(compact.type):
        return [compact.keys, compact.items]
    return [compact.values]


def _make_canonical_floats(array: pa.Array) -> pa.Array:
    """Return floats without -0.0 and with one NaN."""
    values = get_stored_numbers(array)
    bits = values.view(f"u{values.itemsize}")
    nan = np.array(np.nan, dtype=values.dtype)
    is_nan = np.isnan(values)
    negative_zero = bits == bits.dtype.type(1 << (8 * values.itemsize - 1))
    if not negative_zero.any() and not (is_nan & (bits != nan.view(bits.dtype))).any():
        return array
    fixed = np.where(is_nan, nan, values)
    fixed[negative_zero] = 0.0
    valid = None
    if array.null_count:
        valid = pa.py_buffer(np.packbits(get_boolean_values(array.is_valid()), bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [valid, pa.py_buffer(fixed)])
