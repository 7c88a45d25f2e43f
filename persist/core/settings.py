"""What a client may be told about time, space and storage, with defaults; and the store that follows from it.

A client works with a store that is metered, retried and cached:

    CachedBlob( RetryBlob( MeteredBlob( the store )))

Metered innermost, so that every attempt is counted as a request; cached outermost, so that a hit costs nothing else.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from msgspec import Meta

from persist.blob.errors import InvalidUsage
from persist.blob.layers.cache import CachedBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import RetryBlob, RetryPolicy
from persist.blob.options import check_fields
from persist.blob.protocol import Blob
from persist.blob.threads import Clock, SystemClock
from persist.blob.url import open_blob
from persist.core.log.keys import is_immutable

_Seconds = Annotated[float, Meta(ge=0)]
_Positive = Annotated[float, Meta(gt=0)]
_Bytes = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Knobs of tests and benchmarks, which users leave alone: they may go or change their meaning.

    Attributes:
        hold_linger_s: how long a hold outlives the reads it was taken for, so that the next ones need no commit.
        log_retention_records: at least so many log records are kept, however old they are. All clients must agree.
        log_records_max, log_bytes_max: beyond so many records, or bytes of them, those go that are older than `grace_s`
            and four minutes, whatever log_retention_s says. A client that writes looks at the number by itself.
        cache_memory_bytes: room for blobs kept in memory; None for 64 MiB if the store is remote, and none else.
        part_bytes: encoded bytes at which the next key starts a new part.
        keyframe_fraction: a keyframe is made when the history since the last one has this many rows for each of its;
            sooner where it touches few parts.
        keyframe_rows_min: and no fewer rows than this, so that small collections are not written anew all the time.
        keyframe_space: what keyframes do not share with the newest may take this many bytes for each of the history;
            beyond that some are dropped.
        merge_runs: how many runs of similar size become one.
        inline_bytes, inline_runs: at this many bytes or runs, small writes that live in the log become a part.
        runs_max: at this many runs of one collection, its writers wait for a merge.
        compaction_interval_s: how often a client looks for work in the collections it uses; it looks for work in all
            others whenever it collects garbage.
        retry: how failed and slow requests are repeated; None for what follows from `Settings.retry_s`.

    Raises:
        InvalidUsage: a value does not fit.
    """

    hold_linger_s: _Seconds = 5.0
    # Not below 16: the log must keep what a client may take for its end. It becomes a seqno, so it is an integer.
    log_retention_records: Annotated[int, Meta(ge=16)] = 1000
    log_records_max: Annotated[int, Meta(ge=16)] = 10_000
    log_bytes_max: Annotated[int, Meta(ge=1)] = 256 << 20
    cache_memory_bytes: _Bytes | None = None
    part_bytes: Annotated[int, Meta(ge=1)] = 64 << 20
    keyframe_fraction: Annotated[float, Meta(ge=0.01)] = 0.5
    keyframe_rows_min: Annotated[int, Meta(ge=0)] = 64 * 1024
    keyframe_space: Annotated[float, Meta(ge=0)] = 0.5
    merge_runs: Annotated[int, Meta(ge=2)] = 8
    inline_bytes: _Bytes = 256 << 10
    inline_runs: Annotated[int, Meta(ge=2)] = 64
    runs_max: Annotated[int, Meta(ge=16)] = 2000
    compaction_interval_s: Annotated[float, Meta(ge=0.05)] = 30.0
    retry: RetryPolicy | None = None

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a client behaves; all durations in seconds. Clients of one location should agree on those marked (*).

    Attributes:
        background: whether a writing client renews leases, collects garbage and compacts by itself, in threads of its
            own. Without it, call `Client.maintain` now and then.
        memory_budget: bytes that writing, merging, compaction and `to_batches` may take each, at least 16 MiB. A
            whole result that is asked for in memory takes its own room beyond that.
        cache_folder, cache_folder_bytes: where to keep blobs on disk, and what look-ups have decoded, mapped, for all
            processes that name the same folder; and the room for both together. On a disk of this machine: a process
            ends if what it has mapped cannot be read any more. None for nowhere.
        lease_s: how long a reader that was lost without closing keeps since back. (*)
        clock_skew_s: how far the clocks of two clients may be apart: a lease is ended this much after its expiry. (*)
        grace_s: how long blobs that nothing refers to any more are kept for readers that hold no lease. (*)
        orphan_grace_s: how long an upload may take from its first part to its commit. (*)
        log_retention_s: log records are kept this long, and the last 1,000 of them for longer. Where there are more
            than 10,000, or 256 MiB of them, those go sooner that are older than `grace_s` and four minutes. (*)
        destroy_after_s: what was retracted is destroyed this long after since has passed it; None for half the grace.
        gc_interval_s: the time between two collections of garbage by one client.
        look_back: whether a commit is acknowledged only once the record before it was seen to be still there, by a read
            of few bytes beside the write. Without it that read is saved, and if somebody restores a backup in place
            under an open client, what that writes in the next 10 s may be acknowledged and lost.
        poll_s: the longest pause between two looks for new records by who waits for some. None for 5 ms where a look
            costs little, such as in a folder (a third of a percent of a core for a client that waits), and else for
            one second, to which the pause grows while nothing happens.
        retry_s: how long a request to the store is repeated if it fails or gets no answer. A request that the store
            throttles is repeated for five minutes at least.
        exit_timeout_s: how long a process that ends without closing a client waits for what was asked of it.
        tuning: knobs of tests and benchmarks.

    A grace of 0 is for locations that nobody else uses at the time.

    Raises:
        InvalidUsage: a value is no number, negative or too small to work, or a fraction where things are counted.
    """

    background: bool = True
    memory_budget: Annotated[int, Meta(ge=16 << 20)] = 256 << 20
    cache_folder: str | os.PathLike[str] | None = None
    cache_folder_bytes: Annotated[int, Meta(ge=1)] = 1 << 30
    lease_s: Annotated[float, Meta(ge=1)] = 600.0
    clock_skew_s: _Seconds = 30.0
    grace_s: _Seconds = 3600.0
    orphan_grace_s: _Seconds = 24 * 3600.0
    # The log must keep what a client may take for its end: see `persist.engine.follow.follower.STALE_AFTER_S`.
    log_retention_s: Annotated[float, Meta(ge=240)] = 7 * 24 * 3600.0
    destroy_after_s: _Seconds | None = None
    gc_interval_s: Annotated[float, Meta(ge=1)] = 3600.0
    look_back: bool = True
    poll_s: Annotated[float, Meta(ge=0.001)] | None = None
    retry_s: _Positive = 60.0
    exit_timeout_s: _Seconds = 30.0
    tuning: Tuning = field(default_factory=Tuning)

    def __post_init__(self) -> None:
        check_fields(self, but=("cache_folder",))  # Its type is beyond msgspec.
        if not isinstance(self.cache_folder, str | os.PathLike | None):
            raise InvalidUsage(f"cache_folder={self.cache_folder!r} is not allowed: give a path, or None")

    @property
    def retry(self) -> RetryPolicy:
        """How requests to the store are repeated."""
        return self.tuning.retry or RetryPolicy.within(self.retry_s)


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
