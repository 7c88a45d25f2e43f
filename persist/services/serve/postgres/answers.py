"""Answers of statements, and how their rows are sent: whole, in pieces, copied, or as they come."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from persist.compute.query import Queries
from persist.services.serve.postgres import wire
from persist.services.serve.postgres.connection import Connection
from persist.services.serve.postgres.statements import Copy
from persist.services.serve.postgres.values import copy_rows, describe_column, encode_copy_rows, encode_rows
from persist.services.serve.postgres.wire import Column

_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_ROWS_AT_ONCE = 10_000
_LOOK_S = 0.2
_OWN = ("_time", "_progressed", "_diff")


@dataclass
class Answer:
    """The result of a statement: its columns and batches, or only a tag.

    Attributes:
        tag: the text of CommandComplete, with `{}` for the number of rows.
        columns: None for a statement without rows.
        is_live: rows of a subscription, so each batch is sent at once.
        start: runs a statement that is not run yet, and returns its answer.
    """

    tag: str
    columns: list[Column] | None = None
    batches: Iterator[pa.RecordBatch] = field(default_factory=lambda: iter(()))
    close: Callable[[], object] = lambda: None
    copy: Copy | None = None
    is_live: bool = False
    start: "Callable[[], Answer] | None" = None
    is_change: bool = False


@dataclass
class Portal:
    """An answer that a client reads in pieces: the rest of a batch, and whether all rows are sent."""

    answer: Answer
    formats: list[int]
    remainder: pa.RecordBatch | None = None
    is_done: bool = False


@dataclass
class Prepared:
    """A prepared statement. `described` are the columns that the client has seen."""

    sql: str
    oids: list[int]
    described: list[Column] | None = None


def make_rows_answer(table: pa.Table, tag: str = "SELECT") -> Answer:
    """Return an answer with the rows of a table."""
    return Answer(f"{tag} {{}}", [*map(describe_column, table.schema)], iter(table.to_batches()))


class RowSender:
    """Sends the rows of answers to a client. `check`: raises Failure if the statement is cancelled."""

    def __init__(self, connection: Connection, queries: Queries, check: Callable[[], None]) -> None:
        self._connection = connection
        self._queries = queries
        self._check = check

    def send_columns(self, columns: list[Column] | None, formats: list[int]) -> None:
        """Send the columns of rows, in formats 0 (text) or 1 (binary); None: there are no rows."""
        self._connection.send(
            wire.encode_message(b"n") if columns is None else wire.make_row_description(columns, formats)
        )

    def send_rows(self, portal: Portal, limit: int) -> None:
        """Send at most `limit` rows of a portal (0: all), and whether it has more."""
        answer = portal.answer
        if portal.is_done:
            self._connection.send(wire.encode_command_complete(answer.tag.format(0)))
            return
        if answer.copy is not None:
            self._send_copy(answer, answer.copy)
            portal.is_done = True
            return
        sent = 0
        for batch in self.iterate_batches(portal, limit) if answer.columns is not None else ():
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                self._connection.send(encode_rows(batch.slice(start, _ROWS_AT_ONCE), portal.formats))
            if answer.is_live:
                self._connection.flush()
            sent += batch.num_rows
        if limit and sent == limit:
            self._connection.send(wire.encode_message(b"s"))
            return
        portal.is_done = True
        self._connection.send(wire.encode_command_complete(answer.tag.format(sent)))

    def iterate_batches(self, portal: Portal, limit: int) -> Iterator[pa.RecordBatch]:
        """Yield the next batches of a portal, with at most `limit` rows; 0: all."""
        sent = 0
        while not (limit and sent == limit):
            batch = portal.remainder if portal.remainder is not None else self._next_batch(portal.answer)
            portal.remainder = None
            if batch is None:
                return
            if limit and batch.num_rows > limit - sent:
                batch, portal.remainder = batch.slice(0, limit - sent), batch.slice(limit - sent)
            sent += batch.num_rows
            yield batch

    def _next_batch(self, answer: Answer) -> pa.RecordBatch | None:
        """Return the next batch of an answer; None at its end."""
        self._check()
        with contextlib.nullcontext() if answer.is_live else self._queries.wait_for_turn():
            batch = next(answer.batches, None)
        self._check()
        return batch

    def _send_copy(self, answer: Answer, copy: Copy) -> None:
        """Send all rows of an answer as a COPY."""
        columns = answer.columns or []
        self._connection.send(wire.copy_out(len(columns), copy.form == "binary"))
        if copy.header:
            names = pa.record_batch(
                [pa.array([column.name]) for column in columns], [column.name for column in columns]
            )
            self._connection.send(encode_copy_rows(names, copy.separator, "\0", csv=copy.form == "csv"))
        rows, head = 0, _COPY_HEADER
        while (batch := self._next_batch(answer)) is not None:
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                piece = batch.slice(start, _ROWS_AT_ONCE)
                if copy.form == "binary":
                    data = copy_rows(piece)
                    if head:  # Clients take the header and the first row as one message.
                        length = int.from_bytes(data[1:5], "big") + 1
                        self._connection.send(wire.encode_message(b"d", head + bytes(data[5:length])))
                        data, head = data[length:], b""
                    self._connection.send(data)
                else:
                    self._connection.send(encode_copy_rows(piece, copy.separator, copy.null, csv=copy.form == "csv"))
            rows += batch.num_rows
            if answer.is_live:
                self._connection.flush()
        if copy.form == "binary":
            self._connection.send(wire.encode_message(b"d", head + b"\xff\xff"))
        self._connection.send(wire.encode_message(b"c"), wire.encode_command_complete(f"COPY {rows}"))


def iterate_subscription_batches(
    listen: Any, end: int | None, schema: pa.Schema, has_progress: bool, ends: Callable[[], bool]
) -> Iterator[pa.RecordBatch]:
    """Yield the updates of a SUBSCRIBE as rows, and its progress, until it ends.

    `end`: the time before which updates come; None for all.
    """
    while not ends():
        progress = listen.step(_LOOK_S)
        if progress is None:
            if listen.is_finished:
                return
            continue
        updates, upper = progress.updates, progress.upper
        if end is not None:
            updates = updates.filter(pa.compute.less(updates["_time"], end))
        for batch in updates.to_batches():
            columns = [batch[name] for name in schema.names if name not in _OWN]
            progressed = [pa.repeat(False, batch.num_rows)] * has_progress
            yield pa.RecordBatch.from_arrays([batch["_time"], *progressed, batch["_diff"], *columns], schema=schema)
        if has_progress and not upper.is_empty:
            nulls = [pa.nulls(1, field.type) for field in schema if field.name not in _OWN]
            row = [pa.array([*upper.elements]), pa.array([True]), pa.nulls(1, pa.int64()), *nulls]
            yield pa.RecordBatch.from_arrays(row, schema=schema)
        if end is not None and (upper.is_empty or upper.elements[0] >= end):
            return
