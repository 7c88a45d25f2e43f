"""Which of some documents are likely to be the bad ones, when reading them together has failed.

`pyarrow.json` says neither which document stopped it nor whether there are more. Each document is therefore decoded by
itself, into nothing: that takes about as long as reading it, and finds whatever is no JSON, or holds text where numbers
are expected. It is a guess, and only decides what is read together next: a document is bad if it cannot be read alone.
"""

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat


def suspects(texts: pa.Array, fields: pa.Schema) -> npt.NDArray[np.bool_]:
    """Return bool[texts]: which documents are no JSON object, or hold something else than fields say.

    Args:
        texts: large_binary without NULL.
        fields: as for `parse`.
    """
    decode = _decoder(fields).decode
    found = np.zeros(len(texts), np.bool_)
    for at, text in enumerate(texts.to_pylist()):
        try:
            decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found[at] = True
    return found


@lru_cache(maxsize=64)
def _decoder(fields: pa.Schema) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_object([*fields]))


def _object(fields: list[pa.Field]) -> Any:
    """Return an object with some members; others are passed over, and any may be missing or null."""
    members = [(f"m{at}", _held(field.type) | None, None) for at, field in enumerate(fields)]
    names = {f"m{at}": field.name for at, field in enumerate(fields)}
    return msgspec.defstruct("Object", members, rename=names, gc=False)


def _held(kind: pa.DataType) -> Any:
    """Return what a document holds where a column of that type is read."""
    if pat.is_struct(kind):
        return _object([*kind])
    if pat.is_list(kind):
        return list[_held(kind.value_type) | None]  # type: ignore[misc]
    if pat.is_boolean(kind):
        return bool
    if pat.is_integer(kind):
        return int
    if pat.is_floating(kind):
        return float | int
    if pat.is_decimal(kind):
        return str | float | int
    return str if pat.is_string(kind) or pat.is_timestamp(kind) else msgspec.Raw
