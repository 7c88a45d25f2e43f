"""Translates expressions of DuckDB 2.0's bound plans; an unknown one is refused with its place."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from persist.compute.sql.algebra import Aggregation, Frame, Order, WindowCall
from persist.compute.sql.by_duckdb import (
    SqlText,
    differs_in_arrow,
    format_type,
    is_nested,
    is_only_in_duckdb,
    read_function_name,
    strip_text_cast,
)
from persist.compute.sql.duck import show_position
from persist.compute.sql.members import NOWHERE, check_members
from persist.compute.sql.types import from_duckdb, has_interval, parse_constant, to_arrow
from persist.core.errors import InvalidUsage
from persist.core.expression.evaluation import join_with_and
from persist.core.expression.python_functions import PythonFunction, find_python_function
from persist.core.expression.sql_numbers import can_cast
from persist.core.expression.term import Call, Lit, Place, Term, is_call, make_sql_call

Json = dict[str, Any]

# Our names for the DuckDB functions that plans have themselves. DuckDB computes all others.
FUNCTIONS = {
    "+": "add", "add": "add", "-": "subtract", "subtract": "subtract", "*": "multiply", "multiply": "multiply",
    "/": "divide", "//": "divide_whole", "divide": "divide_whole", "%": "remainder", "mod": "remainder",
    "~~": "like", "!~~": "not_like", "~~*": "ilike", "!~~*": "not_ilike", "prefix": "prefix",
    "starts_with": "prefix", "^@": "prefix", "suffix": "suffix", "ends_with": "suffix", "contains": "contains",
    "lower": "lower", "lcase": "lower",
    "upper": "upper", "ucase": "upper", "length": "length", "len": "length", "char_length": "length",
    "character_length": "length", "ifnull": "coalesce", "nullif": "nullif", "error": "error",
    "year": "year", "quarter": "quarter", "month": "month", "day": "day", "dayofmonth": "day", "hour": "hour",
    "minute": "minute", "second": "second", "date_part": "date_part", "datepart": "date_part",
}  # fmt: skip
# The columns of json_each and json_tree.
_JSON_COLUMNS = ("key", "value", "type", "atom", "id", "parent", "fullkey", "path")
# Functions with a constant pattern.
_OF_PATTERN = ("like", "not_like", "ilike", "not_ilike", "prefix", "suffix", "contains")
_PARTS = ("year", "quarter", "month", "day", "hour", "minute", "second")
COMPARISONS = {
    "COMPARE_EQUAL": "equal", "COMPARE_NOTEQUAL": "not_equal", "COMPARE_LESSTHAN": "less",
    "COMPARE_LESSTHANOREQUALTO": "less_equal", "COMPARE_GREATERTHAN": "greater",
    "COMPARE_GREATERTHANOREQUALTO": "greater_equal", "COMPARE_DISTINCT_FROM": "distinct_from",
    "COMPARE_NOT_DISTINCT_FROM": "not_distinct_from", "COMPARE_IN": "in", "COMPARE_NOT_IN": "not_in",
    "CONJUNCTION_AND": "and", "CONJUNCTION_OR": "or", "OPERATOR_NOT": "not", "OPERATOR_IS_NULL": "is_null",
    "OPERATOR_IS_NOT_NULL": "is_not_null", "OPERATOR_COALESCE": "coalesce", "OPERATOR_NULLIF": "nullif",
    "COMPARE_BETWEEN": "between",
}  # fmt: skip
AGGREGATES = {
    "count_star": "count_star", "count": "count", "sum": "sum", "sum_no_overflow": "sum", "avg": "avg", "mean": "avg",
    "min": "min", "max": "max", "bool_and": "bool_and", "bool_or": "bool_or", "first": "first", "any_value": "any",
    "arbitrary": "first", "last": "last", "count_if": "count_if", "countif": "count_if", "arg_min": "arg_min",
    "argmin": "arg_min", "min_by": "arg_min", "arg_max": "arg_max", "argmax": "arg_max", "max_by": "arg_max",
    "fsum": "sum", "sumkahan": "sum", "kahan_sum": "sum", "favg": "avg", "bit_and": "bit_and", "bit_or": "bit_or",
    "bit_xor": "bit_xor", "mode": "mode", "mad": "mad", "median": "quantile", "quantile": "quantile",
    "quantile_disc": "quantile", "quantile_cont": "quantile", "list": "list", "array_agg": "list",
    "string_agg": "string_agg", "group_concat": "string_agg", "listagg": "string_agg", "histogram": "histogram",
    "stddev": "stddev_samp", "variance": "var_samp", "stddev_samp": "stddev_samp", "var_samp": "var_samp",
    "stddev_pop": "stddev_pop", "var_pop": "var_pop", "sem": "sem", "skewness": "skewness", "kurtosis": "kurtosis",
    "kurtosis_pop": "kurtosis_pop", "covar_pop": "covar_pop", "covar_samp": "covar_samp", "corr": "corr",
    "regr_avgx": "regr_avgx", "regr_avgy": "regr_avgy", "regr_count": "regr_count", "regr_intercept": "regr_intercept",
    "regr_r2": "regr_r2", "regr_slope": "regr_slope", "regr_sxx": "regr_sxx", "regr_sxy": "regr_sxy",
    "regr_syy": "regr_syy",
}  # fmt: skip
OF_LISTS = ("entropy", "product", "histogram_exact")  # Aggregates that DuckDB computes on the list of a group's values.
WINDOWS = {
    "WINDOW_ROW_NUMBER": "row_number", "WINDOW_RANK": "rank", "WINDOW_RANK_DENSE": "dense_rank",
    "WINDOW_PERCENT_RANK": "percent_rank", "WINDOW_CUME_DIST": "cume_dist", "WINDOW_NTILE": "ntile",
    "WINDOW_LAG": "lag", "WINDOW_LEAD": "lead", "WINDOW_FIRST_VALUE": "first_value", "WINDOW_LAST_VALUE": "last_value",
    "WINDOW_NTH_VALUE": "nth_value", "WINDOW_AGGREGATE": "aggregate",
}  # fmt: skip
_BETWEEN = ("DOUBLE", "FLOAT", "DECIMAL", "TIME")  # Types whose medians may lie between two values.
_BITS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_OF_INTERVALS = (
    *("first", "last", "any", "min", "max", "arg_min", "arg_max"),
    *("lag", "lead", "first_value", "last_value", "nth_value"),
)
_EXCLUDED = {"NO_OTHER": "", "CURRENT_ROW": "current row", "GROUP": "group", "TIES": "ties"}


class Expressions:
    """Translates the expressions of one query.

    `sql`: its text, for messages.

    `table`: DuckDB's number of the input relation, which expressions use for its columns.
    """

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.table: int | None = None

    def refuse(self, what: str, node: Json) -> NoReturn:
        """Raise InvalidUsage with an unsupported expression and its place."""
        at = node.get("query_location")
        raise InvalidUsage(what + show_position(self.sql, None if at == NOWHERE else at))

    def check(self, node: Json) -> None:
        """Refuse an expression with unknown members."""
        try:
            check_members(node)
        except InvalidUsage as error:
            self.refuse(str(error), node)

    def infer_type(self, kind: Json, node: Json) -> str:
        """Return the name of a type of DuckDB; refuse types that views lack."""
        try:
            name = from_duckdb(kind)
        except InvalidUsage as error:
            self.refuse(str(error), node)
        if is_nested(kind) and has_interval(name):
            self.refuse("lists, structs and maps hold no intervals in a view: take their lengths, epoch_us(…)", node)
        return name

    def translate_all(self, nodes: Any) -> tuple[Term, ...]:
        return tuple(map(self.translate, nodes or ()))

    def translate(self, node: Json) -> Term:
        """Return the term of a node of DuckDB's plan."""
        self.check(node)
        match node.get("expression_class"):
            case "BOUND_REF":
                return Place(node["index"])
            case "BOUND_COLUMN_REF" if node["binding"]["table_index"] == self.table and not node.get("depth"):
                return Place(node["binding"]["column_index"])
            case "BOUND_CONSTANT":
                return self._translate_constant(node)
            case "BOUND_CASE":
                return self._translate_case(node)
            case "BOUND_FUNCTION" | "BOUND_OPERATOR" | "BOUND_CONJUNCTION":
                return self._translate_call(node)
            case "BOUND_PARAMETER":
                self.refuse("a view has no parameters: write the value into the query", node)
        self.refuse(f"{node.get('expression_class')} is not supported in a view", node)

    def _translate_constant(self, node: Json) -> Term:
        """Return a constant of the plan as a term."""
        value = node["value"]
        if is_nested(value["type"]) or differs_in_arrow(value["type"]):
            return self._make_duckdb_call({**node, "return_type": value["type"]})
        kind = self.infer_type(value["type"], node)
        if value.get("is_null") or "value" not in value:
            return parse_constant(kind, None)
        literal = value["value"]
        if kind == "hugeint" or (kind.startswith("decimal") and isinstance(literal, dict)):
            literal = (literal["upper"] << 64) + literal["lower"]
        elif kind == "interval":
            literal = f"{literal.get('months', 0)},{literal.get('days', 0)},{literal.get('micros', 0)}"
        elif kind == "boolean":
            literal = "true" if literal else "false"
        return parse_constant(kind, str(literal))

    def _translate_case(self, node: Json) -> Term:
        """Return a CASE as a term."""
        kind = self.infer_type(node["return_type"], node)
        arguments: list[Term] = []
        for check in node["case_checks"]:
            arguments += [self.translate(check["when_expr"]), self.translate(check["then_expr"])]
        return make_sql_call(
            "case", to_arrow(kind), *arguments, self.translate(node["else_expr"]), at=self._get_query_position(node)
        )

    def translate_for_comparison(self, node: Json) -> Term:
        """Translate an expression for comparisons: intervals become microseconds."""
        if not _is_interval(node):
            return self.translate(node)
        # DuckDB calls this on intervals that it compares: it turns months into days, as these are already.
        bare_ = node["children"][0] if read_function_name(node) == "normalized_interval" else node
        return make_sql_call(
            "duckdb",
            pa.int64(),
            Lit(pa.scalar('epoch_us("$1")')),
            self.translate(bare_),
            at=self._get_query_position(node),
        )

    def _is_by_duckdb(self, node: Json) -> bool:
        """Return whether DuckDB computes a call.

        DuckDB computes functions that views do not have, functions of lists, structs and maps, and casts of JSON.
        """
        if _find_python_function(node) is not None:
            return False
        kind, child_types = node["type"], [child.get("return_type") or {} for child in node.get("children") or ()]
        if any(map(is_only_in_duckdb, [node.get("return_type") or {}, *child_types])):
            return True
        if kind == "OPERATOR_CAST":
            cast_types = (node["return_type"], *node["arguments"])
            if {"NULL", "SQLNULL"} & {source.get("id") for source in cast_types}:
                return False
            if any(is_nested(source) or differs_in_arrow(source) for source in cast_types):
                return True
            source, target = (self.infer_type(kind, node) for kind in cast_types)
            tries = node.get("function_data", {}).get("try_cast") or node.get("try_cast")
            return target != "null" and (bool(tries) or not can_cast(to_arrow(target), to_arrow(source)))
        if kind == "OPERATOR_TRY":
            return True
        if kind in COMPARISONS:
            return kind not in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL") and any(map(is_nested, child_types))
        return kind == "BOUND_FUNCTION" and (_find_function_name(node) is None or any(map(is_nested, child_types)))

    def _make_duckdb_call(self, node: Json) -> Term:
        """Return a call that DuckDB computes, with its columns as arguments."""
        text = SqlText(self.translate, self.refuse, self._is_by_duckdb, self.check)
        sql_text, kind = self._cast_to_arrow(text.translate(node), node["return_type"], node)
        return make_sql_call("duckdb", kind, Lit(pa.scalar(sql_text)), *text.columns, at=self._get_query_position(node))

    def _cast_to_arrow(self, text: str, kind: Json, node: Json) -> tuple[str, pa.DataType]:
        """Return SQL of DuckDB, cast if Arrow lacks its type, and the Arrow type."""
        arrow, named = to_arrow(self.infer_type(kind, node)), format_type(kind, is_named=True)
        return text if named == format_type(kind) else f"CAST({text} AS {named})", arrow

    def make_series(self, plan: Json, asked: Sequence[int]) -> list[Term]:
        """Return one list for each requested column of a table function.

        With ordinality, the last column has the number of each element.
        """
        name, kinds = read_function_name(plan), plan["input_table_types"]
        text = SqlText(self.translate, self.refuse, self._is_by_duckdb, self.check)
        parameters = plan.get("parameters") or []
        if parameters:
            argument_texts = [text.format_constant(value) for value in parameters]
        else:
            argument_texts = [f'CAST("${at + 1}" AS {format_type(kind)})' for at, kind in enumerate(kinds)]
        columns = text.columns if parameters else list(map(Place, range(len(kinds))))
        rows = f"{name}({', '.join(argument_texts)})"
        whole, lists = argument_texts[0] if name == "unnest" else rows, list[Term]()
        is_json_function, is_numbered = name.startswith("json_"), plan.get("source_ordinality") == "WITH_ORDINALITY"
        for at in asked:
            kind = {"id": "LIST", "type_info": {"child_type": plan["returned_types"][at]}}
            is_number = is_numbered and at == len(plan["returned_types"]) - 1
            values = whole
            if is_json_function:
                values = f"(SELECT list({_JSON_COLUMNS[0 if is_number else at]} ORDER BY id) FROM {rows})"
            values = f"range(1, len({values}) + 1)" if is_number else values
            values, arrow = self._cast_to_arrow(values, kind, plan)
            lists.append(make_sql_call("duckdb", arrow, Lit(pa.scalar(values)), *columns))
        return lists

    def _translate_call(self, node: Json) -> Term:
        """Return a function call as a term."""
        name = read_function_name(node)
        function = _find_python_function(node)
        if function is not None:
            return function.make_call(self.translate_all(node.get("children")), self._get_query_position(node))
        if self._is_by_duckdb(node):
            return self._make_duckdb_call(node)
        kind = self.infer_type(node.get("return_type", {"id": "BOOLEAN"}), node)
        type_, at = node["type"], self._get_query_position(node)
        is_comparison = type_.startswith("COMPARE_")
        arguments = tuple(
            map(self.translate_for_comparison if is_comparison else self.translate, node.get("children") or ())
        )
        if type_ == "OPERATOR_CAST":
            argument_type = self.infer_type(node["arguments"][0], node)
            if argument_type == "null" and isinstance(arguments[0], Lit | Place):
                return parse_constant(kind, None)
            if kind == "hugeint" and argument_type in (
                "float",
                "double",
            ):  # Decimals, which these are here, round otherwise.
                arguments = (make_sql_call("round_even", to_arrow(argument_type), *arguments, at=at),)
            [argument] = arguments
            if isinstance(argument, Lit) and argument.value.type == to_arrow(kind):
                return argument  # DuckDB 2.0.1 casts a text to the type that it has.
            return make_sql_call("cast", to_arrow(kind), *arguments, at=at)
        if type_ == "COMPARE_BETWEEN":
            return _make_between("greater_equal", "less_equal", *arguments, at=at)
        if type_ in COMPARISONS:
            return make_sql_call(COMPARISONS[type_], to_arrow(kind), *arguments, at=at)
        own_function = _find_function_name(node)
        if type_ != "BOUND_FUNCTION" or own_function is None:
            self.refuse(f"function {name or type_}() is not supported in a view", node)
        return make_sql_call(
            own_function, to_arrow(kind), *(arguments[-1:] if own_function in _PARTS else arguments), at=at
        )

    def translate_order(self, node: Json) -> Order:
        """Return one key of an ORDER BY."""
        down = node["type"] == "DESCENDING"
        nulls = node.get("null_order", "NULLS LAST").replace("_", " ")
        return Order(self.translate(node["expression"]), down, nulls == "NULLS FIRST")

    def translate_aggregate(self, node: Json) -> Aggregation:
        """Translate an aggregate function."""
        self.check(node)
        name = read_function_name(node)
        if is_computed_from_list(node):
            return self._translate_list_aggregate(node)
        if name not in AGGREGATES:
            self.refuse(f"aggregate {name}() is not supported in a view", node)
        self._refuse_interval(node, name)
        kind = (node.get("children") or [{}])[0].get("return_type", {}).get("id", "")
        if AGGREGATES[name] == "avg" and kind.startswith(("DATE", "TIME")):
            self.refuse(
                f"{name}() of {kind} is not supported in a view: take make_timestamp({name}(epoch_us(…)))", node
            )
        function, arguments = self._translate_extreme(node, AGGREGATES[name], self._translate_arguments(node, name))
        order = tuple(map(self.translate_order, node.get("order_bys", {}).get("orders") or ()))
        return Aggregation(
            function,
            self.infer_type(node["return_type"], node),
            arguments,
            node.get("aggregate_type") == "DISTINCT",
            self.translate(node["filter"]) if node.get("filter") else None,
            order,
        )

    def _translate_extreme(
        self, node: Json, function: str, arguments: tuple[Term, ...]
    ) -> tuple[str, tuple[Term, ...]]:
        """Return a min or max and its arguments; intervals compare by length."""
        if function not in ("min", "max") or not _is_interval(node):
            return function, arguments
        return f"arg_{function}", (*arguments, self.translate_for_comparison(node["children"][0]))

    def _translate_list_aggregate(self, node: Json) -> Aggregation:
        """Return an aggregate that collects the values for `compute_from_list`."""
        function, children = AGGREGATES.get(read_function_name(node), ""), node["children"]
        value = self.translate(children[0])
        by = self.translate(children[1]) if function.startswith("arg_") else value
        conditions: list[Term] = [make_sql_call("is_not_null", pa.bool_(), term) for term in (value, by)]
        conditions += [self.translate(node["filter"])] if node.get("filter") else []
        return Aggregation(
            "list",
            self.infer_type({"id": "LIST", "type_info": {"child_type": children[0]["return_type"]}}, node),
            (value,),
            node.get("aggregate_type") == "DISTINCT",
            join_with_and(conditions),
            (Order(by, function.endswith("max")),),
        )

    def compute_from_list(self, node: Json, values: Place) -> Term:
        """Return a term that computes an aggregate from its collected values."""
        name, children = read_function_name(node), node["children"]
        kind = format_type({"id": "LIST", "type_info": {"child_type": children[0]["return_type"]}})
        sql_text, text = f'CAST("$1" AS {kind})', SqlText(self.translate, self.refuse, self._is_by_duckdb, self.check)
        if name in AGGREGATES and name != "histogram":
            count = self.read_whole_number(children[-1], f"how many rows {name}() gives")
            if count < 1:
                self.refuse(f"{name}() gives one row or more", children[-1])
            sql_text = f"list_slice({sql_text}, 1, {count})"
        else:
            more = "".join(f", {text.translate(child)}" for child in children[1:])
            sql_text = f"list_aggregate(coalesce({sql_text}, CAST([] AS {kind})), '{name}'{more})"
        if text.columns:
            self.refuse(f"{name}() takes constants besides its values in a view", node)
        sql_text, arrow = self._cast_to_arrow(sql_text, node["return_type"], node)
        return make_sql_call("duckdb", arrow, Lit(pa.scalar(sql_text)), values, at=self._get_query_position(node))

    def _translate_arguments(self, node: Json, name: str) -> tuple[Term, ...]:
        """Return the arguments of an aggregate: the computed ones, then its constants.

        A quantile's constants are: whether it is interpolated, whether the order is descending, and the shares.
        """
        function, data = AGGREGATES[name], node.get("function_data") or {}
        if function.startswith("bit_") and node["return_type"]["id"] not in _BITS:
            self.refuse(f"{name}() of {node['return_type']['id']} is not supported in a view: cast to BIGINT", node)
        arguments = self.translate_all(node.get("children", ())[: 1 if function == "quantile" else None])
        if function == "quantile":
            is_median = name == "median" and node["return_type"]["id"].startswith(_BETWEEN)
            is_between = name == "quantile_cont" or is_median
            flags = (pa.scalar(is_between), pa.scalar(bool(data.get("desc"))))
            shares = [self._translate_constant({"value": share}) for share in data["quantiles"]]
            return (arguments[0], *map(Lit, flags), *shares)
        if function == "string_agg":
            return (arguments[0], Lit(pa.scalar(str(data.get("separator", ",")))))
        return arguments

    def _refuse_interval(self, node: Json, name: str) -> None:
        """Raise InvalidUsage if an aggregate returns an interval that it cannot compute."""
        if AGGREGATES.get(name, name) not in _OF_INTERVALS and self.infer_type(node["return_type"], node) == "interval":
            self.refuse(f"{name}() of intervals is not supported in a view: take it of epoch_us(…), their length", node)

    def translate_window(self, node: Json) -> WindowCall:
        self.check(node)
        function = WINDOWS.get(node["type"])
        if function is None:
            self.refuse(f"window function {node['type']} is not supported in a view", node)
        arguments: tuple[Term, ...] = ()
        kind = node["return_type"]
        condition = node.get("filters")
        within = tuple(map(self.translate_order, node.get("arg_orders") or ()))
        where = self.translate(condition) if condition else None
        if function == "aggregate" and is_computed_from_list(node):
            aggregation = self._translate_list_aggregate({**node, "filter": condition})
            function, arguments, within, where = (
                aggregation.function,
                aggregation.arguments,
                aggregation.order,
                aggregation.where,
            )
            kind = {"id": "LIST", "type_info": {"child_type": node["children"][0]["return_type"]}}
        elif function == "aggregate":
            name = read_function_name(node)
            if name not in AGGREGATES:
                self.refuse(f"aggregate {name}() over a window is not supported in a view", node)
            function = AGGREGATES[name] if node.get("children") else "count_star"
            function, arguments = self._translate_extreme(node, function, self._translate_arguments(node, name))
        else:
            arguments = self.translate_all(node.get("children"))
        self._refuse_interval(node, function)
        start, start_at = self.translate_frame_bound(node, "start")
        end, end_at = self.translate_frame_bound(node, "end")
        exclude: Any = _EXCLUDED[node.get("exclude_clause", "NO_OTHER")]
        if within and node["type"] != "WINDOW_AGGREGATE":
            self.refuse(f"ORDER BY inside of {function}() is not supported in a view: order the window", node)
        return WindowCall(
            function,
            self.infer_type(kind, node),
            arguments,
            self.translate_all(node.get("partitions")),
            tuple(map(self.translate_order, node.get("orders") or ())),
            Frame(start, end, start_at, end_at, exclude),
            where,
            within,
            bool(node.get("distinct")),
            bool(node.get("ignore_nulls")),
        )

    def translate_frame_bound(self, node: Json, which: str) -> tuple[Any, Term | None]:
        """Return a bound of frames, (mode, offset), and the term it reads; None for none.

        `which`: "start" or "end".
        """
        mode = node[which]
        if mode.startswith("UNBOUNDED"):
            return None, None
        if mode.startswith("CURRENT_ROW"):
            return ("rows" if mode.endswith("ROWS") else "range", 0), None
        expression = node[f"{which}_expr"]
        if mode.endswith("RANGE"):
            if _is_interval(expression):
                self.refuse("a frame of RANGE over intervals is not supported in a view: order by epoch_us(…)", node)
            return ("value", 0), self.translate(expression)
        offset = self.read_whole_number(expression, "an offset of a frame")
        if offset < 0:
            self.refuse("an offset of a frame is not negative", expression)
        return ("rows" if mode.endswith("ROWS") else "groups", -offset if "PRECEDING" in mode else offset), None

    def read_whole_number(self, node: Json, what: str) -> int:
        """Return a constant whole number."""
        number = self.translate(node)
        while isinstance(number, Call) and is_call(number, "cast"):
            number = number.arguments[0]
        if not isinstance(number, Lit) or not isinstance(number.value.as_py(), int | Decimal):
            self.refuse(f"{what} is a constant whole number in a view", node)
        return int(number.value.as_py())

    def _get_query_position(self, node: Json) -> int | None:
        """Return where the query's text has a node; None if unknown."""
        at = node.get("query_location", NOWHERE)
        return None if at == NOWHERE else at


def _is_interval(node: Json) -> bool:
    """Return whether a node's result is an interval."""
    kind = node.get("return_type") or node.get("value", {}).get("type") or {}
    return bool(kind.get("id") == "INTERVAL")


def is_computed_from_list(node: Json) -> bool:
    """Return whether DuckDB computes an aggregate from the list of its values."""
    name, count = read_function_name(node), len(node.get("children") or ())
    function = AGGREGATES.get(name)
    several = {"min": 1, "max": 1, "arg_min": 2, "arg_max": 2, "histogram": 1}
    return name in OF_LISTS or (function in several and count > several[function])


def _find_python_function(node: Json) -> PythonFunction | None:
    """Return the function of Python that a node calls; None if it calls none."""
    return find_python_function(read_function_name(node)) if node["type"] == "BOUND_FUNCTION" else None


def _find_function_name(node: Json) -> str | None:
    """Return our name of a node's function; None if DuckDB computes it."""
    function = FUNCTIONS.get(read_function_name(node))
    children = node.get("children") or [{}]
    kind = (children[-1].get("return_type") or {}).get("id")
    if function == "date_part":
        unit = str((strip_text_cast(children[0]).get("value") or {}).get("value", "")).lower()
        function = unit if unit in _PARTS else None
    if function in _PARTS:
        return None if kind == "INTERVAL" else function
    if function in _OF_PATTERN:
        return function if strip_text_cast(children[-1]).get("expression_class") == "BOUND_CONSTANT" else None
    if function in ("divide_whole", "remainder") and node["return_type"]["id"] in ("DECIMAL", "HUGEINT"):
        return None
    return None if function == "length" and kind != "VARCHAR" else function


def _make_between(low: str, high: str, value: Term, least: Term, greatest: Term, *, at: int | None) -> Term:
    """Return the term of a BETWEEN; `low` and `high` are the comparisons' names."""
    bounds = ((low, least), (high, greatest))
    return make_sql_call(
        "and", pa.bool_(), *(make_sql_call(how, pa.bool_(), value, bound, at=at) for how, bound in bounds), at=at
    )
