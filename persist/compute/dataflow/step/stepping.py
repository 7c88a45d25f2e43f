"""A step of a program that keeps no state: what of the past is needed for what is new, in one commit.

A step begins like a program that runs, with the same holds, and at the same time, but makes no operators for it. The
stages of its plan (`stages.py`) are run here, or by tasks elsewhere, on what touched keys hold (`touched.py`), and one
record commits all outputs. If somebody else came between, it is refused as a whole, what was stored is deleted, and the
step is computed again from where the outputs are then. `choosing.py` says whether a step is what is to be taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from persist.compute.dataflow.plan.plan import Persist, Plan, Source
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.step.choosing import (
    OPEN_S,
    READ,
    Estimate,
    Reads,
    Way,
    Work,
    best,
    could_pay,
    estimates,
    free_memory,
    is_small,
    least_bytes,
)
from persist.compute.dataflow.step.choosing import Where as Place
from persist.compute.dataflow.step.keys import Known
from persist.compute.dataflow.step.planning import StepPlan
from persist.compute.dataflow.step.stages import why_not
from persist.compute.dataflow.step.tasks import Asked, Here, StageTask, Stored
from persist.core.errors import (
    CollectionNotFound,
    HoldMoved,
    InvalidUsage,
    LeaseExpired,
    OperatorFailed,
    UpdatesBeyondUpper,
    UpperMismatch,
    ViewRedefined,
    WouldRecompute,
)
from persist.engine.location.engine import Engine
from persist.engine.location.opening import loaded

Where = Literal["auto", "here", "tasks"]
Policy = Literal["auto", "incremental"]

LOOK_BYTES = 1 << 20  # Read in the time that a look for keys takes here, whatever it reads.
LOOKED_AT_HERE = 128 << 20  # Bytes, decoded: touched keys that less tells are found here, and otherwise by a job.
KEYS_BYTES_MAX = 64 << 20  # Of touched keys, which all tasks get; if there are more, everything is read.
OUTWORN = "the steps of this handle have taken as long as its state does"
TRIES = 5  # While others write the outputs.


class Executor(Protocol):
    """Runs the stages of a step: `Here`, or tasks elsewhere."""

    def asked(self, tasks: Sequence[StageTask]) -> Asked:
        """Run stages; return the tables that are asked for, each with its exchange."""

    def stored(self, tasks: Sequence[StageTask]) -> Stored:
        """Run all stages; return what comes of them, by output."""


@dataclass(frozen=True)
class Elsewhere:
    """Where tasks run that are not of this process.

    Attributes:
        executor: has them run.
        storage: options of the store that they open.
        location: as they find it.
        slots: how many run at a time.
        shares: how many of them share a keyed stage out that reads so many bytes.
    """

    executor: Executor
    location: str
    storage: Mapping[str, object]
    slots: int
    shares: Callable[[int], int]


@dataclass(frozen=True)
class Refreshed:
    """How something was brought up to date; print it.

    Attributes:
        way: "step" if nothing is kept; "state" if it is left to a handle that keeps its state.
        where: who computed: "here" this process, or "tasks" elsewhere.
        reads: "changes" only, what "touched" keys hold, too, or "everything".
        reason: why so.
        stages: of the plan, in a step.
        bytes: what had to be read, decoded, by an estimate.
        seconds: what the step was taken for by the estimates.
        seqno: of the commit of a step; None if there was none.
        estimates: what the ways were about to take.
    """

    way: Way
    where: Place
    reads: Reads
    reason: str
    stages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    seqno: int | None = None
    estimates: tuple[Estimate, ...] = ()

    def __str__(self) -> str:
        place = "here" if self.where == "here" else "by tasks"
        by = f"by a step of {self.stages} stages" if self.way == "step" else "by a handle that keeps its state"
        return f"{by}, {place}, which reads {READ[self.reads]}: {self.reason}; about {self.bytes:,} bytes to read"


@dataclass(frozen=True)
class Stepping:
    """One request to bring the outputs of a program up to date.

    Attributes:
        program: makes it anew for each try.
        memory_budget: what a handle that keeps its state may take.
        elsewhere: None to compute in this process only.
        spent_s: what its steps have taken so far.
    """

    engine: Engine
    program: Callable[[], Program]
    memory_budget: int
    elsewhere: Elsewhere | None = None
    where: Where = "auto"
    policy: Policy = "auto"
    spent_s: float = 0.0

    def run(self) -> Refreshed:
        """Take a step, if that is the way to take: one commit of all outputs. Otherwise it is left to the caller.

        Raises:
            WouldRecompute: the policy is "incremental", and a step would have to read all of an input.
            UpperMismatch, HoldMoved, ViewRedefined: others came between at every try.
        """
        for left in reversed(range(TRIES)):
            try:
                return self._tried()
            except UpdatesBeyondUpper:
                return self._left_to_state("somebody else writes an output")
            except (UpperMismatch, HoldMoved, ViewRedefined, LeaseExpired):
                if not left:
                    raise
                self.engine.follower.looks.again()
        raise AssertionError("the last try returns or raises")

    def explained(self) -> str:
        """Return what would be done, why, and what is read, as text; nothing is written but the holds of a program that
        begins."""
        program = self.program()
        if program.local_functions and self.elsewhere is not None:
            return self._here_alone(program).explained()
        if (refused := self._refused(program)) is not None:
            return str(refused)
        with (
            Ports.of_step(program, self.engine, is_brief=self.elsewhere is None) as ports,
            self._planned(program, ports) as step,
        ):
            chosen, known = self._chosen(step, Here(self.engine.reader()), finds_by_tasks=False)
            lines = [str(chosen), *map(str, chosen.estimates), *step.reads(known), *step.missing(known), *step.lines()]
            return "\n".join(lines)

    def _tried(self) -> Refreshed:
        program = self.program()
        if program.local_functions and self.elsewhere is not None:
            return self._here_alone(program)._tried()
        refused = self._refused(program)
        if refused is not None:
            return refused
        with Ports.of_step(program, self.engine, is_brief=self.elsewhere is None) as ports:
            for stands in (True, False):
                here = Here(self.engine.reader())
                with self._planned(program, ports, stands=stands) as step:
                    try:
                        chosen, known = self._chosen(step, here)
                        return chosen if chosen.way == "state" else self._stepped(step, here, chosen, known)
                    except OperatorFailed:
                        if not step.stands:  # Otherwise it may fail only because records stood for groups.
                            break
        # A handle with state says which row it is, and goes on where that is over by the latest time.
        return self._left_to_state("the query fails on a row, which a step has found")

    def _here_alone(self, program: Program) -> "Stepping":
        """Return this request without tasks elsewhere, which do not have the functions that the program calls."""
        if self.where == "tasks":
            raise InvalidUsage(
                f"{program.name} calls {', '.join(sorted(program.local_functions))}, which are functions of Python in "
                'this process alone: run it here, with where="auto" or "driver"'
            )
        return replace(self, program=lambda: program, elsewhere=None)

    def _left_to_state(self, reason: str) -> Refreshed:
        return Refreshed("state", "here", "everything", reason)

    def _planned(self, program: Program, ports: Ports, *, stands: bool = True) -> StepPlan:
        elsewhere = self.elsewhere
        if elsewhere is None:
            return StepPlan(program, ports, self.engine.url, {}, 1, stands=stands)
        return StepPlan(program, ports, elsewhere.location, elsewhere.storage, elsewhere.slots, stands=stands)

    def _stepped(self, step: StepPlan, here: Here, chosen: Refreshed, known: Known | None) -> Refreshed:
        if chosen.reads == "changes":
            return replace(chosen, seqno=step.commit({}) if step.is_due else None)
        if chosen.where == "here":
            return replace(chosen, seqno=step.commit(here.stored(step.tasks(1, known))))
        assert self.elsewhere is not None
        tasks = step.tasks(self.elsewhere.shares(chosen.bytes), known)
        return replace(chosen, seqno=step.commit(self.elsewhere.executor.stored(tasks)))

    def _refused(self, program: Program) -> Refreshed | None:
        """Return why a program takes no step whatever it reads; None if it may."""
        program.check()
        plan = program.plan.without_unused()
        reason = why_not(plan)
        if reason is None:
            return None if self.elsewhere or self.policy == "incremental" else self._refused_unopened(program, plan)
        if self.policy == "incremental":
            raise WouldRecompute(program.name, reason)
        return self._left_to_state(f"no step can be taken: {reason}")

    def _refused_unopened(self, program: Program, plan: Plan) -> Refreshed | None:
        """Return why no step in this process can pay, as far as that is told before anything is opened."""
        operators = [node.operator for node in plan.nodes.values()]
        outputs = [program.output(operator.collection) for operator in operators if isinstance(operator, Persist)]
        if any(output is not None and output.contents().upper.time == 0 for output in outputs):
            return self._left_to_state("an output begins")
        sources = {operator.collection for operator in operators if isinstance(operator, Source)}
        try:
            states = [loaded(self.engine, name).contents() for name in sources]
        except CollectionNotFound:
            return None  # Whoever opens it says more.
        size = sum(part.memory for contents in states for part in contents.parts)
        if is_small(size, self.spent_s):
            return self._left_to_state("the inputs are small")
        return None

    def _chosen(self, step: StepPlan, here: Here, *, finds_by_tasks: bool = True) -> tuple[Refreshed, Known | None]:
        """Return which way to take, and the touched keys if a step looks them up.

        Args:
            finds_by_tasks: whether keys are looked for where that takes a job; otherwise they are taken for all.
        """
        if not step.is_due or step.is_seal_only:
            return self._quiet(step), None
        everything = step.why_everything()
        if self.policy == "incremental" and (whole := everything or step.why_whole()):
            raise WouldRecompute(step.program, whole)
        work = self._work(step, None if everything else step.changed_bytes)
        known = None
        must_step = self.policy == "incremental" or self.where == "tasks"
        if not everything and (must_step or could_pay(work)):
            known, jobs = self._touched(step, here, finds_by_tasks=finds_by_tasks)
            if known is not None:
                needed, whole_bytes = step.needed_bytes(known)
                work = replace(work, needed_bytes=needed, whole_bytes=whole_bytes, jobs=1 + jobs)
            else:
                work = replace(work, needed_bytes=None)
        elif not everything:
            work = replace(work, needed_bytes=least_bytes(work))
        costs = estimates(work)
        if must_step:
            fits = [cost for cost in costs if cost.way == "step" and self.where in ("auto", cost.where)]
            touched = [cost for cost in fits if cost.reads == "touched"] or fits
            way, reason = best(touched), "that was asked for"
            if way.reads == "everything":
                reason = everything or "too many keys are touched"
        else:
            ways = [cost for cost in costs if self.where in ("auto", cost.where)]
            way, reason = best(ways, work.spent_s), "that is about to take least"
            if way.way == "state" and work.spent_s:
                reason = OUTWORN
        chosen = Refreshed(
            way.way, way.where, way.reads, reason, len(step.stages), way.bytes, way.seconds, estimates=costs
        )
        return chosen, known if way.reads == "touched" else None

    def _quiet(self, step: StepPlan) -> Refreshed:
        """Return what to do where nothing has changed. To look for it time and again is cheaper with state, too."""
        seals = Estimate("step", "here", "changes", 0, OPEN_S, "nothing but a seal")
        state = estimates(self._work(step, None))[0]
        reason = "nothing has changed" if step.is_due else "nothing is sealed that is not there already"
        if best((seals, state), self.spent_s).way == "state" and self.policy == "auto" and self.where != "tasks":
            seals, reason = state, OUTWORN
        return Refreshed(seals.way, "here", seals.reads, reason, len(step.stages), seals.bytes, seals.seconds)

    def _work(self, step: StepPlan, needed: int | None) -> Work:
        elsewhere = self.elsewhere
        jobs = 1 + sum(level > 1 or step.changed_bytes > LOOKED_AT_HERE for level, _ in step.levels)
        return Work(
            step.bytes,
            step.changed_bytes,
            needed,
            jobs=jobs,
            slots=0 if elsewhere is None else elsewhere.slots,
            spent_s=self.spent_s,
            free_bytes=free_memory(),
            budget_bytes=self.memory_budget,
            whole_bytes=step.whole_bytes,
        )

    def _touched(self, step: StepPlan, here: Here, *, finds_by_tasks: bool) -> tuple[Known | None, int]:
        """Return the touched keys of all stages of which they are of use, None if they are too many; and by how many
        jobs they are found."""
        known = step.untouched()
        jobs = 0
        elsewhere = self.elsewhere
        for level, wanted in step.levels:
            shares = 1 if elsewhere is None else elsewhere.shares(step.changed_bytes)
            tasks, size = step.wave(wanted, known, shares)
            if level > 1 and step.told_bytes({*wanted}) <= size + (LOOK_BYTES if elsewhere is None else 0):
                continue  # To look costs more than to read what they may be.
            if not tasks:
                continue
            if elsewhere is None or size <= LOOKED_AT_HERE:
                keys = here.asked(tasks)
            elif not finds_by_tasks:
                return known, len(step.levels) - level + 1
            else:
                keys, jobs = elsewhere.executor.asked(tasks), jobs + 1
            known |= step.touched(wanted, tasks, keys)
            if sum(touched.nbytes for touched in known.values()) > KEYS_BYTES_MAX:
                return None, jobs
        return known, jobs
