"""What compaction did, as a value that can be added up and printed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from persist.codecs import Part
from persist.shown import Shown, counted


@dataclass(frozen=True)
class CompactionReport(Shown):
    """What compaction did.

    Attributes:
        keyframes: those made, by their times.
        forgotten: the time up to which history was dropped, None if none was.
        runs_merged: runs of history that became fewer.
        keyframes_dropped: those that were not needed any more, or too many.
        parts_read, rows_read, bytes_read: what it read, of parts; rows and bytes of whole parts.
        parts_written, rows_written, bytes_written: what it wrote.
        parts_shared: parts of an earlier keyframe that a new one lists, too.
        superseded: pieces of work that another compactor was faster to do.
    """

    keyframes: tuple[int, ...] = ()
    forgotten: int | None = None
    runs_merged: int = 0
    keyframes_dropped: int = 0
    parts_read: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    parts_written: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    parts_shared: int = 0
    superseded: int = 0

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, time: Callable[[int], str] = str) -> str:
        """Return what was done as a person reads it, given how a time is told, such as with its moment."""
        if self == CompactionReport():
            return "nothing to do"
        done = [f"keyframe as of {time(as_of)}" for as_of in self.keyframes]
        done += [f"history up to {time(self.forgotten)} forgotten"] if self.forgotten is not None else []
        done += [f"{counted(self.runs_merged, 'run')} merged"] if self.runs_merged else []
        done += [f"{counted(self.keyframes_dropped, 'keyframe')} dropped"] if self.keyframes_dropped else []
        done += [f"{counted(self.parts_shared, 'part')} shared"] if self.parts_shared else []
        done += [f"{counted(self.superseded, 'time')} another compaction was faster"] if self.superseded else []
        done.append(f"read {counted(self.parts_read, 'part')} ({self.bytes_read:,} bytes)")
        done.append(f"wrote {counted(self.parts_written, 'part')} ({self.bytes_written:,} bytes)")
        return ", ".join(done)

    def __add__(self, other: "CompactionReport") -> "CompactionReport":
        forgotten = max((each for each in (self.forgotten, other.forgotten) if each is not None), default=None)
        added = {
            name: getattr(self, name) + getattr(other, name)
            for name in self.__dataclass_fields__
            if name != "forgotten"
        }
        return CompactionReport(forgotten=forgotten, **added)


def with_read(parts: Sequence[Part], report: CompactionReport) -> CompactionReport:
    """Return report with parts added to what it read."""
    return report + CompactionReport(
        parts_read=len(parts),
        rows_read=sum(part.rows for part in parts),
        bytes_read=sum(part.bytes for part in parts),
    )


def with_written(parts: Sequence[Part], report: CompactionReport) -> CompactionReport:
    """Return report with parts added to what it wrote."""
    return report + CompactionReport(
        parts_written=len(parts),
        rows_written=sum(part.rows for part in parts),
        bytes_written=sum(part.bytes for part in parts),
    )
