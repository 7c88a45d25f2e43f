"""The errors of dataflows. Each names the operator; persisted outputs stay at their last sealed time."""

from dataclasses import dataclass
from typing import Any

from persist.blob import Conflict, InvalidUsage


@dataclass(eq=False, repr=False)
class OperatorFailed(InvalidUsage):
    """A function or an expression of the program raised, or returned what it must not."""

    operator: str
    record: Any
    problem: str

    def __str__(self) -> str:
        on = "" if self.record is None else f" on the record {self.record!r:.300}"
        return (
            f"operator {self.operator} failed{on}: {self.problem}. Nothing of this step was written. Correct the "
            "program "
            "or the source, and open it again: it goes on where its outputs are sealed."
        )


@dataclass(eq=False, repr=False)
class WouldRecompute(InvalidUsage):
    """A refresh that must not recompute would have to read all of an input. Nothing was written."""

    name: str
    problem: str

    template = (
        'refresh(policy="incremental") of {name!r} would have to recompute: {problem}. Refresh it without that policy, '
        "or keep its state open from before the change on with open_state()."
    )


@dataclass(eq=False, repr=False)
class NotConsolidated(InvalidUsage):
    """A cycle has no operator that consolidates, so what cancels out would go round for ever."""

    scope: str
    operators: list[str]

    def __str__(self) -> str:
        return (
            f"the cycle {' -> '.join(self.operators)} in scope {self.scope!r} has no operator that consolidates, so "
            "updates that cancel out would go round for ever. Put distinct(), consolidate() or a reduction on it."
        )


@dataclass(eq=False, repr=False)
class NotConverging(InvalidUsage):
    """An iteration did not come to its end within its limit."""

    scope: str
    limit: int
    changes: int

    template = (
        "scope {scope!r} still had {changes} changes after its limit of {limit} iterations. Its "
        "body "
        "must reach a fixed point: if it does, only later, give the scope a larger limit."
    )


@dataclass(eq=False, repr=False)
class InputClosed(InvalidUsage):
    """An update came for a time that its input had declared complete."""

    name: str
    time: Any
    frontier: Any

    template = (
        "input {name!r} got an update at time {time}, and it has been advanced to {frontier}: "
        "times "
        "not beyond that are complete. Give the update a later time."
    )


@dataclass(eq=False, repr=False)
class SourceLost(InvalidUsage):
    """A source cannot be read from where the program needs it."""

    source: str
    problem: str
    remedy: str

    template = "source {source!r}: {problem}. {remedy}"


@dataclass(eq=False, repr=False)
class OutputConflict(Conflict):
    """A collection that a program maintains was written by somebody else, in a way that no copy of it would."""

    output: str
    problem: str

    template = (
        "output {output!r}: {problem}. Only one program may write a collection that it keeps up to "
        "date. "
        "Nothing of this step was written. Stop the other writer, or let the program write another collection."
    )
