"""What a client has just written, as rows, for whoever reads it next with the same client.

A part is named by the checksum of its bytes and the schema that they are read with, and the rows of one are what these
bytes decode to under it: so it makes no difference where a reader takes them from, whatever becomes of the log or of
the blob meanwhile. Rows of a part that was never committed are asked for by nobody. The rows are a copy of what the
caller gave, and it is the copy that was encoded: so both are the same, even if the caller uses the buffers again too
soon.
"""

import pyarrow as pa

from persist.blob import ByteBoundedLru
from persist.codecs import CollectionSchema, Part

SHARE = 16  # Of the memory budget, for all that is handed over together.
ONE_SHARE = 4  # Of that, for one part: a large write is read from the store, where nobody has to wait for it.
PARTS_MAX = 1000  # Whoever has fallen further behind reads from the store, where small writes soon are few large parts.
COLUMN_BYTES = 1500  # Roughly, of what a table has for each column besides its values.


class HandOver:
    """The rows of parts written lately, the one used longest ago goes first; safe to use from many threads.

    Args:
        memory_budget: of the client, of which this takes a sixteenth; see `Settings.memory_budget`.

    Attributes:
        part_bytes_max: of a part that may be read soon.
        bytes_max: of one that is certain to be, and of all together.
    """

    def __init__(self, memory_budget: int) -> None:
        self.bytes_max = room = memory_budget // SHARE
        self.part_bytes_max = room // ONE_SHARE
        self._given: ByteBoundedLru[tuple[str, str], pa.Table] = ByteBoundedLru(
            room, lambda rows: max(_bytes_of(rows), room // PARTS_MAX), value_bytes_max=2**63
        )
        self.taken = 0

    @property
    def bytes(self) -> int:
        """What is here takes."""
        return self._given.bytes

    def give(self, part: Part, schema: CollectionSchema, rows: pa.Table) -> None:
        """Keep the rows of a part, all columns of `schema.arrow`, which nobody may change any more."""
        if rows.nbytes <= self.bytes_max:
            self._given.put(_name(part, schema), rows)

    def has(self, part: Part, schema: CollectionSchema) -> bool:
        """Whether `take` would find the rows of a part."""
        return (
            part.schema == schema.version and not schema.is_widened and self._given.get(_name(part, schema)) is not None
        )

    def take(self, part: Part, schema: CollectionSchema) -> pa.Table | None:
        """Return the rows of a part as `decode_part` would, without a filter; None if they are not here.

        They stay, because several may follow. Those of a part that was written with another version of the schema are
        not found: they are read as everybody else reads them.
        """
        if part.schema != schema.version or schema.is_widened:
            return None
        found = self._given.get(_name(part, schema))
        self.taken += found is not None
        return found


def _bytes_of(rows: pa.Table) -> int:
    return int(rows.nbytes) + COLUMN_BYTES * int(rows.num_columns)


def _name(part: Part, schema: CollectionSchema) -> tuple[str, str]:
    # Parts of two collections may be the same bytes, and stand for different columns.
    return part.checksum, schema.reading
