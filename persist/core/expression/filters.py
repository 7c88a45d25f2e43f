"""Filters of reads that Arrow evaluates, and the parser of conditions as text.

Arrow's own engine evaluates a filter, because it also uses the statistics of files. This module makes terms from text,
such as `status = 'paid' and amount > 5`; other modules make them from conditions of Spark and Polars.

    condition  = conjunct { "or" conjunct }
    conjunct   = factor { "and" factor }
    factor     = "not" factor | "(" condition ")" | test
    test       = operand ( "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=" ) operand
               | operand [ "not" ] "in" "(" literal { "," literal } ")"
               | operand [ "not" ] "between" literal "and" literal
               | operand [ "not" ] "like" text
               | operand "is" [ "not" ] "null"
               | operand
    operand    = column | literal | value
    value      = column { ( "->" | "->>" ) path }                       of a column of JSON, as DuckDB computes it
               | ( "json_extract" | "json_extract_string" ) "(" value "," path ")"
    path       = text such as 'name' or '$.items[0].name', or a number of an item
    column     = a name, in double quotes if it is not a plain word
    literal    = a number, 'text', true, false, null

Text that is compared with a column of another type, such as a timestamp, is read as a value of that type. A comparison
with NULL is neither true nor false, as in SQL. Values of documents are texts.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context, Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.errors import did_you_mean
from persist.codecs.part.filters import bind_filter
from persist.codecs.types.schema import CollectionSchema
from persist.core.expression.documents import check_path, join_paths, make_document_expression
from persist.core.expression.patterns import match_like_pattern
from persist.core.expression.term import Call, Col, Lit, Term

_FILTERS: dict[str, Callable[..., pc.Expression]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "not": operator.invert,
    "is_null": operator.methodcaller("is_null"),
    "is_valid": operator.methodcaller("is_valid"),
    "is_nan": pc.is_nan,
    "among": lambda value, values: value.isin(values),
    "null_if_null": lambda value: pc.if_else(value.is_valid(), False, pa.scalar(None, pa.bool_())),
    "cast": lambda value, kind: value.cast(kind, safe=False),
    "like": match_like_pattern,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "contains": pc.match_substring,
    "json_extract": partial(make_document_expression, "json_extract"),
    "json_extract_string": partial(make_document_expression, "json_extract_string"),
}
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')|(?P<quoted>"(?:[^"]|"")+")
    |(?P<word>[^\W\d]\w*)|(?P<sign>->>|->|<=|>=|<>|!=|==|[=<>(),]))""",
    re.VERBOSE,
)
_COMPARED = {
    "=": "equal", "==": "equal", "!=": "not_equal", "<>": "not_equal", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal",
}  # fmt: skip
_EXTRACTS = {"->": "json_extract", "->>": "json_extract_string"}
_AFTER_OPERAND = {*_COMPARED, *_EXTRACTS, "is", "in", "not", "between", "like"}
_WORDS = {"and", "or", "not", "in", "is", "null", "between", "like", "true", "false"}
DEPTH_MAX = 100
_BEYOND = 10**20  # All integers are between this and its negative.
DIGITS_MAX = 76  # For whole numbers: decimal256 has so many.


@dataclass(frozen=True)
class _Token:
    """A word, name, sign or literal of a condition; `at`: its position."""

    kind: str  # number, text, name, word (one of _WORDS), sign, end
    text: str
    at: int


@dataclass(frozen=True)
class _Operand:
    """A column, or a literal that is not yet converted to the type with which it is compared."""

    column: str | None
    value: Any = None
    type: pa.DataType | None = None
    is_double: bool = False  # As in SQL, a number with an exponent is.
    path: tuple[tuple[str, str | int], ...] = ()  # Functions of JSON that are applied to it, and their paths.


def to_arrow_filter(condition: Term, schema: pa.Schema) -> pc.Expression:
    """Return a condition as a filter that Arrow evaluates over columns of a schema."""
    filter_ = _to_arrow(condition)
    try:
        bind_filter(filter_, schema)
    except pa.ArrowException as error:
        written = " ".join(str(condition).split())
        raise InvalidUsage(f"the condition {written!r:.200} compares what cannot be compared: {error}") from error
    return filter_


def _to_arrow(term: Term) -> pc.Expression:
    """Convert a term to an Arrow expression."""
    if isinstance(term, Col):
        return pc.field(term.name)
    if isinstance(term, Lit):
        return pc.scalar(term.value)
    assert isinstance(term, Call)
    return _FILTERS[term.function](*map(_to_arrow, term.arguments), *term.options)


def parse_where(text: str, schema: CollectionSchema) -> pc.Expression:
    """Return the filter that a condition means over the columns of a collection."""
    return to_arrow_filter(_Parser(text, schema).parse_all(), schema.arrow)


class _Parser:
    """Parses the text of a condition by recursive descent."""

    def __init__(self, text: str, schema: CollectionSchema) -> None:
        self._text = text
        self._types = {name: schema.arrow.field(name).type for name in schema.names}
        self._json = schema.json
        self._tokens = [*_split_tokens(text)]
        self._next = 0
        self._depth = 0

    def parse_all(self) -> Term:
        """Parse a whole condition; refuse text after it."""
        condition = self._parse_condition()
        if self._next_token.kind != "end":
            raise self._make_unexpected_error("and, or, or the end")
        return condition

    def _parse_condition(self) -> Term:
        """Parse conditions that are joined by OR."""
        condition = self._parse_conjunction()
        while self._accept("or"):
            condition = _make_call("or", condition, self._parse_conjunction())
        return condition

    def _parse_conjunction(self) -> Term:
        """Parse conditions that are joined by AND."""
        condition = self._parse_factor()
        while self._accept("and"):
            condition = _make_call("and", condition, self._parse_factor())
        return condition

    def _parse_factor(self) -> Term:
        """Parse NOT, a condition in parentheses, or a single test."""
        self._check_depth()
        try:
            if self._accept("not"):
                return _negate_condition(self._parse_factor())
            if not self._is_operand_next() and self._accept("("):
                condition = self._parse_condition()
                self._require(")")
                return condition
            return self._parse_test()
        finally:
            self._depth -= 1

    def _check_depth(self) -> None:
        """Count one more nesting level; raise InvalidUsage if there are too many."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidUsage(f"the condition {self._text!r:.200} nests deeper than {DEPTH_MAX} levels")

    def _is_operand_next(self) -> bool:
        """Return whether the next parenthesis encloses an operand, not a condition."""
        depth, at = 0, self._next
        while self._tokens[at].kind != "end":
            depth += {"(": 1, ")": -1}.get(self._tokens[at].text, 0) if self._tokens[at].kind == "sign" else 0
            at += 1
            if not depth:
                break
        return self._next_token.text == "(" and self._tokens[at].text in _AFTER_OPERAND

    def _parse_test(self) -> Term:
        """Parse a comparison, IN, LIKE, BETWEEN or IS NULL."""
        left_operand = self._parse_operand()
        if self._next_token.text in _COMPARED and self._next_token.kind == "sign":
            function = _COMPARED[self._advance().text]
            right = self._parse_operand()
            terms = (
                self._make_comparison_operand(left_operand, right),
                self._make_comparison_operand(right, left_operand),
            )
            if (kind := _find_common_type(left_operand, right)) is not None:
                terms = Call("cast", terms[:1], (kind,)), Call("cast", terms[1:], (kind,))
            return _make_call(function, *terms)
        if self._accept("is"):
            is_not = self._accept("not")
            self._require("null")
            missing = _make_call("is_null", self._make_comparison_operand(left_operand))
            return _make_call("not", missing) if is_not else missing
        is_not = self._accept("not")
        test = self._parse_membership(left_operand)
        if test is None:
            if is_not:
                raise self._make_unexpected_error("in, between or like")
            return self._make_flag_test(left_operand)
        return _negate_condition(test) if is_not else test

    def _parse_membership(self, left: _Operand) -> Term | None:
        """Parse IN, LIKE or BETWEEN after an operand; None if none follows."""
        if self._accept("in"):
            self._require("(")
            values = [self._parse_literal(left)]
            while self._accept(","):
                values.append(self._parse_literal(left))
            self._require(")")
            valid_values = [value for value in values if value.is_valid]
            members = [value for value in valid_values if _can_hold(left.type, value)]
            kinds = {value.type: None for value in members} or {left.type or values[0].type: None}
            sets = [pa.array([value for value in members if value.type == kind], kind) for kind in kinds]
            tests = [Call("among", (self._make_comparison_operand(left),), (value_set,)) for value_set in sets]
            among: Term = tests[0]
            for test in tests[1:]:  # Whole numbers and fractions, for example.
                among = _make_call("or", among, test)
            # A value outside of the list may still equal a NULL in it.
            return (
                among if len(valid_values) == len(values) else _make_call("or", among, Lit(pa.scalar(None, pa.bool_())))
            )
        if self._accept("between"):
            low = self._parse_literal(left)
            self._require("and")
            high, column = self._parse_literal(left), self._make_comparison_operand(left)
            return _make_call(
                "and", _make_call("greater_equal", column, Lit(low)), _make_call("less_equal", column, Lit(high))
            )
        if self._accept("like"):
            if self._next_token.kind != "text":
                raise self._make_unexpected_error("a pattern in single quotes")
            return Call("like", (self._make_comparison_operand(left),), (_unquote(self._advance().text),))
        return None

    def _make_comparison_operand(self, operand: _Operand, other: _Operand | None = None) -> Term:
        """Return an operand as a term; literals take the other operand's type."""
        if operand.column is not None:
            term: Term = Col(operand.column)
            for function, path in join_paths(operand.path):
                term = Call(function, (term,), (path,))
            return term
        return Lit(self._to_scalar(operand, None if other is None else other.type))

    def _make_flag_test(self, operand: _Operand) -> Term:
        """Return a boolean operand as a condition."""
        if isinstance(operand.value, bool):
            raise InvalidUsage(
                f"the condition {self._text!r:.200} is {operand.value} for every row: leave it out to choose all rows, "
                'or compare a column, such as "amount > 5". overwrite([]) deletes all rows'
            )
        if operand.column is None or operand.type is None or not pat.is_boolean(operand.type):
            raise self._make_unexpected_error("a comparison, such as = 5, > 5, in (1, 2) or is null")
        return Col(operand.column)

    def _parse_literal(self, of: _Operand) -> pa.Scalar:
        """Parse a literal to be compared with the operand `of`."""
        operand = self._parse_operand()
        if operand.column is not None:
            raise InvalidUsage(
                f"the condition {self._text!r:.200} has the column {operand.column!r} where a value belongs"
            )
        return self._to_scalar(operand, of.type)

    def _to_scalar(self, operand: _Operand, target_type: pa.DataType | None) -> pa.Scalar:
        """Convert a literal to a type; raise InvalidUsage if impossible."""
        value = operand.value
        try:
            if operand.is_double and target_type is not None and pat.is_floating(target_type):
                return pa.scalar(float(value))
            return _convert_literal(value, target_type)
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            raise InvalidUsage(
                f"the condition {self._text!r:.200} compares {_describe_value(value)} with a column of type "
                f"{target_type}, which cannot have that value. Text is in single quotes, "
                "moments are as '2026-11-21T12:00:00Z'"
            ) from None

    def _parse_operand(self) -> _Operand:
        """Parse a column, a literal or a value of a document."""
        if self._next_token.text in _EXTRACTS.values() and self._tokens[self._next + 1].text == "(":
            function = self._advance().text
            self._require("(")
            operand = self._parse_operand()
            self._require(",")
            operand = self._parse_path_value(operand, function)
            self._require(")")
        elif self._accept("("):
            self._check_depth()
            operand = self._parse_operand()
            self._require(")")
            self._depth -= 1
        else:
            operand = self._parse_plain_operand()
        while self._next_token.kind == "sign" and self._next_token.text in _EXTRACTS:
            operand = self._parse_path_value(operand, _EXTRACTS[self._advance().text])
        return operand

    def _parse_path_value(self, operand: _Operand, function: str) -> _Operand:
        """Parse the path of a document's value; return the value as an operand."""
        if operand.column not in self._json:
            raise InvalidUsage(
                f"the condition {self._text!r:.200} looks into {operand.column or operand.value!r}, which is no column "
                f"of type json; these are {[*self._json]}"
            )
        if self._next_token.kind not in ("text", "number"):
            raise self._make_unexpected_error("a path, such as 'name' or '$.items[0].name'")
        path = self._parse_plain_operand().value
        check_path(function, path)
        return replace(operand, type=pa.string(), path=(*operand.path, (function, path)))

    def _parse_plain_operand(self) -> _Operand:
        """Parse a column or a literal."""
        token = self._next_token
        if token.kind == "number":
            self._advance()
            is_whole = token.text.lstrip("-").isdigit()
            if is_whole and len(token.text) > DIGITS_MAX:
                raise InvalidUsage(
                    f"the condition {self._text!r:.200} has a number of {len(token.text):,} digits, and columns hold "
                    f"{DIGITS_MAX} at most"
                )
            number = int(token.text) if is_whole else Decimal(token.text)
            return _Operand(None, number, is_double="e" in token.text.lower())
        if token.kind == "text":
            self._advance()
            return _Operand(None, _unquote(token.text))
        if token.kind == "word" and token.text in ("true", "false", "null"):
            self._advance()
            return _Operand(None, {"true": True, "false": False, "null": None}[token.text])
        if token.kind == "name":
            self._advance()
            if token.text not in self._types:
                hint = did_you_mean(token.text, self._types) or ","
                raise InvalidUsage(
                    f"the condition {self._text!r:.200}: {token.text!r} is not a column of this "
                    f"collection{hint} it has "
                    f"{[*self._types]}. Text is in single quotes"
                )
            return _Operand(token.text, type=self._types[token.text])
        raise self._make_unexpected_error("a column or a value")

    @property
    def _next_token(self) -> _Token:
        return self._tokens[self._next]

    def _advance(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _accept(self, text: str) -> bool:
        """Skip the next token if it is this text; return whether it was."""
        is_it = self._next_token.kind in ("word", "sign") and self._next_token.text == text
        self._next += is_it
        return is_it

    def _require(self, text: str) -> None:
        if not self._accept(text):
            raise self._make_unexpected_error(repr(text))

    def _make_unexpected_error(self, wanted: str) -> InvalidUsage:
        """Return the error for a token that is not one of `wanted`."""
        actual = repr(self._next_token.text) if self._next_token.kind != "end" else "the end"
        return InvalidUsage(
            f"the condition {self._text!r:.200} is not a condition: at character {self._next_token.at + 1} there is "
            f"{actual}, "
            f"and wanted is {wanted}. Write for example \"status = 'paid' and amount > 5\""
        )


def _split_tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of a condition."""
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            remaining_text = text[at:].lstrip()
            raise InvalidUsage(
                f"cannot read the condition {text!r:.200}: nothing begins like {remaining_text[:20]!r}. Put text in "
                "single quotes"
            )
        kind = match.lastgroup or ""
        token, begin = match.group(kind), match.start(kind)
        if kind == "quoted":
            yield _Token("name", token[1:-1].replace('""', '"'), begin)
        elif kind == "word":
            is_word = token.lower() in _WORDS
            yield _Token("word" if is_word else "name", token.lower() if is_word else token, begin)
        else:
            yield _Token(kind, token, begin)
        at = match.end()
    yield _Token("end", "", len(text))


def _make_call(function: str, *arguments: Term) -> Term:
    return Call(function, arguments)


def _negate_condition(condition: Term) -> Term:
    """Return the negation of a condition; NULL stays NULL."""
    return _make_call("not", _keep_nulls(condition))


def _keep_nulls(condition: Term) -> Term:
    """Make a membership test NULL for NULL, as in SQL; Arrow's test is false."""
    assert isinstance(condition, Call | Col)
    if isinstance(condition, Col) or condition.function not in ("and", "or", "among"):
        return condition
    if condition.function == "among":
        return _make_call("or", condition, _make_call("null_if_null", *condition.arguments))
    return _make_call(condition.function, *(x if isinstance(x, Lit) else _keep_nulls(x) for x in condition.arguments))


def _describe_value(value: Any) -> str:
    """Return a literal as a user types it, for messages."""
    return f"{value}" if isinstance(value, Decimal) else f"{value!r:.80}"


def _unquote(text: str) -> str:
    """Return a quoted SQL text without its quotes."""
    return text[1:-1].replace("''", "'")


def _convert_literal(value: Any, target_type: pa.DataType | None) -> pa.Scalar:
    """Return a literal as a scalar of the type."""
    if target_type is None:
        return pa.scalar(float(value) if isinstance(value, Decimal) else value)
    if value is None:
        return pa.scalar(None, target_type)
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if is_number and pat.is_integer(target_type):
        return _adapt_to_integers(value, target_type)
    if is_number and pat.is_floating(target_type):
        # A 32-bit column has 0.1 as its nearest number, as in SQL.
        number, is_whole = float(value), isinstance(value, int)
        is_near = pat.is_float32(target_type) and not is_whole and abs(number) < 2.0**127
        return pa.scalar(number, target_type) if is_near else pa.scalar(number)
    if is_number and pat.is_decimal(target_type):
        return _adapt_to_decimals(Decimal(value), target_type)
    if isinstance(value, str) and not is_text(target_type):
        return _parse_filter(value, target_type)
    if is_number or (isinstance(value, bool) and not pat.is_boolean(target_type)):
        raise ValueError("of another kind")
    return pa.scalar(value, target_type)


def _adapt_to_integers(number: int | Decimal, target_type: pa.DataType) -> pa.Scalar:
    """Return a literal that compares with integer columns as the number does.

    Arrow refuses to compare large integers with floats, and unsigned ones with signed ones. Decimals compare exactly.
    """
    number = max(-_BEYOND, min(_BEYOND, number))
    whole = math.floor(number)
    if whole != number:
        return pa.scalar(Decimal(whole) + Decimal("0.5"))
    if pat.is_uint64(target_type) and 0 <= whole < 2**64:
        return pa.scalar(whole, target_type)
    if pat.is_uint64(target_type) or not -(2**63) <= whole < 2**63:
        return pa.scalar(Decimal(whole))
    return pa.scalar(whole)


def _adapt_to_decimals(number: Decimal, target_type: pa.DataType) -> pa.Scalar:
    """Return a literal that compares with decimal columns as the number does."""
    context = Context(prec=2 * DIGITS_MAX)
    limit = Decimal(1).scaleb(target_type.precision - target_type.scale)
    number = max(-limit, min(limit, number))
    below = number.quantize(Decimal(1).scaleb(-target_type.scale), ROUND_FLOOR, context)
    if below == number and abs(number) < limit:
        return pa.scalar(str(below)).cast(target_type)
    between = context.add(below, Decimal(5).scaleb(-target_type.scale - 1))
    return pa.scalar(between, pa.decimal256(target_type.precision + 2, target_type.scale + 1))


def _can_hold(kind: pa.DataType | None, value: pa.Scalar) -> bool:
    """Return whether a column of a type can have exactly this value."""
    if kind is None or value.type == kind:
        return True
    if pat.is_float32(kind):
        return bool(value.cast(kind).cast(value.type) == value)
    return not (pat.is_decimal(value.type) and (pat.is_integer(kind) or pat.is_decimal(kind)))


def _find_common_type(one: _Operand, other: _Operand) -> pa.DataType | None:
    """Return the type in which to compare two columns of numbers, if Arrow refuses large values of their own types.

    An integer that meets a float becomes the nearest float.
    """
    kinds = [operand.type for operand in (one, other) if operand.column is not None and operand.type is not None]
    integers = [kind for kind in kinds if pat.is_integer(kind)]
    if len(kinds) == 2 and len(integers) == 1 and any(map(pat.is_floating, kinds)):
        return pa.float64()
    return pa.decimal128(20, 0) if len({*integers}) == 2 and pa.uint64() in integers else None


def is_text(t: pa.DataType) -> bool:
    """Return whether values of a type are text."""
    return bool(pat.is_string(t) or pat.is_large_string(t))


def _parse_filter(text: str, target_type: pa.DataType) -> pa.Scalar:
    """Convert a text literal to the type of the compared column."""
    if pat.is_boolean(target_type) or pat.is_integer(target_type) or pat.is_floating(target_type):
        raise ValueError("text among numbers")
    try:
        return pa.scalar(text).cast(target_type)
    except pa.ArrowInvalid:
        if not pat.is_timestamp(target_type) or target_type.tz is None:
            raise
        naive = pa.scalar(text).cast(pa.timestamp(target_type.unit))  # Without an offset it is in UTC.
        return pa.scalar(naive.value, pa.timestamp(target_type.unit, target_type.tz))
