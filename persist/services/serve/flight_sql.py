"""Flight SQL: lets its clients query the collections, over the port and with the limits of a server.

`GetFlightInfo` binds a query: it fixes its collections, the time of each, and its columns. The ticket contains these,
so it always returns the same rows, because only erasures change sealed times. The bound result is kept for `BOUND_S`.
`DoGet` reads it if nothing was erased since; a later or second call binds the query again. A prepared statement is
bound when it is prepared, and its execution takes that result if nothing was committed since. It is kept, with its last
parameters, until it is closed or unused for `PREPARED_S`. Beyond `BOUND_MAX` results and `PREPARED_MAX` statements, the
oldest are dropped.

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
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from persist.compute.query import QUERIES_MAX, Queries, QueryResult
from persist.core.errors import InvalidUsage, Unavailable
from persist.services.serve.flight_calls import DATA_BODY, DATA_HEADER
from persist.services.serve.messages import encode_fields, group_fields
from persist.services.serve.sql_answers import ANSWERS, PREPARED_S, Asked, get_result_schema

PREPARED_MAX = 1024
BOUND_MAX, BOUND_S = 8, 10.0
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


T = TypeVar("T")


class _Store(Generic[T]):
    """Values by key, each for `kept_s` after its last use, and the newest ones only; for any thread."""

    def __init__(self, count_max: int, kept_s: float, drop: Callable[[T], object] = lambda value: None) -> None:
        self._count_max, self._kept_s, self._drop = count_max, kept_s, drop
        self._values: OrderedDict[bytes, tuple[float, T]] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: bytes, value: T) -> None:
        """Store or replace the value of a key; drop old values."""
        with self._lock:
            replaced = self._values.pop(key, None)
            self._values[key] = time.monotonic(), value
        if replaced is not None:
            self._drop(replaced[1])
        self.drop_old()

    def find(self, key: bytes) -> T | None:
        """Return the value of a key, and count this as a use; None without one."""
        with self._lock:
            if key not in self._values:
                return None
            self._values[key] = time.monotonic(), self._values[key][1]
            self._values.move_to_end(key)
            return self._values[key][1]

    def take(self, key: bytes) -> T | None:
        """Remove the value of a key and return it; None without one."""
        with self._lock:
            return self._values.pop(key, (0.0, None))[1]

    def drop_old(self, kept_s: float | None = None) -> None:
        """Drop values that were unused for `kept_s`, and the oldest ones beyond the limit."""
        dropped, limit_s = [], time.monotonic() - (self._kept_s if kept_s is None else kept_s)
        with self._lock:
            while self._values:
                used_s, value = next(iter(self._values.values()))
                if used_s > limit_s and len(self._values) <= self._count_max:
                    break
                dropped.append(value)
                self._values.popitem(last=False)
        for value in dropped:
            self._drop(value)


Opened = tuple[pa.Schema, Callable[[], object], Iterator[pa.RecordBatch]]


class FlightSql:
    """Answers the calls of Flight SQL's clients."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._prepared = _Store[_Prepared](PREPARED_MAX, PREPARED_S)
        self._bound = _Store[QueryResult](BOUND_MAX, BOUND_S, lambda answer: answer.close())
        self._running: dict[bytes, list[QueryResult]] = {}
        self._turns = threading.BoundedSemaphore(QUERIES_MAX)  # Of answers that are being read: each may keep memory.
        self._lock = threading.Lock()

    def drop_old(self, kept_s: float = BOUND_S) -> None:
        """Release the answers that no client has read for so long."""
        self._bound.drop_old(kept_s)

    def info(self, command: bytes) -> flight.FlightInfo:
        """Return a ticket for the result of a command, and its columns."""
        name, message = unpack_command(command)
        if name in ANSWERS:
            schema, ticket = get_result_schema(name, message), command
        else:
            schema, ticket = self._bind(*self._parse_statement(name, message))
        endpoint = flight.FlightEndpoint(ticket, [])
        return flight.FlightInfo(schema, flight.FlightDescriptor.for_command(command), [endpoint], -1, -1)

    def open_ticket(self, ticket: bytes, context: Any) -> Opened:
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
        return self._open_answer(statement, ticket, context)

    def run_action(self, what: str, body: bytes) -> bytes | None:
        """Run an action of Flight SQL; return its result, or None for other actions."""
        if what == "CancelFlightInfo":
            return encode_fields((1, self._cancel_queries(group_fields(body).get(1, b""))))
        if what == "CloseSession":
            return encode_fields((1, _CLOSED))
        if what not in SQL_ACTIONS:
            return None
        fields = group_fields(unpack_command(body)[1])
        if what == "CancelQuery":
            return _pack_any("ActionCancelQueryResult", encode_fields((1, self._cancel_queries(fields.get(1, b"")))))
        if what == "ClosePreparedStatement":
            self._prepared.take(handle := fields.get(1, b""))
            if (answer := self._bound.take(handle)) is not None:
                answer.close()
            return b""
        return _pack_any(
            "ActionCreatePreparedStatementResult", self._prepare_statement(_decode_text(fields.get(1, b"")))
        )

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

    def _parse_statement(self, name: str, message: bytes) -> tuple[_Statement, bytes]:
        """Return the statement of a command, without times, and its handle if it was prepared."""
        fields = group_fields(message)
        if name == "CommandStatementQuery":
            if fields.get(2):
                raise ValueError("there are no transactions here: a query reads all at one point of the log")
            return _Statement(_decode_text(fields.get(1, b"")), []), b""
        if name == "CommandPreparedStatementQuery":
            prepared = self._find_prepared(handle := fields.get(1, b""))
            if prepared.count and prepared.rows is None:
                raise InvalidUsage(f"the statement has {prepared.count} parameters, and none were given")
            return _Statement(
                prepared.sql, [], "" if prepared.rows is None else _encode_parameters(prepared.rows)
            ), handle
        raise ValueError(_only_reads(name))

    def _bind(self, statement: _Statement, handle: bytes) -> tuple[pa.Schema, bytes]:
        """Return the columns of a statement, and a ticket for its result as of now; keep the result."""
        row = (_decode_parameters(statement) or [[]])[0]
        with self._queries.wait_for_turn():
            answer = self._take_newest(handle)
            if answer is None:
                answer = self._queries.run(statement.sql, row)
            elif row:
                answer.bind(row)
        schema, times = answer.schema, [([*path], at) for path, at in answer.times.items()]
        contents = msgspec.json.encode(msgspec.structs.replace(statement, times=times))
        ticket = _pack_any("TicketStatementQuery", encode_fields((1, contents)))
        self._bound.put(ticket, answer)
        return schema, ticket

    def _take_newest(self, key: bytes) -> QueryResult | None:
        """Return the kept result of a key, if nothing was committed since its statement was bound."""
        answer = self._bound.take(key)
        if answer is None or self._queries.is_newest(answer):
            return answer
        answer.close()
        return None

    def _open_answer(self, statement: _Statement, ticket: bytes, context: Any) -> Opened:
        """Run the statement of a ticket, or take its kept result."""
        rows = _decode_parameters(statement) or [[]]
        if not self._turns.acquire(blocking=False):
            raise Unavailable(f"{QUERIES_MAX} queries run already: try again later")
        try:
            answer = self._bound.take(ticket)
            if answer is not None and self._queries.is_erased(answer):
                answer.close()
                answer = None
            if answer is None:
                answer = self._queries.run(statement.sql, rows[0], {tuple(path): at for path, at in statement.times})
        except BaseException:
            self._turns.release()
            raise
        with self._lock:
            self._running.setdefault(ticket, []).append(answer)

        def close() -> None:
            with self._lock:
                queries = self._running.get(ticket, [])
                if answer in queries:
                    queries.remove(answer)
                    self._turns.release()
                if not queries:
                    self._running.pop(ticket, None)
            answer.close()

        context.add_callback(partial(answer.interrupt, "its client has gone"))
        return answer.schema, close, self._read_answer(answer, rows[1:])

    def _read_answer(self, answer: QueryResult, more: Sequence[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a result, then the rows for further parameters."""
        schema = answer.schema
        yield from answer.to_batches()
        for row in more:
            answer.bind(row)
            if answer.schema != schema:
                raise InvalidUsage("the result has other types for some rows of parameters: cast its columns")
            yield from answer.to_batches()

    def _prepare_statement(self, sql: str) -> bytes:
        """Store a prepared statement; return its handle and columns."""
        count = self._queries.count_parameters(sql)
        schema, handle = b"", uuid.uuid4().hex.encode()
        try:
            with self._queries.wait_for_turn():
                answer = self._queries.run(sql, [None] * count)
            schema = answer.schema.serialize().to_pybytes()
            self._bound.put(handle, answer)
        except InvalidUsage:
            if not count:
                raise
            # Its columns may depend on the types of its parameters. They are determined when it is executed.
        self._prepared.put(handle, _Prepared(sql, count))
        parameters = pa.schema([(f"${at}", pa.null()) for at in range(1, count + 1)])
        return encode_fields((1, handle), (2, schema), (3, parameters.serialize()))

    def _find_prepared(self, handle: bytes) -> _Prepared:
        """Return the prepared statement of a handle; raise an error without one."""
        self._prepared.drop_old()
        if (prepared := self._prepared.find(handle)) is None:
            raise InvalidUsage("there is no such prepared statement, or it was not used for long: prepare it again")
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


def unpack_command(message: bytes) -> tuple[str, bytes]:
    """Return the kind and the contents of a message that may be of any kind of Flight SQL."""
    fields = group_fields(message)
    kind = fields.get(1, b"").decode(errors="replace")
    if not kind.startswith(_PREFIX):
        raise ValueError("the command is not a command of Flight SQL")
    return kind.removeprefix(_PREFIX), fields.get(2, b"")


def _pack_any(kind: str, message: bytes) -> bytes:
    """Return a message of Flight SQL with its kind, as protobuf's `Any`."""
    return encode_fields((1, (_PREFIX + kind).encode()), (2, message))


def _decode_text(data: bytes) -> str:
    """Return the text of a query. Raises InvalidUsage if it is too long."""
    text = data.decode(errors="replace")
    if len(text) > TEXT_MAX:
        raise InvalidUsage(f"the query has {len(text):,} characters, and at most {TEXT_MAX:,} are read")
    return text


def _only_reads(name: str) -> str:
    """Return the error text for a command that is not served."""
    return f"this server only reads, and {name[:100]} is not among the questions that it answers"


def _read_table(first: dict[int, bytes], requests: Iterator[bytes]) -> pa.Table:
    """Return the table in the messages of an upload; `first`: the fields of its first message."""
    pieces: list[bytes] = []
    length = 0
    for fields in itertools.chain([first], map(group_fields, _iterate_until_end(requests))):
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
    """Return an Arrow stream as a table. Raises ValueError if it is malformed."""
    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"the parameters are not an Arrow table: {error}") from error


def _iterate_until_end(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield messages until the client ends the upload."""
    with contextlib.suppress(ValueError):
        yield from requests


def _encode_parameters(rows: pa.Table) -> str:
    """Return rows of parameters as an Arrow stream in base64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode()


def _decode_parameters(statement: _Statement) -> list[list[Any]]:
    """Return the rows of a statement's parameters."""
    if not statement.parameters:
        return []
    try:
        table = _decode_table(base64.b64decode(statement.parameters, validate=True))
    except binascii.Error as error:
        raise ValueError(f"the parameters are not an Arrow table: {error}") from error
    return [[*row] for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
