"""Commits through another client: decides which operations may be sent, and settles unanswered ones.

The committer of a client that has a `Relay` offers it each group first. The other client validates and commits the
operations together with its other ones. It returns the seqno of each operation, or the error that rejected it
(`persist.engine.write.relay_messages`). An operation without an answer may or may not be in the log, now or later. The
log shows the outcome (`persist.engine.follow.log_queries`). If the log lacks an operation, this client commits it, in a
record that declares that no other client will.

Rejected: to let a server acknowledge operations that it has only received (it may die before it commits); to make one
record for each doubtful operation (a group is in doubt together, and is settled together).
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Protocol

from persist.blob.errors import Indeterminate, PersistError
from persist.core.log import kinds
from persist.core.log.kinds import Mutation
from persist.core.log.records import Submitted
from persist.core.state_rules.collection_rules import Condition
from persist.engine.write.commit_future import Committed
from persist.engine.write.operations import Asked, AtCommit, Operation, Write

Answer = Committed | PersistError | None

OPERATIONS_MAX = 1000  # That one request holds.
_PLAIN = kinds.Tokens | kinds.Seal | kinds.Note | kinds.Batch | Condition | Asked | AtCommit


class Relay(Protocol):
    """The connection to another client that commits for this one; for one thread at a time."""

    def commit(self, location: str, operations: Sequence[Operation]) -> Sequence[Answer] | None:
        """Request the commit of operations in this order, each under this client's id for it.

        Returns:
            None if no other client was asked. Otherwise, for each operation: the seqno of its commit; the error of its
                rejection, after which it will never be committed; None if the outcome is unknown.
        """


def may_be_relayed(operations: Sequence[Operation]) -> bool:
    """Return whether another client may commit these operations.

    Operations that another client sent may not, because their sender looks in the log for the id that it chose.
    Operations whose steps depend on the state may not, because only steps are sent.
    """
    steps = (step for operation in operations for step in operation.steps)
    return (
        0 < len(operations) <= OPERATIONS_MAX
        and all(operation.submission is None and operation.renew is None for operation in operations)
        and all(step.is_sent for step in steps if isinstance(step, Mutation))
    )


def is_plain(operation: Operation) -> bool:
    """Return whether a client may continue before it has read the record of its operation."""
    return all(isinstance(step, _PLAIN) or (isinstance(step, Write) and not step.events) for step in operation.steps)


def list_submissions(operations: Iterable[Operation], accepted: Iterable[Operation]) -> tuple[Submitted, ...]:
    """Return the submissions to name in the record of the accepted operations.

    The record also declares that this client's own rejected operations will never be committed.
    """
    submissions = [operation.submission for operation in operations if operation.submission is not None]
    if not submissions:
        return ()
    numbers_by_submitter: dict[str, list[int]] = {}
    for operation in accepted:
        if operation.submission is not None:
            numbers_by_submitter.setdefault(operation.submission.submitter, []).append(operation.submission.number)
    marks = [
        Submitted(who, first, last)
        for who, numbers in numbers_by_submitter.items()
        for first, last in _find_ranges(numbers)
    ]
    own_submissions = [submission for submission in submissions if submission.is_own]
    last = max(own_submissions, key=lambda submission: submission.number, default=None)
    if last is not None and last.number not in numbers_by_submitter.get(last.submitter, ()):
        marks.append(Submitted(last.submitter, last.number + 1, last.number))
    return tuple(marks)


def _find_ranges(numbers: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Yield the first and last number of each consecutive run."""
    for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        consecutive = [number for _, number in run]
        yield consecutive[0], consecutive[-1]


def is_in_doubt(operation: Operation) -> bool:
    """Return whether this client has sent an operation to another, which may still commit it."""
    return operation.submission is not None and operation.submission.is_own


def fail_in_doubt(operations: Iterable[Operation], error: BaseException) -> None:
    """Fail the operations that another client may have committed or may still commit."""
    for operation in operations:
        if is_in_doubt(operation) and not operation.future.done():
            unknown_outcome = Indeterminate(
                f"another process was asked to commit this and gave no answer, and what became of it could not be "
                f"found out: {error}. It may or may not be there. Read back before writing it again."
            )
            unknown_outcome.__cause__ = error
            operation.future.fail(unknown_outcome)
