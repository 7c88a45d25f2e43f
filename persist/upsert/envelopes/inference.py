"""The types of columns where nothing declares them: what all the messages at hand have in common.

Text stays text, even where it looks like a moment, because what one batch of messages looks like says nothing about
the next one. For the same reason a stream is better given a schema.
"""

import pyarrow as pa
import pyarrow.types as pat

from persist.blob import InvalidUsage


def merged(types: list[pa.DataType], name: str = "") -> pa.DataType:
    """Return the type that holds what all of the given ones do.

    Raises:
        InvalidUsage: there is none, such as for numbers and texts.
    """
    kinds = [t for t in types if not pat.is_null(t)]
    if not kinds:
        return pa.null()
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0]
    if all(pat.is_signed_integer(kind) for kind in kinds):
        return max(kinds, key=lambda kind: kind.bit_width)
    if all(pat.is_integer(kind) or pat.is_floating(kind) for kind in kinds):
        return pa.float64()
    if all(pat.is_struct(kind) for kind in kinds):
        names = list(dict.fromkeys(f.name for kind in kinds for f in kind))
        found = {n: [kind.field(n).type for kind in kinds if kind.get_field_index(n) >= 0] for n in names}
        return pa.struct([(n, merged(inner, f"{name}.{n}".lstrip("."))) for n, inner in found.items()])
    if all(pat.is_list(kind) for kind in kinds):
        return pa.list_(merged([kind.value_type for kind in kinds], name))
    shown = " and ".join(sorted({str(kind) for kind in kinds}))
    raise InvalidUsage(f"column {name!r} is {shown} in different messages: give a schema that says which it is.")


def as_sent(t: pa.DataType) -> pa.DataType:
    """Return a type that `pyarrow.json` has inferred, with text wherever it took text for moments."""
    if pat.is_timestamp(t):
        return pa.string()
    if pat.is_struct(t):
        return pa.struct([(f.name, as_sent(f.type)) for f in t])
    return pa.list_(as_sent(t.value_type)) if pat.is_list(t) else t
