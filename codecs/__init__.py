"""Typed values and Parquet batches to bytes and back: columns, never time or the log.

Promises: what is encoded decodes to equal values, and equal values to equal bytes of the descriptor. Bytes are believed
only after their checksum agrees, and cost no more memory than their descriptor says.
"""

from persist.codecs.errors import CodecMismatch, DiffOverflow, InvalidUpdate, SchemaMismatch
from persist.codecs.order.consolidation import consolidate, exact_sum
from persist.codecs.order.digest import DIGEST_MODULUS, digest_of, digest_of_text, row_hashes
from persist.codecs.order.ordering import canonical, order_keys, sort_indices
from persist.codecs.order.touching import Touching
from persist.codecs.part.check import check_part, described_bounds, overlaps
from persist.codecs.part.decoding import decode_part
from persist.codecs.part.filters import with_both_zeros
from persist.codecs.part.index import Group, PartIndex, decode_groups, footer_range, read_index
from persist.codecs.part.key_range import KeyRange, key_ranges, ordered_keys
from persist.codecs.part.part import Part, checksum_of
from persist.codecs.part.pruning import parts_that_may_match
from persist.codecs.part.run_stream import RunStream
from persist.codecs.part.stream import PART_BYTES_TARGET, ROW_GROUP_BYTES_MAX, ROW_GROUP_ROWS, PartStream, encode_parts
from persist.codecs.types.arrow_types import check_type, children, leaf_count, type_from_json, type_to_json
from persist.codecs.types.codec import Binary, Codec, Int64, Json, Unit, Utf8
from persist.codecs.types.scalars import is_flat, scalar_from_json, scalar_to_json
from persist.codecs.types.schema import TIME_MAX, TIME_UNITS, CollectionSchema, Side
from persist.codecs.types.suggestion import did_you_mean
from persist.codecs.updates.inputs import TableStream, opened
from persist.codecs.updates.plain import Stamp, stamped
from persist.codecs.updates.small import SmallUpdates, gathered, small_key, small_updates
from persist.codecs.updates.updates import streamed_updates, to_rows, to_tuples, to_updates

__all__ = [
    "DIGEST_MODULUS",
    "PART_BYTES_TARGET",
    "ROW_GROUP_BYTES_MAX",
    "ROW_GROUP_ROWS",
    "TIME_MAX",
    "TIME_UNITS",
    "Binary",
    "Codec",
    "CodecMismatch",
    "CollectionSchema",
    "DiffOverflow",
    "Group",
    "Int64",
    "InvalidUpdate",
    "Json",
    "KeyRange",
    "Part",
    "PartIndex",
    "PartStream",
    "RunStream",
    "SchemaMismatch",
    "Side",
    "SmallUpdates",
    "Stamp",
    "TableStream",
    "Touching",
    "Unit",
    "Utf8",
    "canonical",
    "check_part",
    "check_type",
    "checksum_of",
    "children",
    "consolidate",
    "decode_groups",
    "decode_part",
    "described_bounds",
    "did_you_mean",
    "digest_of",
    "digest_of_text",
    "encode_parts",
    "exact_sum",
    "footer_range",
    "gathered",
    "is_flat",
    "key_ranges",
    "leaf_count",
    "opened",
    "order_keys",
    "ordered_keys",
    "overlaps",
    "parts_that_may_match",
    "read_index",
    "row_hashes",
    "scalar_from_json",
    "scalar_to_json",
    "small_key",
    "small_updates",
    "sort_indices",
    "stamped",
    "streamed_updates",
    "to_rows",
    "to_tuples",
    "to_updates",
    "type_from_json",
    "type_to_json",
    "with_both_zeros",
]
