"""What a collection holds that nobody can read yet: its updates at times that are not sealed."""

from dataclasses import dataclass

from persist.state.contents import CollectionState
from persist.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Unsealed:
    """The updates at times beyond upper, as far as the descriptors of parts tell.

    Attributes:
        updates: how many there are, if is_exact; otherwise at most so many, because some parts hold sealed ones, too.
            Of a keyed collection, events are counted.
        first, last: the least and the greatest of their times; first is a bound, too, unless is_exact.
        timeline: of the collection, to show the times as moments.
    """

    updates: int
    first: int
    last: int
    is_exact: bool
    timeline: Timeline | None = None

    @property
    def advice(self) -> str:
        """What is there, and what makes it readable."""
        return f"{self}: sealing to {self.last + 1} makes all of that readable"

    def __str__(self) -> str:
        many = f"{self.updates:,} update{'' if self.updates == 1 else 's'}"
        first, last = (str(t) if self.timeline is None else self.timeline.text_of(t) for t in (self.first, self.last))
        at = f"time {first}" if first == last else f"times {first} to {last}"
        return f"{'' if self.is_exact else 'at most '}{many} at {at}"


def unsealed(contents: CollectionState) -> Unsealed | None:
    """Return what contents hold at times that are not sealed; None if that is nothing."""
    upper = contents.upper.time
    held = contents.history_parts if contents.keyed is None else contents.pending.values()
    parts = [part for part in held if upper is not None and part.time_max >= upper]
    if upper is None or not parts:
        return None
    first, last = min(part.time_min for part in parts), max(part.time_max for part in parts)
    return Unsealed(
        sum(part.rows for part in parts),
        max(first, upper),
        last,
        first >= upper,
        Timeline(contents.timeline) if contents.timeline else None,
    )
