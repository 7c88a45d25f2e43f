"""The log contradicts itself, or what this client knows of it."""

import shlex
from dataclasses import dataclass

from persist.blob import Corruption


@dataclass(eq=False, repr=False)
class LogReplaced(Corruption):
    """The log is not the one that this client has read: what it knows is gone, or something else is in its place.

    The client stops for good, and what it was asked for is not acknowledged.

    Attributes:
        url: of the location.
        seqno: of a record that the client knows.
        known: the commit id that it knows the record by.
        found: the one that is there now; None if there is no record.
    """

    url: str
    seqno: int
    known: str
    found: str | None

    def __str__(self) -> str:
        now = "is gone" if self.found is None else f"is commit {self.found} now"
        return (
            f"the log of {self.url} is not the one that this client has read: the record at seqno {self.seqno}, which "
            f"it knows as commit {self.known}, {now}. Perhaps a backup was restored in place while this client was "
            "open; then what was committed since the backup is lost. A client goes on only after the log that it has "
            "read, so this one reads and writes nothing any more, and what it was asked for is not acknowledged. If "
            "records were lost by other means, restore them from a copy. Otherwise close all clients, run "
            f"{_setting_aside(self.url)}, which moves to lost/ what was written beyond the end of the log, open new "
            "clients, and write again what is missing."
        )


@dataclass(eq=False, repr=False)
class LogInterrupted(Corruption):
    """Records or a checkpoint lie beyond the end of the log: made after records that are not there; nobody may write.

    Attributes:
        url: of the location.
        end: the seqno of the last record that follows from those before it; -1 if there is none.
        first: the seqno of the first record beyond it, or of the newest checkpoint.
        last: that of the last one that was seen.
        is_checkpoint: whether it is a checkpoint that lies there; then nobody may read, either.
    """

    url: str
    end: int
    first: int
    last: int
    is_checkpoint: bool = False

    def __str__(self) -> str:
        thing = "checkpoint" if self.is_checkpoint else "record"
        what = f"a {thing} at seqno {self.first}" if self.first == self.last else f"records {self.first} to {self.last}"
        hole_end = self.first - (not self.is_checkpoint)
        hole = "" if hole_end == self.end else f", and those from {self.end + 1} to {hole_end} are missing"
        readable = f"What was committed up to seqno {self.end} can be read in a newly opened client; nothing can"
        return (
            f"the log of {self.url} ends at seqno {self.end}, and beyond that lies {what}, made after others than are "
            f"here{hole}. {'Nothing can be read, or' if self.is_checkpoint else readable} "
            "be written. If records were lost, restore them from a copy. If a backup was restored in place, close all "
            f"clients, run {_setting_aside(self.url)}, which moves what lies beyond to lost/, and open new ones."
        )


def _setting_aside(url: str) -> str:
    return f"`persist fsck --repair --set-aside {shlex.quote(url)}`"
