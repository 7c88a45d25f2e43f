"""The block of a session: its transaction, whether it has failed, and its savepoints."""

from persist.compute.query import ServedSql, Transaction
from persist.core.timeline import Moment
from persist.services.serve.postgres.wire import Failure


class Block:
    """The transaction block of a session, if it has one open.

    Attributes:
        is_open: whether the session has a block.
        is_implicit: whether it began without BEGIN, so it ends without COMMIT.
        has_failed: whether a statement has failed, so all others are refused.
        changes: how many statements in it changed a collection.
    """

    def __init__(self, queries: ServedSql) -> None:
        self._queries = queries
        self._transaction: Transaction | None = None
        self._savepoints: list[tuple[str, int]] = []  # Their names, and how many changes came before each.
        self.is_open = self.is_implicit = self.has_failed = False
        self.changes = 0

    @property
    def status(self) -> bytes:
        """The status of the block in the message ReadyForQuery: I, T or E."""
        return b"E" if self.has_failed else b"T" if self.is_open else b"I"

    @property
    def has_begun(self) -> bool:
        """Whether a statement has read the location, so the time that it reads is fixed."""
        return self._transaction is not None

    def begin(self, *, is_implicit: bool = False) -> None:
        """Open the block, or turn an implicit one into the client's own."""
        self.is_open, self.is_implicit, self.has_failed = True, is_implicit, False

    def transaction(self, as_of: int | Moment | None) -> Transaction:
        """Return the transaction of the block; the first call begins it."""
        if self._transaction is None:
            self._transaction = self._queries.begin(as_of)
        return self._transaction

    def commit(self, *, is_serializable: bool) -> None:
        """Commit the changes; the block stays open until `end`."""
        if self._transaction is not None and self._transaction.has_changed:
            with self._queries.wait_for_turn():
                self._transaction.commit(is_serializable=is_serializable)

    def end(self) -> None:
        """Close the block, without the changes that are not committed; idempotent."""
        transaction, self._transaction = self._transaction, None
        self.is_open = self.is_implicit = self.has_failed = False
        self._savepoints, self.changes = [], 0
        if transaction is not None:
            transaction.close()

    def save(self, name: str) -> None:
        """Set a savepoint."""
        self._savepoints.append((name, self.changes))

    def release(self, name: str) -> None:
        """Forget a savepoint and all later ones."""
        while self._savepoints and self._savepoints.pop()[0] != name:
            pass

    def restore(self, name: str) -> None:
        """Go back to a savepoint. Raises Failure if something was changed since: that cannot be undone alone."""
        while self._savepoints and self._savepoints[-1][0] != name:
            self._savepoints.pop()
        if not self._savepoints:
            raise Failure("3B001", f"there is no savepoint {name}")
        if self._savepoints[-1][1] != self.changes:
            raise Failure("0A000", "changes after a savepoint cannot be taken back alone: end the block with ROLLBACK")
        self.has_failed = False
