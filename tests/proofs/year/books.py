"""What each collection of the year should hold: dicts, and no code of the library."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

Rows = dict[int, tuple[Any, ...]]  # The values of each key.

EVENINGS = 6  # So many days back can be read: a week is kept.
DAYS_KEPT = 8  # A week, and the present day.


class Books:
    """Contents by collection, and what some collections held on evenings of the last days."""

    def __init__(self) -> None:
        self.rows: dict[str, Rows] = {}
        self.evenings: deque[tuple[int, dict[str, Rows]]] = deque(maxlen=EVENINGS)
        self.updates: deque[int] = deque([0], maxlen=DAYS_KEPT)  # Written on each of the last days.

    def note_evening(self, time: int, names: Iterable[str]) -> None:
        """Remember what collections hold as of a time."""
        self.evenings.append((time, {name: dict(self.rows[name]) for name in names}))

    def begin_day(self) -> None:
        """Count updates for another day."""
        self.updates.append(0)

    @property
    def needed_updates(self) -> int:
        """How many updates make up what can be read: the contents, and what was written in the time that is kept."""
        return sum(map(len, self.rows.values())) + sum(self.updates)

    def add_column(self, name: str, default: Any) -> None:
        """Do what an evolution does to all times: older records have the default."""
        for rows in self._all_times(name):
            rows.update({key: (*values, default) for key, values in rows.items()})

    def drop_column(self, name: str) -> None:
        """Take the last column from all records of all times."""
        for rows in self._all_times(name):
            rows.update({key: values[:-1] for key, values in rows.items()})

    def erase(self, name: str, keys: Iterable[int]) -> None:
        """Take records out of all times."""
        for rows in self._all_times(name):
            for key in keys:
                rows.pop(key, None)

    def forget(self, name: str) -> None:
        """Know nothing of a collection any more."""
        del self.rows[name]
        for _, held in self.evenings:
            held.pop(name, None)

    def copy(self) -> "Books":
        """Return books of their own that say the same."""
        copied = Books()
        copied.rows = {name: dict(rows) for name, rows in self.rows.items()}
        copied.evenings.extend((time, {n: dict(rows) for n, rows in held.items()}) for time, held in self.evenings)
        copied.updates.clear()
        copied.updates.extend(self.updates)
        return copied

    def totals(self, name: str, label: Mapping[str, str] | None = None) -> dict[str, tuple[int, int]]:
        """Return the sum and number of amounts of each shop of a stock; label says by what else to group them."""
        totals: dict[str, tuple[int, int]] = {}
        for shop, amount, *_ in self.rows[name].values():
            if label is None or shop in label:
                group = shop if label is None else label[shop]
                total, count = totals.get(group, (0, 0))
                totals[group] = total + amount, count + 1
        return totals

    def _all_times(self, name: str) -> list[Rows]:
        return [self.rows[name], *(held[name] for _, held in self.evenings if name in held)]
