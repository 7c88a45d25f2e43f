"""All kinds of joins, made of the dataflow's inner join, distinct and difference.

Let `semi` be the rows of the left with a partner. Then

    left join      inner join, and left - semi with NULLs
    mark           true for semi; NULL for rows that would have a partner if some NULL were another value; else false
    single         as left join; and a row with two partners raises

Keys that must be equal are looked up. Conditions that read one side only are done before; what else a pair must fulfil
is looked at when it is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from persist.compute.dataflow.stream import Stream
from persist.compute.sql.algebra import Join, Node, by_side, has_one_partner, replaced, with_terms
from persist.core.expression.evaluation import conjuncts, evaluate
from persist.core.expression.term import Call, Col, Lit, Place, Term, columns_of, moved, shifted, sql_call


@dataclass(frozen=True, slots=True)
class On:
    """What partners agree in, each side's expressions over its own columns.

    Attributes:
        keys: pairs, and whether NULL equals NULL in them.
        rest: conditions over the columns of both.
    """

    keys: tuple[tuple[Term, Term, bool], ...]
    rest: tuple[Term, ...] = ()


def column(index: int) -> str:
    """Return what the dataflow calls a column of a plan."""
    return f"c{index}"


def lowered(term: Term) -> Term:
    """Return a term over the columns c0, c1, …; what is made of constants only is computed at once."""
    if isinstance(term, Place):
        return Col(column(term.index))
    if not isinstance(term, Call):
        return term
    call = Call(term.function, tuple(map(lowered, term.arguments)), term.options)
    if term.function in ("sql.error", "sql.case") or not all(isinstance(argument, Lit) for argument in call.arguments):
        return call
    try:
        value = evaluate(call, _OneRow())
    except (pa.ArrowException, ValueError, TypeError):
        return call  # It raises when it is evaluated, if it ever is.
    return Lit(value if isinstance(value, pa.Scalar) else value[0])


def with_constants(plan: Node) -> Node:
    """Return a plan in which what is made of constants only is computed: a refresh then begins without DuckDB.

    A value of a type that definitions do not spell exactly, such as a float or a list, is left as it is.
    """

    def computed(term: Term) -> Term:
        if not isinstance(term, Call):
            return term
        call = Call(term.function, tuple(map(computed, term.arguments)), term.options)
        made = lowered(call) if all(isinstance(argument, Lit) for argument in call.arguments) else call
        return made if isinstance(made, Lit) and _is_spelled(made.value.type) else call

    return with_terms(replaced(plan, with_constants), computed)


def _is_spelled(kind: pa.DataType) -> bool:
    return bool(pat.is_integer(kind) or pat.is_boolean(kind) or pat.is_date32(kind) or pat.is_timestamp(kind))


class _OneRow(dict[str, Any]):
    def __len__(self) -> int:
        return 1


def numbered(stream: Stream, outputs: Sequence[Term]) -> Stream:
    """Return computed columns as c0, c1, …"""
    named: dict[str, Any] = {column(at): output for at, output in enumerate(outputs)}
    return stream.map(**named)


def null_of(kind: pa.DataType) -> Lit:
    """Return a NULL of a type."""
    return Lit(pa.scalar(None, kind))


def is_null(term: Term) -> Call:
    """Return the condition that a value of a stream is NULL."""
    return Call("is_null", (term,))


def joined(join: Join, left: Stream, right: Stream) -> Stream:
    """Return a join, with the columns c0, c1, … of the left and then those of the right."""
    width = len(left.columns)
    conditions = conjuncts(join.condition)
    lefts, rights, rest = by_side(conditions, width)
    pairs = [*((one, other, False) for one, other in join.equal), *((one, other, True) for one, other in join.same)]
    if join.how in ("mark", "unless"):
        # Unknown is not false there, so all conditions are looked at together.
        return _marked(join, left, right, pairs, conditions, width)
    on = On(tuple((lowered(one), lowered(other), nulls) for one, other, nulls in pairs), tuple(map(lowered, rest)))
    ours, theirs = _filtered(left, lefts), _filtered(right, rights)
    has_one = has_one_partner(join)
    if join.how == "semi":
        return semi(ours, theirs, on, has_one=has_one)
    if join.how == "anti":
        return left - semi(ours, theirs, on, has_one=has_one)
    rows = inner(ours, theirs, on)
    if join.how in ("left", "full", "single"):
        rows = rows + _with_nulls(left - semi(ours, theirs, on, has_one=has_one), right, before=False)
    if join.how in ("right", "full"):
        rows = rows + _with_nulls(right - semi(theirs, ours, _turned(on, rest, join, width, right)), left, before=True)
    if join.how == "single" and not has_one:
        rows = rows + _second_partners(ours, theirs, on, rows)
    return rows


def _filtered(stream: Stream, conditions: Sequence[Term]) -> Stream:
    for condition in conditions:
        stream = stream.filter(lowered(condition))
    return stream


def _turned(on: On, rest: Sequence[Term], join: Join, width: int, right: Stream) -> On:
    """Return what partners agree in with the sides exchanged."""
    others = len(right.columns)

    def to(index: int) -> Place:
        return Place(index + others if index < width else index - width)

    keys = tuple((other, one, nulls) for one, other, nulls in on.keys)
    return On(keys, tuple(lowered(moved(condition, to)) for condition in rest))


def _with_nulls(stream: Stream, other: Stream, *, before: bool) -> Stream:
    ours: list[Term] = [*map(Col, stream.columns)]
    nulls: list[Term] = [null_of(kind) for kind in other.schema.types]
    return numbered(stream, [*nulls, *ours] if before else [*ours, *nulls])


@dataclass(frozen=True, slots=True)
class _Keyed:
    """Both sides with key columns of the same names; names says what each column of the right is called."""

    left: Stream
    right: Stream
    keys: list[str]
    names: list[str]
    nulls: bool


def _keyed(left: Stream, right: Stream, on: On) -> _Keyed:
    nulls = any(is_same for _, _, is_same in on.keys)
    names = {column(at): f"r{at}" for at in range(len(right.columns))}
    computed: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for one, other, same in on.keys:
        name = str(one)
        if name not in left.columns or name in theirs:
            name = f"k{len(theirs)}"
            computed[name] = one
        theirs[name] = other
        if names.get(str(other), "").startswith("r"):
            names[str(other)] = name
        if nulls and not same:
            left = left.filter(Call("not", (is_null(one),)))
    if computed:
        left = left.extend(**computed)
    kept: dict[str, Any] = {name: Col(old) for old, name in names.items() if name.startswith("r")}
    return _Keyed(
        left, right.map(**theirs, **kept) if theirs or kept else right, list(theirs), list(names.values()), nulls
    )


def inner(left: Stream, right: Stream, on: On) -> Stream:
    """Return the pairs that agree: the columns of the left, then those of the right."""
    width = len(left.columns)
    sides = _keyed(left, right, on)
    if sides.keys:
        pairs = sides.left.join(sides.right, sides.keys, null_equals=sides.nulls)
    else:
        pairs = sides.left.cross(sides.right)
    outputs = [Col(column(at)) for at in range(width)] + [Col(name) for name in sides.names]
    partners = numbered(pairs, outputs)
    for condition in on.rest:
        partners = partners.filter(condition)
    return partners


def semi(left: Stream, right: Stream, on: On, *, has_one: bool = False) -> Stream:
    """Return the rows of the left that have a partner; has_one says that none has two."""
    columns = list(left.columns)
    if on.rest:
        # Records that agree in what is asked of them have partners all, or none.
        terms = (*(one for one, _, _ in on.keys), *on.rest)
        asked = [name for name in columns if name in set().union(*map(columns_of, terms))] or columns
        return left.join(inner(left, right, on).project(*asked).distinct(), asked, null_equals=True)
    sides = _keyed(left, right, on)
    if sides.keys:
        keys = sides.right.project(*sides.keys)
        keys = keys if has_one else keys.distinct()
        return sides.left.join(keys, sides.keys, null_equals=sides.nulls).project(*columns)
    return left.cross(right.map(there=True).distinct()).project(*columns)


def _marked(
    join: Join,
    left: Stream,
    right: Stream,
    pairs: Sequence[tuple[Term, Term, bool]],
    conjuncts: Sequence[Term],
    width: int,
) -> Stream:
    keys = tuple((lowered(one), lowered(other), nulls) for one, other, nulls in pairs)
    on = On(keys, tuple(map(lowered, conjuncts)))
    with_partner = semi(left, right, on)
    unknown = _unknown(left, right, on, pairs, conjuncts, width)
    if join.how == "unless":
        without_partner = left - with_partner
        return without_partner if unknown is None else without_partner - unknown
    marked = _mark(with_partner, True)
    rest = left - with_partner
    if unknown is not None:
        marked, rest = marked + _mark(unknown, None), rest - unknown
    return marked + _mark(rest, False)


def _mark(stream: Stream, value: bool | None) -> Stream:
    return stream.extend(**{column(len(stream.columns)): Lit(pa.scalar(value, pa.bool_()))})


def _unknown(
    left: Stream,
    right: Stream,
    on: On,
    pairs: Sequence[tuple[Term, Term, bool]],
    conjuncts: Sequence[Term],
    width: int,
) -> Stream | None:
    """Return the rows of the left of which NULLs leave open whether they have a partner; None if there can be none."""
    same = tuple(key for key in on.keys if key[2])
    equal = [key for key in on.keys if not key[2]]
    if not equal and not conjuncts:
        return None
    if len(equal) == 1 and not conjuncts:
        [(one, other, _)] = equal
        nulls = semi(left.filter(is_null(one)), right, On(same))
        open_ = semi(left.filter(Call("not", (is_null(one),))), right.filter(is_null(other)), On(same))
        return nulls + (open_ - semi(open_, right, on))
    conditions = [sql_call("equal", pa.bool_(), one, shifted(other, width)) for one, other, nulls in pairs if not nulls]
    possible = [
        sql_call("coalesce", pa.bool_(), lowered(condition), Lit(pa.scalar(True)))
        for condition in (*conditions, *conjuncts)
    ]
    maybe = semi(left, right, On(same, tuple(possible)))
    return maybe - semi(maybe, right, on)


def _second_partners(left: Stream, right: Stream, on: On, rows: Stream) -> Stream:
    """Return nothing, but raise where a row of the left has two partners."""
    width = len(left.columns)
    sides = inner(left.distinct(), right, on)
    counted = sides.group_by(*(column(at) for at in range(width))).count("partners")
    message = "more than one row returned by a subquery used as an expression"
    several = counted.filter(Call("greater", (Col("partners"), Lit(pa.scalar(1)))))
    nothing = several.filter(sql_call("error", pa.bool_(), Lit(pa.scalar(message))))
    return numbered(nothing, [null_of(kind) for kind in rows.schema.types])
