"""Queries inside of programs."""

from typing import Any

from persist.codecs import CollectionSchema
from persist.dataflow import Program, Stream
from persist.errors import InvalidUsage
from persist.expression import Col
from persist.sql.compile import check_columns, mentioned, planned
from persist.sql.lower import Lowering
from persist.sql.lower_join import column


def answer(program: Program, query: str, /, **streams: Stream) -> Stream:
    """Return the answer of a query in DuckDB's SQL, as a stream of a program; see `docs/views.md`.

    Args:
        streams: what the query calls by these names. Other names are those of collections, which are sources of the
            program: `Program("name").using(client)` finds their columns.
    """
    names = [*streams, *(program.engine.names() if program.engine is not None else ())]
    known: dict[str, Stream] = {}
    for name in mentioned(query, list(dict.fromkeys(names))):
        known[name] = streams[name] if name in streams else program.source(name)
        if not isinstance(known[name], Stream):
            raise InvalidUsage(f"sql: {name}={known[name]!r} is no stream of this program")
    schemas = {name: CollectionSchema.of(each.schema, None) for name, each in known.items()}
    plan, columns = planned(query, schemas)
    check_columns(columns)
    found = Lowering(program, known.__getitem__).answer(plan)
    outputs: dict[str, Any] = {name: Col(column(at)) for at, (name, _) in enumerate(columns)}
    return found.map(**outputs)
