"""Converts Arrow filters to terms, and terms to a text for digests that is the same in all releases.

PyArrow cannot list the parts of an expression, but it can pickle one: a record batch with the constants, and metadata
that names the nodes in this order (`compute/expression.cc` of Arrow, `ExpressionToRecordBatch`):

    node    = "field_ref" name | "nested_field_ref" count, then so many field_refs | "literal" number of a column | call
    call    = "call" name, node …, ["options" number of a column,] "end" name

Only the nodes are converted; byte order and other metadata do not matter. A nested field is a call of "field" with its
path as options. The functions keep Arrow's names. An option that is false, zero, empty or NULL is left out, so the term
stays the same if a later release adds an option to a function.

    text    = the nodes of a term as a list in JSON, arguments before their call
    node    = ["column", name] | ["literal", type, value] | ["call", name, count of arguments, [option, …]]
    option  = [name, type, value], or a name for "field"

Types and values are written as in the log (`persist.codecs.types.arrow_types`). The text of a term never changes
between releases, because its digests are stored.
"""

import pickle
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.codecs.part.printing import iterate_metadata
from persist.codecs.types.arrow_types import Json, encode_scalar, encode_type, is_flat
from persist.core.expression.term import Call, Col, Lit, Term

FIELD = "field"
LISTS = pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar, pa.MapScalar
_TYPE_NAME = "_type_name"  # Identifies the kind of options in Arrow.
_TO_TYPE = "to_type"  # The option of a cast, which is a NULL of the type.


def parse_filter_term(filter: pc.Expression) -> Term:
    """Convert an Arrow filter to a term."""
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(filter, protocol=5, buffer_callback=buffers.append)
    (written,) = buffers
    table = pa.ipc.open_file(pa.py_buffer(written)).read_all()
    (constants,) = table.combine_chunks().to_batches()
    nodes = iterate_metadata(table.schema)
    stack: list[list[Any]] = [[]]  # The arguments of each call that is open.
    options: dict[int, tuple[Any, ...]] = {}  # Options of open calls, by their depth.
    for kind, text in nodes:
        if kind == "field_ref":
            stack[-1].append(Col(text))
        elif kind == "nested_field_ref":
            path = [name for _, (_, name) in zip(range(int(text)), nodes, strict=False)]
            stack[-1].append(Call(FIELD, (Col(path[0]),), tuple(path[1:])))
        elif kind == "literal":
            stack[-1].append(Lit(constants.column(int(text))[0]))
        elif kind == "call":
            stack.append([])
        elif kind == "options":
            options[len(stack)] = _decode_options(constants.column(int(text)))
        elif kind == "end" and len(stack) > 1:
            call = Call(text, tuple(stack[-1]), options.pop(len(stack), ()))
            stack.pop()
            stack[-1].append(call)
        else:
            raise ValueError(f"a filter of Arrow has a node {kind!r}, which is not known here: {filter}")
    if len(stack) != 1 or len(stack[0]) != 1:
        raise ValueError(f"a filter of Arrow is not one term: {filter}")
    term: Term = stack[0][0]
    return term


def format_term(term: Term) -> str:
    """Return the text of a term for digests; equal in all releases exactly for equal terms."""
    written: list[Json] = []
    pending: list[Term] = [term]
    while pending:  # In place of recursion: terms may be deep. Calls come first until the end.
        node = pending.pop()
        if isinstance(node, Col):
            written.append(["column", node.name])
        elif isinstance(node, Lit):
            written.append(["literal", *_encode_value(node.value)])
        else:
            assert isinstance(node, Call), "filters have no places"
            options = [[o[0], *_encode_value(o[1].value)] if isinstance(o, tuple) else o for o in node.options]
            written.append(["call", node.function, len(node.arguments), options])
            pending += node.arguments
    return msgspec.json.encode(written[::-1]).decode()


def _encode_value(value: pa.Scalar) -> tuple[Json, Json]:
    """Return a constant's type and its value as JSON."""
    try:
        kind = encode_type(value.type)
    except ValueError:  # No column has it, such as the type of a bare NULL.
        kind = str(value.type)
    return kind, _encode_json_value(value)


def _encode_json_value(value: pa.Scalar) -> Json:
    """Return a constant's value as JSON; None for NULL."""
    if not value.is_valid:
        return None
    if is_flat(value.type):
        return encode_scalar(value)
    if pat.is_dictionary(value.type):
        return _encode_json_value(value.value)
    if pat.is_struct(value.type):
        return [[name, _encode_json_value(item)] for name, item in value.items()]
    if isinstance(value, LISTS):
        items = value.values
        if pat.is_integer(items.type) or pat.is_string(items.type):  # Sets of these may be large.
            return items.to_pylist()
        return [_encode_json_value(item) for item in items]
    return str(value.as_py())


def _decode_options(column: pa.Array) -> tuple[tuple[str, Lit], ...]:
    """Return the options of a call that differ from their defaults, by name."""
    (whole,) = column
    specified = [
        (name, Lit(value)) for name, value in whole.items() if name == _TO_TYPE or _is_not_default(name, value)
    ]
    return tuple(sorted(specified, key=lambda option: option[0]))


def _is_not_default(name: str, value: pa.Scalar) -> bool:
    """Return whether an option of an Arrow function differs from its default."""
    if name == _TYPE_NAME or not value.is_valid:
        return False
    return len(value.values) > 0 if isinstance(value, LISTS) else bool(value.as_py())
