"""From a location to the store that a client works with: metered, retried, cached.

    CachedBlob( RetryBlob( MeteredBlob( the store )))

Metered innermost, so that every attempt is counted as a request; cached outermost, so that a hit costs nothing else.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from persist.blob import Blob, CachedBlob, Clock, InvalidUsage, MeteredBlob, RetryBlob, SystemClock, open_blob
from persist.log import is_immutable
from persist.settings import Settings

CACHE_MEMORY_BYTES = 64 << 20

Location = str | os.PathLike[str] | Blob


@dataclass(frozen=True)
class Storage:
    """A store in its wrappers; `blob` is the one to use."""

    blob: Blob
    metered: MeteredBlob
    retried: RetryBlob
    cached: CachedBlob

    def close(self) -> None:
        """Free what the wrappers have, and the store itself if it was opened here; idempotent."""
        self.blob.close()


def open_storage(
    location: Location,
    options: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Storage:
    """Return the store at location, or the given one, in its wrappers.

    Raises:
        InvalidUsage: the location, an option or a setting does not fit.
    """
    settings, clock = settings or Settings(), clock or SystemClock()
    metered = MeteredBlob(_opened(location, options, settings.retry_s))
    retried = RetryBlob(metered, settings.retry, clock=clock)
    memory_bytes = settings.tuning.cache_memory_bytes
    if memory_bytes is None:
        memory_bytes = CACHE_MEMORY_BYTES if retried.is_remote else 0
    cached = CachedBlob(
        retried,
        is_immutable=is_immutable,
        memory_bytes=memory_bytes,
        folder=settings.cache_folder,
        folder_bytes=settings.cache_folder_bytes,
        clock=clock,
    )
    return Storage(cached, metered, retried, cached)


class _Borrowed:
    """A store that belongs to somebody else, who closes it."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        """Leave it open."""

    def __repr__(self) -> str:
        return repr(self._inner)


def _opened(location: Location, options: Mapping[str, Any] | None, retry_s: float) -> Blob:
    if isinstance(location, (str, os.PathLike)):
        return open_blob(os.fspath(location), options, attempt_s=retry_s)  # No attempt takes longer than all may.
    if not callable(getattr(location, "create", None)):
        raise InvalidUsage(f"location {location!r} is not a path, a URL or a Blob: give for example s3://bucket/prefix")
    if options:
        raise InvalidUsage("storage_options go with a URL; this location is a Blob that was opened already")
    borrowed: Any = _Borrowed(location)
    return cast(Blob, borrowed)
