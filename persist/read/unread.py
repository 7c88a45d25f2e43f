"""Which parts a listen has not read yet, so that a step costs what it reads and not what the history holds.

A part is kept here while it holds times at or after the listen's lower bound. From one state to the next the history
mostly only grows at its end, which is seen by comparing runs that are the very same objects; only what was added is
looked at then. After a compaction all runs are looked at once.
"""

from itertools import chain

from persist.codecs import Part
from persist.log import Numbers
from persist.state import CollectionState


class UnreadParts:
    """The parts of one collection's history that hold times at or after a bound that only grows."""

    def __init__(self) -> None:
        self._runs: tuple[Numbers, ...] = ()
        self._parts: tuple[Part, ...] = ()

    def at_or_after(self, contents: CollectionState, lower: int) -> tuple[Part, ...]:
        """Return these parts; neither state nor bound may be earlier than those of the call before.

        Cost: O(parts added since and unread ones), and comparing as many pointers as there are runs; after a
        compaction O(parts).
        """
        known, runs = self._runs, contents.history
        if runs[: len(known)] == known:
            added = contents.parts_of(chain.from_iterable(runs[len(known) :]))
            candidates = (*self._parts, *added)
        else:
            candidates = contents.history_parts
        self._runs = runs
        self._parts = tuple(part for part in candidates if part.time_max >= lower)
        return self._parts
