"""Values inside of JSON documents, as functions that Arrow calls in filters and DuckDB computes."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.part.printing import print_filter
from persist.codecs.part.shredding import EXTRACT, TEST, to_full_path
from persist.core.errors import InvalidUsage
from persist.core.expression.sql_functions import compute_by_duckdb

_PREFIX = EXTRACT.removesuffix("json_extract_string")
_TEST = TEST.removeprefix(_PREFIX)
_WHOLE, _FRACTION = "-?[0-9]{1,15}", "-?[0-9]{1,15}(\\.[0-9]{1,15})?"


def make_document_expression(function: str, document: pc.Expression, path: str | int) -> pc.Expression:
    """Return the Arrow expression of a value inside of JSON documents, as text.

    Args:
        function: json_extract or json_extract_string.
        path: in DuckDB's syntax.
    """
    _register_function(function)
    return pc.Expression._call(_PREFIX + function, [document, pc.scalar(_format_path(path))])


def make_number_condition(value: pc.Expression, kind: str, sign: str, number: str, *, is_text: bool) -> pc.Expression:
    """Return the Arrow condition that compares a value of documents with a number.

    The condition is true for each value that meets it, and for texts that DuckDB cannot cast.

    Args:
        value: of documents, as text.
        kind: the type of the cast; sign: of the comparison.
        is_text: the query casts the text. If it casts the document's value, only plain numbers surely give the same
            result.
    """
    _register_function(_TEST)
    return pc.Expression._call(TEST, [value, pc.scalar(f"{kind} {sign} {number}{'' if is_text else ' document'}")])


def join_paths(steps: Sequence[tuple[str, str | int]]) -> list[tuple[str, str | int]]:
    """Merge consecutive steps through objects; return functions and their paths."""
    joined: list[tuple[str, str | int]] = []
    for function, path in steps:
        outer, inner = to_full_path(joined[-1][1]) if joined else None, to_full_path(path)
        if outer is not None and inner is not None and joined[-1][0] == "json_extract":
            joined[-1] = function, outer + inner.removeprefix("$")
        else:
            joined.append((function, path))
    return joined


def has_simple_path(path: str | int) -> bool:
    """Return whether a path goes through objects only, so that its values may be stored beside documents."""
    return to_full_path(path) is not None


def register_functions(filter: pc.Expression | None) -> None:
    """Register the functions that a filter from another process calls."""
    for function in ("json_extract", "json_extract_string", _TEST):
        if f"persist_{function}(" in print_filter(filter):
            _register_function(function)


@lru_cache(1024)
def check_path(function: str, path: str | int) -> None:
    """Raise InvalidUsage unless a path is valid in DuckDB."""
    if not isinstance(path, str | int):
        raise InvalidUsage(f"{path!r} is no path into a JSON document: an item has a whole number")
    try:
        _extract_values(function, pa.array(["{}"]), _format_path(path))
    except (ValueError, pa.ArrowException) as error:
        raise InvalidUsage(f"{path!r:.100} is no path into a JSON document: {error}") from error


def _format_path(path: str | int) -> str:
    """Return the path as a literal of SQL."""
    return str(path) if isinstance(path, int) else "'" + path.replace("'", "''") + "'"


def _extract_values(function: str, documents: pa.Array, literal: str) -> pa.Array:
    """Return the values at a path of documents, computed by DuckDB."""
    kind = pa.bool_() if function == _TEST else pa.string()
    if not len(documents):  # As filters are bound to columns, which is done several times for a read.
        return pa.array([], kind)
    return compute_by_duckdb(_make_sql(function, literal), documents, kind)


def _make_sql(function: str, literal: str) -> str:
    """Return the SQL expression that extracts a value."""
    if function != _TEST:
        return f'{function}("$1", {literal})'
    kind, sign, number, *is_document = literal.split(" ")
    passes, is_there = f'TRY(TRY_CAST("$1" AS {kind}) {sign} {number})', '"$1" IS NOT NULL'
    if not is_document:
        return f"coalesce({passes}, {is_there})"
    plain = _FRACTION if kind == "DOUBLE" else _WHOLE
    return f"""CASE WHEN regexp_full_match("$1", '{plain}') THEN coalesce({passes}, true) ELSE {is_there} END"""


@cache
def _register_function(function: str) -> None:
    """Register a function with Arrow, once for each process."""

    def compute(_: Any, document: Any, literal: pa.Scalar) -> Any:
        is_scalar = isinstance(document, pa.Scalar)
        values = _extract_values(
            function, pa.array([document.as_py()], pa.string()) if is_scalar else document, literal.as_py()
        )
        return values[0] if is_scalar else values

    text = {"summary": f"{function} of DuckDB", "description": "A value inside of a JSON document, as text."}
    inputs = {"document": pa.string(), "path": pa.string()}
    kind = pa.bool_() if function == _TEST else pa.string()
    pc.register_scalar_function(compute, _PREFIX + function, text, inputs, kind)
