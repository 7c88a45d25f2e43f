"""Expressions of DuckDB's plans that DuckDB computes itself, as text: see `persist.core.expression.sql_functions`.

Only functions that depend on their arguments alone become text (`is_definite`). The text contains constants and calls
that DuckDB computes, with their types. Any other subexpression is a column of it, which our operators compute.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from persist.codecs.types.calculator import get_calculator
from persist.compute.query import quote_name, quote_text
from persist.compute.sql.definite import list_indefinite_functions
from persist.compute.sql.types import from_duckdb, list_struct_fields, to_arrow, to_duckdb
from persist.core.expression.sql_numbers import can_cast
from persist.core.expression.term import Term

Json = dict[str, Any]

# These depend on the connection, on DuckDB's version, or on types that columns cannot have.
_NOT_DEFINITE = frozenset(
    (
        *("alias", "combine", "create_sort_key", "finalize", "hash", "in_search_path", "index_key"),
        *("json_deserialize_sql", "json_serialize_plan", "json_serialize_sql"),
        *("parse_duckdb_log_message", "to_aggregate_state"),
    )
)
_OF_OTHER_TYPES = ("collate_", "icu_collate_", "__", "st_", "uuid_extract", "variant_")
# Types that no column has: values of them stand within what DuckDB computes, and nowhere else.
_WITHIN = {"BIT": "BIT", "UHUGEINT": "UHUGEINT", "BIGNUM": "BIGNUM"}
# The names of date_part() with a constant in plans.
_PARTS = (
    *("dayofyear", "dayofweek", "isodow", "decade", "century", "millennium", "week", "isoyear", "yearweek", "era"),
    *("millisecond", "microsecond", "nanosecond", "julian", "epoch"),
)
_AGGREGATED = ("list_aggr", "list_aggregate", "array_aggr", "array_aggregate", "aggregate")
_AS_TEXT = ("VARCHAR", "STRING_LITERAL", "BOOLEAN", "DOUBLE", "FLOAT", "INTEGER", "INTEGER_LITERAL")
_SIGNS = {
    "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>", "COMPARE_LESSTHAN": "<", "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">", "COMPARE_GREATERTHANOREQUALTO": ">=", "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM", "CONJUNCTION_AND": "AND", "CONJUNCTION_OR": "OR",
}  # fmt: skip


def read_function_name(node: Json) -> str:
    """Return the name of a function in a plan."""
    path = node.get("qname", {}).get("path") or [node.get("name", "")]
    return str(path[-1]).lower()


@cache
def _list_definite_functions() -> frozenset[str]:
    """Return DuckDB's scalar functions that depend on their arguments alone."""
    with get_calculator().cursor() as connection:
        rows = connection.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type = 'scalar'"
        ).fetchall()
    names = {name for (name,) in rows if not name.startswith(_OF_OTHER_TYPES)} - {"error"}
    return frozenset(names - _NOT_DEFINITE - (list_indefinite_functions() - {"age"}))


def strip_text_cast(node: Json) -> Json:
    """Strip the redundant cast that DuckDB 2.0 puts around text constants."""
    is_same = node.get("type") == "OPERATOR_CAST" and node["return_type"]["id"] == "VARCHAR"
    if is_same and node["children"][0].get("expression_class") == "BOUND_CONSTANT":
        constant: Json = node["children"][0]
        return constant if constant["value"]["type"]["id"] in ("VARCHAR", "STRING_LITERAL") else node
    return node


def is_definite(name: str) -> bool:
    """Return whether a DuckDB function depends on its arguments alone."""
    return name in _list_definite_functions()


def is_nested(kind: Json) -> bool:
    """Return whether a type of a plan is one of lists, structs or maps."""
    return kind.get("id") in ("LIST", "ARRAY", "STRUCT", "TUPLE", "MAP")


def is_only_in_duckdb(kind: Json) -> bool:
    """Return whether a type exists only inside DuckDB's own expressions, not in views."""
    return kind.get("id") in (*_WITHIN, "ENUM", "UNION") or any(map(is_only_in_duckdb, _list_parts(kind)))


def is_json(kind: Json) -> bool:
    """Return whether a type of a plan is JSON, which is a text that has another meaning in casts."""
    return bool((kind.get("type_info") or {}).get("alias") == "JSON")


def is_cast_checked_late(given: Json, kind: Json) -> bool:
    """Return whether DuckDB accepts a cast when it binds, and checks the values later."""
    names = given.get("id"), kind.get("id")
    special = [name for name in names if name in (*_WITHIN, "ENUM", "UNION")]
    if special and not {"VARCHAR", "STRING_LITERAL", "NULL", "SQLNULL"} & {*names}:
        is_number = all(str(name).endswith("INT") or name in ("INTEGER", *special) for name in names)
        is_number = is_number and ({*special} == {"BIT"} or {*special} <= {"UHUGEINT", "BIGNUM"})
        return is_number or (kind.get("id") == "UNION" and not is_nested(given))
    if {"VARCHAR", "STRING_LITERAL", "NULL", "SQLNULL"} & {*names}:
        return True
    if all(str(name).startswith(("TIMESTAMP", "DATE")) for name in names):
        return True  # Those that round are its own.
    if not is_nested(kind) or not any(
        {*names} <= same for same in ({*names[:1]}, {"STRUCT", "TUPLE"}, {"LIST", "ARRAY"})
    ):
        return can_cast(to_arrow(from_duckdb(given)), to_arrow(from_duckdb(kind)))
    parts = [_list_parts(part) for part in (given, kind)]
    return len(parts[0]) == len(parts[1]) and all(
        is_cast_checked_late(part, target_part) for part, target_part in zip(*parts, strict=True)
    )


def _list_parts(kind: Json) -> list[Json]:
    """Return the inner types of a nested type; for a map, the type of its entries, which are structs."""
    if not is_nested(kind):
        return []
    info = kind["type_info"]
    return [info["child_type"]] if "child_type" in info else [part["second"] for part in info["child_types"]]


def format_type(kind: Json, *, is_named: bool = False) -> str:
    """Return DuckDB's name of a type of a plan.

    `is_named`: return the type of its values in Arrow, where all fields have names.
    """
    if is_json(kind):
        return "JSON"
    form, parts = kind.get("id"), _list_parts(kind)
    if form == "UUID" and not is_named:
        return "UUID"
    if form in _WITHIN and not is_named:
        return _WITHIN[form]
    if form == "ENUM" and not is_named:
        return f"ENUM({', '.join(map(quote_text, kind['type_info']['values']))})"
    if form == "UNION" and not is_named:
        members = ((quote_name(part["first"]), part["second"]) for part in kind["type_info"]["child_types"][1:])
        return f"UNION({', '.join(f'{name} {format_type(part)}' for name, part in members)})"
    if not is_nested(kind):
        return to_duckdb(from_duckdb(kind))
    part_types = [format_type(part, is_named=is_named) for part in (_list_parts(parts[0]) if form == "MAP" else parts)]
    if form in ("LIST", "ARRAY"):
        return f"{part_types[0]}[{kind['type_info']['size'] if form == 'ARRAY' and not is_named else ''}]"
    if form == "MAP" or (form == "TUPLE" and not is_named):
        return f"{form}({', '.join(part_types)})"
    names = [quote_name(name) for name, _ in list_struct_fields(kind)]
    return f"STRUCT({', '.join(f'{name} {part}' for name, part in zip(names, part_types, strict=True))})"


def differs_in_arrow(kind: Json) -> bool:
    """Return whether Arrow represents a type, or a type inside it, by another type."""
    return (
        is_json(kind)
        or is_only_in_duckdb(kind)
        or kind.get("id") in ("TUPLE", "ARRAY", "UUID")
        or any(map(differs_in_arrow, _list_parts(kind)))
    )


class SqlText:
    """Translates an expression of a plan to SQL text, and collects its columns.

    Args:
        term: returns a node as a term, for a column of the text.
        refuse: raises the error for an unsupported node.
        is_own: tests whether DuckDB computes a node.
        check: refuses a node with unknown members.
    """

    def __init__(
        self,
        term: Callable[[Json], Term],
        refuse: Callable[[str, Json], Any],
        is_own: Callable[[Json], bool],
        check: Callable[[Json], None],
    ) -> None:
        self._check = check
        self.columns: list[Term] = []
        self._term = term
        self._refuse = refuse
        self._is_own = is_own
        self._names: list[list[str]] = []  # The parameters of the enclosing lambdas.
        self._is_whole = False  # Inside of TRY, all is computed here.

    def translate(self, node: Json) -> str:
        """Return an expression as SQL text."""
        node = strip_text_cast(node)
        self._check(node)
        match node.get("expression_class"):
            case "BOUND_CONSTANT":
                return self.format_constant(node["value"])
            case "BOUND_REF" if self._names:
                return self._names[-1][node["index"]]
            case "BOUND_CASE" if self._names or self._is_whole:
                whens = (
                    f"WHEN {self.translate(case['when_expr'])} THEN {self.translate(case['then_expr'])}"
                    for case in node["case_checks"]
                )
                return f"(CASE {' '.join(whens)} ELSE {self.translate(node['else_expr'])} END)"
            case "BOUND_FUNCTION" | "BOUND_OPERATOR" | "BOUND_CONJUNCTION" if (
                self._names or self._is_whole or self._is_own(node) or _is_number(node)
            ):
                return self._format_call(node)
        if self._names:
            self._refuse(f"{node.get('type')} inside of a lambda is not supported in a view", node)
        return self._format_column(node)

    def _format_column(self, node: Json) -> str:
        """Return a column as a numbered argument."""
        term = self._term(node)
        if term not in self.columns:
            self.columns.append(term)
        place = quote_name(f"${self.columns.index(term) + 1}")
        kind = node.get("return_type", {"id": "BOOLEAN"})
        return f"CAST({place} AS {format_type(kind)})" if differs_in_arrow(kind) or kind["id"] == "HUGEINT" else place

    def format_constant(self, value: Json) -> str:
        """Return the text of a constant."""
        kind = value["type"]
        if value.get("is_null") or "value" not in value:
            return "NULL" if kind.get("id") in ("NULL", "SQLNULL") else f"CAST(NULL AS {format_type(kind)})"
        literal = value["value"]
        if kind["id"] in ("LIST", "ARRAY"):
            child = kind["type_info"]["child_type"]
            texts = (self.format_constant({"type": child, **element}) for element in literal.get("children", ()))
            return f"CAST([{', '.join(texts)}] AS {format_type(kind)})"
        if kind["id"] == "MAP":  # A list of its entries.
            return f"map_from_entries({self.format_constant({**value, 'type': {**kind, 'id': 'LIST'}})})"
        if kind["id"] in ("STRUCT", "TUPLE"):
            names = (quote_text(part["first"]) for part in kind["type_info"]["child_types"])
            values = (
                self.format_constant({"type": part, **entry})
                for part, entry in zip(_list_parts(kind), literal.get("children", ()), strict=True)
            )
            if kind["id"] == "TUPLE":
                return f"CAST(row({', '.join(values)}) AS {format_type(kind)})"
            texts = (f"{name}: {text}" for name, text in zip(names, values, strict=True))
            return f"CAST({{{', '.join(texts)}}} AS {format_type(kind)})"
        if kind["id"] == "DECIMAL":
            scale = kind["type_info"].get("scale", 0)
            whole = (literal["upper"] << 64) + literal["lower"] if isinstance(literal, dict) else int(literal)
            digits = str(abs(whole)).rjust(scale + 1, "0")
            literal = "-" * (whole < 0) + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)
        elif kind["id"] in ("HUGEINT", "UHUGEINT"):
            literal = (literal["upper"] << 64) + literal["lower"]
        elif kind["id"] == "UUID":  # A signed number, so that UUIDs are in the order of their texts.
            literal = UUID(int=((literal["upper"] + 2**63) << 64) + literal["lower"])
        elif not (kind["id"].endswith("INT") or kind["id"] in _AS_TEXT):
            if differs_in_arrow(kind):
                self._refuse(f"a constant of type {format_type(kind)} is not supported in a view: cast a text", {})
            return self._format_column({"expression_class": "BOUND_CONSTANT", "value": value, "return_type": kind})
        return f"CAST({quote_text(str(literal))} AS {format_type(kind)})"

    def _format_call(self, node: Json) -> str:
        """Return the SQL text of a function call."""
        kind, children = node["type"], node.get("children") or []
        if kind == "OPERATOR_CAST":
            tries = node.get("function_data", {}).get("try_cast")
            argument = node["arguments"][0]
            if not is_cast_checked_late(argument, node["return_type"]):
                message = f"{format_type(argument)} are not cast to {format_type(node['return_type'])}"
                self._refuse(f"values of {message} in a view: DuckDB has no such cast", node)
            value = self.translate(children[0])
            value = f"CAST({value} AS JSON)" if is_json(argument) and not value.startswith("CAST") else value
            return f"{'TRY_CAST' if tries else 'CAST'}({value} AS {format_type(node['return_type'])})"
        if kind == "OPERATOR_TRY":
            self._is_whole, was_whole = True, self._is_whole
            text = f"TRY({self.translate(children[0])})"
            self._is_whole = was_whole
            return text
        if kind in _SIGNS:
            return f"({f' {_SIGNS[kind]} '.join(map(self.translate, children))})"
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            value, *candidates = map(self.translate, children)
            return f"({value} {'NOT ' * (kind == 'COMPARE_NOT_IN')}IN ({', '.join(candidates)}))"
        if kind == "COMPARE_BETWEEN":
            value, low, high = map(self.translate, children)
            return f"({value} BETWEEN {low} AND {high})"
        if kind in ("OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            [value] = map(self.translate, children)
            return f"(NOT {value})" if kind == "OPERATOR_NOT" else f"({value} {kind[9:].replace('_', ' ')})"
        if kind in ("OPERATOR_COALESCE", "OPERATOR_NULLIF"):
            return f"{kind[9:]}({', '.join(map(self.translate, children))})"
        name = read_function_name(node)
        if kind != "BOUND_FUNCTION" or not is_definite(name):
            self._refuse(f"function {name or kind}() is not supported in a view", node)
        if name in _AGGREGATED and "approx" in str(children[1:]) + str(children[1:]).replace("reservoir", "approx"):
            self._refuse(f"{name}() of what is approximate is not supported in a view", node)
        if (
            name in _PARTS and _read_type_id(children[0]) == "TIMESTAMP_NS"
        ):  # By their names, these are of microseconds.
            return f"date_part('{name}', {self.translate(children[0])})"
        return f"{quote_name(name)}({', '.join(self._format_arguments(node, children))})"

    def _format_arguments(self, node: Json, children: Sequence[Json]) -> list[str]:
        """Return the SQL texts of a call's arguments."""
        names = node.get("named_arguments") or []
        lambdas = [at for at, child in enumerate(children) if child.get("expression_class") == "BOUND_LAMBDA"]
        if lambdas:
            more = int(bool((node.get("function_data") or {}).get("has_initial")))
            return self._format_lambda(children, lambdas[0], more)
        texts = [self.translate(child) for child in children]
        first = len(texts) - len(names)
        return [
            *texts[:first],
            *(f"{quote_name(name)} := {text}" for name, text in zip(names, texts[first:], strict=True)),
        ]

    def _format_lambda(self, children: Sequence[Json], at: int, more: int) -> list[str]:
        """Return the arguments of a call whose argument `at` is a lambda, with `more` after it."""
        function = children[at]
        self._check(function)
        count = function["parameter_count"]
        later = [self.translate(child) for child in children[at + 1 : at + 1 + more]]
        outer = [self.translate(child) for child in children[at + 1 + more :]]
        earlier = [self.translate(child) for child in children[:at]]
        parameters = [quote_name(f"p{len(self._names)}_{number}") for number in range(count)]
        # DuckDB numbers the parameters of a lambda from the last one on, and what it takes from outside behind them.
        self._names.append([*reversed(parameters), *outer])
        body = self.translate(function["lambda_expr"])
        self._names.pop()
        return [*earlier, f"lambda {', '.join(parameters)}: {body}", *later]


def _is_number(node: Json) -> bool:
    """Return whether a node is a constant whole number with a cast."""
    kinds = [_read_type_id(node), *(argument.get("id") for argument in node.get("arguments") or ())]
    return (
        node.get("type") == "OPERATOR_CAST"
        and node["children"][0].get("expression_class") == "BOUND_CONSTANT"
        and all(kind in ("INTEGER", "INTEGER_LITERAL", "BIGINT") for kind in kinds)
    )


def _read_type_id(node: Json) -> Any:
    """Return DuckDB's name of the type of a node's result; None without one."""
    return (node.get("return_type") or {}).get("id")
