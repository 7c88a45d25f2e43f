"""What a step needs of the past: of each stream, the records of the keys that something changes for.

A keyed stage makes what it gives under a key of what it is given under that key. So of the past it needs what its
*touched* keys hold: those of the updates that are new. What is needed of a stream is a set of terms, `columns in the
touched keys of an exchange`, of which one must hold, or everything. It is found by going through the plan backwards:

    reduction         of its input the touched keys of all exchanges of its stage, and what is needed of its output
    join              of each input the touched keys of the other one: what is new on one side meets the past of the
                      other one, and never its own. And what is needed of its output, as far as that is said by columns
                      of that input. Where it is said by other columns of one input, the keys that the records there
                      have are *passed on*: of the other input, the records with one of these keys are needed
    what is linear    what is needed of its output, by the columns that it passes on; by computed ones, everything
    an output         nothing: its past is there already
    `OnlyNew`         nothing: what it leaves out is told from an output (`standing.py`)

What brings nothing new touches nothing. An exchange whose keys are those of the stage that gives it touches at most
what the exchanges touch that this stage is made of: where it would cost too much to look, that is taken.

The promise to whoever reads less: of records for which a term holds, every stream then has exactly what it had, and of
others anything. What is new is exact, because a term holds for all that it meets. So reading more is always right.

Keys are told apart by hashes: equal keys have equal ones, NULL and NaN included, and whether a record is kept depends
on the hash of its key alone, so that a key is kept or left out as a whole. Two keys with the same hash cost a little
reading. The values themselves only say where in a collection to look: parts, row groups, or single keys.

The steps of a plan want an index where records are needed by columns that a source is not in the order of. A plan
tells that without any data. Records are taken to stand for groups wherever an output holds enough, as they do in
most steps (`standing.py`): without them, the past of a group is needed by the columns of the group, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from persist.compute.dataflow.plan.plan import (
    Arrange,
    Concat,
    Consolidate,
    Constant,
    Join,
    Linear,
    Node,
    Persist,
    Plan,
    Reduce,
    Source,
)
from persist.compute.dataflow.plan.stages import Explode, Filter, FilterFunction, Map, Negate, Unnest
from persist.compute.dataflow.plan.stages import Stage as LinearStage
from persist.compute.dataflow.step.stages import Exchange, Keys, StagePlan, cut, why_not
from persist.compute.dataflow.step.standing import OnlyNew, stand_in, standing_in
from persist.core.expression.term import Col

PASSED_ON_MAX = 4  # Times that keys are passed on, one input to the next: each takes a look for keys.


@dataclass(frozen=True, slots=True)
class Brought:
    """Keys that an exchange brings: of what is new or, with terms, of all records for which one of these holds."""

    exchange: int
    of: frozenset["Term"] = frozenset()

    @property
    def depth(self) -> int:
        """How many times keys were passed on to these."""
        return 1 + max((term.keys.depth for term in self.of), default=-1)


@dataclass(frozen=True, slots=True)
class Term:
    """Records whose columns, in this order, are one of some keys. Without columns: all records, if there is any key.

    Attributes:
        at: the places of the key columns that these are, if records with a part of a key are needed; None if of all.
    """

    columns: Keys
    keys: Brought
    at: tuple[int, ...] | None = None

    def renamed(self, names: Mapping[str, str]) -> "Term":
        """Return what it says by other names of its columns."""
        return replace(self, columns=tuple(names.get(name, name) for name in self.columns))

    def among(self, columns: Set[str]) -> "Term | None":
        """Return what it says by some of its columns; None if by none."""
        own = [place for place, name in enumerate(self.columns) if name in columns]
        at = self.at or (*range(len(self.columns)),)
        if len(own) == len(self.columns):
            return self
        kept = tuple(self.columns[place] for place in own)
        return Term(kept, self.keys, tuple(at[place] for place in own)) if own else None


Need: TypeAlias = frozenset[Term] | None  # None: everything.


NOTHING: frozenset[Term] = frozenset()


def needs_of(
    stages: Sequence[StagePlan], quiet: Set[int] = frozenset(), asked: Iterable[Brought] = ()
) -> dict[int, Need]:
    """Return what is needed of the past of each node that the stages have or read.

    Args:
        stages: of a plan, each after those that it reads from; or those that some stages are made of.
        quiet: exchanges that bring nothing new: nothing is needed because of them.
        asked: keys that the stages are to give: what terms ask for is needed, too.
    """
    given_nodes = {exchange.number: exchange.node for stage in stages for exchange in stage.gives}
    needs: dict[int, Need] = {}
    for keys in asked:
        needs[given_nodes[keys.exchange]] = (needs.get(given_nodes[keys.exchange]) or NOTHING) | keys.of
    for stage in reversed(stages):
        for node in reversed(stage.nodes):
            after = needs.get(node.number, NOTHING)
            for place, number in enumerate(node.inputs):
                own = _asked(stage, node, place, after, quiet)
                before = needs.get(number, NOTHING)
                needs[number] = None if own is None or before is None else before | own
    return needs


def demands_of(stages: Sequence[StagePlan], quiet: Set[int] = frozenset()) -> dict[int, Node]:
    """Return of each node of which everything is needed the node that asks for it, whatever has changed.

    Where a key is computed, that is the join or the reduction by that key.
    """
    needs, demanding, keyed = needs_of(stages, quiet), dict[int, Node](), dict[int, Node]()
    for stage in reversed(stages):
        for node in reversed(stage.nodes):
            by_key = keyed.get(node.number, node) if isinstance(node.operator, Linear) else node
            for place, number in enumerate(node.inputs):
                keyed[number] = by_key
                if _asked(stage, node, place, needs.get(node.number, NOTHING), quiet) is None:
                    demanding.setdefault(number, demanding.get(node.number, by_key))
    return demanding


Givers: TypeAlias = Mapping[int, tuple[Exchange, StagePlan]]  # Of each exchange, with the stage that gives it.


def known_only(need: Need, known: Set[Brought], givers: Givers) -> Need:
    """Return what is needed if some keys only are known: more, or everything.

    A stage that is shared out by some columns gives nothing new with other values in them than it is given. So where
    keys of an exchange are not known that have such columns, these are among those that the stage is given.
    """
    terms = set[Term]()
    for term in need or ():
        wider = _wider(term, known, givers)
        if wider is None:
            return None
        terms |= wider
    return None if need is None else frozenset(terms)


def _wider(term: Term, known: Set[Brought], givers: Givers) -> frozenset[Term] | None:
    if term.keys in known:
        return frozenset({term})
    exchange, stage = givers[term.keys.exchange]
    if not stage.is_keyed or term.keys.of:
        return None
    at = (*range(len(term.columns)),) if term.at is None else term.at
    column_of = {(exchange.keys or ())[place]: name for place, name in zip(at, term.columns, strict=True)}
    told = [
        (place, column_of[name])
        for place, names in enumerate(stage.holds[exchange.node])
        if (name := next((name for name in column_of if name in names), None)) is not None
    ]
    if not told:
        return None
    [node] = [node for node in stage.nodes if node.number == exchange.node]
    wider = set[Term]()
    for number in set[int]().union(*(brought_to(stage, node, place) for place in range(len(node.inputs)))):
        part = Term(tuple(name for _, name in told), Brought(number), tuple(place for place, _ in told))
        of_given = _wider(part, known, givers)
        if of_given is None:
            return None
        wider |= of_given
    return frozenset(wider)


def asked_of(needs: Mapping[int, Need], stages: Sequence[StagePlan]) -> frozenset[Brought]:
    """Return the keys that say which part of some source of these stages is needed, if there are any."""
    sources = [stage.source.number for stage in stages if stage.source is not None]
    return frozenset(term.keys for number in sources for term in needs.get(number, NOTHING) or ())


def before(stages: Sequence[StagePlan], asked: Set[int]) -> list[StagePlan]:
    """Return what has to be run for what some exchanges bring: the stages before them, which write nothing."""
    givers = {exchange.number: stage for stage in stages for exchange in stage.gives}
    left = [*asked]
    inside, read = set[int](), set(asked)
    while left:
        giver = givers[left.pop()]
        if giver.number not in inside:
            inside.add(giver.number)
            numbers = {exchange.number for exchange in giver.reads}
            read |= numbers
            left += numbers
    return [
        replace(
            stage,
            nodes=[node for node in stage.nodes if not isinstance(node.operator, Persist)],
            gives=[exchange for exchange in stage.gives if exchange.number in read],
            sinks=[],
        )
        for stage in stages
        if stage.number in inside
    ]


def sources_of(stages: Sequence[StagePlan]) -> dict[int, set[int] | None]:
    """Return of each exchange the stages whose sources it is made of; None if of anything else."""
    nodes = {node.number: (node, stage) for stage in stages for node in _given_by(stage)}

    def found(number: int, seen: set[int]) -> set[int] | None:
        node, stage = nodes[number]
        if number in seen:
            return set()
        seen.add(number)
        if not node.inputs:
            if isinstance(node.operator, Constant):
                return set()  # It has been there from the beginning.
            return {stage.number} if node is stage.source else None
        parts = [found(input_number, seen) for input_number in node.inputs]
        return None if None in parts else set[int]().union(*(part for part in parts if part))

    return {exchange.number: found(exchange.node, set()) for stage in stages for exchange in stage.reads}


def _given_by(stage: StagePlan) -> list[Node]:
    return [*([] if stage.source is None else [stage.source]), *stage.nodes]


def _asked(stage: StagePlan, node: Node, place: int, after: Need, quiet: Set[int]) -> Need:
    """Return what a node needs of an input, given what is needed of its output."""
    match node.operator:
        case Persist():
            return NOTHING
        case Linear(stages):
            return _before(stages, after)
        case Concat():
            return after
        case Consolidate() | Arrange():
            return after
        case Join((pairs,), ((), ()), ()):
            own = _touched(stage, node, place, brought_to(stage, node, 1 - place) - quiet)
            if own and (node.number, place) in stage.told and (node.number, 1 - place) not in stage.feeds:
                own = _among_few(own, stage, node, place)
            names = dict(pairs)
            return _both(own, None if after is None else _through_join(after, node, stage, place, names))
        case Reduce(keys, before=(), after=()):
            own = _touched(stage, node, place, {exchange.number for exchange in stage.reads} - quiet)
            fits = after is not None and all({*term.columns} <= {*keys} for term in after)
            return _both(own, after if fits else None)
    return None


def _touched(stage: StagePlan, node: Node, place: int, exchanges: Set[int]) -> Need:
    """Return the term for an input of a node: that its keys are touched by what some exchanges bring."""
    keys = _keys_of(stage, node, place)
    return None if keys is None else frozenset(Term(keys, Brought(number)) for number in exchanges)


def _among_few(own: frozenset[Term], stage: StagePlan, node: Node, place: int) -> frozenset[Term]:
    """Return what an input of a join needs for what is new in the other one, which is made within the stage.

    Of the keys that are touched there, those are enough that a filtered input of it has, too.
    """
    columns, own_columns = _keys_of(stage, node, 1 - place), _keys_of(stage, node, place)
    if columns is None or own_columns is None:
        return own
    few = _passed_on(stage, node, 1 - place, frozenset(replace(term, columns=columns) for term in own))
    is_other = few is not None and all(term.keys.exchange != few.exchange for term in own)
    return frozenset({Term(own_columns, few)}) if few is not None and is_other else own


def _keys_of(stage: StagePlan, node: Node, place: int) -> Keys | None:
    """Return the columns by which an input of a node is shared out; None if that is lost."""
    exchange = stage.feeds.get((node.number, place))
    return stage.keyed.get(node.inputs[place]) if exchange is None else exchange.keys


def brought_to(stage: StagePlan, node: Node, place: int) -> set[int]:
    """Return the exchanges that an input of a node is made of, within its stage."""
    if (exchange := stage.feeds.get((node.number, place))) is not None:
        return {exchange.number}
    own = {member.number: member for member in stage.nodes}
    giver = own[node.inputs[place]]
    return {number for at in range(len(giver.inputs)) for number in brought_to(stage, giver, at)}


def _both(one: Need, other: Need) -> Need:
    return None if one is None or other is None else one | other


def _before(stages: Sequence[LinearStage], need: Need) -> Need:
    """Return what is needed before some linear stages."""
    if any(isinstance(stage, OnlyNew) for stage in stages):
        return NOTHING
    for stage in reversed(stages):
        if need is None or not need:
            return need
        if isinstance(stage, Filter | FilterFunction | Negate | Explode):
            continue
        if isinstance(stage, Unnest) and not any({*term.columns} & {*dict(stage.lists)} for term in need):
            continue
        if not isinstance(stage, Map):
            return None
        names = {name: term.name for name, term in stage.outputs if isinstance(term, Col)}
        if not all({*term.columns} <= names.keys() for term in need):
            return None
        need = frozenset(term.renamed(names) for term in need)
    return need


def _through_join(need: frozenset[Term], node: Node, stage: StagePlan, place: int, names: Mapping[str, str]) -> Need:
    """Return what is needed of one side of a join for what is needed of the pairs.

    What is said by columns of both sides is looked up in the right one by those that it has, and passed on to the left.
    So is what is said by the key, where the other side is told to know better: of its keys, filters leave few.
    """
    terms, other, otherwise = set[Term](), set[Term](), set[Term | None]()
    right = {*node.schema.names[stage.widths[node.number] :]}
    for term in need:
        own, its = (_of_side(term, node, stage, side, names) for side in (place, 1 - place))
        if own is not None and (its is None or (node.number, place) not in stage.told):
            terms.add(own)
            continue
        part = own or _part_of_side(term, right, place, names)
        if own is None and its is not None and names.keys() <= {*term.columns} and part is not None:
            terms.add(part)  # It names the keys themselves, so nothing has to be looked up on the other side.
        elif its is not None:
            other.add(its)
            otherwise.add(part)
        else:
            looked_up = _part_of_side(term, right, 1, names)
            assert looked_up is not None, "it is said by a column of the right"
            (terms if place else other).add(looked_up)
            if not place:
                otherwise.add(part)
    if not other:
        return frozenset(terms)
    deep = max(term.keys.depth for term in other) >= PASSED_ON_MAX
    passed_on = None if deep else _passed_on(stage, node, 1 - place, frozenset(other))
    own_keys = _keys_of(stage, node, place)
    if passed_on is not None and own_keys is not None:
        return frozenset({*terms, Term(own_keys, passed_on)})
    return None if None in otherwise else frozenset({*terms, *(term for term in otherwise if term is not None)})


def _of_side(term: Term, node: Node, stage: StagePlan, place: int, names: Mapping[str, str]) -> Term | None:
    """Return a term of the pairs of a join by the columns of one side; None if it is said by others, too."""
    right = {*node.schema.names[stage.widths[node.number] :]}
    if place == 0:
        return None if right & {*term.columns} else term
    if not {*term.columns} <= right | names.keys():
        return None
    return term.renamed(names)


def _part_of_side(term: Term, right: Set[str], place: int, names: Mapping[str, str]) -> Term | None:
    """Return what a term of the pairs of a join says by the columns of one side, maybe a part; None if nothing."""
    if place == 0:
        return term.among({*term.columns} - right)
    part = term.among(right | names.keys())
    return None if part is None else part.renamed(names)


def _passed_on(stage: StagePlan, node: Node, place: int, need: frozenset[Term]) -> Brought | None:
    """Return the keys of an input of a node that has records for which terms hold, or more; None if nothing tells them.

    Where the input is made within the stage, they are among those that one of its own inputs brings.
    """
    exchange = stage.feeds.get((node.number, place))
    if exchange is not None:
        return Brought(exchange.number, need) if exchange.keys else None
    giver = next((member for member in stage.nodes if member.number == node.inputs[place]), None)
    if giver is None or not stage.keyed[giver.number]:
        return None
    match giver.operator:
        case Linear(stages):
            before_it = _before(stages, need)
            return None if not before_it else _passed_on(stage, giver, 0, before_it)
        case Consolidate() | Arrange():
            return _passed_on(stage, giver, 0, need)
        case Reduce(keys, before=(), after=()) if all({*term.columns} <= {*keys} for term in need):
            return _passed_on(stage, giver, 0, need)
        case Join((pairs,), ((), ()), ()):
            for side in (0, 1) if (giver.number, 0) not in stage.told else (1, 0):
                own = {_of_side(term, giver, stage, side, dict(pairs)) for term in need}
                if None not in own:
                    return _passed_on(stage, giver, side, frozenset(term for term in own if term is not None))
    return None


KeyOf = Callable[[str], Keys]  # The key columns of a collection.


def wanted_indexes(plan: Plan, key_of: KeyOf) -> list[tuple[str, Keys]]:
    """Return the collections of a plan, each with columns that its steps would look records up by, and cannot yet.

    What a reduction needs of its own groups is left out: only the data tell whether these are many.

    Args:
        plan: changed by this.
        key_of: of each collection that it reads.
    """
    plan = plan.without_unused()
    if why_not(plan) is not None:
        return []
    sources = {number for number, node in plan.nodes.items() if isinstance(node.operator, Source)}
    outputs = [node.operator.collection for node in plan.nodes.values() if isinstance(node.operator, Persist)]
    for standing in standing_in(plan, outputs, lambda collection, column: False):
        stand_in(plan, standing, 0)
    stages = cut(plan)
    needs, givers = needs_of(stages), sources_of(stages)
    wanted = dict[tuple[str, Keys], None]()
    for stage in stages:
        if stage.source is None or stage.source.number not in sources:
            continue
        assert isinstance(stage.source.operator, Source)
        collection = stage.source.operator.collection
        key = key_of(collection)
        for term in sorted(needs.get(stage.source.number, NOTHING) or (), key=repr):
            is_own = not term.keys.of and stage.number in (givers[term.keys.exchange] or {stage.number})
            if not is_own and term.columns and {*term.columns} != {*key[: len(term.columns)]}:
                wanted[collection, tuple(sorted({*term.columns}))] = None
    return [*wanted]
