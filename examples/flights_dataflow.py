"""Flights as a dataflow: three views of departures, kept up to date while the departures arrive, day by day.

`departures` is a log. From it one program keeps:
- `aircraft-per-airport`: how many aircraft were last sent to each destination;
- `delays-per-carrier`: departures and delays of each carrier in the last 24 hours, a sliding window;
- `reach`: which airports each aircraft can have seen that began at JFK, by its hops there and back: an iteration.
All three are sealed together, so they always speak of the same time. Time is minutes since 2013-01-01 00:00.

    python examples/flights_dataflow.py LOCATION [--days N]
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parent.parent))

import persist
from examples.flights import DAY, EPOCH, read_departures
from persist.dataflow import Program, Stream, col, lit

COLUMNS = {
    "number": pa.int64(),
    "tailnum": pa.string(),
    "carrier": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "delay": pa.int64(),
    "minute": pa.int64(),
}


def program() -> Program:
    """Return the program of the three views."""
    made = Program("flights")
    departures = made.source("departures", schema=COLUMNS)
    last = departures.project("tailnum", "minute", "number", "dest").upsert("tailnum", order_by=["minute", "number"])
    last.group_by("dest").count("aircraft").persist("aircraft-per-airport", key=["dest"])
    window = departures.temporal_filter(col("minute"), col("minute") + DAY)
    delays = window.group_by("carrier").agg(
        departures=lit(1).sum(), mean_delay=col("delay").mean(), worst=col("delay").max()
    )
    delays.persist("delays-per-carrier", key=["carrier"])
    reach(departures).persist("reach", key=["tailnum", "airport"])
    return made


def reach(departures: Stream) -> Stream:
    """Return which airports (column airport) each aircraft can have seen that began at JFK."""
    there = departures.map(tailnum=col("tailnum"), here=col("origin"), airport=col("dest"))
    back = departures.map(tailnum=col("tailnum"), here=col("dest"), airport=col("origin"))
    hops = (there + back).distinct()
    start = hops.filter(col("here") == "JFK").map(tailnum=col("tailnum"), airport=lit("JFK")).distinct()

    def body(seen: Stream) -> Stream:
        following = seen.rename({"airport": "here"}).join(hops, ["tailnum", "here"]).project("tailnum", "airport")
        return (following + start).distinct()

    return start.iterate(body, name="reach")


def departures_by_day() -> Iterator[tuple[int, pa.Table]]:
    """Yield the end of each day in minutes, and its departures as updates."""
    rows = read_departures()
    rows = rows.filter(pc.and_(pc.is_valid(rows["tailnum"]), pc.is_valid(rows["dep_delay"])))
    parts = [
        np.asarray(rows[name]).astype(np.int64) for name in ("year", "month", "day", "sched_dep_time", "dep_delay")
    ]
    year, month, day, scheduled, delay = parts
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = (months.astype("datetime64[D]") - np.datetime64(EPOCH, "D")).astype(np.int64) + day - 1
    minute = days * DAY + scheduled // 100 * 60 + scheduled % 100 + delay
    order = np.argsort(minute, kind="stable")
    minute = np.maximum(minute[order], np.int64(0))
    taken = rows.take(pa.array(order))
    table = pa.table(
        {
            "number": np.arange(len(order)),
            **{name: taken[name].cast(pa.string()) for name in ("tailnum", "carrier", "origin", "dest")},
            "delay": taken["dep_delay"].cast(pa.int64()),
            "minute": minute,
            "_time": minute,
            "_diff": np.ones(len(order), np.int64),
        }
    )
    for end in range(DAY, int(minute[-1]) + DAY + 1, DAY):
        first, last = minute.searchsorted([end - DAY, end])
        yield end, table.slice(first, last - first)


def keep_up(client: persist.Client, days: int) -> float:
    """Write so many days, and keep the views up to date; return the seconds that the program took."""
    value = {name: kind for name, kind in COLUMNS.items() if name != "number"}
    departures = client.create_or_load("departures", key={"number": pa.int64()}, value=value)
    taken = 0.0
    with program().open(client) as running:
        for _, (end, updates) in zip(range(days), departures_by_day(), strict=False):
            departures.write(updates, seal=end).result()
            began = time.perf_counter()
            running.step()
            taken += time.perf_counter() - began
    return taken


def most(client: persist.Client, name: str, column: str) -> dict[str, Any]:
    """Return the row of a view, as of its last sealed time, that has the most in a column."""
    row: dict[str, Any] = (
        client.load(name).snapshot().to_arrow().sort_by([(column, "descending")]).slice(0, 1).to_pylist()[0]
    )
    return row


def tell(client: persist.Client) -> str:
    """Return what the views hold as of their last sealed time."""
    airport = most(client, "aircraft-per-airport", "aircraft")
    carrier = most(client, "delays-per-carrier", "departures")
    seen = client.load("reach").snapshot().to_arrow().group_by("tailnum").aggregate([("airport", "count")])
    return (
        f"{airport['aircraft']} aircraft were last sent to {airport['dest']}; {carrier['carrier']} left "
        f"{carrier['departures']} times in 24 hours, {carrier['mean_delay']:.0f} minutes late; "
        f"one aircraft reaches {pc.max(seen['airport_count'])} airports from JFK."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("location")
    parser.add_argument("--days", type=int, default=30)
    given = parser.parse_args(arguments)
    with persist.open(given.location) as client:
        taken = keep_up(client, given.days)
        print(f"A dataflow kept three views of {given.days} days, a commit a day, in {taken:.1f} s.")
        print(f"They say: {tell(client)}")


if __name__ == "__main__":
    main()
