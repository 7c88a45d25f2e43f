"""Reading a value and believing it."""

from collections.abc import Callable
from typing import TypeVar

from persist.blob.errors import CorruptBlob
from persist.blob.layers.cache import CachedBlob
from persist.blob.protocol import Blob, get_at_most

SMALL_BYTES = 16 << 20  # So much is read though less belongs there, so that the error can say what it is.

T = TypeVar("T")


def get_checked(blob: Blob, key: str, bytes_expected: int, check: Callable[[bytes], T]) -> T | None:
    """Return check of the value at key, or None when there is none.

    A value that is much larger than bytes_expected is CorruptBlob, and not read where its store can tell.

    What check refuses as CorruptBlob may be wrong only where it is cached, or on its one way from the store to the
    cache: then it is fetched once more.
    """
    bytes_max = max(bytes_expected, SMALL_BYTES)
    return _believed(blob, key, lambda: get_at_most(blob, key, bytes_max), check)


def get_range_checked(blob: Blob, key: str, range: tuple[int, int], check: Callable[[bytes], T]) -> T | None:
    """Return check of some bytes of the value at key, or None when there is none; otherwise as `get_checked`."""
    return _believed(blob, key, lambda: blob.get(key, range), check)


def _believed(blob: Blob, key: str, get: Callable[[], bytes | None], check: Callable[[bytes], T]) -> T | None:
    data = get()
    if data is None:
        return None
    try:
        return check(data)
    except CorruptBlob:
        if not isinstance(blob, CachedBlob):
            raise
        blob.forget(key)
        data = get()
        return None if data is None else check(data)
