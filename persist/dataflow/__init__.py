"""Dataflow: derived collections that keep themselves up to date; see `docs/dataflow.md`.

Promise to those above: what a program's output holds at a time is what its definition gives on its inputs at that time;
an output is complete, and sealed, as far as the inputs it depends on are; all outputs of a step are one commit.
"""

from persist.antichain import Antichain, Time
from persist.dataflow.linear_logic import Logic
from persist.dataflow.plan.draft import Captured, DefinedAs, Probed
from persist.dataflow.plan.optimise import Statistics, of_collection, trimmed
from persist.dataflow.plan.plan import Source, WindowFunction
from persist.dataflow.plan.types import is_read_as
from persist.dataflow.program import Program, Scope, open_together
from persist.dataflow.running.running import OperatorReport, Options, Running, Step, depths
from persist.dataflow.step.stepping import Elsewhere, Policy, Refreshed, Stepping, Where
from persist.dataflow.step.tasks import SHAPE, Asked, StageTask, Stored, StoredParts
from persist.dataflow.step.touched import wanted_indexes
from persist.dataflow.stream import Grouped, Stream
from persist.expression import Aggregate, Expression, col, lit, when

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
