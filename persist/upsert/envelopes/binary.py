"""Base64 text as bytes, and bytes as decimals: whole columns at a time.

A decimal travels as Java's `BigInteger.toByteArray`: two's complement, the highest byte first, as few bytes as hold it.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persist.codecs import boolean_values, int64_values
from persist.upsert.envelopes.messages import Unreadable

DECIMAL_BYTES = 16
PRECISION_MAX = 38
_PAD, _NONE = 64, 255
_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def _codes() -> np.ndarray:
    codes = np.full(256, _NONE, np.uint8)
    codes[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
    codes[ord("=")] = _PAD
    return codes


def from_base64(texts: pa.Array) -> pa.Array:
    """Return the bytes that base64 text stands for, as large_binary; NULL stays.

    Raises:
        Unreadable: some text is not base64 of the usual alphabet, padded to a multiple of four.
    """
    offsets, data = _parts(texts)
    lengths = np.diff(offsets)
    codes = _codes()[data]
    if (lengths % 4).any() or (codes == _NONE).any():
        raise Unreadable(f"{_example(texts)} is not base64")
    pads = _pads(codes, offsets, texts)
    codes[codes == _PAD] = 0
    quads = codes.reshape(-1, 4).astype(np.uint32)
    bits = quads[:, 0] << 18 | quads[:, 1] << 12 | quads[:, 2] << 6 | quads[:, 3]
    triples = np.stack([bits >> 16, bits >> 8 & 255, bits & 255], axis=1).astype(np.uint8).ravel()
    ends = np.cumsum(lengths // 4 * 3)
    keep = np.ones(len(triples), bool)
    for back in (1, 2):
        keep[ends[pads >= back] - back] = False
    starts = np.concatenate([[0], np.cumsum(lengths // 4 * 3 - pads)]).astype(np.int64)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(triples[keep])]
    return _with_nulls_of(texts, pa.Array.from_buffers(pa.large_binary(), len(texts), buffers))


def from_latin_1(texts: pa.Array) -> pa.Array:
    """Return the bytes whose numbers are the characters of a text, as large_binary; NULL stays."""
    _, data = _parts(texts)
    try:
        content = data.tobytes().decode().encode("latin-1")
    except UnicodeEncodeError as error:
        raise Unreadable("it has characters beyond U+00FF where bytes are expected") from error
    ends = np.cumsum(int64_values(pc.utf8_length(texts).fill_null(0).cast(pa.int64())))
    starts = np.concatenate([[0], ends]).astype(np.int64)
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(content)]
    return _with_nulls_of(texts, pa.Array.from_buffers(pa.large_binary(), len(texts), buffers))


def to_decimals(unscaled: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the decimals of `target`'s scale whose unscaled values are given as large_binary; NULL stays.

    Raises:
        Unreadable: a value has no byte, or does not fit `target`.
    """
    offsets, data = _parts(unscaled)
    lengths = np.diff(offsets)
    if (lengths > DECIMAL_BYTES).any() or ((lengths == 0) & boolean_values(unscaled.is_valid())).any():
        raise Unreadable(f"a decimal of {int(lengths.max())} bytes does not fit {target}")
    held = np.flatnonzero(lengths)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    place = np.repeat(offsets[1:], lengths) - 1 - np.arange(len(data))
    matrix = np.zeros((len(lengths), DECIMAL_BYTES), np.uint8)
    matrix[held[data[offsets[:-1][held]] >= 128]] = 255
    matrix[owner, place] = data
    widest = pa.decimal128(PRECISION_MAX, target.scale)
    wide = pa.Array.from_buffers(widest, len(lengths), [None, pa.py_buffer(matrix)])
    try:
        wide.validate(full=True)
        return _with_nulls_of(unscaled, wide.cast(target))
    except pa.ArrowInvalid as error:
        raise Unreadable(f"a decimal does not fit {target}: {error}") from error


def _parts(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets, from 0 and int64[n + 1], and the bytes of a column of bytes or text; NULL has none."""
    plain = array.cast(pa.large_binary()).fill_null(b"")
    _, offset_buffer, data_buffer = plain.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(plain) + 1, plain.offset * 8)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], data


def _pads(codes: np.ndarray, offsets: np.ndarray, texts: pa.Array) -> np.ndarray:
    """Return how many `=` each text ends with: at most two, and none elsewhere."""
    places = np.flatnonzero(codes == _PAD)
    owners = np.searchsorted(offsets[1:], places, "right")
    pads = np.bincount(owners, minlength=len(offsets) - 1)
    if (pads > 2).any() or (places < offsets[1:][owners] - pads[owners]).any():
        raise Unreadable(f"{_example(texts)} is not base64")
    return pads


def _example(texts: pa.Array) -> str:
    return repr(texts.drop_null()[0].as_py())[:60] if texts.null_count < len(texts) else "nothing"


def _with_nulls_of(source: pa.Array, array: pa.Array) -> pa.Array:
    if not source.null_count:
        return array
    return pc.if_else(source.is_valid(), array, pa.scalar(None, array.type))
