"""Converts filters to text, for display and for finding names."""

import ctypes
import re
import struct
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def print_filter(filter: pc.Expression) -> str:
    """Return a filter as Arrow prints it; if Arrow fails, "..." and its sorted words.

    Arrow cuts long sets of values when it prints them, perhaps inside of a character, and then fails.
    """
    try:
        return str(filter)
    except UnicodeDecodeError:
        words = re.findall(rb"\w+", bytes(filter.__reduce__()[1][0]))
        return " ".join(["...", *(f"{word.decode()}(" for word in sorted({*words}))])


def iterate_metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield the metadata of a schema in order, including repeated names, which Arrow's dict loses.

    Arrow's C data interface has the metadata: count, then length and bytes of each name and value, as int32.
    """
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    fields = ctypes.cast(pointer_of(capsule, b"arrow_schema"), ctypes.POINTER(ctypes.c_void_p))
    address = fields[2]  # After the format and the name.
    if not address:
        return

    def number() -> int:
        """Read an int32 and move on."""
        nonlocal address
        (decoded,) = struct.unpack("=i", ctypes.string_at(address, 4))
        address += 4
        return int(decoded)

    def text() -> str:
        """Read a text with its length and move on."""
        nonlocal address
        size = number()
        encoded = ctypes.string_at(address, size)
        address += size
        return encoded.decode()

    for _ in range(number()):
        yield text(), text()
