"""Records that stand for a group: its aggregates so far, as few records that have the same aggregates.

A step needs of the past of a group only what its aggregates were, and where an output holds counts and sums by group,
that says it all. So the plan of a step is rewritten: instead of what was counted and summed in the past, a reduction is
given, for each record of the output, records that stand for the group, and after them what is new:

    a count of c          c records with some value
    a sum s of c values   one record with the value s, and c - 1 with the value 0
    a mean                the same, where the output has the sum and the count, too
    a least value m       one record with the value m; the same for a greatest one
    of n records          as many more, with NULLs, as there are missing

The operators stay the same. They compute their past results again, and then go on from there. A join before them gives
nothing of the past any more, so nothing is read for that.

The aggregates of a group are linear in its records, so this holds for any stream of them. A record of the output does
not tell two things. A group that is not in the output may be there all the same, with records whose multiplicities add
up to 0; and so may the sum of a group whose sum is NULL. Where every source is known to be positive neither can be.
Otherwise they are *doubtful*: a task that finds that something comes of such a group or sum raises, and the step is
done without such records.

How many values a sum is of is known where they are counted, too, and where no value is NULL. Otherwise they are taken
for as many as there are records, which makes a difference only where a sum becomes NULL: it would be 0, if no
multiplicity is negative then either. So a 0 is *unsure*, and a task that finds one raises, too. A mean needs the count.

A least or a greatest value does not tell which comes next when it goes. So records stand for it only where nothing is
retracted that the group is made of.

Where aggregates are *complete* (`persist.compute.sql.groups`), nothing of this is left open: an output holds each
group of which anything is left, with counts and totals that are its whole state. A total lower + upper * 2**62 is one
record with the value lower, and as many with half of 2**62 as twice upper says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.types.schema import TIME
from persist.compute.dataflow.plan.plan import (
    Aggregates,
    Arrange,
    Concat,
    Consolidate,
    Join,
    Linear,
    Node,
    Persist,
    Plan,
    Reduce,
    Source,
)
from persist.compute.dataflow.plan.stages import Explode, Filter, FilterFunction, Map, Negate, Stage, Unnest
from persist.core.expression.term import Call, Col, Expression, Lit, Term, calls, col, lit, sql_call, term_of, when

SUMS = ("sum", "wide_sum")
ENDS = ("min", "max")
STRICT = ("add", "subtract", "multiply", "cast")  # Of values they give a value, or fail.
MayBeNull: TypeAlias = Callable[[str, str], bool]  # A collection, and a column of it.


@dataclass(frozen=True, slots=True)
class OnlyNew(Filter):
    """Leave out what comes of the past: so nothing of it is needed before."""

    @classmethod
    def after(cls, as_of: int) -> "OnlyNew":
        """Return the filter for updates after a time."""
        return cls((col(TIME) > as_of).term)


@dataclass(frozen=True, slots=True)
class Standing:
    """A reduction for the groups of which records can stand.

    Attributes:
        reduce: its node.
        keys: by which it groups.
        aggregates: (column, kind, value column).
        sink: the output that holds what it came to.
        named: of each key and aggregate that the output has, the column there.
        constants: value columns that are the same in all records.
        totals: of each sum and mean, the column of the output that has the sum.
        counted: of each aggregate that is no least or greatest value and of which not all values are the same, the
            column of the output that says how many values it is of; None if no column does, and they are taken for all.
        records: the column of the output that says how many records there are.
        is_complete: whether the aggregates are all that the state of a group is.
    """

    reduce: Node
    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, str, str], ...]
    sink: Node
    named: Mapping[str, str]
    constants: Mapping[str, Lit]
    totals: Mapping[str, str]
    counted: Mapping[str, str | None]
    records: str
    is_complete: bool = False

    @property
    def sums(self) -> tuple[str, ...]:
        """The aggregates that are NULL where there is no value."""
        return tuple(name for name, kind, _ in self.aggregates if kind in SUMS)

    @property
    def ends(self) -> tuple[str, ...]:
        """The aggregates that are least or greatest values."""
        return tuple(name for name, kind, _ in self.aggregates if kind in ENDS)

    @property
    def unsure(self) -> tuple[str, ...]:
        """The sums that become 0 where they might be NULL."""
        return tuple(name for name in self.sums if self.counted.get(name, "") is None)


@dataclass(frozen=True, slots=True)
class Doubts:
    """What the output did not tell of a reduction for which records stand.

    Attributes:
        keys: by which it groups.
        unsure: aggregates that are not known where they become 0.
        sums: aggregates that are not known where they were NULL, and groups that were not there; None if they are.
    """

    keys: tuple[str, ...]
    unsure: tuple[str, ...]
    sums: tuple[str, ...] | None


def standing_in(plan: Plan, outputs: Sequence[str], may_be_null: MayBeNull) -> list[Standing]:
    """Return the reductions of a plan of which some outputs hold enough.

    Args:
        outputs: collections that hold what the plan gives.
        may_be_null: whether a column of a collection may have NULLs.
    """
    standings = {}
    for sink in plan.nodes.values():
        if isinstance(sink.operator, Persist) and sink.operator.collection in outputs:
            standing = _standing(plan, sink, may_be_null)
            if standing is not None and (standing.is_complete or standing.reduce.number not in standings):
                standings[standing.reduce.number] = standing
    return list(standings.values())


def sources_before(plan: Plan, node: Node) -> set[str] | None:
    """Return the collections that a node is made of by operators that keep what is positive so; None if by others."""
    sources, left = set[str](), [*node.inputs]
    while left:
        current = plan.nodes[left.pop()]
        match current.operator:
            case Source(collection):
                sources.add(collection)
            case Linear(stages) if all(isinstance(one, Map | Filter | FilterFunction | Unnest) for one in stages):
                pass
            case Join() | Concat() | Consolidate() | Arrange():
                pass
            case Reduce(_, _, logic) if isinstance(logic, Aggregates):
                pass
            case _:
                return None
        left += current.inputs
    return sources


def is_of_groups(plan: Plan, node: Node) -> bool:
    """Whether a node is made of other reductions, whose results change, so that new groups come often."""
    seen, left = set[int](), [*node.inputs]
    while left:
        number = left.pop()
        if isinstance(plan.nodes[number].operator, Reduce):
            return True
        if number not in seen:
            seen.add(number)
            left += plan.nodes[number].inputs
    return False


def stand_in(plan: Plan, standing: Standing, as_of: int) -> Node:
    """Let records stand for the groups of a reduction as of a time; return the source of what the output holds then."""
    reduce, [given] = standing.reduce, standing.reduce.inputs
    sums = {value for name, _, value in standing.aggregates if name in standing.totals}
    before = plan.nodes[given].schema
    schema = pa.schema([(one.name, _summed(one.type) if one.name in sums else one.type) for one in before])
    wider = Map(
        tuple((one.name, (col(one.name) if one in before else col(one.name).cast(one.type)).term) for one in schema)
    )
    assert isinstance(standing.sink.operator, Persist)
    held = plan.add(Source(standing.sink.operator.collection), (), standing.sink.schema)
    only_new = plan.add(Linear((OnlyNew.after(as_of), wider)), (given,), schema)
    inputs = [only_new.number]
    for stages in _records(standing, schema):
        inputs.append(plan.add(Linear(stages), (held.number,), schema).number)
    both = plan.add(Concat(), tuple(inputs), schema)
    plan.change(reduce.number, inputs=(both.number,))
    return held


def _standing(plan: Plan, sink: Node, may_be_null: MayBeNull) -> Standing | None:
    """Return the reduction that an output shows as it is, if that says it all."""
    node = plan.nodes[sink.inputs[0]]
    columns = {name: name for name in sink.schema.names}  # Of the node that is gone back to, by those of the output.
    while isinstance(node.operator, Linear):
        for stage in reversed(node.operator.stages):
            if not isinstance(stage, Map):
                return None
            given = dict(stage.outputs)
            columns = {
                name: expression.name for name, at in columns.items() if isinstance(expression := given.get(at), Col)
            }
        node = plan.nodes[node.inputs[0]]
    named = {at: name for name, at in columns.items()}
    match node.operator:
        case Reduce(keys, _, Aggregates(_, is_complete), (), ()) if (keys or is_complete) and {*keys} <= named.keys():
            return _of_aggregates(plan, sink, node, named, may_be_null)
    return None


def _of_aggregates(
    plan: Plan,
    sink: Node,
    node: Node,
    named: Mapping[str, str],
    may_be_null: MayBeNull,
) -> Standing | None:
    assert isinstance(node.operator, Reduce)
    assert isinstance(node.operator.logic, Aggregates)
    keys, outputs = node.operator.keys, node.operator.logic.outputs
    given = plan.nodes[node.inputs[0]]
    origins = {value: _origin(plan, given, value) for _, _, value in outputs}
    constants = {
        value: constant for value, constant in origins.items() if isinstance(constant, Lit) and constant.value.is_valid
    }
    output_columns = {(kind, str(origins[value])): named[name] for name, kind, value in outputs if name in named}
    every = [named[name] for name, kind, value in outputs if kind == "count" and value in constants and name in named]
    if not every:
        return None
    if node.operator.logic.is_complete:
        told = all(name in named for name, _, _ in outputs) and all(
            kind != "count" or value in constants or _some(given.schema.field(value).type) is not None
            for _, kind, value in outputs
        )
        return Standing(node, keys, outputs, sink, named, constants, {}, {}, every[0], True) if told else None
    own = [value for _, _, value in outputs if value not in constants]
    if len({*own}) < len(own):  # Records could not give a value to one aggregate, and not to the other.
        return None
    totals: dict[str, str] = {}
    counted: dict[str, str | None] = {}
    for name, kind, value in outputs:
        if kind == "count" and value in constants:
            continue
        of, origin = given.schema.field(value).type, str(origins[value])
        if name not in named or value in constants:
            return None
        if kind in ENDS:
            continue
        counted[name] = output_columns.get(("count", origin))
        if kind == "count":
            if _some(of) is None:
                return None
            continue
        sums = [output_columns[function, origin] for function in SUMS if (function, origin) in output_columns]
        if not (sums and (kind in SUMS or kind == "mean") and _is_exact(of)):
            return None
        totals[name] = sums[0]
        if counted[name] is None and _is_never_null(plan, given, value, may_be_null):
            counted[name] = every[0]
        if counted[name] is None and kind == "mean":
            return None
    return Standing(node, keys, outputs, sink, named, constants, totals, counted, every[0])


def _is_never_null(plan: Plan, node: Node, column: str, may_be_null: MayBeNull) -> bool:
    """Return whether a column of a node is made of columns of collections that have no NULLs, and has none itself."""
    before = [plan.nodes[number] for number in node.inputs]
    match node.operator:
        case Source(collection):
            return not may_be_null(collection, column)
        case Linear(stages):
            columns = {column}
            for stage in reversed(stages):
                if isinstance(stage, Map):
                    sources = _strict(dict(stage.outputs), columns)
                    if sources is None:
                        return False
                    columns = sources
                elif not isinstance(stage, Filter | FilterFunction | Explode | Negate):
                    return False
            return all(_is_never_null(plan, before[0], name, may_be_null) for name in columns)
        case Join((_,), ((), ()), ()):
            side = 0 if column in before[0].schema.names else 1
            return _is_never_null(plan, before[side], column, may_be_null)
        case Concat() | Consolidate() | Arrange():
            return all(_is_never_null(plan, input_node, column, may_be_null) for input_node in before)
    return False


def _strict(outputs: Mapping[str, Term], columns: set[str]) -> set[str] | None:
    """Return the columns of which some others are made so that they are NULL only if one of those is; None if not."""
    names, left = set[str](), [outputs.get(name) for name in columns]
    while left:
        match left.pop():
            case Col(name):
                names.add(name)
            case Lit(value) if value.is_valid:
                pass
            case Call(_, arguments) as call if calls(call, *STRICT):
                left += arguments
            case _:
                return None
    return names


def _is_exact(kind: pa.DataType) -> bool:
    """Whether a sum of such values is one of them, and nothing is lost by summing sums."""
    return bool(pat.is_integer(kind) or pat.is_decimal128(kind))


def _origin(plan: Plan, node: Node, column: str) -> Lit | tuple[int, str]:
    """Return where a column comes from as it is: a constant, or a column of a node."""
    while isinstance(node.operator, Linear):
        name: str | None = column
        for stage in reversed(node.operator.stages):
            if isinstance(stage, Map):
                term: Term | None = dict(stage.outputs).get(name or "")
                if isinstance(term, Lit):
                    return term
                name = term.name if isinstance(term, Col) else None
            elif not isinstance(stage, Filter | FilterFunction | Explode):
                name = None
            if name is None:
                return node.number, column
        column, node = name or column, plan.nodes[node.inputs[0]]
    return node.number, column


def _records(standing: Standing, schema: pa.Schema) -> list[tuple[Stage, ...]]:
    """Return the stages that make of a record of the output the ones that stand for its group."""
    if standing.is_complete:
        return _records_of_complete(standing, schema)
    chains: list[tuple[Stage, ...]] = []
    missing = col(standing.records)
    for name, kind, value in standing.aggregates:
        if kind in ENDS:
            end = col(standing.named[name])
            chains.append((Filter((~end.is_null()).term), _with(standing, schema, {value: end})))
            missing = missing - when(end.is_null(), 0).otherwise(1)
        elif name in standing.counted:
            count, some = col(standing.counted[name] or standing.records), _some(schema.field(value).type)
            assert some is not None
            if name not in standing.totals:
                chains.append((Explode(count.term), _with(standing, schema, {value: some})))
                missing = missing - count
                continue
            total = col(standing.totals[name])
            there = Filter((~total.is_null()).term)
            chains.append((there, _with(standing, schema, {value: _as_value(total, schema.field(value).type)})))
            chains.append((there, Explode((count - 1).term), _with(standing, schema, {value: some})))
            missing = missing - when(total.is_null(), 0).otherwise(count)
    return [*chains, (Explode(missing.term), _with(standing, schema, {}))]


def _records_of_complete(standing: Standing, schema: pa.Schema) -> list[tuple[Stage, ...]]:
    chains: list[tuple[Stage, ...]] = []
    missing = col(standing.records)
    for name, kind, value in standing.aggregates:
        if value in standing.constants:
            continue
        if kind == "count":
            count, some = col(standing.named[name]), _some(schema.field(value).type)
            assert some is not None, "counts are of values of a type that has a simple one"
            chains.append((Explode(count.term), _with(standing, schema, {value: some})))
            missing = missing - count
            continue
        lower, upper = (
            Expression(sql_call(f"{which}_limb", pa.int64(), Col(standing.named[name]))) for which in ("lower", "upper")
        )
        chains.append((_with(standing, schema, {value: lower}),))
        chains.append((Explode((upper * 2).term), _with(standing, schema, {value: lit(1 << 61)})))
        missing = missing - upper * 2 - 1
    return [*chains, (Explode(missing.term), _with(standing, schema, {}))]


def _as_value(total: Expression, kind: pa.DataType) -> Expression:
    """Return a sum as a value; one that is none fails. The least integer is none, either: it stands for NULL."""
    value = total.cast(kind)
    return value - 1 + 1 if pat.is_signed_integer(kind) else value


def _with(standing: Standing, schema: pa.Schema, values: Mapping[str, Expression | Term]) -> Map:
    """Return the record of a group that has some values, and else NULLs."""
    keys = {key: col(standing.named[key]) for key in standing.keys}
    known = {**keys, **standing.constants, **values}
    return Map(tuple((one.name, term_of(known.get(one.name, pa.scalar(None, one.type)))) for one in schema))


def _some(kind: pa.DataType) -> Lit | None:
    """Return a value of a type that is not NULL; None if there is no simple one."""
    for value in (pa.scalar(0, pa.int64()), pa.scalar(0, pa.int32()), pa.scalar(Decimal(0)), pa.scalar("")):
        try:
            return Lit(value.cast(kind))
        except (pa.ArrowException, TypeError):
            continue
    return None


def _summed(kind: pa.DataType) -> pa.DataType:
    """Return a type for values and their sums, of which the sum is of the same type as of the values' own."""
    if pat.is_decimal128(kind):
        return pa.decimal128(18 if kind.precision <= 18 else 38, kind.scale)
    return kind if pat.is_uint64(kind) else pa.int64()
