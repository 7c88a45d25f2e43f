"""Origins of outputs: a fingerprint of their operators, and whether they read the times of updates as data. The
fingerprint of an output covers all operators that it depends on, in the order in which they are found from it, with
their expressions, columns, types and constants. For a Python function it covers the code, the constants, the defaults
and the captured values, if they are numbers, texts or functions. Global names in a function are not covered. If two
fingerprints differ, the contents of the output are compared with the program's results. So another Python, or another
version of this library, only costs a comparison.

A plan that reads times depends on compaction: it distinguishes a record of time 5 from one of time 7. So the contents
of its sources at the last sealed time are not enough to go on. The output of operators that depend on times is stored
in hidden collections (`persist.compute.dataflow.ports.output`). Without these, the sources must be read from where the
program began.
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

from persist.blob.errors import InvalidUsage
from persist.codecs.types.schema import TIME
from persist.compute.dataflow.plan.plan import ROOT, Linear, Node, Persist, Plan, Source, Variable, list_incoming_edges
from persist.compute.dataflow.plan.stages import Delay, Explode, Filter, Map, Stage, TemporalFilter, Unnest
from persist.core.expression.term import Term, list_columns

PROPERTY = "persist.dataflow"  # A property of outputs.
DEPTH_MAX = 30  # The depth of nested values: functions may capture each other.
PLAIN = (bool, int, float, complex, str, bytes, date, time, timedelta, Decimal, type(None))


def make_fingerprint(plan: Plan, output: str) -> str:
    """Return a digest of the operators that an output depends on."""
    begin = [
        n.number for n in plan.nodes.values() if isinstance(n.operator, Persist) and n.operator.collection == output
    ]
    places: dict[int, int] = {}
    todo = [*reversed(begin)]
    while todo:
        number = todo.pop()
        if number not in places:
            places[number] = len(places)
            todo += reversed(list_incoming_edges(plan.nodes[number]))
    digest = blake2b(digest_size=8)
    for number in places:
        node = plan.nodes[number]
        # The feedback is the place of an edge: numbers depend on other operators of the plan.
        operator = Variable(node.operator.name) if isinstance(node.operator, Variable) else node.operator
        scope = plan.scopes[node.scope]
        edges = [places[source] for source in list_incoming_edges(node)]
        for word in _serialise([operator, edges, node.schema, scope.depth, scope.limit], 0):
            digest.update(word.encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


def _serialise(value: Any, depth: int) -> Iterator[str]:
    """Yield texts that identify a value, the same in every process."""
    yield type(value).__name__
    if depth > DEPTH_MAX:
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside: Iterable[Any] = [getattr(value, item.name) for item in dataclasses.fields(value) if item.compare]
    elif isinstance(value, Mapping) and not isinstance(value, pa.MapScalar):  # Its keys need not be distinct.
        inside = [item for pair in value.items() for item in pair]
    elif isinstance(value, Set):
        inside = sorted(value, key=repr)
    elif isinstance(value, tuple | list):
        inside = value
    elif isinstance(value, CodeType):
        inside = [value.co_code.hex(), value.co_consts, value.co_names, value.co_varnames]
    elif isinstance(value, FunctionType):
        inside = [value.__code__, value.__defaults__, value.__kwdefaults__, [*_iterate_closure(value)]]
    elif isinstance(value, pa.Schema):
        inside = [item for field in value for item in (field.name, str(field.type))]
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
    for item in inside:
        yield from _serialise(item, depth + 1)
    yield "end"


def _iterate_closure(function: FunctionType) -> Iterator[Any]:
    """Yield the values of the variables that a function takes from around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # It is empty yet.
            yield cell.cell_contents


def reads_time(plan: Plan) -> bool:
    """Return whether an expression of the unoptimised plan reads `_time`."""
    return any(_reads_time(node.operator) for node in plan.nodes.values() if isinstance(node.operator, Linear))


def _reads_time(linear: Linear) -> bool:
    """Return whether an expression of a linear operator reads `_time`."""
    return any(TIME in list_columns(term) for stage in linear.stages for term in list_expressions(stage))


def depends_on_times(node: Node) -> bool:
    """Return whether a linear operator's output for a record depends on the record's time.

    The output of `delay` does: it refuses late records.
    """
    linear = node.operator
    return isinstance(linear, Linear) and (
        _reads_time(linear) or any(isinstance(stage, Delay) for stage in linear.stages)
    )


def find_separate(plan: Plan) -> set[int]:
    """Return the operators that depend on times; they may not be merged."""
    kinds = {type(node.operator) for node in plan.nodes.values()}
    if not {Persist, Source} <= kinds:
        return set()
    apart = [node for node in plan.nodes.values() if depends_on_times(node)]
    for node in apart:
        if node.scope != ROOT:
            raise InvalidUsage(
                f"{node.title} is inside an iteration, and its output depends on the times of records. This program "
                "reads and writes collections, so it could not resume: move the operator before or after the iteration"
            )
    return {node.number for node in apart}


def list_expressions(stage: Stage) -> list[Term]:
    """Return the expressions that a stage computes."""
    match stage:
        case Map(outputs) | Unnest(outputs):
            return [term for _, term in outputs]
        case Filter(condition):
            return [condition]
        case Explode(by):
            return [by]
        case Delay(to, _):
            return [to]
        case TemporalFilter(lower, upper, _):
            return [term for term in (lower, upper) if term is not None]
    return []
