"""A streaming job that survives being killed: what each customer of a shop has spent, at every moment.

`orders` maps an order to its customer and its price. Orders are placed, changed and cancelled, each of which is an
update; every hour is sealed when it is over. The job follows these updates with Spark and keeps `totals`, which maps a
customer to the number of orders and what they come to. For every time before the upper of `totals`, its contents are
exactly the totals of `orders` as of that time. Kill the job whenever you like, and start it again.

Why nothing is lost or counted twice: a micro-batch holds all updates of its times. What it changes is written to
`totals` in one commit, with the seal that says how far `totals` has come, and only if it had come exactly so far before
(`expected_upper`). Spark repeats a micro-batch of which it does not know whether it was done, with the same updates;
the job then sees by the upper of `totals` that it was. Meanwhile the hold of the stream keeps the history of `orders`.

    python examples/totals.py LOCATION place [--hours N]   write N hours of orders; those already written stay
    python examples/totals.py LOCATION follow [--once]     keep totals up to date until killed, or until up to date
    python examples/totals.py LOCATION check               compare totals with a recomputation, at every time
"""

import argparse
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import persist

HOUR = 3600
OPENED = "2026-11-02T00:00:00Z"
CUSTOMERS = 25
UPDATES_PER_BATCH = 300

Spent = tuple[int, int]  # How many orders, and cents.


def open_orders(client: persist.Client) -> persist.Collection:
    """Return the collection of orders, whose times are seconds since 1970."""
    columns = {"customer": pa.string(), "cents": pa.int64()}
    return client.create_or_load("orders", key={"order_id": pa.int64()}, value=columns, timeline="s")


def open_totals(client: persist.Client) -> persist.Collection:
    """Return the derived collection, on the same timeline."""
    columns = {"orders": pa.int64(), "cents": pa.int64()}
    return client.create_or_load("totals", key={"customer": pa.string()}, value=columns, timeline="s")


def start(orders: persist.Collection) -> int:
    """Return the time at which the shop opened."""
    assert orders.timeline is not None
    return orders.timeline.to_time(OPENED)


def place_orders(location: str, hours: int) -> None:
    """Write so many hours since the shop opened. Whoever writes an hour again writes the same, under the same token."""
    with persist.open(location) as client:
        orders = open_orders(client)
        for hour, updates in enumerate(hours_of_trade(start(orders), hours)):
            token = f"hour {hour}"
            orders.write(updates, seal=start(orders) + (hour + 1) * HOUR, token=token).result()


def hours_of_trade(opened: int, hours: int) -> Iterator[list[Any]]:
    """Yield the updates of each hour: orders placed, and some older ones changed or cancelled."""
    chance = np.random.default_rng(11)
    standing: dict[int, tuple[str, int]] = {}
    for hour in range(hours):
        updates: list[Any] = []
        for second in np.sort(chance.choice(HOUR, size=40, replace=False)).tolist():
            time, what = opened + hour * HOUR + second, chance.random()
            order = int(chance.choice([*standing])) if standing and what < 0.35 else hour * HOUR + second
            if order in standing:
                updates.append(((order, standing[order]), time, -1))
            if order in standing and what < 0.1:
                del standing[order]
                continue
            standing[order] = (f"customer {chance.integers(CUSTOMERS):02}", int(chance.integers(100, 20_000)))
            updates.append(((order, standing[order]), time, +1))
        yield updates


def follow(location: str, *, once: bool) -> None:
    """Keep `totals` up to date; Spark's checkpoint is in the location's folder, beside what persist keeps there."""
    with persist.open(location) as client:
        spark = session()
        updates = (
            spark.readStream.format("persist")
            .option("collection", "orders")
            .option("form", "changes")
            .option("start", OPENED)
            .option("max_updates_per_trigger", UPDATES_PER_BATCH)
            .load(location)
        )
        writer = updates.writeStream.foreachBatch(keep(open_totals(client)))
        writer = writer.option("checkpointLocation", f"{location}-checkpoint")
        query = (writer.trigger(availableNow=True) if once else writer).start()
        query.awaitTermination()
        spark.stop()


def keep(totals: persist.Collection) -> Callable[[Any, int], None]:
    """Return what Spark calls with each micro-batch and its number."""
    from pyspark.sql import functions as sql

    def apply(batch: Any, number: int) -> None:
        spent = (sql.sum("_diff").alias("orders"), sql.sum(sql.col("cents") * sql.col("_diff")).alias("cents"))
        changes = batch.groupBy("_time", "customer").agg(*spent).toArrow().sort_by("_time")
        if not len(changes):
            return
        reached, end = totals.upper.time, changes["_time"][-1].as_py() + 1
        assert reached is not None, "totals are never complete"
        if end <= reached:
            print(f"micro-batch {number} was written before", flush=True)
            return
        updates = updates_of_totals(totals, reached, changes)
        # Whoever else has got here first has written the same, and this raises UpperMismatch.
        totals.write(updates, seal=end, expected_upper=reached).result()
        print(f"micro-batch {number}: {len(changes)} changes, sealed up to {end}", flush=True)

    return apply


def updates_of_totals(totals: persist.Collection, reached: int, changes: pa.Table) -> list[Any]:
    """Turn what orders changed, time by time, into what totals change."""
    now: dict[str, Spent] = {}
    if reached:
        touched = pc.field("customer").isin(changes["customer"].unique().to_pylist())
        now = dict(totals.snapshot(reached - 1, where=touched).rows())
    updates: list[Any] = []
    for row in changes.to_pylist():
        customer, before = row["customer"], now.get(row["customer"], (0, 0))
        after = (before[0] + row["orders"], before[1] + row["cents"])
        if after != before:
            updates += [((customer, before), row["_time"], -1)] if before[0] else []
            updates += [((customer, after), row["_time"], +1)] if after[0] else []
            now[customer] = after
    return updates


def session() -> Any:
    """Return a small Spark that nobody else on the network sees."""
    # PySpark 4.3 says at every start that it has not been tested with pandas 3, which is not used here.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .appName("totals")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def check(location: str) -> int:
    """Recompute totals at every time from since on at which orders change; return how many times were compared.

    Raises:
        AssertionError: at one of them they differ.
    """
    with persist.open(location, mode="read") as client:
        orders, totals = client.load("orders"), client.load("totals")
        upper, since = totals.upper.time or 0, max(orders.since.time or 0, start(orders))
        wanted: dict[str, Spent] = defaultdict(lambda: (0, 0))
        found: dict[str, Spent] = {}
        by_time: dict[int, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
        for side, collection in enumerate((orders, totals)):
            by_time[since][side].extend((record, 1) for record in collection.snapshot(since).rows())
            for record, time, diff in collection.changes(since + 1, upper).updates():
                by_time[time][side].append((record, diff))
        for time, (of_orders, of_totals) in sorted(by_time.items()):
            for (_, (customer, cents)), diff in of_orders:
                count, spent = wanted[customer]
                wanted[customer] = (count + diff, spent + diff * cents)
            for (customer, spent), diff in sorted(of_totals, key=lambda update: update[1]):
                assert diff > 0 or found[customer] == spent, f"at {time}, {customer} is taken back with {spent}"
                found[customer] = spent if diff > 0 else (0, 0)
            assert {k: v for k, v in found.items() if v[0]} == {k: v for k, v in wanted.items() if v[0]}, time
        assert dict(totals.snapshot(upper - 1).rows()) == {k: v for k, v in wanted.items() if v[0]}
        return len(by_time)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", help="a folder")
    parser.add_argument("what", choices=["place", "follow", "check"])
    parser.add_argument("--hours", type=int, default=24, help="how many hours of orders there are in all")
    parser.add_argument("--once", action="store_true", help="stop when totals are up to date")
    arguments = parser.parse_args()
    if arguments.what == "place":
        place_orders(arguments.location, arguments.hours)
    elif arguments.what == "follow":
        follow(arguments.location, once=arguments.once)
    else:
        print(f"totals are right at all of {check(arguments.location)} times")


if __name__ == "__main__":
    main()
