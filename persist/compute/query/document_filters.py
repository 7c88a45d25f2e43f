"""Filters of collections from the conditions of a query on values inside of JSON documents.

DuckDB hands a scan only comparisons of whole columns, so it would parse each document. This module finds the conditions
that WHERE joins by AND in the parsed query. Those that compare a value of a document with texts, or with a number after
a cast, filter the collection before DuckDB reads it. DuckDB still tests all conditions on the remaining rows. So a
condition that is not found only costs time, and a filter may pass too many rows. A table that the query reads twice, or
samples, is not filtered.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.types.sql_names import fold_case
from persist.compute.query.parsing import walk_parts
from persist.compute.query.tables import Path, normalise_path
from persist.core.expression.documents import (
    has_simple_path,
    join_paths,
    make_document_expression,
    make_number_condition,
)

_COMPARED = {
    "COMPARE_EQUAL": pc.equal,
    "COMPARE_LESSTHAN": pc.less,
    "COMPARE_GREATERTHAN": pc.greater,
    "COMPARE_LESSTHANOREQUALTO": pc.less_equal,
    "COMPARE_GREATERTHANOREQUALTO": pc.greater_equal,
}
_TURNED = {pc.less: pc.greater, pc.greater: pc.less, pc.less_equal: pc.greater_equal, pc.greater_equal: pc.less_equal}
_SIGNS = {pc.equal: "=", pc.less: "<", pc.greater: ">", pc.less_equal: "<=", pc.greater_equal: ">="}
_TEXT, _DOCUMENT = ("->>", "json_extract_string"), ("->", "json_extract")
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "DOUBLE")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_Step = tuple[str, str | int]


def find_document_filters(parsed: Any, tables: Mapping[Path, Sequence[str]]) -> dict[Path, pc.Expression]:
    """Return filters on documents that a query implies, by table.

    Args:
        parsed: the query, as DuckDB parses it.
        tables: for each collection, its columns that contain JSON documents.
    """
    paths = {normalise_path(path): path for path, documents in tables.items() if documents}
    if not paths:
        return {}
    nodes = [*walk_parts(parsed)]
    counts = Counter(_get_table_path(node) for node in nodes if node.get("type") == "BASE_TABLE")
    filters: dict[Path, pc.Expression] = {}
    for node in nodes:
        table = node.get("from_table") if node.get("type") == "SELECT_NODE" else None
        if not table or table["type"] != "BASE_TABLE" or table["column_name_alias"]:
            continue
        if table["sample"] or node["sample"]:  # Samples are taken before WHERE.
            continue
        path = paths.get(_get_table_path(table))
        if path is None or counts[_get_table_path(table)] > 1 or not node["where_clause"]:
            continue
        selected = {fold_case(item["alias"]) for item in node["select_list"]}
        columns = {fold_case(name): name for name in tables[path] if fold_case(name) not in selected}
        names = {fold_case(table["alias"] or table["table_name"])}
        tests = [_convert_condition(condition, columns, names) for condition in iterate_conjuncts(node["where_clause"])]
        if conditions := [test for test in tests if test is not None]:
            filters[path] = reduce(and_, conditions)
    return filters


def iterate_conjuncts(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the conditions that a parsed condition joins by AND."""
    if node["type"] != "CONJUNCTION_AND":
        yield node
        return
    for child in node["children"]:
        yield from iterate_conjuncts(child)


def _get_table_path(node: dict[str, Any]) -> Path:
    """Return the path of a table in a parsed query, in lower case."""
    parts = (node["catalog_name"], node["schema_name"], node["table_name"])
    return normalise_path(tuple(part for part in parts if part))


def _convert_condition(node: dict[str, Any], columns: Mapping[str, str], names: set[str]) -> pc.Expression | None:
    """Return a filter that passes all rows for which a condition holds, or None."""
    if node["type"] in _COMPARED:
        compare = _COMPARED[node["type"]]
        turned = _TURNED.get(compare, compare)
        left, right = node["left"], node["right"]
        for value_node, literal_node, function in ((left, right, compare), (right, left, turned)):
            if (test := _convert_comparison(value_node, literal_node, function, columns, names)) is not None:
                return test
    elif node["type"] == "COMPARE_BETWEEN":
        ends = (node["lower"], pc.greater_equal), (node["upper"], pc.less_equal)
        tests = [_convert_comparison(node["input"], end, function, columns, names) for end, function in ends]
        conditions = [test for test in tests if test is not None]
        return reduce(and_, conditions) if conditions else None
    elif node["type"] in ("COMPARE_IN", "OPERATOR_IS_NOT_NULL"):
        found = _convert_value(node["children"][0], columns, names)
        if found is None or (not found[1] and node["type"] != "COMPARE_IN"):
            return None  # A document may have JSON's null, which is not NULL.
        value, is_text = found
        texts = [_get_constant_text(child, is_text=is_text) for child in node["children"][1:]]
        if None not in texts:
            return value.isin(pa.array(texts, pa.string())) if texts else value.is_valid()
    return None


def _convert_comparison(
    value_node: dict[str, Any], literal_node: dict[str, Any], function: Any, columns: Mapping[str, str], names: set[str]
) -> pc.Expression | None:
    """Return the filter of a comparison with a constant, or None."""
    is_cast = value_node["type"] == "OPERATOR_CAST"
    found = _convert_value(value_node["child"] if is_cast else value_node, columns, names)
    if found is None:
        return None
    value, is_text = found
    if is_cast:
        kind, literal = value_node["type_expr"]["type_name"], literal_node.get("literal") or {"kind": "STRING"}
        if kind not in _NUMBERS or literal["kind"] == "STRING" or not _NUMBER.fullmatch(literal["text"]):
            return None
        return make_number_condition(value, kind, _SIGNS[function], literal["text"], is_text=is_text)
    text = _get_constant_text(literal_node, is_text=is_text)
    return function(value, pa.scalar(text)) if text is not None and (is_text or function is pc.equal) else None


def _convert_value(
    node: dict[str, Any], columns: Mapping[str, str], names: set[str]
) -> tuple[pc.Expression, bool] | None:
    """Return a document's value as text, and whether the node has the type text; or None."""
    steps: list[_Step] = []
    is_text = False
    while node["type"] != "COLUMN_REF":
        if node["type"] == "LAMBDA":
            function, inner, path = "json_extract", node["lhs"], node["expr"]
        elif node["type"] == "FUNCTION" and len(node["arguments"]) == 2:
            function = node["function_name"]
            inner, path = (argument["expression"] for argument in node["arguments"])
        else:
            return None
        text = _get_constant_text(path)
        if text is None or function not in (_DOCUMENT if steps else (*_DOCUMENT, *_TEXT)):
            return None
        is_text = is_text or function in _TEXT
        steps.insert(0, ("json_extract" if steps else "json_extract_string", text))
        node = inner
    *qualifiers, column = map(fold_case, node["column_names"])
    joined = join_paths(steps)
    if column not in columns or not names.issuperset(qualifiers) or len(qualifiers) > 1 or len(joined) != 1:
        return None
    [(function, path)] = joined
    return (
        (make_document_expression(function, pc.field(columns[column]), path), is_text)
        if has_simple_path(path)
        else None
    )


def _get_constant_text(node: dict[str, Any], *, is_text: bool = True) -> str | None:
    """Return a constant text, or the text of a constant document's value; None for other nodes."""
    literal = node.get("literal") if node["type"] == "VALUE_CONSTANT" else None
    if not literal or literal["kind"] != "STRING":
        return None
    text: str = literal["text"]
    if is_text:
        return text
    try:
        decoded = json.loads(text)
        str(decoded).encode()
    except ValueError:
        return None  # DuckDB refuses such a document.
    return decoded if isinstance(decoded, str) else None if decoded is None else text
