"""Python functions that queries call by name; they exist in this process only.

A view that calls one stores the name and the version, `Call("sql.python", (name, version, column, …))`, and never the
code, because no stored data may be executed. So each process that refreshes the view registers the function first. Only
the author can ensure that a name and a version mean the same in two processes: change the version when the results
change, and redefine the views that call the function.

Invariants: names are lower case, as in SQL, and differ from DuckDB's functions. A name has any number of versions here;
new queries bind to the last registered one. A function sees whole columns, and no empty ones.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any

import pyarrow as pa

from persist.codecs.types.calculator import get_calculator
from persist.codecs.types.python_types import to_arrow_type
from persist.core.errors import FunctionNotFound, InvalidUsage
from persist.core.expression.term import Call, Lit, Term, is_call, make_sql_call

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN = ("_now",)


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A Python function that queries can call.

    Attributes:
        name, version: stored by views.
        compute: takes an Arrow array for each argument, all of one length, and returns an array of that length.
        arguments, returns: the types.
    """

    name: str
    version: str
    compute: Callable[..., Any]
    arguments: tuple[pa.DataType, ...]
    returns: pa.DataType

    def __str__(self) -> str:
        return f"{self.name}() of version {self.version}"

    def make_call(self, arguments: Sequence[Term], at: int | None) -> Call:
        """Return a term that calls this function; `at`: position in the query."""
        identity = (Lit(pa.scalar(self.name)), Lit(pa.scalar(self.version)))
        return make_sql_call("python", self.returns, *identity, *arguments, at=at)

    def make_fixed_arity(self) -> Callable[..., pa.Array]:
        """Return `call_on_columns` with the function's number of parameters, which DuckDB inspects."""

        def of_columns(*columns: Any) -> pa.Array:
            return self.call_on_columns(*columns)

        parameters = [Parameter(f"x{at}", Parameter.POSITIONAL_ONLY) for at in range(len(self.arguments))]
        of_columns.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return of_columns

    def call_on_columns(self, *columns: Any) -> pa.Array:
        """Return the values for columns, which are cast to the types of the arguments."""
        whole = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
        if not len(whole[0]):
            return pa.array([], self.returns)
        inputs = [column.cast(kind) for column, kind in zip(whole, self.arguments, strict=True)]
        try:
            result = self.compute(*inputs)
        except Exception as error:
            raise ValueError(f"{self} raised {type(error).__name__}: {error}") from error
        result = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        if not isinstance(result, pa.Array):
            raise ValueError(f"{self} gave a {type(result).__name__}: return an Arrow array, such as pa.array(values)")
        if len(result) != len(inputs[0]):
            raise ValueError(f"{self} gave {len(result)} values for {len(inputs[0])} rows: return one for each row")
        if result.type != self.returns:
            with suppress(pa.ArrowException):
                return result.cast(self.returns)
            raise ValueError(f"{self} returned values of type {result.type}, and is declared to return {self.returns}")
        return result


# By name, and then by version, the last registered one at the end.
_functions: dict[str, dict[str, PythonFunction]] = {}


def add_function(
    name: str, compute: Callable[..., Any], arguments: Sequence[Any], returns: Any, version: str | int
) -> None:
    """Let queries of this process call a function; see `Client.create_function`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidUsage(f"name={name!r} names no function: use letters, digits and _, and begin with no digit")
    if name.lower() in _OWN or name.lower() in _list_duckdb_functions():
        raise InvalidUsage(f"SQL has a function {name.lower()}() already: choose another name")
    if not callable(compute):
        raise InvalidUsage(f"{name}: {compute!r} is not a function")
    if isinstance(version, bool) or not isinstance(version, str | int) or not str(version):
        raise InvalidUsage(f"version={version!r} of {name}() is neither a text nor a whole number")
    if isinstance(arguments, str) or not isinstance(arguments, Sequence) or not arguments:
        raise InvalidUsage(
            f"arguments={arguments!r} of {name}() are not types: give a list of one at least. A function without "
            "arguments is a constant: write it into the query"
        )
    kinds = [to_arrow_type(kind, f"arguments of {name}()") for kind in arguments]
    function = PythonFunction(name.lower(), str(version), compute, tuple(kinds), to_arrow_type(returns, f"{name}()"))
    other_versions = {
        old: old_function for old, old_function in _functions.get(function.name, {}).items() if old != function.version
    }
    _functions[function.name] = {**other_versions, function.version: function}


@cache
def _list_duckdb_functions() -> frozenset[str]:
    """Return the lower-case names of DuckDB's functions, which users cannot redefine."""
    try:
        connection = get_calculator().cursor()
    except ImportError:  # Then no query is bound here; views that exist know their functions by version.
        return frozenset()
    with connection:
        return frozenset(
            name.lower() for (name,) in connection.execute("FROM duckdb_functions() SELECT function_name").fetchall()
        )


def list_python_functions() -> list[PythonFunction]:
    """Return the functions that new queries may call, each in its last registered version."""
    return [[*versions.values()][-1] for versions in _functions.values()]


def find_python_function(name: str) -> PythonFunction | None:
    """Return the function that a new query calls by a name; None if there is none."""
    versions = _functions.get(name.lower())
    return None if versions is None else [*versions.values()][-1]


def call_python_function(name: str, version: str, *arguments: Any) -> pa.Array:
    """Call a registered function on columns; the last argument is the result's type.

    Raises:
        FunctionNotFound: this process does not have the function.
        ValueError: the function raised, or returned something else than declared.
    """
    *columns, _ = arguments
    return _find_version(name, version).call_on_columns(*columns)


def check_functions(view: str, functions: Iterable[tuple[str, str]]) -> None:
    """Raise FunctionNotFound unless this process has the functions that a view calls, by name and version."""
    for name, version in functions:
        _find_version(name, version, view)


def list_python_calls(terms: Iterator[Term]) -> Iterator[tuple[str, str]]:
    """Yield name and version of each Python function that terms call."""
    pending = [*terms]
    while pending:
        term = pending.pop()
        if isinstance(term, Call):
            if is_call(term, "python"):
                name, version = (literal.value.as_py() for literal in term.arguments[:2] if isinstance(literal, Lit))
                yield name, version
            pending += term.arguments


def _find_version(name: str, version: str, view: str = "") -> PythonFunction:
    """Return a Python function by version; raise FunctionNotFound without one."""
    versions = _functions.get(name, {})
    if version not in versions:
        raise FunctionNotFound(name, version, tuple(versions), view)
    return versions[version]
