"""Flight SQL: lets its clients query the collections, over the port and with the limits of a server.

A query is bound by `GetFlightInfo`: its collections, the time of each, and its columns. The ticket contains all of
that, so the server keeps no state between the two calls, and a ticket always returns the same rows: sealed times do not
change. A prepared statement is kept, with its last parameters, until it is closed or unused for `PREPARED_S`; beyond
`PREPARED_MAX`, the least recently used one is dropped first.

It only reads: what writes is refused. A query ends when its client has gone, when it is cancelled, and at its limits.
"""

import base64
import binascii
import contextlib
import itertools
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from persist.compute.query import QUERIES_MAX, Queries, QueryResult
from persist.core.errors import InvalidUsage, Unavailable
from persist.services.serve.flight_calls import DATA_BODY, DATA_HEADER
from persist.services.serve.messages import encode_fields, group_fields
from persist.services.serve.sql_answers import ANSWERS, PREPARED_S, Asked, result_schema

PREPARED_MAX = 1024
SQL_ACTIONS = ("CreatePreparedStatement", "ClosePreparedStatement", "CancelFlightInfo", "CancelQuery", "CloseSession")
PARAMETER_ROWS_MAX = 1024
PARAMETER_BYTES_MAX = 1 << 20
TEXT_MAX = 128 << 10
_PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
_CONTINUATION = b"\xff\xff\xff\xff"
_CANCELLED, _NOT_CANCELLABLE, _CLOSED = 1, 3, 1  # Values of Flight's enumerations.


class _Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a ticket: a query, the time of each of its tables, and its parameters as Arrow in base64."""

    sql: Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
    times: list[tuple[list[str], int]]
    parameters: str = ""


@dataclass
class _Prepared:
    """A prepared statement, and its rows of parameters."""

    sql: str
    count: int
    rows: pa.Table | None = None
    used_s: float = field(default_factory=time.monotonic)


Opened = tuple[pa.Schema, Callable[[], object], Iterator[pa.RecordBatch]]


class FlightSql:
    """Answers the calls of Flight SQL's clients."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._prepared: OrderedDict[bytes, _Prepared] = OrderedDict()
        self._running: dict[bytes, list[_Running]] = {}
        self._turns = threading.BoundedSemaphore(QUERIES_MAX)
        self._lock = threading.Lock()

    def info(self, command: bytes) -> flight.FlightInfo:
        """Return where the answer of a command is, and its columns."""
        name, message = unpack_command(command)
        if name in ANSWERS:
            schema, ticket = result_schema(name, message), command
        else:
            statement = self._statement(name, message)
            schema, statement = self._bound(statement)
            handle = msgspec.json.encode(statement)
            ticket = _any("TicketStatementQuery", encode_fields((1, handle)))
        endpoint = flight.FlightEndpoint(ticket, [])
        return flight.FlightInfo(schema, flight.FlightDescriptor.for_command(command), [endpoint], -1, -1)

    def opened(self, ticket: bytes, context: Any) -> Opened:
        """Return the columns for a ticket, a function that releases it, and its batches."""
        name, message = unpack_command(ticket)
        if name in ANSWERS:
            batch = ANSWERS[name][1](self._queries, Asked(message))
            return batch.schema, lambda: None, iter([batch])
        if name != "TicketStatementQuery":
            raise ValueError(f"a ticket of the kind {name[:100]!r} does not belong to this server")
        try:
            statement = msgspec.json.decode(group_fields(message).get(1, b""), type=_Statement)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the ticket does not belong to this server: {error}") from error
        return self._answered(statement, ticket, context)

    def done(self, what: str, body: bytes) -> bytes | None:
        """Do an action and return its result; None if it is none of Flight SQL."""
        if what == "CancelFlightInfo":
            return encode_fields((1, self._cancel_queries(group_fields(body).get(1, b""))))
        if what == "CloseSession":
            return encode_fields((1, _CLOSED))
        if what not in SQL_ACTIONS:
            return None
        fields = group_fields(unpack_command(body)[1])
        if what == "CancelQuery":
            return _any("ActionCancelQueryResult", encode_fields((1, self._cancel_queries(fields.get(1, b"")))))
        if what == "ClosePreparedStatement":
            with self._lock:
                self._prepared.pop(fields.get(1, b""), None)
            return b""
        return _any("ActionCreatePreparedStatementResult", self._prepare(_text(fields.get(1, b""))))

    def put(self, requests: Iterator[bytes]) -> bytes:
        """Store the parameters of a prepared statement, and return the message for the client."""
        first = group_fields(next(requests))
        command = group_fields(first.get(1, b"")).get(2, b"")
        name, message = unpack_command(command)
        if name != "CommandPreparedStatementQuery":
            raise ValueError(_only_reads(name))
        handle = group_fields(message).get(1, b"")
        prepared, rows = self._find_prepared(handle), _read_table(first, requests)
        if rows.num_columns != prepared.count:
            raise InvalidUsage(f"the statement has {prepared.count} parameters, and {rows.num_columns} were given")
        prepared.rows = rows
        return encode_fields((1, encode_fields((1, handle))))

    def _statement(self, name: str, message: bytes) -> _Statement:
        """Return the statement of a command, without times."""
        fields = group_fields(message)
        if name == "CommandStatementQuery":
            if fields.get(2):
                raise ValueError("there are no transactions here: a query reads all at one point of the log")
            return _Statement(_text(fields.get(1, b"")), [])
        if name == "CommandPreparedStatementQuery":
            prepared = self._find_prepared(fields.get(1, b""))
            if prepared.count and prepared.rows is None:
                raise InvalidUsage(f"the statement has {prepared.count} parameters, and none were given")
            return _Statement(prepared.sql, [], "" if prepared.rows is None else _encode_rows(prepared.rows))
        raise ValueError(_only_reads(name))

    def _bound(self, statement: _Statement) -> tuple[pa.Schema, _Statement]:
        """Return the columns of a statement, and the statement with the times that it reads."""
        rows = _parameters(statement)
        with (
            self._queries.turn(),
            contextlib.closing(self._queries.ask(statement.sql, rows[0] if rows else ())) as answer,
        ):
            times = [([*path], at) for path, at in answer.times.items()]
            return answer.schema, msgspec.structs.replace(statement, times=times)

    def _answered(self, statement: _Statement, ticket: bytes, context: Any) -> Opened:
        times = {tuple(path): at for path, at in statement.times}
        rows = _parameters(statement) or [[]]
        if not self._turns.acquire(blocking=False):
            raise Unavailable(f"{QUERIES_MAX} queries run already: try again later")
        try:
            running = _Running(lambda row: self._queries.ask(statement.sql, row, times), rows)
        except BaseException:
            self._turns.release()
            raise
        with self._lock:
            self._running.setdefault(ticket, []).append(running)

        def close() -> None:
            with self._lock:
                queries = self._running.get(ticket, [])
                if running in queries:
                    queries.remove(running)
                    self._turns.release()
                if not queries:
                    self._running.pop(ticket, None)
            running.close()

        context.add_callback(partial(running.interrupt, "its client has gone"))
        return running.schema, close, running.batches()

    def _prepare(self, sql: str) -> bytes:
        count = self._queries.parameters(sql)
        schema = b""
        try:
            with self._queries.turn(), contextlib.closing(self._queries.ask(sql, [None] * count)) as answer:
                schema = answer.schema.serialize().to_pybytes()
        except InvalidUsage:
            if not count:
                raise
            # Its columns may depend on the types of its parameters. They are determined when it is executed.
        handle = uuid.uuid4().hex.encode()
        with self._lock:
            now_s = time.monotonic()
            while self._prepared:
                oldest = next(iter(self._prepared.values()))
                if len(self._prepared) < PREPARED_MAX and now_s - oldest.used_s < PREPARED_S:
                    break
                self._prepared.popitem(last=False)
            self._prepared[handle] = _Prepared(sql, count)
        parameters = pa.schema([(f"${at}", pa.null()) for at in range(1, count + 1)])
        return encode_fields((1, handle), (2, schema), (3, parameters.serialize()))

    def _find_prepared(self, handle: bytes) -> _Prepared:
        with self._lock:
            prepared = self._prepared.get(handle)
            if prepared is None:
                raise InvalidUsage("there is no such prepared statement, or it was not used for long: prepare it again")
            prepared.used_s = time.monotonic()
            self._prepared.move_to_end(handle)
            return prepared

    def _cancel_queries(self, info: bytes) -> int:
        """End the queries of a FlightInfo; return whether any ran."""
        try:
            tickets = [endpoint.ticket.ticket for endpoint in flight.FlightInfo.deserialize(info).endpoints]
        except pa.ArrowException as error:
            raise ValueError("the query to cancel is not a FlightInfo") from error
        with self._lock:
            running = [query for ticket in tickets for query in self._running.get(ticket, [])]
        for query in running:
            query.interrupt("it was cancelled")
        return _CANCELLED if running else _NOT_CANCELLABLE


class _Running:
    """A query at work: for each row of its parameters an answer, one after the other."""

    def __init__(self, ask: Callable[[Sequence[Any]], QueryResult], rows: Sequence[Sequence[Any]]) -> None:
        """Begin with the answer for the first row; raises the errors of `Queries.ask`."""
        self._ask = ask
        self._rows = rows
        self._lock = threading.Lock()  # Over which answer is the present one, and whether there may be another.
        self._why = ""
        self._answer = ask(rows[0])
        self.schema = self._answer.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all answers.

        Raises:
            InvalidUsage: the types of the columns depend on the parameters; and what reading raises.
        """
        yield from self._answer.to_batches()
        for row in self._rows[1:]:
            with self._lock:
                if self._why:
                    raise InvalidUsage(f"the query was ended: {self._why}")
                self._answer.close()
                self._answer = answer = self._ask(row)
            if answer.schema != self.schema:
                raise InvalidUsage("the types of its columns are not the same for all rows of parameters: cast them")
            yield from answer.to_batches()

    def interrupt(self, why: str) -> None:
        """End the reading."""
        with self._lock:
            self._why = self._why or why
            self._answer.interrupt(why)

    def close(self) -> None:
        """Let go of what is read; idempotent."""
        self.interrupt("its client has gone")
        self._answer.close()


def unpack_command(message: bytes) -> tuple[str, bytes]:
    """Return the kind and the contents of a message that may be of any kind of Flight SQL.

    Raises:
        ValueError: it is of none.
    """
    fields = group_fields(message)
    kind = fields.get(1, b"").decode(errors="replace")
    if not kind.startswith(_PREFIX):
        raise ValueError("the command is not a command of Flight SQL")
    return kind.removeprefix(_PREFIX), fields.get(2, b"")


def is_sql(message: bytes) -> bool:
    """Return whether a command or ticket is one of Flight SQL."""
    return len(_PREFIX) < len(message) and message[2 : 2 + len(_PREFIX)] == _PREFIX.encode()


def _any(kind: str, message: bytes) -> bytes:
    return encode_fields((1, (_PREFIX + kind).encode()), (2, message))


def _text(data: bytes) -> str:
    text = data.decode(errors="replace")
    if len(text) > TEXT_MAX:
        raise InvalidUsage(f"the query has {len(text):,} characters, and at most {TEXT_MAX:,} are read")
    return text


def _only_reads(name: str) -> str:
    return f"this server only reads, and {name[:100]} is not among the questions that it answers"


def _read_table(first: dict[int, bytes], requests: Iterator[bytes]) -> pa.Table:
    """Return the table that messages of data make, of which the first is there."""
    pieces: list[bytes] = []
    length = 0
    for fields in itertools.chain([first], map(group_fields, _until_end(requests))):
        header, body = fields.get(DATA_HEADER, b""), fields.get(DATA_BODY, b"")
        if header:
            padded = header + bytes(-len(header) % 8)
            pieces += _CONTINUATION, len(padded).to_bytes(4, "little"), padded, body, bytes(-len(body) % 8)
            length += len(padded) + len(body)
        if length > PARAMETER_BYTES_MAX:
            raise InvalidUsage(f"parameters take more than {PARAMETER_BYTES_MAX:,} bytes")
    table = _decode_table(b"".join(pieces))
    if table.num_rows > PARAMETER_ROWS_MAX:
        raise InvalidUsage(
            f"there are {table.num_rows:,} rows of parameters, and at most {PARAMETER_ROWS_MAX:,} are run"
        )
    return table


def _decode_table(data: bytes) -> pa.Table:
    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"the parameters are not an Arrow table: {error}") from error


def _until_end(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield messages until the client ends the upload."""
    with contextlib.suppress(ValueError):
        yield from requests


def _encode_rows(rows: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode()


def _parameters(statement: _Statement) -> list[list[Any]]:
    """Return the rows of a statement's parameters."""
    if not statement.parameters:
        return []
    try:
        table = _decode_table(base64.b64decode(statement.parameters, validate=True))
    except binascii.Error as error:
        raise ValueError(f"the parameters are not an Arrow table: {error}") from error
    return [[*row] for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
