"""What an output of a program is computed by, in a few characters: to notice that a program has changed.

The fingerprint of an output covers all operators that it is made of, in the order in which they are found from it, with
their expressions, columns, types and constants; of a Python function its code, the constants in it, its defaults and
the values that it captures, as far as they are numbers, texts or functions again. What a function calls by a global
name is not covered. Where two fingerprints differ, what the output holds is compared with what the program gives, so
that another Python, or another version of this library, costs a comparison and no more.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import Any

import pyarrow as pa

from persist.dataflow.plan.plan import Persist, Plan, Variable, edges_into

PROPERTY = "persist.dataflow"  # Of the collection that an output is.
DEPTH_MAX = 30  # Of values in values: functions may capture each other.
PLAIN = (bool, int, float, complex, str, bytes, date, time, timedelta, Decimal, type(None))


def fingerprint(plan: Plan, output: str) -> str:
    """Return the fingerprint of what an output is computed by."""
    begin = [
        n.number for n in plan.nodes.values() if isinstance(n.operator, Persist) and n.operator.collection == output
    ]
    places: dict[int, int] = {}
    left = [*reversed(begin)]
    while left:
        number = left.pop()
        if number not in places:
            places[number] = len(places)
            left += reversed(edges_into(plan.nodes[number]))
    digest = blake2b(digest_size=8)
    for number in places:
        node = plan.nodes[number]
        # Which node feeds back is told as the place of an edge: numbers depend on what else is in the plan.
        operator = Variable(node.operator.name) if isinstance(node.operator, Variable) else node.operator
        scope = plan.scopes[node.scope]
        edges = [places[each] for each in edges_into(node)]
        for word in _words([operator, edges, node.schema, scope.depth, scope.limit], 0):
            digest.update(word.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


def _words(value: Any, depth: int) -> Iterator[str]:
    """Yield what tells a value from others, whatever process it is in."""
    yield type(value).__name__
    if depth > DEPTH_MAX:
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside: Iterable[Any] = [getattr(value, each.name) for each in dataclasses.fields(value) if each.compare]
    elif isinstance(value, Mapping):
        inside = [each for pair in value.items() for each in pair]
    elif isinstance(value, Set):
        inside = sorted(value, key=repr)
    elif isinstance(value, tuple | list):
        inside = value
    elif isinstance(value, CodeType):
        inside = [value.co_code.hex(), value.co_consts, value.co_names, value.co_varnames]
    elif isinstance(value, FunctionType):
        inside = [value.__code__, value.__defaults__, value.__kwdefaults__, [*_captured(value)]]
    elif isinstance(value, pa.Schema):
        inside = [each for field in value for each in (field.name, str(field.type))]
    elif isinstance(value, pa.Table):
        inside = [value.schema, value.to_pylist()]
    elif isinstance(value, pa.Scalar):
        inside = [str(value.type), value.as_py()]
    elif callable(value):
        inside = [getattr(value, "__module__", ""), getattr(value, "__qualname__", "")]
    elif isinstance(value, PLAIN):
        inside = ()
        yield repr(value)
    else:
        inside = (
            vars(value).items() if type(value).__module__.startswith("persist.") and hasattr(value, "__dict__") else ()
        )
    for each in inside:
        yield from _words(each, depth + 1)
    yield "end"


def _captured(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # It is empty yet.
            yield cell.cell_contents
