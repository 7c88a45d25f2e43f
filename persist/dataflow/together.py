"""Several programs that run as one: they share sources and arrangements, and all their outputs are sealed together.

Their plans become one plan, in which sources that read the same columns of the same collection are one. The running
graph makes each arrangement once for all who ask for the same columns by the same key, so what is shared by operators
is shared by programs in the same way.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from persist.blob import InvalidUsage
from persist.dataflow.plan.draft import Draft
from persist.dataflow.plan.plan import ROOT, Node, Persist, ScopeInfo, Source, Variable
from persist.dataflow.program import Program, given_engine
from persist.dataflow.running.running import Options, Running
from persist.engine import Engine, OnEngine


class Together(Draft):
    """Programs as one.

    Raises:
        InvalidUsage: they differ in dimensions, or share the name of a program, an input or an output; or one reads
        what
            another writes.
    """

    def __init__(self, programs: Sequence[Program]) -> None:
        if not programs or len({each.name for each in programs}) < len(programs):
            raise InvalidUsage(f"open_together: {[each.name for each in programs]} are not programs of different names")
        if len({each.dimensions for each in programs}) > 1:
            raise InvalidUsage("open_together: the programs' times have different numbers of dimensions")
        super().__init__(" + ".join(each.name for each in programs)[:100], programs[0].dimensions)
        self._programs = list(programs)
        self._sources: dict[tuple[Any, ...], int] = {}
        self._kept: dict[int, str] = {}
        for each in programs:
            each.check()
            self._add(each)
        self._check_apart()

    def holders(self, collection: str) -> list[str]:
        found = []
        for each in self._programs:
            reads = any(
                isinstance(node.operator, Source) and node.operator.collection == collection
                for node in each.plan.nodes.values()
            )
            found += each.holders(collection) if reads else []
        return found

    def kept(self, number: int) -> str | None:
        return self._kept.get(number)

    def every_kept(self, engine: Engine) -> list[str]:
        return [name for each in self._programs for name in each.every_kept(engine)]

    def _add(self, program: Program) -> None:
        """Take a program's nodes over, under numbers of their own."""
        both = [name for name in program.input_schemas if name in self.input_schemas]
        if both:
            raise InvalidUsage(f"open_together: two programs have an input {both[0]!r}; rename one of them")
        self.input_schemas |= program.input_schemas
        first, scopes = max(self.plan.nodes, default=0), max(self.plan.scopes)
        numbers = {number: first + number for number in program.plan.nodes}
        for node in program.plan.nodes.values():
            if isinstance(node.operator, Source):
                same = (node.operator, tuple(node.schema.names), tuple(map(str, node.schema.types)))
                numbers[node.number] = self._sources.setdefault(same, numbers[node.number])
        for info in program.plan.scopes.values():
            if info.number != ROOT:
                parent = info.parent + scopes if info.parent != ROOT else ROOT
                number = info.number + scopes
                self.plan.scopes[number] = ScopeInfo(number, parent, info.name, info.limit, info.depth)
        for node in program.plan.nodes.values():
            self.plan.nodes[numbers[node.number]] = _moved(node, numbers, scopes)
            name = program.kept(node.number)
            if name is not None:
                self._kept[numbers[node.number]] = name
        self.captures |= {numbers[number]: each for number, each in program.captures.items()}
        self.probes |= {numbers[number]: each for number, each in program.probes.items()}

    def _check_apart(self) -> None:
        written = [node.operator.collection for node in self.plan.nodes.values() if isinstance(node.operator, Persist)]
        read = {node.operator.collection for node in self.plan.nodes.values() if isinstance(node.operator, Source)}
        for name in written:
            if written.count(name) > 1 or name in read:
                problem = "written by two of the programs" if name not in read else "written by one and read by another"
                raise InvalidUsage(
                    f"open_together: collection {name!r} is {problem}; such programs run one after the other"
                )


def _moved(node: Node, numbers: dict[int, int], scopes: int) -> Node:
    operator = node.operator
    if isinstance(operator, Variable) and operator.feedback is not None:
        operator = Variable(operator.name, numbers[operator.feedback])
    return replace(
        node,
        number=numbers[node.number],
        operator=operator,
        inputs=tuple(numbers[each] for each in node.inputs),
        scope=node.scope + scopes if node.scope != ROOT else ROOT,
    )


def open_together(programs: Sequence[Program], client: OnEngine | Engine | None = None, **options: Any) -> Running:
    """Start several programs as one; see `Program.open`. Each can be opened alone, or with others, another time.

    What each captures and probes is where it was asked for. Inputs are called by their names.
    """
    return Running(Together(programs), given_engine(client), Options.of(options))
