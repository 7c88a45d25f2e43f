"""Builds all kinds of SQL joins from the dataflow's inner join, distinct and difference.

Let `join_semi` be the rows of the left with a partner. Then

    left join      inner join, and left - semi with NULLs
    mark           true for semi; NULL for rows that would have a partner if some NULL were another value; else false
    single         as left join; and a row with two partners raises

Keys that must be equal are looked up. Conditions on one side only are tested before; other conditions are tested on
each pair.
"""

from dataclasses import dataclass, replace

import pyarrow as pa

from persist.compute.dataflow.stream import Stream
from persist.compute.sql.algebra import Join, has_one_partner, split_by_side
from persist.compute.sql.rows import (
    Rows,
    choose_free_name,
    choose_free_names,
    extend_with_terms,
    make_null,
    select_terms,
)
from persist.core.expression.evaluation import split_conjuncts
from persist.core.expression.term import (
    Call,
    Col,
    Lit,
    Place,
    Term,
    list_places,
    make_sql_call,
    replace_columns,
    shift_columns,
)


@dataclass(frozen=True, slots=True)
class On:
    """The condition of a join: which right rows are partners of a left row.

    Attributes:
        keys: a left term, a right term that equals it, and whether NULL equals NULL.
        residual: conditions over the columns of the left, followed by those of the right.
    """

    keys: tuple[tuple[Term, Term, bool], ...] = ()
    residual: tuple[Term, ...] = ()

    def swap_sides(self, width: int, others: int) -> "On":
        """Return the condition for the join with left and right exchanged."""

        def to(index: int) -> Place:
            return Place(index + others if index < width else index - width)

        keys = tuple((right_key, left_key, is_same) for left_key, right_key, is_same in self.keys)
        return On(keys, tuple(replace_columns(condition, to) for condition in self.residual))


def lower_join(join: Join, left: Rows, right: Rows) -> Rows:
    """Return a join, with the left columns and then the right ones."""
    width, right_width = len(left.columns), len(right.columns)
    conditions = split_conjuncts(join.condition)
    lefts, rights, crossing = split_by_side(conditions, width)
    pairs = [
        *((left_key, right_key, False) for left_key, right_key in join.equal),
        *((left_key, right_key, True) for left_key, right_key in join.same),
    ]
    on = On(tuple(pairs), tuple(crossing))
    if join.how == "inner":
        return join_inner(left.filter(lefts), right.filter(rights), on)
    has_one = has_one_partner(join)
    if join.how == "semi":
        return join_semi(left.filter(lefts), right.filter(rights), on, has_one=has_one)
    names = choose_free_names((*left.columns, *right.columns))
    left, right = Rows.of(left.to_stream(names[:width])), Rows.of(right.to_stream(names[width:]))
    if join.how in ("mark", "unless"):
        # Unknown is not false there, so all conditions are looked at together.
        return _join_with_mark(join.how, left, right, On(on.keys, tuple(conditions)))
    ours, right_rows = left.filter(lefts), right.filter(rights)
    if join.how == "anti":
        return _subtract(left, join_semi(ours, right_rows, on, has_one=has_one))
    rows = join_inner(ours, right_rows, on).to_stream(names)
    if join.how in ("left", "full", "single"):
        rows = rows + _add_null_columns(_subtract(left, join_semi(ours, right_rows, on, has_one=has_one)), rows.schema)
    if join.how in ("right", "full"):
        rows = rows + _add_null_columns(
            _subtract(right, join_semi(right_rows, ours, on.swap_sides(width, right_width))), rows.schema
        )
    if join.how == "single" and not has_one:
        rows = rows + _check_single_partners(ours, right_rows, on, rows.schema)
    return Rows.of(rows)


def _subtract(rows: Rows, others: Rows) -> Rows:
    """Return the rows of a stream without the rows of another."""
    return Rows.of(rows.stream - others.to_stream(rows.columns))


def _add_null_columns(rows: Rows, schema: pa.Schema) -> Stream:
    """Return rows with the columns of a schema; missing columns are NULL."""
    has = {*rows.columns}
    return select_terms(
        rows.stream, {field.name: Col(field.name) if field.name in has else make_null(field.type) for field in schema}
    )


def _is_null(term: Term) -> Call:
    """Return the condition that a term is NULL."""
    return Call("is_null", (term,))


@dataclass(frozen=True, slots=True)
class _Sides:
    """The two inputs of a join as streams, with their keys as columns.

    Attributes:
        pairs: the names of the keys, of the left and of the right.
        columns: the names of the right columns after the join.
    """

    left: Stream
    right: Stream
    pairs: dict[str, str]
    columns: tuple[str, ...]
    nulls: bool


def _add_key_columns(left: Rows, right: Rows, on: On) -> _Sides:
    """Return both inputs of a join, with its keys as columns."""
    nulls = any(is_same for _, _, is_same in on.keys)
    pairs, ours, right_keys, stream = dict[str, str](), dict[str, Term](), dict[str, Term](), left.stream
    for left_term, right_term, is_same in on.keys:
        key, partner = left.to_stream_term(left_term), right.to_stream_term(right_term)
        name, its_name = (str(term) if isinstance(term, Col) else "" for term in (key, partner))
        if not name or name in pairs:
            name = choose_free_name(f"k{len(pairs)}", {*left.stream.columns, *ours})
            ours[name] = key
        if not its_name or its_name in pairs.values():
            its_name = choose_free_name(f"k{len(pairs)}", {*right.stream.columns, *right_keys})
            right_keys[its_name] = partner
        pairs[name] = its_name
        if nulls and not is_same:
            stream = stream.filter(Call("not", (_is_null(key),)))
    stream, partners = extend_with_terms(stream, ours), extend_with_terms(right.stream, right_keys)
    key_names = {its_name: name for name, its_name in reversed(pairs.items())}
    right_columns = [name for name in partners.columns if name not in key_names]
    if {*right_columns} & {*stream.columns}:
        right_columns = [name for name in dict.fromkeys(right.columns) if name not in key_names]
        free = choose_free_names(right_columns, (*stream.columns, *key_names))
        partners = select_terms(
            partners,
            {name: Col(name) for name in key_names}
            | {new: Col(name) for name, new in zip(right_columns, free, strict=True)},
        )
        key_names |= dict(zip(right_columns, free, strict=True))
    return _Sides(stream, partners, pairs, tuple(key_names.get(name, name) for name in right.columns), nulls)


def join_inner(left: Rows, right: Rows, on: On) -> Rows:
    """Return the matching pairs: the left columns, then the right ones."""
    sides = _add_key_columns(left, right, on)
    if sides.pairs:
        pairs = sides.left.join(sides.right, sides.pairs, null_equals=sides.nulls)
    else:
        pairs = sides.left.cross(sides.right)
    return Rows(pairs, (*left.columns, *sides.columns)).filter(on.residual)


def join_semi(left: Rows, right: Rows, on: On, *, has_one: bool = False) -> Rows:
    """Return the left rows with a partner; `has_one`: no left row has two partners."""
    if on.residual:
        # Records that are equal in the columns of the condition all have a partner, or none has.
        width = len(left.columns)
        places = set[int]().union(*map(list_places, (*(left_key for left_key, _, _ in on.keys), *on.residual)))
        key_places = [Place(at) for at in range(width) if at in places] or [*map(Place, range(width))]
        columns = [*dict.fromkeys(left.columns[place.index] for place in key_places)]
        partners = replace(join_inner(left, right, on), columns=tuple(columns)).to_stream().distinct()
        return replace(left, stream=left.stream.join(partners, columns, null_equals=True))
    sides = _add_key_columns(left, right, on)
    if sides.pairs:
        keys = sides.right.project(*sides.pairs.values())
        keys = keys if has_one else keys.distinct()
        return replace(left, stream=sides.left.join(keys, sides.pairs, null_equals=sides.nulls))
    name = choose_free_name("there", left.stream.columns)
    exists = select_terms(right.stream, {name: Lit(pa.scalar(True))}).distinct()
    return replace(left, stream=left.stream.cross(exists))


def _join_with_mark(how: str, left: Rows, right: Rows, on: On) -> Rows:
    """Return the left rows, marked if they have a partner; for `unless`, only those without."""
    with_partner = join_semi(left, right, on)
    unknown, unmatched = _find_unknown(left, right, on), _subtract(left, with_partner)
    if how == "unless":
        return unmatched if unknown is None else _subtract(unmatched, unknown)
    name = choose_free_name("mark", left.columns)
    marked = _append_mark(with_partner, left, name, True)
    if unknown is not None:
        marked, unmatched = marked + _append_mark(unknown, left, name, None), _subtract(unmatched, unknown)
    return Rows.of(marked + _append_mark(unmatched, left, name, False))


def _append_mark(rows: Rows, left: Rows, name: str, value: bool | None) -> Stream:
    """Return rows with one more column, a constant boolean or NULL."""
    return extend_with_terms(rows.to_stream(left.columns), {name: Lit(pa.scalar(value, pa.bool_()))})


def _find_unknown(left: Rows, right: Rows, on: On) -> Rows | None:
    """Return the left rows that may have a partner because of NULLs, or None."""
    width = len(left.columns)
    same = tuple(key for key in on.keys if key[2])
    equal = [key for key in on.keys if not key[2]]
    if not equal and not on.residual:
        return None
    if len(equal) == 1 and not on.residual:
        [(left_key, right_key, _)] = equal
        nulls = join_semi(left.filter([_is_null(left_key)]), right, On(same))
        open_ = join_semi(
            left.filter([Call("not", (_is_null(left_key),))]), right.filter([_is_null(right_key)]), On(same)
        )
        undecided = Rows.of(open_.to_stream(left.columns))
        return Rows.of(nulls.to_stream(left.columns) + _subtract(undecided, join_semi(undecided, right, on)).stream)
    conditions = [
        make_sql_call("equal", pa.bool_(), left_key, shift_columns(right_key, width))
        for left_key, right_key, _ in equal
    ]
    possible = [
        make_sql_call("coalesce", pa.bool_(), condition, Lit(pa.scalar(True)))
        for condition in (*conditions, *on.residual)
    ]
    maybe = Rows.of(join_semi(left, right, On(same, tuple(possible))).to_stream(left.columns))
    return _subtract(maybe, join_semi(maybe, right, on))


def _check_single_partners(left: Rows, right: Rows, on: On, schema: pa.Schema) -> Stream:
    """Return no rows, but raise if a left row has two partners."""
    pairs = join_inner(Rows.of(left.stream.distinct()), right, on)
    partners = choose_free_name("partners", left.columns)
    counted = pairs.stream.group_by(*left.columns).count(partners)
    message = "more than one row returned by a subquery used as an expression"
    several = counted.filter(Call("greater", (Col(partners), Lit(pa.scalar(1)))))
    nothing = several.filter(make_sql_call("error", pa.bool_(), Lit(pa.scalar(message))))
    return select_terms(nothing, {field.name: make_null(field.type) for field in schema})
