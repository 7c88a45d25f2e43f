"""Rows of many tiny parts with wanted keys, found by one search for all of them.

Small steps leave runs of a few rows, and looking into each of them takes a tenth of a millisecond whatever is in it. So
tiny parts that follow each other in the history are read as one, sorted by key, and what was made of them is kept. New
parts come at the end of the history: groups before the last one stay as they are until a compaction.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from persist.codecs import CollectionSchema, Part, SortedKeys, int64_array, sort_indices
from persist.read.scanning.reader import PartReader

PART_BYTES_MAX = 64 << 10  # Decoded; a larger part is worth a search of its own.
PARTS_MAX = 64


class JoinedRows:
    """The rows of some tiny parts for one look-up, as `PartRows` are those of one.

    Args:
        types: `CollectionSchema.reading`.
        columns: those wanted besides the key columns, of which there is one at least.
    """

    def __init__(
        self, parts: Sequence[Part], schema: CollectionSchema, types: str, columns: tuple[str, ...], reader: PartReader
    ) -> None:
        self._parts = parts
        self._schema = schema
        self._columns = columns
        self._reader = reader
        self._name = "joined", tuple((part.checksum, part.schema) for part in parts), columns, types

    def may_hold(self, wanted: SortedKeys | None) -> bool:
        """Return True: to find out takes as long as to search."""
        return True

    def are_in_memory(self, wanted: SortedKeys | None) -> bool:
        """Return whether `with_keys` has to read nothing."""
        return self._reader.decoded.peek(self._name) is not None or all(part.inline for part in self._parts)

    def at_hand(self, wanted: SortedKeys | None) -> Iterable[pa.Table] | None:
        """Return what `with_keys` does, if nothing has to be read for that; None otherwise."""
        return self.with_keys(wanted) if self.are_in_memory(wanted) else None

    def with_keys(self, wanted: SortedKeys | None) -> Iterator[pa.Table]:
        """Yield the rows with a wanted key: the key columns and the others, in the order of keys, then of parts."""
        assert wanted is not None, "a collection without keys has nothing to search for"
        joined = self._joined()
        rows = joined.keys.find(wanted)
        if len(rows):
            at = int64_array(rows)
            taken = [each.take(at) for each in (joined.keys.batch, joined.others)]
            fields = [field for each in taken for field in each.schema]
            columns = [column for each in taken for column in each.columns]
            yield pa.Table.from_arrays(columns, schema=pa.schema(fields))

    def _joined(self) -> "_Joined":
        found = self._reader.decoded.get(self._name)
        if found is None:
            names = list(self._schema.key_names)
            tables = [self._reader.table(part, self._schema, [*names, *self._columns]) for part in self._parts]
            rows = pa.concat_tables(tables)
            rows = rows.take(sort_indices(rows, names)).combine_chunks()
            (batch,) = rows.to_batches()
            found = _Joined(SortedKeys(batch.select(names)), batch.select(list(self._columns)))
            self._reader.decoded.put(self._name, found)
        assert isinstance(found, _Joined)
        return found


class _Joined:
    """What is kept of a group: its keys in order, and the other columns of the same rows."""

    __slots__ = ("keys", "others")

    def __init__(self, keys: SortedKeys, others: pa.RecordBatch) -> None:
        self.keys = keys
        self.others = others

    @property
    def nbytes(self) -> int:
        return 1000 + self.keys.nbytes + int(self.others.nbytes)
