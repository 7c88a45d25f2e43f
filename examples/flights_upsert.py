"""The same year of departures, told as events: "this aircraft was sent there", and nothing about where it was before.

`examples/flights.py` works out by hand what each departure retracts. Here the collections are keyed, so a departure is
an upsert, and what it replaces is looked up when its day is sealed. Both come to the same contents at every time.

    python examples/flights_upsert.py LOCATION --like OTHER   write the year, and compare it with what is at OTHER
"""

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

import persist

sys.path.insert(0, str(Path(__file__).parent.parent))  # As a script, it finds the checkout.
from examples.flights import DAY, NOON_4_JULY, VALUE_FIELDS, clock, digest, year_of_updates


def open_keyed(client: persist.Client) -> tuple[persist.Collection, persist.Collection]:
    """Return the collections `aircraft` and `airports`, which take events by key here."""
    keyed = persist.Keyed()
    aircraft = client.create_or_load("aircraft", key={"tailnum": pa.string()}, value=VALUE_FIELDS, keyed=keyed)
    airports = client.create_or_load("airports", key={"dest": pa.string()}, value={"aircraft": pa.int64()}, keyed=keyed)
    return aircraft, airports


def events(updates: pa.Table) -> pa.Table:
    """Return what is inserted, without what that retracts."""
    return updates.filter(pc.greater(updates["_diff"], 0)).drop_columns(["_diff"])


def upsert_days(client: persist.Client, days: Iterable[tuple[int, pa.Table, pa.Table]]) -> tuple[int, int]:
    """Upsert day by day, sealing each day; return how many events there were, and the end of the last day."""
    count, end = 0, 0
    collections = open_keyed(client)
    for end, *tables in days:
        for collection, table in zip(collections, map(events, tables), strict=True):
            collection.upsert(table, seal=end).result()
            count += len(table)
    return count, end


def run(location: str, like: str, days: int | None) -> None:
    """Upsert the year day by day, and compare."""
    began = time.perf_counter()
    with persist.open(location) as client:
        year = [*year_of_updates().days()][:days]
        count, end = upsert_days(
            client, tqdm(year, desc="upserting", unit="day", leave=False, file=sys.stdout, disable=None)
        )
        print(f"{len(year)} of these days as upserts, without retractions: {count:,} events ", end="")
        print(f"in {time.perf_counter() - began:.1f} s, in {location}.")
        times = [t for t in (DAY - 1, NOON_4_JULY, end - 1) if t < end]
        with persist.open(like, mode="read") as other:
            for as_of in times:
                assert digest(client, as_of) == digest(other, as_of), f"upserts and updates differ at {clock(as_of)}"
        print(f"Their digests at {', '.join(map(clock, times))} are those of the updates. Identical.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", help="a folder or URL; the year is written there")
    parser.add_argument("--like", required=True, help="where examples/flights.py has written it")
    parser.add_argument("--days", type=int, help="only so many days of it")
    arguments = parser.parse_args()
    run(arguments.location, arguments.like, arguments.days)


if __name__ == "__main__":
    main()
