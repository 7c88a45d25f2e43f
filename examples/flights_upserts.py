"""The same two collections as `flights.py`, by upserts: a departure says where its aircraft is sent, and nothing else.

What was true before is retracted by the library, at the seal of each day. At the end, the updates and the digest are
those that `flights.py` writes by hand.

    python examples/flights_upserts.py LOCATION [--days N]
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent.parent))  # Where the examples are, if this is run as a script.

import persist
from examples import flights


def open_keyed(client: persist.Client) -> tuple[persist.Collection, persist.Collection]:
    """Return the collections of `flights.open_collections`, keyed; made if need be."""
    keyed = persist.Keyed()
    aircraft = client.create_or_load("aircraft", key={"tailnum": pa.string()}, value=flights.VALUE_FIELDS, keyed=keyed)
    airports = client.create_or_load("airports", key={"dest": pa.string()}, value={"aircraft": pa.int64()}, keyed=keyed)
    return aircraft, airports


def events(updates: pa.Table) -> pa.Table:
    """Return what became true, without what that put an end to."""
    return updates.filter(pc.greater(updates["_diff"], 0)).drop_columns(["_diff"])


def upsert_days(client: persist.Client, days: Iterator[tuple[int, pa.Table, pa.Table]]) -> int:
    """Upsert day by day, sealing each day; return the end of the last one."""
    aircraft, airports = open_keyed(client)
    last = 0
    for end, moves, counts in days:
        aircraft.upsert(events(moves), seal=end)
        airports.upsert(events(counts), seal=end).result()
        last = end
    aircraft.seal(last).result()
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", help="a new folder, or any location that persist.open takes")
    parser.add_argument("--days", type=int, help="only so many days of the year")
    arguments = parser.parse_args()
    year = flights.year_of_updates()
    days = [*islice(year.days(), arguments.days)]
    with persist.open(arguments.location) as client, persist.open("memory://by-hand") as other:
        end = upsert_days(client, iter(tqdm(days, desc="upserting", unit="day", file=sys.stdout)))
        for (_, moves, counts), collections in ((day, flights.open_collections(other)) for day in days):
            for collection, updates in zip(collections, (moves, counts), strict=True):
                collection.write(updates)
        for collection in flights.open_collections(other):
            collection.seal(end).result()
        digests = [flights.digest(each, end - 1) for each in (client, other)]
        for name in ("aircraft", "airports"):
            by_upserts, by_hand = (each.load(name).changes(0, end).to_arrow() for each in (client, other))
            assert by_upserts == by_hand, f"the updates of {name} differ"
            print(f"{name}: {len(by_upserts):,} updates, the same as written by hand")
        assert digests[0] == digests[1], "the digests differ"
        print(f"digest as of {flights.clock(end - 1)}: {digests[0]}, the same as by hand")


if __name__ == "__main__":
    main()
