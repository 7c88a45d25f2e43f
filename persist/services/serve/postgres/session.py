"""One session of a Postgres client: its settings, its block, its prepared statements, and what it runs.

A statement becomes an `Answer`: columns and batches of rows, or a tag alone. Both protocols run it: the simple one,
with a text of several statements, and the extended one, with parameters, portals and pieces of an answer. After an
error, the extended one skips to `Sync`, and a block waits for its end.

| state | a statement |
|---|---|
| outside of a block | reads the newest sealed contents, or those at `persist.as_of`; a change is a commit of its own |
| in a block | reads what was sealed at its first statement, with the changes of the block; COMMIT is one commit |
| in a block that failed | is refused, until ROLLBACK |

A text of several statements without BEGIN is a block, and so are the statements of the extended protocol until `Sync`,
from the first change on. A change waits for the message after it: if that is `Sync`, it needs no block.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from persist.compute.query import QueryResult
from persist.services.serve.postgres import wire
from persist.services.serve.postgres.answers import (
    Answer,
    Portal,
    Prepared,
    RowSender,
    iterate_subscription_batches,
    make_rows_answer,
)
from persist.services.serve.postgres.backend import Backend
from persist.services.serve.postgres.block import Block
from persist.services.serve.postgres.catalog import asks_catalog, insert_session_constants
from persist.services.serve.postgres.connection import Connection
from persist.services.serve.postgres.failures import find_position, to_failure
from persist.services.serve.postgres.parameters import format_literal
from persist.services.serve.postgres.settings import AS_OF, Settings, parse_set
from persist.services.serve.postgres.statements import (
    DEFINES,
    READS,
    REFUSED,
    WRITES,
    Subscribe,
    check_chain,
    check_length,
    count_parameters,
    infer_parameter_types,
    insert_parameters,
    is_empty,
    list_first_words,
    parse_copy,
    parse_declare,
    parse_fetch,
    parse_subscribe,
    refuse,
    split_statements,
)
from persist.services.serve.postgres.values import describe_column
from persist.services.serve.postgres.wire import Column, Failure, ProtocolViolation, Reader

PREPARED_MAX = 1_000
PORTALS_MAX = 50
BY_USER = "canceling statement due to user request"
BY_TIMEOUT = "canceling statement due to statement timeout"


class SessionOfClient:
    """Answers the messages of one client. `block` is its transaction block, if one is open.

    `may_write`: whether statements may change collections.
    """

    def __init__(self, backend: Backend, connection: Connection, settings: Settings, *, may_write: bool) -> None:
        self._backend = backend
        self._queries = backend.queries
        self._connection = connection
        self._may_write = may_write
        self._settings = settings
        self.block = Block(self._queries)
        self._skips = False
        self._waiting: Portal | None = None  # A change that waits for the next message.
        self._prepared: dict[str, Prepared] = {}
        self._portals: dict[str, Portal] = {}
        self._cursors: dict[str, Portal] = {}
        self._running: Callable[[], object] | None = None  # Ends what runs.
        self._text = ""  # The newest statement, for the positions of errors.
        self._cancelled = ""  # Why the statement ends.
        self._lock = threading.Lock()
        self._sender = RowSender(connection, self._queries, self._check_cancelled)

    def start(self, options: Mapping[str, str]) -> None:
        """Send the settings, which the first message may have changed. Raises Failure if one is not possible."""
        for name, value in self._settings.begin(options):
            self._connection.send(wire.encode_parameter_status(name, value))

    def close(self) -> None:
        """Cancel the running statement and close the block; idempotent."""
        self.cancel()
        self._end_block()

    def cancel(self, why: str = BY_USER) -> None:
        """End the statement that runs, from any thread."""
        with self._lock:
            self._cancelled = self._cancelled or why
            if self._running is not None:
                with contextlib.suppress(Exception):  # DuckDB refuses it when the statement has ended.
                    self._running()

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise Failure("57014", self._cancelled)

    def _set_running(self, interrupt: Callable[[], object]) -> None:
        """Note the function that cancels the running statement."""
        with self._lock:
            self._running = interrupt
        self._check_cancelled()

    @contextlib.contextmanager
    def _limit_time(self) -> Iterator[None]:
        """Cancel the statement at its `statement_timeout`."""
        timeout_s = self._settings.timeout_s
        if not timeout_s:
            yield
            return
        timer = threading.Timer(timeout_s, self.cancel, [BY_TIMEOUT])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    # Messages.

    def handle(self, kind: bytes, body: bytes) -> None:
        """Process a message, and answer it."""
        if self._skips and kind != b"S":
            return
        self._skips = False
        with self._lock:
            self._cancelled, self._running = "", None
        try:
            self._finish_waiting(is_last=kind in (b"S", b"Q"))
            if kind == b"Q":
                self._handle_query(Reader(body).read_text())
            elif kind in _EXTENDED:
                _EXTENDED[kind](self, Reader(body))
            elif kind == b"H":
                self._connection.flush()
            elif kind == b"F":
                raise Failure("0A000", "function calls are not served: call functions in SQL")
            elif kind not in (b"S", b"d", b"c", b"f"):  # Data of a COPY that was refused come after the refusal.
                raise ProtocolViolation(f"there is no message of the kind {kind!r}")
        except (ProtocolViolation, OSError):
            raise
        except Exception as error:
            self._send_failure(error)
            self._skips = kind not in (b"Q", b"S")
        if kind in (b"Q", b"S"):
            if not self.block.is_open:
                self._drop_portals()
            self._connection.send(wire.encode_ready(self.block.status))
            self._connection.flush()

    def _send_failure(self, error: Exception) -> None:
        """Send an error; skip messages up to the next Sync."""
        failure = Failure("57014", self._cancelled) if self._cancelled else to_failure(error, self._backend.url)
        if failure.position is None:
            failure.position = find_position(error, self._text)
        self._waiting = None
        if self.block.is_implicit:
            self._end_block()
        self.block.has_failed = self.block.is_open
        self._connection.send(wire.make_error_message(failure))

    def _finish_waiting(self, *, is_last: bool) -> None:
        """Run the waiting change; commit an implicit block if this is the last message."""
        portal, self._waiting = self._waiting, None
        if portal is not None:
            if not is_last:
                self.block.begin(is_implicit=True)
            self._send_portal(portal, 0)
        if is_last and self.block.is_implicit:
            self._commit()

    def _handle_query(self, sql: str) -> None:
        """Answer the simple protocol: run the statements of a text."""
        check_length(sql)
        self._text = sql
        statements = split_statements(sql)
        if not statements:
            self._connection.send(wire.encode_message(b"I"))
        for statement in statements:
            if len(statements) > 1 and not self.block.is_open:
                self.block.begin(is_implicit=True)
            with self._limit_time():
                self._send_answer(self._run_statement(insert_parameters(statement, [])))
        if self.block.is_implicit:
            self._commit()

    def _send_answer(self, answer: Answer) -> None:
        """Send all rows of an answer, as the simple protocol does."""
        portal = Portal(answer, [0] * len(answer.columns or ()))
        try:
            if answer.columns is not None and answer.copy is None:
                self._connection.send(wire.make_row_description(answer.columns, portal.formats))
            self._sender.send_rows(portal, 0)
        finally:
            answer.close()

    def _handle_parse(self, reader: Reader) -> None:
        """Answer Parse: store a prepared statement."""
        name, sql, oids = reader.read_text(), reader.read_text(), reader.read_int32_list()
        self._text = sql
        check_length(sql)
        if len(split_statements(sql)) > 1:
            raise Failure("42601", "a prepared statement is one statement")
        if name and name in self._prepared:
            raise Failure("42P05", f'the prepared statement "{name}" exists already')
        if len(self._prepared) >= PREPARED_MAX:
            raise Failure("53000", f"a session has at most {PREPARED_MAX:,} prepared statements: close some")
        count_parameters(sql)
        self._prepared[name] = Prepared(sql.rstrip().rstrip(";"), oids)
        self._connection.send(wire.encode_message(b"1"))

    def _find(self, name: str) -> Prepared:
        if name not in self._prepared:
            raise Failure("26000", f'there is no prepared statement "{name}"')
        return self._prepared[name]

    def _handle_bind(self, reader: Reader) -> None:
        """Answer Bind: make a portal of a prepared statement and parameters."""
        portal, prepared = reader.read_text(), self._find(reader.read_text())
        self._text = prepared.sql
        forms, values = reader.read_int16_list(), [reader.read_value() for _ in range(reader.read_count())]
        formats = reader.read_int16_list()
        count = count_parameters(prepared.sql)
        if len(values) < count:
            raise ProtocolViolation(f"{len(values)} parameters were sent, and {count} are needed")
        if len(forms) not in (0, 1, len(values)):
            count = len(values)
            raise ProtocolViolation(f"{len(forms)} format codes were sent for {count} parameters: send 0, 1 or {count}")
        forms = forms * len(values) if len(forms) == 1 else forms or [0] * len(values)
        oids = [*prepared.oids, *[0] * (len(values) - len(prepared.oids))]
        constants = [*map(format_literal, values, oids, forms)]
        if len(self._portals) + len(self._cursors) >= PORTALS_MAX:
            raise Failure("53000", f"a session has at most {PORTALS_MAX} portals and cursors: close some")
        if portal in self._portals:
            if portal:
                raise Failure("42P03", f'the portal "{portal}" exists already')
            self._portals.pop(portal).answer.close()
        with self._limit_time():
            answer = self._bind_statement(insert_parameters(prepared.sql, constants))
        columns = answer.columns or []
        if prepared.described is not None and [c.oid for c in prepared.described] != [c.oid for c in columns]:
            answer.close()
            raise Failure("0A000", "the types of the columns depend on the parameters: cast them, as in $1::bigint")
        if len(formats) not in (0, 1, len(columns)) or not {*formats} <= {0, 1}:
            answer.close()
            raise ProtocolViolation(f"the format codes {formats} do not fit {len(columns)} columns")
        formats = formats * len(columns) if len(formats) == 1 else formats or [0] * len(columns)
        self._portals[portal] = Portal(answer, formats)
        self._connection.send(wire.encode_message(b"2"))

    def _bind_statement(self, sql: str) -> Answer:
        """Return the answer of a bound statement. A statement without rows runs only when it is executed."""
        first_words = list_first_words(sql)
        if first_words and first_words[0] not in {*READS, "SUBSCRIBE", "FETCH", "EXPLAIN", "COPY"}:
            return Answer("", start=lambda: self._run_statement(sql), is_change=first_words[0] in WRITES)
        return self._run_statement(sql)

    def _handle_describe(self, reader: Reader) -> None:
        """Answer Describe: send the columns of a portal or prepared statement."""
        kind, name = reader.read_bytes(1), reader.read_text()
        if kind == b"P":
            portal = self._find_portal(name)
            self._sender.send_columns(None if portal.answer.copy else portal.answer.columns, portal.formats)
            return
        prepared = self._find(name)
        if 0 in prepared.oids or count_parameters(prepared.sql) > len(prepared.oids):
            prepared.oids = infer_parameter_types(prepared.sql, prepared.oids, self._backend.list_columns(prepared.sql))
        self._connection.send(wire.encode_parameter_description(prepared.oids))
        columns = self._get_columns(prepared)
        prepared.described = columns
        self._sender.send_columns(columns, [0] * len(columns or ()))

    def _get_columns(self, prepared: Prepared) -> list[Column] | None:
        """Return the columns of a prepared statement without its parameters; None if it has no rows."""
        first_words = list_first_words(prepared.sql)
        if first_words and first_words[0] not in {*READS, "SUBSCRIBE", "FETCH", "EXPLAIN"}:
            return None
        if first_words[:1] == ["FETCH"]:
            return self._find_cursor(first_words[-1]).answer.columns
        answer = self._run_statement(
            insert_parameters(prepared.sql, [format_literal(None, oid, 0) for oid in prepared.oids])
        )
        answer.close()
        return answer.columns

    def _find_portal(self, name: str) -> Portal:
        return self._portals[name] if name in self._portals else self._find_cursor(name)

    def _execute(self, reader: Reader) -> None:
        """Answer Execute: send rows of a portal. A change outside of a block waits."""
        portal, limit = self._find_portal(reader.read_text()), reader.read_int32()
        if portal.answer.is_change and not self.block.is_open:
            self._waiting = portal
        else:
            self._send_portal(portal, max(limit, 0))

    def _send_portal(self, portal: Portal, limit: int) -> None:
        with self._limit_time():
            if portal.answer.start is not None:
                portal.answer = portal.answer.start()
            if portal.answer.columns is None and not portal.answer.tag:
                self._connection.send(wire.encode_message(b"I"))
            else:
                self._sender.send_rows(portal, limit)

    def _handle_close(self, reader: Reader) -> None:
        """Answer Close: forget a portal or prepared statement."""
        kind, name = reader.read_bytes(1), reader.read_text()
        if kind == b"S":
            self._prepared.pop(name, None)
        elif name in self._portals:
            self._portals.pop(name).answer.close()
        self._connection.send(wire.encode_message(b"3"))

    def _drop_portals(self) -> None:
        """Close all portals that do not outlive the block."""
        for portal in [*self._portals.values(), *self._cursors.values()]:
            portal.answer.close()
        self._portals.clear()
        self._cursors.clear()

    @property
    def _ends(self) -> bool:
        """Whether a subscription ends: its client has gone, or has cancelled it."""
        return bool(self._cancelled) or self._connection.is_gone

    # Statements.

    def _run_statement(self, sql: str) -> Answer:
        """Run a statement by its first word; return its answer."""
        first = list_first_words(sql)[:1]
        verb = first[0] if first else ""
        if self.block.has_failed and verb not in ("ROLLBACK", "ABORT", "COMMIT", "END"):
            raise Failure("25P02", "the block has failed, and runs nothing more: end it with ROLLBACK")
        if not verb and not is_empty(sql) and sql.lstrip()[:1] == "(":
            verb = "SELECT"
        if verb in _COMMANDS:
            return _COMMANDS[verb](self, sql)
        if not verb and is_empty(sql):
            return Answer("")
        if verb in WRITES:
            return self._run_change(sql, verb)
        if verb in DEFINES:
            return self._run_definition(sql, verb)
        if verb == "SUBSCRIBE":
            return self._run_subscribe(parse_subscribe(sql))
        return self._run_query(sql)

    def _run_query(self, sql: str) -> Answer:
        if asks_catalog(sql):
            if (table := self._backend.answer_catalog_query(sql, self._settings, self._set_running)) is not None:
                return make_rows_answer(table)
            sql = insert_session_constants(sql, self._settings)
        with self._queries.wait_for_turn():
            result = self._ask(sql)
        try:
            columns = [*map(describe_column, result.schema)]
            self._set_running(lambda: result.interrupt("canceled"))
        except BaseException:
            result.close()
            raise
        return Answer("SELECT {}", columns, result.to_batches(), result.close)

    def _ask(self, sql: str) -> QueryResult:
        """Run a query, in the open block or at `persist.as_of`."""
        if not self.block.is_open:
            return self._queries.run(sql, as_of=self._settings.as_of)
        return self.block.transaction(self._settings.as_of).query(sql)

    def _run_definition(self, sql: str, verb: str) -> Answer:
        self._settings.check_may_change(verb, may_write=self._may_write, is_in_block=self.block.is_open)
        if self.block.is_open:
            hint = "It is a commit of its own: switch autocommit on, or COMMIT first."
            raise Failure("25001", f"{' '.join(list_first_words(sql)[:2])} cannot run inside a transaction block", hint)
        with self._queries.wait_for_turn():
            tag = self._queries.define(sql, self._set_running)
        return Answer(tag)

    def _run_change(self, sql: str, verb: str) -> Answer:
        self._settings.check_may_change(verb, may_write=self._may_write, is_in_block=self.block.is_open)
        if asks_catalog(sql):
            sql = insert_session_constants(sql, self._settings)
        with self._queries.wait_for_turn():
            if self.block.is_open:
                transaction = self.block.transaction(None)
                self._set_running(lambda: transaction.interrupt("canceled"))
                count = transaction.execute(sql)
                self.block.changes += 1
            else:
                count = self._queries.execute(sql, self._set_running)
        tag = {"INSERT": f"INSERT 0 {count}", "TRUNCATE": "TRUNCATE TABLE"}.get(verb, f"{verb} {count}")
        return Answer(tag)

    def _run_explain(self, sql: str) -> Answer:
        query = re.sub(r"^\s*EXPLAIN\s*(?:\([^)]*\)|(?:ANALYZE|VERBOSE)\b\s*)*", "", sql, flags=re.IGNORECASE)
        with self._queries.wait_for_turn(), contextlib.closing(self._ask(query)) as result:
            lines = result.explain().splitlines()
        return make_rows_answer(pa.table({"QUERY PLAN": pa.array(lines, pa.string())}), "EXPLAIN")

    def _run_copy(self, sql: str) -> Answer:
        copy = parse_copy(sql)
        is_subscription = list_first_words(copy.query)[:1] == ["SUBSCRIBE"]
        answer = self._run_subscribe(parse_subscribe(copy.query)) if is_subscription else self._run_query(copy.query)
        answer.copy = copy
        return answer

    def _run_subscribe(self, subscribe: Subscribe) -> Answer:
        """Run a SUBSCRIBE: stream the updates of a collection."""
        listen, end, schema = self._backend.listen(subscribe)
        times = [pa.field("_time", pa.int64())] + [pa.field("_progressed", pa.bool_())] * subscribe.progress
        row_schema = pa.schema([*times, pa.field("_diff", pa.int64()), *schema])
        columns = [*map(describe_column, row_schema)]
        batches = iterate_subscription_batches(listen, end, row_schema, subscribe.progress, lambda: self._ends)
        return Answer("SUBSCRIBE {}", columns, batches, listen.close, is_live=True)

    # Blocks.

    def _begin_command(self, sql: str) -> Answer:
        if self.block.is_open and not self.block.is_implicit:
            self._connection.send(wire.notice("25001", "there is already a transaction in progress"))
        else:  # An implicit block is the client's from here on.
            self.block.begin()
            self._settings.begin_block(sql)
        return Answer("BEGIN")

    def _run_commit(self, sql: str) -> Answer:
        check_chain(sql)
        if not self.block.is_open:
            self._connection.send(wire.notice("25P01", "there is no transaction in progress"))
        elif self.block.has_failed:
            self._end_block()
            return Answer("ROLLBACK")
        else:
            self._commit()
        return Answer("COMMIT")

    def _commit(self) -> None:
        is_committed = False
        try:
            self.block.commit(is_serializable=self._settings.values["transaction_isolation"] == "serializable")
            is_committed = True
        finally:
            self._end_block(is_committed=is_committed)

    def _run_rollback(self, sql: str) -> Answer:
        check_chain(sql)
        match = re.search(r"\bTO\s+(?:SAVEPOINT\s+)?(\"[^\"]+\"|\w+)", sql, re.IGNORECASE)
        if match is not None:
            self.block.restore(match[1])
            return Answer("ROLLBACK")
        if not self.block.is_open:
            self._connection.send(wire.notice("25P01", "there is no transaction in progress"))
        self._end_block()
        return Answer("ROLLBACK")

    def _run_savepoint(self, sql: str) -> Answer:
        if not self.block.is_open or self.block.is_implicit:
            raise Failure("25P01", "SAVEPOINT is for a block: say BEGIN first")
        verb, name = list_first_words(sql)[0], sql.split()[-1]
        self.block.save(name) if verb == "SAVEPOINT" else self.block.release(name)
        return Answer(verb)

    def _end_block(self, *, is_committed: bool = False) -> None:
        """End the block: drop its portals, restore its settings."""
        self.block.end()
        self._drop_portals()
        self._settings.end_block(is_committed=is_committed)

    # Settings.

    def _run_set(self, sql: str) -> Answer:
        is_local = list_first_words(sql)[1:2] == ["LOCAL"]
        for name, value in parse_set(sql):
            if self.block.is_open:
                self._settings.remember(name, is_local=is_local)
            if self.block.is_open or not is_local:
                self._change_setting(name, value)
        return Answer("SET")

    def _change_setting(self, name: str, value: str | None) -> None:
        """Change a setting, and send it to the client; None is its value at the start."""
        if name.lower() == AS_OF and self.block.has_begun:
            raise Failure("25001", f"{AS_OF} can only be set before the first statement of a block")
        if status := self._settings.set(name, value):
            self._connection.send(wire.encode_parameter_status(*status))

    def _run_reset(self, sql: str) -> Answer:
        name = sql.split()[-1]
        self._settings.reset() if name.upper() == "ALL" else self._change_setting(name, None)
        return Answer("RESET")

    def _run_show(self, sql: str) -> Answer:
        setting = self._settings.find(re.sub(r"^\s*SHOW\s+", "", sql, flags=re.IGNORECASE))
        if setting is None:
            return self._run_query(sql)
        return make_rows_answer(pa.table({setting[0]: pa.array([setting[1]], pa.string())}), "SHOW")

    def _run_discard(self, sql: str) -> Answer:
        if self.block.is_open:
            raise Failure("25001", "DISCARD cannot run inside a transaction block")
        self._prepared.clear()
        self._drop_portals()
        self._settings.reset()
        return Answer("DISCARD ALL")

    def _run_deallocate(self, sql: str) -> Answer:
        name = sql.split()[-1].strip('"')
        if name.upper() == "ALL":
            self._prepared.clear()
            return Answer("DEALLOCATE ALL")
        if self._prepared.pop(name, None) is None:
            raise Failure("26000", f'there is no prepared statement "{name}"')
        return Answer("DEALLOCATE")

    # Cursors.

    def _run_declare(self, sql: str) -> Answer:
        name, query, is_binary = parse_declare(sql)
        if not self.block.is_open:
            raise Failure("25P01", "DECLARE CURSOR can only be used in transaction blocks")
        if name in self._cursors:
            raise Failure("42P03", f'the cursor "{name}" exists already')
        if len(self._portals) + len(self._cursors) >= PORTALS_MAX:
            raise Failure("53000", f"a session has at most {PORTALS_MAX} portals and cursors: close some")
        answer = self._run_statement(query)
        self._cursors[name] = Portal(answer, [int(is_binary)] * len(answer.columns or ()))
        return Answer("DECLARE CURSOR")

    def _find_cursor(self, name: str) -> Portal:
        for cursor, portal in self._cursors.items():
            if cursor.lower() == name.strip('"').lower():
                return portal
        raise Failure("34000", f'there is no cursor "{name}"')

    def _run_fetch(self, sql: str) -> Answer:
        verb, name, limit = parse_fetch(sql)
        portal = self._find_cursor(name)
        batches = iter(()) if limit == 0 else self._sender.iterate_batches(portal, limit or 0)
        if verb == "MOVE":
            moved = sum(batch.num_rows for batch in batches)
            return Answer(f"MOVE {moved}")
        return Answer("FETCH {}", portal.answer.columns, batches, is_live=portal.answer.is_live)

    def _run_close(self, sql: str) -> Answer:
        name = sql.split()[-1]
        closed = [*self._cursors.values()] if name.upper() == "ALL" else [self._find_cursor(name)]
        for portal in closed:
            portal.answer.close()
        self._cursors = {cursor: portal for cursor, portal in self._cursors.items() if portal not in closed}
        return Answer("CLOSE CURSOR")


_COMMANDS: dict[str, Callable[[SessionOfClient, str], Answer]] = {
    "BEGIN": SessionOfClient._begin_command,
    "START": SessionOfClient._begin_command,
    "COMMIT": SessionOfClient._run_commit,
    "END": SessionOfClient._run_commit,
    "ROLLBACK": SessionOfClient._run_rollback,
    "ABORT": SessionOfClient._run_rollback,
    "SAVEPOINT": SessionOfClient._run_savepoint,
    "RELEASE": SessionOfClient._run_savepoint,
    "SET": SessionOfClient._run_set,
    "RESET": SessionOfClient._run_reset,
    "SHOW": SessionOfClient._run_show,
    "DISCARD": SessionOfClient._run_discard,
    "DEALLOCATE": SessionOfClient._run_deallocate,
    "DECLARE": SessionOfClient._run_declare,
    "FETCH": SessionOfClient._run_fetch,
    "MOVE": SessionOfClient._run_fetch,
    "CLOSE": SessionOfClient._run_close,
    "COPY": SessionOfClient._run_copy,
    "EXPLAIN": SessionOfClient._run_explain,
    "UNLISTEN": lambda session, sql: Answer("UNLISTEN"),
    **dict.fromkeys(REFUSED, refuse),
}
_EXTENDED: dict[bytes, Callable[[SessionOfClient, Reader], None]] = {
    b"P": SessionOfClient._handle_parse,
    b"B": SessionOfClient._handle_bind,
    b"D": SessionOfClient._handle_describe,
    b"E": SessionOfClient._execute,
    b"C": SessionOfClient._handle_close,
}
