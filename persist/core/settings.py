"""The settings of a client, with defaults; and the store that they define.

A client uses a metered, retried and cached store:

    CachedBlob( RetryBlob( MeteredBlob( the store )))

Metering is innermost, so that every attempt counts as a request; the cache is outermost, so that a hit costs nothing
else.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, cast

from msgspec import Meta

from persist.blob.errors import InvalidUsage
from persist.blob.layers.cache import CachedBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import ATTEMPTS_MAX, RETRY_S, THROTTLED_S, RetryBlob
from persist.blob.lru import Cache
from persist.blob.options import check_fields
from persist.blob.protocol import Blob
from persist.blob.threads import Clock, SystemClock
from persist.blob.url import open_blob
from persist.core.log.fields import Policy
from persist.core.log.keys import is_immutable

T = TypeVar("T")
_Seconds = Annotated[float, Meta(ge=0)]
_Positive = Annotated[float, Meta(gt=0)]
_Bytes = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Settings for tests and benchmarks, not for users: they may change or disappear.

    Attributes:
        hold_linger_s: how long a hold outlives its reads, so that the next reads need no commit.
        part_bytes: encoded bytes at which the next key starts a new part; at most a quarter of `memory_budget`.
        keyframe_fraction: a keyframe is made when the history since the last one has this share of its rows; sooner if
            the history touches few parts.
        keyframe_rows_min: the least such history in rows, so that small collections are not rewritten often.
        merge_runs: how many runs of similar size become one.
        inline_bytes, inline_runs: at this many bytes or runs, small writes inside the log become a part.
        runs_max: at this many runs of one collection, its writers wait for a merge of small ones.
        compaction_interval_s: how often a client looks for work in the collections that it uses; it checks all others
            with each garbage collection.
        attempts_max: how often a request is tried in all, without throttled attempts.
        policy: the policy of a location whose log has none. All clients must use the same.

    Raises InvalidUsage: a value does not fit.
    """

    hold_linger_s: _Seconds = 5.0
    part_bytes: Annotated[int, Meta(ge=1)] = 64 << 20
    keyframe_fraction: Annotated[float, Meta(ge=0.01)] = 0.5
    keyframe_rows_min: Annotated[int, Meta(ge=0)] = 64 * 1024
    merge_runs: Annotated[int, Meta(ge=2)] = 8
    inline_bytes: _Bytes = 256 << 10
    inline_runs: Annotated[int, Meta(ge=2)] = 64
    runs_max: Annotated[int, Meta(ge=16)] = 128
    compaction_interval_s: Annotated[float, Meta(ge=0.05)] = 30.0
    attempts_max: Annotated[int, Meta(ge=1)] = ATTEMPTS_MAX
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        check_fields(self)


def _wrap_policy_errors(settings: type[T]) -> type[T]:
    """Make a class refuse arguments of `Policy`, with a hint to `set_policy`."""
    init: Callable[..., None] = settings.__init__

    @wraps(init)
    def init_checked(self: T, **values: Any) -> None:
        for name in values.keys() & {*Policy.__struct_fields__}:
            change = f"{name}={values[name]!r}"
            raise InvalidUsage(f"{change} is not a setting of one client: change it by client.set_policy({change})")
        init(self, **values)

    settings.__init__ = init_checked  # type: ignore[method-assign,assignment]
    return settings


@_wrap_policy_errors
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one client; all durations in seconds. All clients of a location share its `Policy`.

    Attributes:
        background: whether a writing client renews leases, collects garbage and compacts in its own threads. Otherwise,
            call `Client.maintain` now and then.
        memory_budget: bytes that writing, merging, compaction and `to_batches` may take each, at least 16 MiB. The
            client's cache takes up to half of it, until the client is closed. A whole result takes memory beyond it.
        cache_folder, cache_folder_bytes: a folder for blobs and decoded rows of look-ups, which all processes with this
            folder share; and the limit of both together. It must be on a local disk: a process crashes if a
            mapped file cannot be read. None for no folder.
        gc_interval_s: the time between two garbage collections by one client.
        poll_s: the longest pause between two reads of the log by a waiting client. "by store" is 5 ms where a read
            costs little, such as in a folder (a third of a percent of a core). Elsewhere it is one second, to which the
            pause grows while nothing happens.
        retry_s: how long a failed or unanswered request to the store is repeated. A throttled request is repeated for
        five minutes at least, unless retry_s is below its default.
        exit_timeout_s: how long an ending process waits for the operations of unclosed clients.
        tuning: settings for tests and benchmarks.

    Raises:
        InvalidUsage: a value is not a number, is negative or too small, or is fractional where only whole numbers are
        allowed; or the setting belongs to the policy of the location.
    """

    background: bool = True
    memory_budget: Annotated[int, Meta(ge=16 << 20)] = 256 << 20
    cache_folder: str | os.PathLike[str] | None = None
    cache_folder_bytes: Annotated[int, Meta(ge=1)] = 1 << 30
    gc_interval_s: Annotated[float, Meta(ge=1)] = 3600.0
    poll_s: Annotated[float, Meta(ge=0.001)] | Literal["by store"] = "by store"
    retry_s: _Positive = RETRY_S
    exit_timeout_s: _Seconds = 30.0
    tuning: Tuning = field(default_factory=Tuning)

    def __post_init__(self) -> None:
        check_fields(self, but=("cache_folder",))  # Its type is beyond msgspec.
        if not isinstance(self.cache_folder, str | os.PathLike | None):
            raise InvalidUsage(f"cache_folder={self.cache_folder!r} is not allowed: give a path, or None")
        if self.tuning.part_bytes > self.memory_budget // 4:  # An encoded part is in memory, beside a slice.
            object.__setattr__(self, "tuning", replace(self.tuning, part_bytes=self.memory_budget // 4))


Location = str | os.PathLike[str] | Blob


@dataclass(frozen=True)
class Storage:
    """A store with its wrappers; `blob` is the one to use. `cache` has all data that a client caches in memory."""

    blob: Blob
    metered: MeteredBlob
    retried: RetryBlob
    cached: CachedBlob
    cache: Cache

    def close(self) -> None:
        """Drop all cached values, and close the store if it was opened here; idempotent."""
        self.blob.close()
        self.cache.close()


def open_storage(
    location: Location,
    options: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
) -> Storage:
    """Open the store at a location, or take the passed one; return it with its wrappers."""
    settings, clock = settings or Settings(), clock or SystemClock()
    metered = MeteredBlob(_open_store(location, options, settings.retry_s))
    retry_s = settings.retry_s
    throttled_s = retry_s if retry_s < RETRY_S else THROTTLED_S
    retried = RetryBlob(metered, retry_s, settings.tuning.attempts_max, throttled_s=throttled_s, clock=clock)
    cache = Cache(settings.memory_budget // 2, clock=clock)
    cached = CachedBlob(
        retried,
        is_immutable=is_immutable,
        memory=cache if retried.is_remote else Cache(0),
        folder=settings.cache_folder,
        folder_bytes=settings.cache_folder_bytes,
        clock=clock,
    )
    return Storage(cached, metered, retried, cached, cache)


class _Borrowed:
    """A store that the user opened: `close` leaves it open."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        """Leave the store open."""

    def __repr__(self) -> str:
        return repr(self._inner)


def _open_store(location: Location, options: Mapping[str, Any] | None, retry_s: float) -> Blob:
    """Open the store of a URL or path; wrap an opened store."""
    if isinstance(location, (str, os.PathLike)):
        return open_blob(os.fspath(location), options, attempt_s=retry_s)  # No attempt takes longer than all may.
    if not callable(getattr(location, "create", None)):
        raise InvalidUsage(f"location {location!r} is not a path, a URL or a Blob: give for example s3://bucket/prefix")
    if options:
        raise InvalidUsage("storage_options go with a URL; this location is a Blob that was opened already")
    borrowed: Any = _Borrowed(location)
    return cast(Blob, borrowed)
