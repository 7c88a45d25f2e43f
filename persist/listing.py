"""The names of the collections of a location, and what there is to say of each, as a table.

The names are in the directory that every client has. What a collection holds is in objects of its own, so it is read
only for the table, and only for the collections that are listed.
"""

import pyarrow as pa

from persist.engine import Engine
from persist.errors import CollectionNotFound
from persist.read.record_count import record_count

COLUMNS = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("since", pa.uint64()),
        pa.field("upper", pa.uint64()),
    ]
)


class Collections(list[str]):
    """Names, sorted: a list like any other, which can also tell more of the collections it names.

    Example: `client.collections("sales.").to_arrow()`.
    """

    def __init__(self, names: list[str], engine: Engine) -> None:
        super().__init__(names)
        self._engine = engine

    def to_arrow(self) -> pa.Table:
        """Return a row for each collection that still exists.

        `rows` is what the diffs of all updates sum to, sealed or not: the number of records, while none is retracted
        more often than it was there; NULL where only reading tells, because of tombstones or events that are not
        resolved. `bytes` is what its parts take, history, keyframes and pending events. `since` and `upper` are
        NULL where the frontier is empty.

        Cost: a GET for each collection that this client has not used yet.
        """
        self._engine.check_open("collections")
        state = self._engine.follower.refresh()
        found = []
        for name in self:
            if (id_ := state.ids.get(name)) is not None:
                try:
                    contents = self._engine.follower.known(id_, name)
                except CollectionNotFound:
                    continue  # It was destroyed just now.
                rows = record_count(contents)
                size = sum(part.bytes for part in contents.stored_parts)
                found.append(
                    dict(zip(COLUMNS.names, (name, rows, size, contents.since.time, contents.upper.time), strict=True))
                )
        return pa.Table.from_pylist(found, schema=COLUMNS)
