"""Reading a value and believing it."""

from collections.abc import Callable
from typing import TypeVar

from persist.blob.errors import CorruptBlob
from persist.blob.layers.cache import CachedBlob
from persist.blob.protocol import Blob

T = TypeVar("T")


def get_checked(blob: Blob, key: str, check: Callable[[bytes], T]) -> T | None:
    """Return check of the value at key, or None when there is none.

    What check refuses as CorruptBlob may be wrong only where it is cached, or on its one way from the store to the
    cache: then it is fetched once more.
    """
    data = blob.get(key)
    if data is None:
        return None
    try:
        return check(data)
    except CorruptBlob:
        if not isinstance(blob, CachedBlob):
            raise
        blob.forget(key)
        data = blob.get(key)
        return None if data is None else check(data)
