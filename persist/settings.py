"""What a client may be told about time, space and storage: one value with documented defaults."""

import os
from dataclasses import dataclass, field, fields

from persist.blob import InvalidUsage, RetryPolicy
from persist.compaction_policy import CompactionPolicy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a client behaves; all durations in seconds. Clients of one location should agree on those marked (*).

    Attributes:
        lease_s: how long a reader that was lost without closing keeps since back. (*)
        clock_skew_s: how far the clocks of two clients may be apart: a lease is ended this much after its expiry. (*)
        hold_linger_s: how long a hold outlives the reads it was taken for, so that the next ones need no commit.
        grace_s: how long blobs that nothing refers to any more are kept for readers that hold no lease. (*)
        orphan_grace_s: how long an upload may take from its first part to its commit. (*)
        log_retention_s: log records are kept at least this long, and (*)
        log_retention_records: at least as many of them. (*)
        look_back: whether a commit is acknowledged only once the record before it was seen to be still there, by a read
            of few bytes beside the write. Without it that read is saved, and if somebody restores a backup in place
            under an open client, what that writes in the next 10 s may be acknowledged and lost.
        background: whether a writing client renews leases, collects garbage and compacts by itself, in threads of its
            own. Without it, call `Client.maintain` now and then.
        compaction: when and how collections are compacted; see `CompactionPolicy`. (*)
        gc_interval_s: the time between two collections of garbage by one client.
        poll_s: the longest pause between two looks for new records by who waits for some. None for 5 ms where a look
            costs little, such as in a folder (a third of a percent of a core for a client that waits), and else for
            one second, to which the pause grows while nothing happens.
        exit_timeout_s: how long a process that ends without closing a client waits for what was asked of it.
        retry: how failed and slow requests to the store are repeated.
        cache_memory_bytes: room for blobs kept in memory; None for 64 MiB if the store is remote, and none else.
        memory_budget: bytes that writing, merging, compaction and `to_batches` may take each, at least 16 MiB; whoever
            asks for a whole result in memory takes the room of that besides.
        cache_folder, cache_folder_bytes: where to keep blobs on disk, and what look-ups have decoded, mapped, for all
            processes that name the same folder; and the room for both together. On a disk of this machine: a process
            ends if what it has mapped cannot be read any more. None for nowhere.

    A grace of 0 is for locations that nobody else uses at the time.

    Raises:
        InvalidUsage: a value is no number, negative or too small to work, or a fraction where things are counted.
    """

    lease_s: float = 600.0
    clock_skew_s: float = 30.0
    hold_linger_s: float = 5.0
    grace_s: float = 3600.0
    orphan_grace_s: float = 24 * 3600.0
    log_retention_s: float = 7 * 24 * 3600.0
    log_retention_records: int = 1000
    look_back: bool = True
    background: bool = True
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    gc_interval_s: float = 3600.0
    exit_timeout_s: float = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    memory_budget: int = 256 << 20
    poll_s: float | None = None
    cache_memory_bytes: int | None = None
    cache_folder: str | os.PathLike[str] | None = None
    cache_folder_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("background", "look_back"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidUsage(f"Settings({name}={getattr(self, name)!r}) is not True or False")
        if not isinstance(self.retry, RetryPolicy):
            raise InvalidUsage(f"Settings(retry={self.retry!r}) is not a RetryPolicy")
        if not isinstance(self.compaction, CompactionPolicy):
            raise InvalidUsage(f"Settings(compaction={self.compaction!r}) is not a CompactionPolicy")
        for each in fields(self):
            value, least = getattr(self, each.name), LEAST.get(each.name, 0.0)
            if each.name in OTHERS or (value is None and each.default is None):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
                raise InvalidUsage(f"Settings({each.name}={value!r}) is not a number of at least {least:,}")
            if each.name in WHOLE and not isinstance(value, int):
                raise InvalidUsage(f"Settings({each.name}={value!r}) is not a whole number: give {int(value)}")


# The log must keep what a client may take for its end: see `persist.replica.follower.STALE_AFTER_S`.
LEAST = {
    "lease_s": 1.0,
    "poll_s": 0.001,
    "log_retention_s": 3600.0,
    "log_retention_records": 16,
    "gc_interval_s": 1.0,
    "cache_folder_bytes": 1.0,
    "memory_budget": 16 << 20,
}
OTHERS = ("background", "look_back", "retry", "compaction", "cache_folder")  # Those that are no numbers.
# The number of records becomes a seqno in the log, where a fraction could not be read again.
WHOLE = ("log_retention_records", "memory_budget", "cache_memory_bytes", "cache_folder_bytes")
