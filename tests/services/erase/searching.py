"""A search of a whole store for records that should be gone, which shares no code with the library.

Whatever an object is, it is taken for JSON with Parquet files or Arrow batches in base64 in it, or for a Parquet file.
"""

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from persist.blob.protocol import Blob

Row = dict[str, Any]


def traces_of(blob: Blob, is_wanted: Callable[[Row], bool], schemas: tuple[pa.Schema, ...] = ()) -> list[str]:
    """Return the keys of all objects that hold a row for which something is true, or that name its values.

    Args:
        schemas: of batches inside of records, which do not say it themselves.
    """
    found = []
    for entry in blob.list(""):
        data = blob.get(entry.key)
        if data is not None and any(map(is_wanted, _rows(data, schemas))):
            found.append(entry.key)
    return found


def mentions(blob: Blob, value: str) -> list[str]:
    """Return the keys of all objects in which a text stands, as it is or in base64, or inside of a compressed file."""
    return traces_of(blob, lambda row: any(value in str(cell) for cell in row.values()) or value in row.get("", ""))


def _rows(data: bytes, schemas: tuple[pa.Schema, ...]) -> Iterator[Row]:
    if data.startswith(b"PAR1"):
        yield from pq.read_table(io.BytesIO(data)).to_pylist()
        return
    yield {"": data.decode("latin-1")}
    if data.startswith(b"{"):
        for value in _inline([json.loads(line) for line in data.splitlines()]):
            decoded = base64.b64decode(value)
            yield from _rows(decoded, schemas)
            if not decoded.startswith(b"PAR1"):
                yield from _batch(decoded, schemas)


def _inline(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "inline":
                yield inner
            else:
                yield from _inline(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _inline(inner)


def _batch(decoded: bytes, schemas: tuple[pa.Schema, ...]) -> Iterator[Row]:
    message = pa.ipc.read_message(pa.py_buffer(decoded))
    for schema in schemas:
        try:
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate(full=True)
            yield from batch.to_pylist()
        except (pa.ArrowException, UnicodeDecodeError, IndexError, OverflowError, OSError):
            continue
