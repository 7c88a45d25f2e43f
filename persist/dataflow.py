"""Dataflow: derived collections that keep themselves up to date; see `docs/use/dataflow.md`.

Promise: an output's contents at a time are its definition's result on its inputs at that time. An output is complete,
and sealed, as far as its inputs are. All outputs of a step are one commit.
"""

from persist.compute.dataflow.linear_logic import Logic
from persist.compute.dataflow.plan.draft import Captured, Probed
from persist.compute.dataflow.program import Program, Scope, open_together
from persist.compute.dataflow.running.running import Options, Running, Step
from persist.compute.dataflow.stream import Grouped, Stream
from persist.core.antichain import Antichain, Time
from persist.core.expression.term import Aggregate, Expression, col, lit, when

__all__ = [
    "Aggregate",
    "Antichain",
    "Captured",
    "Expression",
    "Grouped",
    "Logic",
    "Options",
    "Probed",
    "Program",
    "Running",
    "Scope",
    "Step",
    "Stream",
    "Time",
    "col",
    "lit",
    "open_together",
    "when",
]
