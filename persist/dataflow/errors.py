"""The errors of dataflows. Each names the operator; persisted outputs stay at their last sealed time."""

from typing import Any

from persist.blob import Conflict, InvalidUsage


class OperatorFailed(InvalidUsage):
    """A function or an expression of the program raised, or returned what it must not."""

    def __init__(self, operator: str, record: Any, problem: str) -> None:
        super().__init__(operator, record, problem)
        self.operator = operator
        self.record = record
        self.problem = problem

    def __str__(self) -> str:
        on = "" if self.record is None else f" on the record {self.record!r:.300}"
        return (
            f"operator {self.operator} failed{on}: {self.problem}. Nothing of this step was written. Correct the "
            "program "
            "or the source, and open it again: it goes on where its outputs are sealed."
        )


class NotConsolidated(InvalidUsage):
    """A cycle has no operator that consolidates, so what cancels out would go round for ever."""

    def __init__(self, scope: str, operators: list[str]) -> None:
        super().__init__(scope, operators)
        self.scope = scope
        self.operators = operators

    def __str__(self) -> str:
        return (
            f"the cycle {' -> '.join(self.operators)} in scope {self.scope!r} has no operator that consolidates, so "
            "updates that cancel out would go round for ever. Put distinct(), consolidate() or a reduction on it."
        )


class NotConverging(InvalidUsage):
    """An iteration did not come to its end within its limit."""

    def __init__(self, scope: str, limit: int, changes: int) -> None:
        super().__init__(scope, limit, changes)
        self.scope = scope
        self.limit = limit
        self.changes = changes

    def __str__(self) -> str:
        return (
            f"scope {self.scope!r} still had {self.changes} changes after its limit of {self.limit} iterations. Its "
            "body "
            "must reach a fixed point: if it does, only later, give the scope a larger limit."
        )


class InputClosed(InvalidUsage):
    """An update came for a time that its input had declared complete."""

    def __init__(self, name: str, time: Any, frontier: Any) -> None:
        super().__init__(name, time, frontier)
        self.name = name
        self.time = time
        self.frontier = frontier

    def __str__(self) -> str:
        return (
            f"input {self.name!r} got an update at time {self.time}, and it has been advanced to {self.frontier}: "
            "times "
            "not beyond that are complete. Give the update a later time."
        )


class SourceLost(InvalidUsage):
    """A source cannot be read from where the program needs it."""

    def __init__(self, source: str, problem: str, remedy: str) -> None:
        super().__init__(source, problem, remedy)
        self.source = source
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"source {self.source!r}: {self.problem}. {self.remedy}"


class OutputConflict(Conflict):
    """A collection that a program maintains was written by somebody else, in a way that no copy of it would."""

    def __init__(self, output: str, problem: str) -> None:
        super().__init__(output, problem)
        self.output = output
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"output {self.output!r}: {self.problem}. Only one program may write a collection that it keeps up to "
            "date. "
            "Nothing of this step was written. Stop the other writer, or let the program write another collection."
        )
