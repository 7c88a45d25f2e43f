"""Dataflow: derived collections that keep themselves up to date; see `docs/dataflow.md`.

Promise to those above: what a program's output holds at a time is what its definition gives on its inputs at that time;
an output is complete, and sealed, as far as the inputs it depends on are; all outputs of a step are one commit.
"""

from persist.dataflow.errors import (
    InputClosed,
    NotConsolidated,
    NotConverging,
    OperatorFailed,
    OutputConflict,
    SourceLost,
)
from persist.dataflow.expression import Aggregate, Expression, col, lit, when
from persist.dataflow.linear_logic import Logic
from persist.dataflow.program import Program, Scope
from persist.dataflow.running import Options, Running, Step
from persist.dataflow.stream import Grouped, Stream
from persist.dataflow.taps import Captured, Probed
from persist.dataflow.times import Antichain, MutableAntichain, Time, advance_by, glb, less_equal, lub
from persist.dataflow.together import open_together

__all__ = [
    "Aggregate",
    "Antichain",
    "Captured",
    "Expression",
    "Grouped",
    "InputClosed",
    "Logic",
    "MutableAntichain",
    "NotConsolidated",
    "NotConverging",
    "OperatorFailed",
    "Options",
    "OutputConflict",
    "Probed",
    "Program",
    "Running",
    "Scope",
    "SourceLost",
    "Step",
    "Stream",
    "Time",
    "advance_by",
    "col",
    "glb",
    "less_equal",
    "lit",
    "lub",
    "open_together",
    "when",
]
