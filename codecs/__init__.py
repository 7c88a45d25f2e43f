"""Typed values and Parquet batches to bytes and back: columns, never time or the log.

Promises: what is encoded decodes to equal values, and equal values to equal bytes of the descriptor. Bytes are believed
only after their checksum agrees, and cost no more memory than their descriptor says.
"""

from persist.codecs.errors import CodecMismatch, DiffOverflow, InvalidUpdate, SchemaMismatch, did_you_mean
from persist.codecs.order.arrays import boolean_array, boolean_values, copied, int64_array, int64_values
from persist.codecs.order.digest import DIGEST_MODULUS, Digest, digest_of, digest_of_text, row_hashes
from persist.codecs.order.digits import RowSorter, dense_ranks, neighbours_differ
from persist.codecs.order.ordering import canonical, combined, order_keys, row_sorter, sort_indices
from persist.codecs.order.search import SortedKeys, empty_batch
from persist.codecs.order.sums import (
    ROWS_MAX,
    Ints,
    consolidate,
    exact_sum,
    from_whole_numbers,
    joined,
    largest_of,
    limbs_for,
    limits,
    normalized,
    products,
    split,
    whole_numbers,
    without_pairs,
)
from persist.codecs.part.decoding import bad_filter, decode_part, filtered
from persist.codecs.part.describing import check_part, describe_held, described_bounds, overlaps
from persist.codecs.part.file_reader import CheckedFooters
from persist.codecs.part.file_writer import file_schema
from persist.codecs.part.filters import columns_of, parts_that_may_match, ranges_that_may_match, with_both_zeros
from persist.codecs.part.index import PartIndex, decode_groups, read_index
from persist.codecs.part.key_range import KeyRange, key_ranges, ordered_keys, parts_within
from persist.codecs.part.lending import give_back_freed, under_way, until_the_end
from persist.codecs.part.mapped import MappedRows, Rows, mapped_file
from persist.codecs.part.part import Footer, Part, checksum_of, sample_rows
from persist.codecs.part.stream import (
    ROW_GROUP_BYTES_MAX,
    PartStream,
    RunStream,
    encode_parts,
)
from persist.codecs.types.arrow_types import (
    check_type,
    children,
    is_flat,
    is_text,
    leaf_arrays,
    leaf_count,
    scalar_from_json,
    type_from_json,
    type_to_json,
    with_children,
)
from persist.codecs.types.casts import cast_column, decoded_column
from persist.codecs.types.codec import Binary, Codec, Int64, Json, Unit, Utf8
from persist.codecs.types.evolution import (
    changes_between,
    check_next,
    evolved,
    lift,
    may_overflow,
    narrowed,
    newest_types,
    only_adds,
    versions,
    widened_column,
)
from persist.codecs.types.objects import find_unwritable, to_dicts, to_objects
from persist.codecs.types.python_types import arrow_type, field_types, stored_type
from persist.codecs.types.schema import (
    DIFF,
    NAME_CHARS_MAX,
    TIME,
    TIME_MAX,
    TIME_UNITS,
    CollectionSchema,
    Side,
    check_field,
)
from persist.codecs.types.sql_names import check_sql_names, sql_name
from persist.codecs.types.texts import is_exact_float, parse_column
from persist.codecs.types.values import cut, python_type, to_array, to_values
from persist.codecs.updates.inputs import (
    TableStream,
    as_table,
    check_given,
    columns_like,
    is_repeatable,
    opened,
    sides_like,
    with_first,
)
from persist.codecs.updates.small import SmallUpdates, gathered, small_keys, small_updates
from persist.codecs.updates.tuples import lacks_columns, out_of_place, owned
from persist.codecs.updates.updates import (
    Stamp,
    plain_rows,
    stamped,
    streamed_updates,
    to_rows,
    to_tuples,
    to_updates,
    with_time,
)
