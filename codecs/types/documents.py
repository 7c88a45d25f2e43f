"""Checks JSON documents in columns of text, by RFC 8259; their text is stored unchanged.

NaN, infinities, comments, trailing commas and lone surrogates are refused. A name may occur twice in an
object. No document nests deeper than Python's limit of recursion. Cost: 1 µs for a short document.
"""

import msgspec
import pyarrow as pa

from persist.codecs.errors import InvalidUpdate
from persist.codecs.types.values import shorten

_DECODER = msgspec.json.Decoder(msgspec.Raw)


def check_documents(column: pa.Array | pa.ChunkedArray, name: str) -> None:
    """Raise InvalidUpdate if a text of a column is not one JSON document; the message names the row."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    decode, row = _DECODER.decode, 0
    for chunk in chunks:
        for text in chunk.to_pylist():
            try:
                if text is not None:
                    decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                why = "it nests too deeply" if isinstance(error, RecursionError) else str(error).partition(": ")[2]
                raise InvalidUpdate(
                    f"update {row} has {shorten(text)} in column {name!r}, which is no JSON document: "
                    f"{why or 'it ends too early'}. Text is in double quotes there; NaN is not JSON"
                ) from None
            row += 1
