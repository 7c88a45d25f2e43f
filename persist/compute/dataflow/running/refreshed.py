"""Refreshes of views and programs in this process, and reports of them."""

from dataclasses import dataclass
from typing import Literal

from persist.compute.dataflow.ports.past import Reading
from persist.compute.dataflow.running.running import Running
from persist.core.errors import WouldRecompute

Policy = Literal["auto", "incremental"]
Reads = Literal["changes", "requests", "everything"]
INDEX_BYTES = 1 << 20  # Below this size, an index gains too little.
TEXT = {
    "changes": "changes only",
    "requests": "changes, and what their keys held",
    "everything": "all that the sources hold",
}


@dataclass(frozen=True)
class Refreshed:
    """A report of how a view or a program was brought up to date; print it.

    Attributes:
        where: "here" if this process computed, "tasks" if tasks of a cluster did.
        reads: "changes" only; "requests": also earlier records of some keys; or "everything".
        readings: the reads of earlier records, by source.
        bytes: the estimated bytes that these reads decoded.
        seqno: the seqno of the first commit; None if there was none.
    """

    where: Literal["here", "tasks"]
    reads: Reads
    reason: str
    readings: tuple[Reading, ...] = ()
    bytes: int = 0
    seqno: int | None = None

    @classmethod
    def by(cls, running: Running, *, is_new: bool, seqno: int | None = None) -> "Refreshed":
        """Return the report of a running program's last refresh. `is_new`: whether the program was opened for it."""
        if running.partial is None:
            reads: Reads = "everything" if is_new else "changes"
            reason = running.why_whole if is_new and running.why_whole else "this handle keeps its state"
            return cls("here", reads, reason, seqno=seqno)
        readings = tuple(running.partial.readings)
        reads = "requests" if readings else "changes"
        reason = (
            "the outputs are sealed, so the program goes on from them" if is_new else "this handle keeps what it read"
        )
        return cls("here", reads, reason, readings, sum(reading.bytes for reading in readings), seqno)

    def __str__(self) -> str:
        place = "here" if self.where == "here" else "by tasks"
        lines = [f"computed {place}, reads {TEXT[self.reads]}: {self.reason}", *map(str, self.readings)]
        for reading in self.readings:
            if reading.least is not None and reading.bytes > INDEX_BYTES and 2 * reading.least <= reading.bytes:
                by = ", ".join(repr(name) for name in reading.columns or ())
                name = reading.title.removeprefix("read ")
                lines.append(f"an index would save about {reading.bytes - reading.least:,} bytes: {name}.index({by})")
        return "\n".join(lines)


def refresh(running: Running, policy: Policy, *, is_new: bool) -> Refreshed:
    """Bring the outputs of a program up to date, and return how.

    Args:
        policy: "incremental" refuses to read all of a source that is not small.
        is_new: whether the program was opened for this refresh.

    Raises:
        WouldRecompute: the policy refuses what is to be read; nothing was written.
        what `Running.step` raises.
    """
    if running.partial is not None:
        running.partial.begin_refresh(refuses=policy == "incremental")
    elif policy == "incremental" and is_new:
        raise WouldRecompute(running.program.name, running.why_whole or "it reads all of its sources")
    running.catch_up()
    return Refreshed.by(running, is_new=is_new, seqno=running.first_seqno)


def explain(running: Running, policy: Policy) -> Refreshed:
    """Report how a program would be refreshed, without writing. Cost: the refresh."""
    if running.partial is None:
        if policy == "incremental":
            raise WouldRecompute(running.program.name, running.why_whole or "it reads all of its sources")
        return Refreshed.by(running, is_new=True)
    running.partial.begin_refresh(refuses=policy == "incremental")
    running.rehearse()
    return Refreshed.by(running, is_new=True)
