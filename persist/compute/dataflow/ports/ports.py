"""The sources and outputs of a program, opened at one time: for operators that run here, and for tasks elsewhere."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa

from persist.compute.dataflow.operators.operators import EntryOperator, Position, SinkOperator
from persist.compute.dataflow.plan.draft import Draft
from persist.compute.dataflow.plan.plan import Persist, Plan, Source
from persist.compute.dataflow.ports.hints import list_conditions
from persist.compute.dataflow.ports.inputs import Gate
from persist.compute.dataflow.ports.output import KeptLinear
from persist.compute.dataflow.ports.sinks import Outputs
from persist.compute.dataflow.ports.sources import SourceReader, UpperReader, check_writable
from persist.compute.dataflow.updates.words import Domain
from persist.core.errors import CollectionNotFound, SourceLost
from persist.core.expression.term import Term
from persist.engine.location.engine import Engine
from persist.engine.location.opening import drop, load_handle

OPEN_ATTEMPTS = 5


class Ports:
    """All sources and outputs of a program; close it, or use it in a `with`.

    Args:
        sources: each with its columns, its gate, and the conditions on its records.
        conditions: the collections of which only the upper is read: outputs are sealed no further.
        replace: the program has changed.
        jump: skip the times at which the program failed.
        is_brief: reads end soon, so sources with permanent holds get no lease.

    Attributes:
        sources: all begin as of the same time.
        outputs: the output collections, with the progress of each.

    Raises:
        the errors of `Program.open` about collections.
    """

    def __init__(
        self,
        program: Draft,
        engine: Engine,
        sources: Sequence[tuple[Source, pa.Schema, Gate, Sequence[Sequence[Term]]]],
        sinks: Sequence[SinkOperator],
        kept: Mapping[str, KeptLinear],
        domain: Domain,
        *,
        conditions: Sequence[UpperReader] = (),
        replace: bool = False,
        jump: bool = False,
        is_brief: bool = False,
    ) -> None:
        self.is_brief = is_brief
        self._program, self._engine, self._domain = program, engine, domain
        self._replaces = replace
        self._conditions = conditions
        self.sources: list[SourceReader] = []
        # Outputs that are inputs as well, and are not computed.
        written = {source.collection for source, *_ in sources if source.written}
        own = {name: check_writable(load_handle(engine, name)) for name in written}
        self.outputs = Outputs(program, engine, sinks, kept, own, domain, replace=replace, jump=jump)
        try:
            for attempt in reversed(range(OPEN_ATTEMPTS)):
                if self._start_sources(sources, is_last=not attempt):
                    break
            if replace:
                self._drop_unused(kept)
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_job(cls, program: Draft, engine: Engine, plan: Plan | None = None) -> "Ports":
        """Open the sources and outputs of a program that tasks or DuckDB compute."""
        domain, sources, sinks = Domain(), [], []
        plan = plan or program.plan.drop_unused()
        for node in plan.nodes.values():
            match node.operator:
                case Source() as source:
                    gate = Gate(EntryOperator(Position(node.title, [], 1, 0)), len(node.schema), 1)
                    sources.append((source, node.schema, gate, list_conditions(plan, node.number)))
                case Persist(collection, keys):
                    sinks.append(SinkOperator(Position(node.title, [], 1, 0), node.schema, collection, keys))
        return cls(program, engine, sources, sinks, {}, domain)

    def _drop_unused(self, kept: Mapping[str, KeptLinear]) -> None:
        """Destroy the hidden collections that a changed program does not use any more."""
        for name in self._program.list_kept_names(self._engine):
            if name not in kept:
                with suppress(CollectionNotFound):
                    drop(load_handle(self._engine, name)).result()

    def _start_sources(
        self, sources: Sequence[tuple[Source, pa.Schema, Gate, Sequence[Sequence[Term]]]], *, is_last: bool
    ) -> bool:
        """Begin all sources at one time: where the outputs are sealed, or else as late as all of them can be read.

        Meanwhile another copy of the program may seal the outputs further, and let the sources be compacted. If so,
        return False: the caller begins again from the present uppers.
        """
        resume_time = self.outputs.resume_time
        self.sources = [
            SourceReader(
                self._program,
                self._engine,
                source,
                schema,
                gate,
                self._domain,
                alternatives,
                renews=self._replaces,
                is_brief=self.is_brief,
            )
            for source, schema, gate, alternatives in sources
        ]
        try:
            begin = self.outputs.choose_beginning(
                self.sources, self._conditions, self._program.make_outline(), resume_time
            )
            for source in self.sources:
                source.start(begin)
        except SourceLost:
            self.close()
            self.outputs.refresh()
            if is_last or self.outputs.resume_time == resume_time:
                raise
            return False
        return True

    def close(self) -> None:
        """Stop reading; idempotent."""
        for source in self.sources:
            source.close()
        self.sources = []

    def __enter__(self) -> "Ports":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
