"""What readers of parts keep for the next read: footers, decoded rows, and what one slice left over for the next.

Each is bounded in bytes. They are named by the checksums of parts, not by blobs, and rows also by
what they are read as: equal bytes mean different columns in other collections and under other versions of a schema.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from persist.blob import AdmittingCache, Blob, ByteBoundedLru, MissingBlob, get_checked, get_range_checked
from persist.codecs import CheckedFooters, CollectionSchema, Part, PartIndex, footer_range, read_index

T = TypeVar("T")

INDEX_BYTES_MAX = 16 << 20


class Sized(Protocol):
    """What knows about how many bytes it takes."""

    @property
    def nbytes(self) -> int: ...


DecodedRows = AdmittingCache[Hashable, Sized]


def decoded_rows(bytes_max: int) -> DecodedRows:
    """Return a cache for what point reads decode, for all readers of one client; what takes half of it is not kept.

    Look-ups of many keys touch most row groups each time, so of more of them than there is room for, those that are
    there stay.
    """
    return AdmittingCache(bytes_max, lambda rows: rows.nbytes, value_bytes_max=bytes_max // 2)


class PartIndexes:
    """The footers of parts read lately, for all readers of one client.

    Attributes:
        whole: those of parts that were read whole.
    """

    def __init__(self, bytes_max: int = INDEX_BYTES_MAX) -> None:
        self.whole = CheckedFooters()
        # However large it is, the one in use is kept: each slice of its part asks for it.
        self._kept: ByteBoundedLru[str, PartIndex] = ByteBoundedLru(
            bytes_max, lambda index: index.nbytes, value_bytes_max=2**63
        )

    def known(self, part: Part) -> PartIndex | None:
        """Return the footer of a part if it is kept here."""
        return self._kept.get(part.checksum)

    def get(self, blob: Blob, part: Part, schema: CollectionSchema) -> PartIndex:
        """Return the footer of a part. Cost: one GET of a range, or nothing."""
        index = self.known(part)
        if index is None:
            index = fetched(blob, part, lambda data: read_index(data, part, schema), footer_range(part))
            self._kept.put(part.checksum, index)
        return index


@dataclass(frozen=True, slots=True)
class PartCaches:
    """What all readers of one client keep of parts; or those of several clients of one location, one after the other.

    Nothing in it depends on a client: parts never change, and what is kept of them is named by their checksums.
    """

    indexes: PartIndexes
    decoded: DecodedRows

    @classmethod
    def within(cls, memory_budget: int) -> "PartCaches":
        """Return empty caches for a client; see `Settings.memory_budget`, of which they take up to a half."""
        return cls(PartIndexes(), decoded_rows(memory_budget // 2))


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where one slice ends and the next begins: in which part, for which columns and filter, at which bound of keys.

    Equal bytes may be two parts, which read the same only if their versions and the schemas that they are read with do.
    """

    checksum: str
    version: int
    reading: str
    columns: tuple[str, ...]
    filter: "_Itself"
    bound: str


class _Itself:
    """An object that is equal to itself alone: expressions can be neither hashed nor compared."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of  # Kept alive, so that no other object takes its place in memory.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._of is other._of

    def __hash__(self) -> int:
        return object.__hash__(self._of)


class SliceLeftovers:
    """What slices of the key space left over of what they decoded, for those that follow them."""

    def __init__(self, bytes_max: int) -> None:
        self._kept: ByteBoundedLru[_Cut, tuple[pa.Table, int]] = ByteBoundedLru(bytes_max, lambda left: left[0].nbytes)

    @property
    def bytes(self) -> int:
        """What all of it takes."""
        return self._kept.bytes

    def take(
        self, part: Part, schema: CollectionSchema, columns: tuple[str, ...], filter: pc.Expression | None, bound: Any
    ) -> tuple[pa.Table, int] | None:
        """Return the rows from a bound on that were decoded, and the row of the part that follows them."""
        return self._kept.take(_cut(part, schema, columns, filter, bound))

    def keep(
        self,
        part: Part,
        schema: CollectionSchema,
        columns: tuple[str, ...],
        filter: pc.Expression | None,
        bound: Any,
        rows: pa.Table,
        following: int,
    ) -> None:
        """Keep a copy of rows, without what they are a slice of, as long as there is room."""
        # Joined with nothing, they are copied as they lie, in a fifth of the time that `take` needs.
        copied = [pa.concat_arrays([*column.chunks, _none_of(column.type)]) for column in rows.columns]
        rows = pa.Table.from_arrays(copied, schema=rows.schema)
        self._kept.put(_cut(part, schema, columns, filter, bound), (rows, following))


@lru_cache(maxsize=256)
def _none_of(kind: pa.DataType) -> pa.Array:
    return pa.nulls(0, kind)


def _cut(
    part: Part, schema: CollectionSchema, columns: tuple[str, ...], filter: pc.Expression | None, bound: Any
) -> _Cut:
    return _Cut(part.checksum, part.schema, schema.reading, columns, _Itself(filter), str(bound))


def fetched(blob: Blob, part: Part, check: Callable[[bytes], T], within: tuple[int, int] | None = None) -> T:
    """Return check of a part's blob or of a range of it, fetched once more if a cache may have spoiled it.

    Raises:
        MissingBlob: the blob is not there.
        CorruptBlob: check says so.
    """
    if within is None:
        found = get_checked(blob, part.blob, part.bytes, check)
    else:
        found = get_range_checked(blob, part.blob, within, check)
    if found is None:
        raise MissingBlob(
            part.blob, f"it is missing, and {part.bytes} bytes with checksum {part.checksum} belong there"
        )
    return found
