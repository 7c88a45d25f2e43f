"""What a Parquet file of given columns must look like: leaves, elements of its schema, the least of a row."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from persist.codecs.types.arrow_types import children, is_text


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column as Parquet knows it: its top-level field, and the bytes of one value (None for strings and binary)."""

    field: str
    width: int | None
    is_nested: bool

    @property
    def level_bytes(self) -> int:
        """What decoding takes for each level beyond the column itself."""
        return 4 + (self.width or 0) if self.is_nested else 0


@dataclass(frozen=True, slots=True)
class FileLayout:
    """What a file of some columns must look like, worked out once.

    Attributes:
        names, types: of its columns, as they are stored.
    """

    names: list[str]
    types: list[pa.DataType]
    leaves: tuple[Leaf, ...]
    elements: int
    row_bits_min: int

    @classmethod
    def of(cls, schema: pa.Schema) -> "FileLayout":
        """Return the layout of a file with these columns."""
        return cls(
            schema.names,
            schema.types,
            tuple(leaf for field in schema for leaf in _leaves(field.type, field.name, False)),
            1 + sum(_elements(field.type) for field in schema),
            sum(_row_bits_min(kind) for kind in schema.types),
        )


def _row_bits_min(kind: pa.DataType) -> int:
    """The fewest bits that a row of a column of this type takes in Arrow, however little is in it."""
    if pt.is_struct(kind):
        return sum(_row_bits_min(child.type) for child in children(kind))
    if pt.is_fixed_size_list(kind):
        return int(kind.list_size) * _row_bits_min(kind.value_type)
    if pt.is_large_string(kind) or pt.is_large_binary(kind) or pt.is_large_list(kind):
        return 64
    return 32 if pt.is_nested(kind) or is_text(kind) else int(kind.bit_width)


def _leaves(kind: pa.DataType, field: str, is_nested: bool) -> list[Leaf]:
    if pt.is_nested(kind):
        return [leaf for child in children(kind) for leaf in _leaves(child.type, field, True)]
    width = None if is_text(kind) else _stored_bytes(kind)
    return [Leaf(field, width, is_nested)]


def _stored_bytes(kind: pa.DataType) -> int:
    """Bytes of one value as Parquet stores it: nothing is shorter than 4 but fixed sizes, decimals and booleans."""
    if pt.is_decimal(kind):
        return int(10**kind.precision).bit_length() // 8 + 1
    if pt.is_fixed_size_binary(kind) or pt.is_float16(kind):
        return int(kind.bit_width) // 8
    return 1 if pt.is_boolean(kind) else max(int(kind.bit_width) // 8, 4)


def _elements(kind: pa.DataType) -> int:
    """How many elements a type has in a Parquet schema: lists and maps have a group within a group."""
    if not pt.is_nested(kind):
        return 1
    return (1 if pt.is_struct(kind) else 2) + sum(_elements(child.type) for child in children(kind))
