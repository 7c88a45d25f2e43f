"""When compaction happens, and how much space it may take for cheaper reads: one value with documented defaults."""

from dataclasses import dataclass, fields

from persist.blob import InvalidUsage


@dataclass(frozen=True, kw_only=True)
class CompactionPolicy:
    """When a client that writes compacts, in the background or when `Client.maintain` is called.

    Attributes:
        part_bytes: encoded bytes at which the next key starts a new part.
        keyframe_fraction: a keyframe is made when the history since the last one has this many rows for each of its.
        keyframe_rows_min: and no fewer rows than this, so that small collections are not written anew all the time.
        keyframe_space: keyframes but the newest may take this many bytes for each of the history; beyond that some are
            dropped.
        merge_runs: how many runs of similar size become one.
        inline_bytes, inline_runs: at this many bytes or runs, small writes that live in the log become a part.
        runs_max: at this many runs of one collection, its writers wait for a merge.
        destroy_after_s: what was retracted is destroyed this long after since has passed it; None for half the grace.
        interval_s: how often a client looks for work in the collections it uses; it looks for work in all others
            whenever it collects garbage.

    Raises:
        InvalidUsage: a value is no number, or outside what works.
    """

    part_bytes: int = 64 << 20
    keyframe_fraction: float = 0.5
    keyframe_rows_min: int = 64 * 1024
    keyframe_space: float = 0.5
    merge_runs: int = 8
    inline_bytes: int = 256 << 10
    inline_runs: int = 64
    runs_max: int = 2000
    destroy_after_s: float | None = None
    interval_s: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), LEAST.get(each.name, 0)
            if value is None and each.default is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
                raise InvalidUsage(f"CompactionPolicy({each.name}={value!r}) is not a number of at least {least:,}")
            if isinstance(each.default, int) and not isinstance(value, int):
                raise InvalidUsage(f"CompactionPolicy({each.name}={value!r}) is not a whole number: give {int(value)}")


LEAST = {
    "part_bytes": 64 << 10,
    "keyframe_fraction": 0.01,
    "merge_runs": 2,
    "inline_runs": 2,
    "runs_max": 16,
    "interval_s": 0.05,
}
