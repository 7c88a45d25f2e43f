"""The standard sets of data to measure with, by name, each at any scale.

    cdc-5m        5M updates over 2M keys, value of a 20-byte string, a double and a timestamp, 40 uneven batches,
                  10% of the changes delete
    cdc-5m-texts  the same with 1,000 different strings, to group by
    history-50m   500k keys with 100 updates each, 50M in all, 200 batches and seals
    newest-8m     2M keys are inserted, then the newest hundredth of them is changed: 8M updates, 160 batches and seals
    log-20m       20M inserts
    micro         100,000 batches of 10 rows: 100,000 keys are inserted, then changed
    flights       the aircraft of a year of departures from New York (`examples/flights.py`), a batch for each day

A `DataSet` is what a target (`benchmarks.targets`) or a measure needs of one: batches of updates, the net effect of
each seal, and the true contents at any time, found without summing diffs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.histories import Batch, History, Step
from examples import flights


class DataSet(Protocol):
    """A change history that can be asked for again and again; always the same."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> dict[str, pa.DataType]:
        """The one column of the key."""
        ...

    @property
    def value(self) -> dict[str, pa.DataType]: ...
    @property
    def uppers(self) -> list[int]:
        """What is sealed to, in order."""
        ...

    def batches(self) -> Iterator[Batch]: ...
    def steps(self) -> Iterator[Step]: ...
    def contents(self, times: Sequence[int]) -> list[pa.Table]:
        """Return the true contents as of each time, sorted by key."""
        ...


# So that n changes bring 2M keys, n * (1 + share of updates) is 5M, and 10% do delete: some that were to find nothing.
CDC = {"keys": 2_000_000, "rows": 5_000_000, "batch_count": 40, "uneven": True, "inserts": 0.537, "deletes": 0.109}

HISTORIES = {
    "cdc-5m": History(name="cdc-5m", **CDC),  # type: ignore[arg-type]
    "cdc-5m-texts": History(name="cdc-5m-texts", texts=1000, **CDC),  # type: ignore[arg-type]
    "history-50m": History(name="history-50m", keys=500_000, rows=50_000_000, batch_count=200, loaded=500_000),
    "newest-8m": History(
        name="newest-8m", keys=2_000_000, rows=8_000_000, batch_count=160, loaded=2_000_000, skew="newest"
    ),
    "log-20m": History(name="log-20m", keys=20_000_001, rows=20_000_000, batch_count=100, inserts=1.0),
    "micro": History(name="micro", keys=100_000, rows=1_000_000, batch_count=100_000, loaded=100_000, ticks=1),
}
NAMES = [*HISTORIES, "flights"]


def data_set(name: str, scale: float = 1.0, seed: int = 1) -> DataSet:
    """Return the standard set of that name, so many times its size.

    Raises:
        ValueError: there is none of that name, or the scale is not in (0, 1] for the flights, which are real.
    """
    if name == "flights":
        return Flights(scale)
    if name not in HISTORIES:
        raise ValueError(f"{name!r} is not a standard set: use one of {', '.join(NAMES)}")
    return replace(HISTORIES[name].scaled(scale), seed=seed)


@dataclass(frozen=True)
class Flights:
    """The aircraft of `examples/flights.py`: where each was last sent. Scaled, it is the first days of the year."""

    scale: float = 1.0
    name: str = "flights"

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise ValueError(f"scale={self.scale} of the flights: there is one year, so use more than 0 and at most 1")

    @property
    def key(self) -> dict[str, pa.DataType]:
        return {"tailnum": pa.string()}

    @property
    def value(self) -> dict[str, pa.DataType]:
        return flights.VALUE_FIELDS

    @property
    def uppers(self) -> list[int]:
        return [batch.upper for batch in self._days if batch.upper is not None]

    @cached_property
    def _days(self) -> list[Batch]:
        days = [Batch(moves, end) for end, moves, _ in flights.year_of_updates().days()]
        return days[: max(1, round(len(days) * self.scale))]

    def batches(self) -> Iterator[Batch]:
        yield from self._days

    def steps(self) -> Iterator[Step]:
        for day in self._days:
            assert day.upper is not None
            # An aircraft is never retracted for good: where it went last is what there is.
            yield Step(_last_of_each(day.updates), day.updates.select(["tailnum"]).slice(0, 0), day.upper)

    def contents(self, times: Sequence[int]) -> list[pa.Table]:
        updates = pa.concat_tables([day.updates for day in self._days])
        return [_last_of_each(updates.filter(pc.less_equal(updates["_time"], time))) for time in times]


def _last_of_each(updates: pa.Table) -> pa.Table:
    """Return the last record inserted for each aircraft, sorted; updates are in the order in which they happened."""
    inserted = updates.filter(pc.greater(updates["_diff"], 0)).drop_columns(["_time", "_diff"])
    tails = np.asarray(inserted["tailnum"].to_numpy(zero_copy_only=False), dtype=str)[::-1]
    _, last = np.unique(tails, return_index=True)
    return inserted.take(pa.array(len(tails) - 1 - last)).sort_by("tailnum")
