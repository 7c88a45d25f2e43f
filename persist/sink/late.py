"""Late updates: those at times that are sealed already, left out or given another time before a commit.

Tasks leave out what is late by what was sealed when they were planned (`LateFilter`). Where another writer seals after
that, before the commit, parts that were uploaded already are written anew. Whoever commits reads and writes them in
pieces, within the memory budget of a client.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import TIME_MAX, CollectionSchema, Part, PartStream, with_time
from persist.engine import Engine
from persist.read import Scan
from persist.sink.uploads import Target, Uploads
from persist.write import group_bytes_max


@dataclass
class LateFilter:
    """Leaves late updates out, and counts them: those before lower, unless that is None."""

    lower: int | None
    count: int = 0

    def kept(self, table: pa.Table) -> pa.Table:
        """Return the updates of a table that are not late."""
        if self.lower is None:
            return table
        is_kept = pc.greater_equal(table["_time"], self.lower)
        kept = table if pc.all(is_kept).as_py() else table.filter(is_kept)
        self.count += len(table) - len(kept)
        return kept


def retimed(engine: Engine, target: Target, parts: Sequence[Part], time: int) -> list[Part]:
    """Upload the updates of parts, of one time each, with another time; return their new parts."""
    return _rewritten(engine, target, parts, 0, time)


def without_late(engine: Engine, target: Target, parts: Sequence[Part], lower: int) -> list[Part]:
    """Upload the updates of parts at times from lower on; return their new parts."""
    return _rewritten(engine, target, parts, lower, None)


def _rewritten(engine: Engine, target: Target, parts: Sequence[Part], lower: int, time: int | None) -> list[Part]:
    schema, reader = target.schema, engine.reader()
    columns = [*schema.names, "_time", "_diff"]
    with target.writer() as writer, Uploads(writer, target.id) as uploads:
        for part in parts:
            stream = PartStream(
                schema, row_group_bytes_max=group_bytes_max(reader.memory_budget, schema), sources=(part,)
            )
            scan = Scan(schema, (part,), lower, TIME_MAX + 1, schema.names)
            for piece in scan.slices_within(reader.rewrite_slice_bytes):
                for table in piece.updates(reader, columns):
                    uploads.put(stream.add(_at(table, time, schema)))
            uploads.put(stream.finish())
        return list(uploads.parts())


def _at(table: pa.Table, time: int | None, schema: CollectionSchema) -> pa.Table:
    if time is not None:
        return with_time(table, time, schema)
    return pa.Table.from_arrays(table.columns, schema=schema.arrow)
