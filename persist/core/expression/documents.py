"""Values inside of JSON documents, as functions that Arrow calls in filters and DuckDB computes."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs.part.shredding import EXTRACT, whole_path
from persist.core.errors import InvalidUsage
from persist.core.expression.sql_functions import compute_by_duckdb

_PREFIX = EXTRACT.removesuffix("json_extract_string")


def document_value(function: str, document: pc.Expression, path: str | int) -> pc.Expression:
    """Return the expression of a value inside of documents, as text.

    Args:
        function: json_extract or json_extract_string.
        path: as DuckDB takes it.
    """
    _register(function)
    return pc.Expression._call(_PREFIX + function, [document, pc.scalar(_literal(path))])


def join_paths(steps: Sequence[tuple[str, str | int]]) -> list[tuple[str, str | int]]:
    """Return functions and their paths with fewer steps, where several look into objects alone."""
    joined: list[tuple[str, str | int]] = []
    for function, path in steps:
        outer, inner = whole_path(joined[-1][1]) if joined else None, whole_path(path)
        if outer is not None and inner is not None and joined[-1][0] == "json_extract":
            joined[-1] = function, outer + inner.removeprefix("$")
        else:
            joined.append((function, path))
    return joined


def has_simple_path(path: str | int) -> bool:
    """Return whether a path goes through objects alone, so that its values may be stored beside documents."""
    return whole_path(path) is not None


def register_functions(filter: pc.Expression | None) -> None:
    """Register the functions of a filter that another process made."""
    for function in ("json_extract", "json_extract_string"):
        if f"persist_{function}(" in str(filter):
            _register(function)


@lru_cache(1024)
def check_path(function: str, path: str | int) -> None:
    """Raise InvalidUsage unless DuckDB takes a path."""
    if not isinstance(path, str | int):
        raise InvalidUsage(f"{path!r} is no path into a JSON document: an item has a whole number")
    try:
        _computed(function, pa.array(["{}"]), _literal(path))
    except (ValueError, pa.ArrowException) as error:
        raise InvalidUsage(f"{path!r:.100} is no path into a JSON document: {error}") from error


def _literal(path: str | int) -> str:
    return str(path) if isinstance(path, int) else "'" + path.replace("'", "''") + "'"


def _extract(function: str, documents: pa.Array, literal: str) -> pa.Array:
    if not len(documents):  # As filters are bound to columns, which is done several times for a read.
        return pa.array([], pa.string())
    return _computed(function, documents, literal)


def _computed(function: str, documents: pa.Array, literal: str) -> pa.Array:
    return compute_by_duckdb(f'{function}("$1", {literal})', documents, pa.string())


@cache
def _register(function: str) -> None:
    """Register a function with Arrow, once for each process."""

    def compute(_: Any, document: Any, literal: pa.Scalar) -> Any:
        is_scalar = isinstance(document, pa.Scalar)
        values = _extract(
            function, pa.array([document.as_py()], pa.string()) if is_scalar else document, literal.as_py()
        )
        return values[0] if is_scalar else values

    text = {"summary": f"{function} of DuckDB", "description": "A value inside of a JSON document, as text."}
    inputs = {"document": pa.string(), "path": pa.string()}
    pc.register_scalar_function(compute, _PREFIX + function, text, inputs, pa.string())
