"""The names of the collections of a location, and what there is to say of each, as a table.

The names are in the directory that every client has. What a collection holds is in objects of its own, so it is read
only for the table, and only for the collections that are listed.
"""

from contextlib import suppress

import pyarrow as pa

from persist.engine import Engine
from persist.errors import CollectionNotFound, PersistError
from persist.read import record_count
from persist.shown import aligned, html_rows, plain
from persist.state import CollectionState
from persist.timeline import shown_time, timeline_of

SHOWN_MAX = 50  # Collections in a representation.

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
        rows = []
        for name in self:
            if (id_ := state.ids.get(name)) is not None:
                try:
                    contents = self._engine.follower.known(id_, name)
                except CollectionNotFound:
                    continue  # It was destroyed just now.
                count, size = record_count(contents), sum(part.bytes for part in contents.stored_parts)
                cells = (name, count, size, contents.since.time, contents.upper.time)
                rows.append(dict(zip(COLUMNS.names, cells, strict=True)))
        return pa.Table.from_pylist(rows, schema=COLUMNS)

    def __repr__(self) -> str:
        """Say what this client knows of each, without asking the store for news."""
        head, *rows = (tuple(map(plain, row)) for row in self._shown())
        if not rows:
            return "no collections"
        return "\n".join((*aligned((head, *rows), right=(1,)), *self._left_out()))

    def _repr_html_(self) -> str:
        """Do what the representation does, as a table."""
        head, *rows = self._shown()
        return html_rows(head, [*rows, *((line, "", "", "") for line in self._left_out())])

    def _left_out(self) -> list[str]:
        return [f"… and {len(self) - SHOWN_MAX:,} more"] if len(self) > SHOWN_MAX else []

    def _shown(self) -> list[tuple[str, str, str, str]]:
        """Return the head of a table and a row for each collection: name, rows, what is sealed, comment."""
        entries, ids = self._engine.follower.state.entries, self._engine.follower.state.ids
        rows = [("name", "rows", "sealed before", "comment")]
        for name in self[:SHOWN_MAX]:
            entry = entries.get(ids.get(name) or "")
            contents = None if entry is None else entry.contents
            cells = ("", "", "")
            if contents is not None:
                with suppress(PersistError):
                    cells = _cells_of(contents)
            rows.append((name, *cells))
        return rows


def _cells_of(contents: CollectionState) -> tuple[str, str, str]:
    rows, upper = record_count(contents), contents.upper.time
    sealed = "for ever" if upper is None else "-" if upper == 0 else shown_time(upper, timeline_of(contents.schema))
    return "?" if rows is None else f"{rows:,}", sealed, contents.about.comment
