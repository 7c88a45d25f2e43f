"""The oracle: a location as lists of updates in memory. It shares no code with the library."""

from collections import Counter
from typing import Any

Update = tuple[tuple[Any, Any], int, int]


class ModelError(Exception):
    """The model refuses a call; `str` is the name of the error class that the library must raise."""


class ModelCollection:
    """A list of updates, summed when asked for. An upper of None means complete for ever.

    `holds` are the times that readers still need: since waits for the least of them.
    """

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.allowed = 0
        self.holds: dict[object, int] = {}
        self._since = 0
        self.upper: int | None = 0

    def write(self, updates: list[Update]) -> None:
        for _, time, diff in updates:
            if diff and (self.upper is None or time < self.upper):
                raise ModelError("UpdateNotBeyondUpper")
        self.updates += updates

    def seal(self, upper: int | None) -> None:
        if upper is not None and (self.upper is None or upper < self.upper):
            raise ModelError("FrontierRegression")
        self.upper = upper

    def allow_compaction(self, since: int) -> None:
        if since < self.since:
            raise ModelError("FrontierRegression")
        self.allowed = max(self.allowed, since)

    @property
    def since(self) -> int:
        self._since = max(self._since, min([self.allowed, *self.holds.values()]))
        return self._since

    def contents(self, as_of: int) -> dict[Any, int]:
        if as_of < self.since:
            raise ModelError("AsOfCompacted")
        if self.upper is not None and as_of >= self.upper:
            raise ModelError("AsOfNotSealed")
        sums: Counter[Any] = Counter()
        for record, time, diff in self.updates:
            if time <= as_of:
                sums[record] += diff
        return {record: n for record, n in sums.items() if n}

    def changes(self, lower: int, upper: int) -> dict[Any, int]:
        if lower <= self.since and (lower, self.since) != (0, 0):
            raise ModelError("AsOfCompacted")
        if upper > lower and self.upper is not None and upper > self.upper:
            raise ModelError("AsOfNotSealed")
        sums: Counter[Any] = Counter()
        for record, time, diff in self.updates:
            if lower <= time < upper:
                sums[record, time] += diff
        return {update: n for update, n in sums.items() if n}
