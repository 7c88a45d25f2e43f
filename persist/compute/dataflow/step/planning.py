"""A step before its tasks run: what it reads, in slices, its stages, and where its outputs go.

It begins like a program that runs: its ports are open, so its holds keep what is read, and they say from which time on
each output is to be written. No task needs what is not in here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any

import pyarrow as pa

from persist.codecs.part.part import Part
from persist.codecs.types.schema import TIME_MAX
from persist.compute.dataflow.plan.plan import Join, Node, Source, described
from persist.compute.dataflow.plan.stages import Filter
from persist.compute.dataflow.ports.output import NEVER, Output, end_of
from persist.compute.dataflow.ports.ports import Ports
from persist.compute.dataflow.ports.sinks import Outputs
from persist.compute.dataflow.program import Program
from persist.compute.dataflow.step.held import corrected, stood_in
from persist.compute.dataflow.step.keys import Condition, Known, TouchedKeys
from persist.compute.dataflow.step.reading import Past, Reading
from persist.compute.dataflow.step.stages import Exchange, StagePlan, cut, fed_by, outputs_after, set_apart
from persist.compute.dataflow.step.standing import Doubts
from persist.compute.dataflow.step.tasks import KEPT_BYTES_MAX, Asked, SourceSlices, StageTask, Stored, Written
from persist.compute.dataflow.step.touched import (
    NOTHING,
    Brought,
    Need,
    asked_of,
    before,
    brought_to,
    demands_of,
    known_only,
    needs_of,
    sources_of,
)
from persist.compute.index import paths_of
from persist.compute.tasks.planned_write import Target
from persist.compute.tasks.stream_source import CollectionAddress
from persist.core.names import owner_of_groups
from persist.engine.collection.reads import changes, snapshot

FEW_KEYS = 20  # If so many times as many updates have changed as keys are touched, all keys are taken to be.
TELLS = 4  # An input of a join tells what is needed of the other one if that is so many times as large.
SMALL_BYTES = 256 << 10  # Decoded: sources that are smaller are read whole where keys would have to be passed on.
WORTH = 2  # Touched keys are looked for if what they tell a part of is more than what is new, divided by this.


class StepPlan:
    """A step of a program whose sources and outputs are open; use it in a `with`, which keeps what it reads.

    Args:
        location, storage: where tasks find the location.
        parallel: how many of them run at a time.

    Attributes:
        program: its name.
        until: the time before which outputs will be complete.
        as_of: the time as of which the past is; what comes after it is new.
        stages: each after those that it reads from.
        stands: whether records stand for groups (`standing.py`), as far as that can be.
    """

    def __init__(
        self,
        program: Program,
        ports: Ports,
        location: str,
        storage: Mapping[str, Any],
        parallel: int,
        *,
        stands: bool = True,
    ) -> None:
        self.program = program.name
        self._outputs: Outputs = ports.outputs
        self._is_brief = ports.is_brief
        self._location, self._storage, self._parallel = location, storage, parallel
        self._readers = {reader.operator.collection: reader for reader in ports.sources}
        self.until = min((end_of(reader.handle.contents().upper) for reader in ports.sources), default=NEVER)
        self.as_of = min((reader.as_of for reader in ports.sources), default=-1)
        plan = program.plan.without_unused()
        self._own = corrected(plan, self._outputs)  # Sources that are what an output held before.
        doubts: dict[int, Doubts] = {}
        if stands and all(reader.as_of == self.as_of for reader in ports.sources):
            pasts = {name: Past(reader.handle, self.as_of, self.until) for name, reader in self._readers.items()}
            held, doubts = stood_in(plan, self._outputs, pasts, self.as_of)
            self._own |= held
            self.stands = bool(held)
        else:
            self.stands = False
        if ports.is_brief:  # Tasks elsewhere read a source once for all that need it.
            set_apart(plan)
            plan = plan.without_unused()
        self.stages = cut(plan)
        for stage in self.stages:
            stage.doubts.update({node.number: doubts[node.number] for node in stage.nodes if node.number in doubts})
        self._open = ExitStack()
        self._readings: dict[int, Reading] = {}  # By stage.
        self._before: dict[Brought, frozenset[Brought]] = {}
        self._made_of: dict[int, set[int]] = {}  # Of each exchange, those before it and itself.
        self._planned: dict[Any, tuple[Any, tuple[SourceSlices, int]]] = {}  # With the keys, so that these live on.

    def __enter__(self) -> "StepPlan":
        try:
            shared: dict[str, list[StagePlan]] = {}
            for stage in self.stages:
                if stage.source is not None:
                    assert isinstance(stage.source.operator, Source)
                    name = str(stage.source.number) if self._is_own(stage) else stage.source.operator.collection
                    shared.setdefault(name, []).append(stage)
            for stages in shared.values():  # Those of one collection, in parts of their own, read it together.
                self._readings |= dict.fromkeys((stage.number for stage in stages), self._reading(stages))
            self._tell()
        except BaseException:
            self._open.close()
            raise
        return self

    def _tell(self) -> None:
        """Find the joins of which a filtered input is so much smaller that it tells what is needed of the other one."""
        sizes = {
            number: sum(self._readings[source].contents_bytes for source in sources or ())
            for number, sources in self._sources.items()
        }
        filtered = set[int]()
        for stage in self.stages:  # Each after those that it reads from.
            of_filtered = any(exchange.number in filtered for exchange in stage.reads)
            if of_filtered or any(
                isinstance(one, Filter) for node in stage.nodes for one in getattr(node.operator, "stages", ())
            ):
                filtered |= {exchange.number for exchange in stage.gives}
        for stage in self.stages:
            joins = {node.number: node for node in stage.nodes if isinstance(node.operator, Join)}
            for number, node in joins.items():
                for place in (0, 1):
                    own = max((sizes[one] for one in brought_to(stage, node, place)), default=0)
                    others = brought_to(stage, node, 1 - place) & filtered
                    if any(own > TELLS * sizes[other] for other in others):
                        stage.told.add((number, place))

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def bytes(self) -> int:
        """What there is to be read, decoded, by an estimate: all that the sources hold, and what is new."""
        return sum(reading.contents_bytes + reading.changes_bytes for reading in self._readings.values())

    @property
    def changed_bytes(self) -> int:
        """What is new of that."""
        return sum(reading.changes_bytes for reading in self._readings.values())

    @property
    def changed(self) -> int:
        """At most how many updates there are after what the outputs hold."""
        return sum(reading.changed for reading in self._readings.values())

    @property
    def is_due(self) -> bool:
        """Whether there is something to seal."""
        return any(self.until > output.upper for output in self._outputs.every)

    @property
    def is_seal_only(self) -> bool:
        """Whether nothing comes of it but a seal: nothing has changed, and no output begins or switches."""
        return not self.changed and all(output.upper > 0 and not output.corrects for output in self._outputs.every)

    @property
    def whole_bytes(self) -> int:
        """What there is of sources that are needed whole, whatever has changed."""
        needs = self._needs
        return sum(
            self._readings[stage.number].contents_bytes
            for stage in self.stages
            if stage.source is not None and needs.get(stage.source.number, NOTHING) is None
        )

    def why_everything(self) -> str | None:
        """Say why a step needs all of what its sources hold; None if what touched keys hold is enough."""
        if any(output.upper == 0 for output in self._outputs.every):
            return "an output begins"
        if any(output.corrects for output in self._outputs.every):
            return "an output switches its definition"
        needs = self._needs
        inputs = [stage for stage in self.stages if stage.source is not None and not self._is_own(stage)]
        asked = [number for stage in inputs for number in (_source_of(stage), *(one.node for one in stage.gives))]
        if asked and all(needs.get(number, NOTHING) is None for number in asked):
            return "what changes does not tell what is needed of the inputs"
        return None

    def why_whole(self) -> str | None:
        """Say which operator needs all of what a source holds whatever has changed; None if none does."""
        demanding, unchanged = demands_of(self.stages, self.quiet), self.untouched()
        needs = self._needs
        for stage in self.stages:
            if stage.source is None or self._is_own(stage) or not self._readings[stage.number].contents_bytes:
                continue
            need = needs.get(stage.source.number, NOTHING)
            if need is None:
                return f"{_named(demanding[stage.source.number])} needs all of {stage.source.title}"
            for term in need:
                if not term.columns and term.keys not in unchanged:
                    return f"{_named(fed_by(self.stages, term.keys.exchange))} needs all of {stage.source.title}"
        return None

    def _is_own(self, stage: StagePlan) -> bool:
        """Whether a stage reads what an output holds, which is no input."""
        return stage.source is not None and stage.source.number in self._own

    def reads(self, known: Known | None) -> list[str]:
        """Return what is read of each source, as text, if these touched keys are known; None for everything."""
        needs = self._needs
        return [
            self._readings[stage.number].told(
                None if known is None else self._known_only(needs.get(stage.source.number, NOTHING), known),
                known or {},
                stage.source.title + self._for(stage),
            )
            for stage in self.stages
            if stage.source is not None
        ]

    def _for(self, stage: StagePlan) -> str:
        """Return for which outputs a source is read, as text, if others read it for other ones."""
        reading = self._readings[stage.number]
        if sum(other is reading for other in self._readings.values()) == 1:
            return ""
        names = outputs_after(self.stages, stage)
        return f" for {', '.join(name for name in names if owner_of_groups(name) is None)}"

    def missing(self, known: Known | None) -> list[str]:
        """Return the indexes that would make a step cheaper if these touched keys are known, as text."""
        needs = self._needs
        return [
            line
            for stage in self.stages
            if known is not None and stage.source is not None and stage.source.number not in self._own
            for line in self._readings[stage.number].missing(
                self._known_only(needs.get(stage.source.number, NOTHING), known), known
            )
        ]

    @cached_property
    def levels(self) -> list[tuple[int, list[Brought]]]:
        """The keys that are of use, by how many others have to be known before them, one after the other.

        Those of a level are found by a `wave` when those of the levels before are known: together, where that can be.
        """
        depths: dict[Brought, int] = {}

        def depth(keys: Brought) -> int:
            if keys not in depths:
                depths[keys] = 1 + max(map(depth, self._asked_before(keys)), default=0)
            return depths[keys]

        for keys in self._wanted:
            depth(keys)
        waves: dict[tuple[int, int], list[Brought]] = {}
        keyed = {exchange.number for stage in self.stages for exchange in stage.gives if exchange.keys}
        for keys, level in sorted(depths.items(), key=lambda item: (item[1], item[0].exchange, repr(item[0].of))):
            if keys.exchange not in keyed:
                continue
            turn = next(at for at in count() if self._fits(keys, waves.get((level, at), ())))
            waves.setdefault((level, turn), []).append(keys)
        return [(level, wanted) for (level, _), wanted in sorted(waves.items())]

    def _fits(self, keys: Brought, wave: Sequence[Brought]) -> bool:
        """Whether keys can be found together with others: no exchange is asked that gives its records to another."""
        own = self._read_for(keys.exchange)
        return all(keys.exchange not in self._read_for(one.exchange) and one.exchange not in own for one in wave)

    def _read_for(self, exchange: int) -> set[int]:
        if exchange not in self._made_of:
            stages = before(self.stages, {exchange})
            self._made_of[exchange] = {exchange, *(read.number for stage in stages for read in stage.reads)}
        return self._made_of[exchange]

    def _asked_before(self, keys: Brought) -> frozenset[Brought]:
        """Return the keys that tell what has to be read to find some others."""
        if keys not in self._before:
            stages = before(self.stages, {keys.exchange})
            asked = asked_of(needs_of(stages, self.quiet, [keys]), stages)
            self._before[keys] = asked | {term.keys for term in keys.of}
        return self._before[keys]

    @cached_property
    def _sources(self) -> dict[int, set[int] | None]:
        """The stages whose sources each exchange is made of; see `sources_of`."""
        return sources_of(self.stages)

    @cached_property
    def _givers(self) -> dict[int, tuple[Exchange, StagePlan]]:
        return {exchange.number: (exchange, stage) for stage in self.stages for exchange in stage.gives}

    def _known_only(self, need: Need, known: Known) -> Need:
        return known_only(need, known.keys(), self._givers)

    @cached_property
    def _needs(self) -> dict[int, Need]:
        """What is needed of the past of each node; see `needs_of`."""
        return needs_of(self.stages, self.quiet)

    @cached_property
    def quiet(self) -> frozenset[int]:
        """The exchanges that bring nothing new, which is known without reading."""
        return frozenset(
            number
            for number, sources in self._sources.items()
            if sources is not None and not any(self._readings[source].changed for source in sources)
        )

    def untouched(self) -> dict[Brought, TouchedKeys]:
        """Return the touched keys that are known without reading: none, of an exchange that brings nothing new."""
        return {Brought(number): TouchedKeys(()) for number in self.quiet}

    def wave(self, wanted: Sequence[Brought], known: Known, partitions: int) -> tuple[list[StageTask], int]:
        """Return what tasks do to find keys, each of another exchange, and about how many bytes they read, decoded.

        In this process, these are the bytes that the step does not read in any case. The blocks that are asked for are
        these keys: of those that are not known, and may save about as much reading as they take.
        """
        asked = [
            keys
            for keys in wanted
            if keys not in known
            and all(term.keys in known for term in keys.of)
            and WORTH * self.told_bytes({keys}) > self._changed_bytes(self._sources[keys.exchange])
            and not (keys.of and self.told_bytes({keys}) < SMALL_BYTES)
        ]
        of = {
            keys.exchange: condition
            for keys in asked
            if keys.of and (condition := Condition.of(keys.of, known)) is not None
        }
        numbers = frozenset(keys.exchange for keys in asked)
        stages = before(self.stages, numbers)
        tasks, size = self._tasks(stages, partitions, known, {}, asked)
        if self._is_brief:
            size = self._size_beyond(stages, asked, known)
        return [replace(task, asked=numbers, asked_of=of) for task in tasks], size

    def _size_beyond(self, stages: Sequence[StagePlan], asked: Sequence[Brought], known: Known) -> int:
        """Return what finding keys takes to read beyond what the step reads in any case."""
        _, needs = self._together(stages, known, needs_of(stages, self.quiet, asked))
        _, read_anyway = self._together(self.stages, known, self._needs)
        readings = {id(reading): reading for reading in self._readings.values()}
        size = 0
        for at, need in needs.items():
            anyway = read_anyway[at]
            if need != anyway and (need is None or anyway is None or not need <= anyway):
                size += readings[at].unread_bytes(self._sliced(readings[at], need, known)[0].slices)
        return size

    def told_bytes(self, wanted: Set[Brought]) -> int:
        """Return how many bytes, decoded, the sources hold of which some keys, or what these tell, tell a part."""
        telling = {*wanted}
        for _, keys in self.levels:  # Each after those that it is told by.
            telling |= {one for one in keys if any(term.keys in telling for term in one.of)}
        return sum(
            self._readings[stage.number].contents_bytes
            for stage in self.stages
            if stage.source is not None and not telling.isdisjoint(self._telling.get(stage.source.number, ()))
        )

    @cached_property
    def _telling(self) -> dict[int, frozenset[Brought]]:
        """By source the keys that tell which part of it is read, by a step or by what finds other keys."""
        parts: list[tuple[Sequence[StagePlan], tuple[Brought, ...]]] = [(self.stages, ())]
        parts += [(before(self.stages, {keys.exchange}), (keys,)) for _, wanted in self.levels for keys in wanted]
        telling: dict[int, frozenset[Brought]] = {}
        for stages, asked in parts:
            needs = needs_of(stages, self.quiet, asked)
            for stage in stages:
                if stage.source is not None:
                    number = stage.source.number
                    terms = needs.get(number, NOTHING) or ()
                    telling[number] = telling.get(number, frozenset()) | {term.keys for term in terms}
        return telling

    def _changed_bytes(self, sources: set[int] | None) -> int:
        return sum(self._readings[source].changes_bytes for source in sources or ())

    def touched(self, wanted: Sequence[Brought], tasks: Sequence[StageTask], keys: Asked) -> dict[Brought, TouchedKeys]:
        """Return the keys that the tasks of a wave were asked for, of what they gave."""
        for task in tasks if self._is_brief else ():
            read = [] if task.slices is None else self._readings[task.stage.number].read
            for piece in () if task.slices is None else task.slices.slices:
                if piece.keys is not None and not any(piece is one for one in read):
                    read.append(piece)
        asked = frozenset[int]().union(*(task.asked for task in tasks))
        tables: dict[int, list[pa.Table]] = {number: [] for number in asked}
        for exchange, table in keys:
            tables[exchange].append(table)
        return {one: TouchedKeys(tuple(tables[one.exchange])) for one in wanted if one.exchange in asked}

    def tasks(self, partitions: int, known: Known | None = None) -> list[StageTask]:
        """Return what the tasks of each stage do.

        Args:
            partitions: how many tasks a keyed stage has.
            known: touched keys: what they do not hold is not read, as far as that can be told. None to read all.
        """
        written = {
            output.sink.collection: Written(self._target(output), output.done, output.upper == 0)
            for output in self._outputs.every
        }
        return self._tasks(self.stages, partitions, known, written)[0]

    def needed_bytes(self, known: Known) -> tuple[int, int]:
        """Return about what a step reads, decoded, if these keys are known, and what it passes on whole of that.

        Few keys that are looked up pass on no more than is read for them, however much the source holds.
        """
        whole = 0
        for stage in self.stages:
            if stage.source is not None:
                reading = self._readings[stage.number]
                need = self._known_only(self._needs.get(stage.source.number, NOTHING), known)
                if self._is_whole(reading, need, known):
                    whole += self._sliced(reading, need, known)[1] - reading.changes_bytes
        return self._tasks(self.stages, 1, known, {})[1], whole

    def _is_whole(self, reading: Reading, need: Need, known: Known) -> bool:
        """Return whether about all is needed: also where few keys come of much that changed, so most records have one
        of them, unless the source is known to have many keys: then a filter has passed few of the changes."""
        if need is None:
            return True
        for term in need:
            if reading.has_many(term.columns):
                continue
            keys = sum(map(len, known[term.keys].tables))
            changed = sum(self._readings[source].changed for source in self._sources[term.keys.exchange] or ())
            if term.columns and not term.keys.of and 0 < FEW_KEYS * keys < changed:
                return True
        return False

    def _tasks(
        self,
        stages: Sequence[StagePlan],
        partitions: int,
        known: Known | None,
        written: Mapping[str, Written],
        asked: Sequence[Brought] = (),
    ) -> tuple[list[StageTask], int]:
        needs = {} if known is None else self._needs if stages is self.stages else needs_of(stages, self.quiet, asked)
        own, every = self._together(stages, known, needs)
        if self._is_brief and asked:
            every = self._with_known(every, known or {})
        read = {
            id(reading): self._sliced(reading, every[id(reading)], known or {})
            for reading in self._readings.values()
            if id(reading) in every
        }
        tasks = []
        for stage in stages:
            slices = None
            if stage.source is not None:
                condition = Condition.of(own[stage.number], known or {})
                together, _ = read[id(self._readings[stage.number])]
                slices = replace(together, columns=stage.source.schema, needed=condition)
            needed = {
                exchange.number: condition
                for exchange in stage.gives
                if known is not None
                and (condition := Condition.of(self._known_only(needs.get(exchange.node, NOTHING), known), known))
            }
            tasks.append(StageTask(stage, partitions, written, slices, self.as_of, needed))
        return tasks, sum(size for _, size in read.values())

    def _together(
        self, stages: Sequence[StagePlan], known: Known | None, needs: Mapping[int, Need]
    ) -> tuple[dict[int, Need], dict[int, Need]]:
        """Return what is read of each stage that reads, and, by their reading, of all that read together."""
        own: dict[int, Need] = {}
        every: dict[int, Need] = {}
        for stage in stages:
            if stage.source is not None:
                need = None if known is None else self._known_only(needs.get(stage.source.number, NOTHING), known)
                reading = self._readings[stage.number]
                before_it = every.get(id(reading), NOTHING)
                own[stage.number] = need
                is_whole = need is None or before_it is None or (need and id(reading) in self._read_whole)
                every[id(reading)] = None if is_whole else (need or NOTHING) | (before_it or NOTHING)
        return own, every

    def _with_known(self, every: Mapping[int, Need], known: Known) -> dict[int, Need]:
        """Return what to read to find keys: with it all that the step is known to need of the same, which is kept."""
        with_known = {**every}
        for stage in self.stages:
            at = id(self._readings[stage.number]) if stage.source is not None else 0
            need = with_known.get(at)
            if need and stage.source is not None:
                terms = self._needs.get(stage.source.number, NOTHING) or NOTHING
                with_known[at] = need | {term for term in terms if term.keys in known}
        return with_known

    @cached_property
    def _read_whole(self) -> set[int]:
        """The readings that several parts share and one needs all of, which are read once for the whole step."""
        shared = Counter(map(id, self._readings.values()))
        return {
            id(reading)
            for stage in self.stages
            if stage.source is not None
            and shared[id(reading := self._readings[stage.number])] > 1
            and reading.contents_bytes <= KEPT_BYTES_MAX
            and self._needs.get(stage.source.number, NOTHING) is None
        }

    def _sliced(self, reading: Reading, need: Need, known: Known) -> tuple[SourceSlices, int]:
        """Return what `Reading.sliced` does: a step is planned by what it takes first, and then to be taken."""
        told = [(term, known[term.keys]) for term in need or ()]
        at = (
            id(reading),
            len(reading.read),
            None if need is None else frozenset((term, id(keys)) for term, keys in told),
        )
        if at not in self._planned:
            self._planned[at] = told, reading.sliced(need, known, self._parallel)
        return self._planned[at][1]

    @cached_property
    def _wanted(self) -> frozenset[Brought]:
        """The keys that say which part of some source is needed."""
        return asked_of(self._needs, self.stages)

    def commit(self, stored: Stored) -> int | None:
        """Commit what came of the tasks as one record, and return its seqno; delete what they stored if it is refused.

        Raises:
            UpperMismatch, UpdatesBeyondUpper, HoldMoved, ViewRedefined: somebody came between; nothing was written.
        """
        try:
            return self._outputs.commit_step(self.until, stored)
        except BaseException:
            for output in self._outputs.every:
                parts = [part for part in stored.get(output.sink.collection, ()) if isinstance(part, Part)]
                if parts:
                    with self._target(output).writer() as writer:
                        writer.discard(parts)
            raise

    def lines(self) -> list[str]:
        """Return what each stage does, as text."""
        return [*map(str, self.stages)]

    def _target(self, output: Output) -> Target:
        return Target.of(output.handle, self._location, self._storage)

    def _reading(self, stages: Sequence[StagePlan]) -> Reading:
        sources = [stage.source for stage in stages if stage.source is not None]
        source = sources[0]
        assert isinstance(source.operator, Source)
        schema = pa.schema([*{field.name: field for one in sources for field in one.schema}.values()])
        columns = list(schema.names)
        if source.number in self._own:
            output, as_of = self._own[source.number]
            handle, end = replace(output.handle, is_kept=self._is_brief), as_of + 1
        else:
            reader = self._readers[source.operator.collection]
            handle, as_of, end = reader.handle, reader.as_of, self.until
        version = handle.schema.version
        contents = snapshot(handle, as_of, columns=columns, form="diff", schema=version)
        self._open.callback(contents.close)
        new = None
        if end > as_of + 1:
            updates = changes(handle, as_of + 1, min(end, TIME_MAX + 1), columns=columns, schema=version)
            self._open.callback(updates.close)
            new = updates.scan
        address = CollectionAddress(self._location, self._storage, handle.name)
        known = handle.folded(handle.known())
        paths = [] if source.number in self._own else paths_of(handle, known, contents.scan.given, as_of, columns)
        return Reading(address, handle, contents.scan, new, as_of, schema, paths)


def _source_of(stage: StagePlan) -> int:
    assert stage.source is not None
    return stage.source.number


def _named(node: Node) -> str:
    return f"%{node.number} {described(node.operator)}"
