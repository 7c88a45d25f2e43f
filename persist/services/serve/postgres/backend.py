"""The interfaces between a session, its server and its client."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

from persist.services.serve.postgres.catalog import Session
from persist.services.serve.postgres.statements import Subscribe
from persist.services.serve.postgres.wire import Column


class Answered(Protocol):
    """The answer of a query; see `persist.compute.query.QueryResult`."""

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        ...

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield its rows."""
        ...

    def interrupt(self, why: str) -> None:
        """End its reading."""
        ...

    def explain(self) -> str:
        """Return how it is read."""
        ...

    def close(self) -> None:
        """Release the snapshots."""
        ...


class Block(Protocol):
    """A block of statements; see `persist.compute.query.transaction.Transaction`."""

    @property
    def has_changed(self) -> bool:
        """Whether a statement has changed a collection."""
        ...

    def ask(self, sql: str) -> Answered:
        """Return the answer of a query, with the changes of the block."""
        ...

    def execute(self, sql: str) -> int:
        """Run a statement that changes a collection; return how many rows it touched."""
        ...

    def commit(self, *, is_serializable: bool) -> None:
        """Commit all changes at once."""
        ...

    def interrupt(self, why: str) -> None:
        """End the statement that runs."""
        ...

    def close(self) -> None:
        """Release the snapshots, and drop changes that are not committed."""
        ...


class Backend(Protocol):
    """Answers the statements of sessions; see `persist.services.serve.postgres.server`."""

    def ask(self, sql: str, as_of: int | str | None) -> Answered:
        """Return the answer of a query."""
        ...

    def execute(self, sql: str, running: Callable[[Callable[[], object]], object]) -> int:
        """Run a statement that changes a collection, as one commit; return how many rows it touched."""
        ...

    def define(self, sql: str, running: Callable[[Callable[[], object]], object]) -> str:
        """Run a statement that defines a collection; return its command tag."""
        ...

    def begin(self, as_of: int | str | None) -> Block:
        """Begin a block of statements."""
        ...

    def catalog(self, sql: str, session: Session, running: Callable[[Callable[[], None]], None]) -> pa.Table | None:
        """Return the answer of a query of Postgres's catalogs; None if it reads something else."""
        ...

    def columns(self, sql: str) -> Mapping[str, Sequence[Column]]:
        """Return the columns of the collections that a statement may name, by their names."""
        ...

    def listen(self, subscribe: Subscribe) -> tuple[Any, int | None, pa.Schema]:
        """Return a listener of a collection, the requested end, and the columns."""
        ...

    def turn(self) -> AbstractContextManager[object]:
        """Wait for a turn to run a statement."""
        ...


class Channel(Protocol):
    """Sends messages to a client; see `persist.services.serve.postgres.server`."""

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send messages, soon."""
        ...

    def flush(self) -> None:
        """Send all messages that wait."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        ...
