"""Every public operation of a client, sorted into those that only read and those that write; and all reads at once."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import persist
from persist import slider
from persist.engine.read.lookups.requested_keys import find_distinct_keys
from tests.support.stepped import WAIT_S

CLIENT_READS = {
    "about", "close", "collections", "comment", "create_function", "create_or_load", "follow", "fsck", "history",
    "load", "metrics", "mode", "policy", "properties", "seqno", "serve", "snapshots", "sql", "url", "view",
}  # fmt: skip
CLIENT_WRITES = {
    "clone",
    "create_view",
    "describe",
    "drop",
    "rename",
    "gc",
    "maintain",
    "multi_write",
    "publish",
    "set_policy",
    "upgrade",
    "write",
}
COLLECTION_READS = {
    "about", "as_of_join", "changes", "columns", "comment", "count", "diff", "erasures", "get", "head", "history", "id",
    "holds", "indexes", "late_bound", "late_counts", "listen", "name", "needs", "properties", "published", "retention",
    "since", "snapshot", "subscribe", "tags", "timeline", "to_arrow", "to_pandas", "to_polars",
    "to_pylist", "traces", "unsealed", "upper", "upserts",
}  # fmt: skip
COLLECTION_WRITES = {
    "advance_late_bound", "allow_compaction", "compact", "delete", "describe", "drop", "drop_index", "erase", "evolve",
    "follow", "hold", "index", "overwrite", "publish", "rename", "restore",
    "retain", "seal", "seal_to", "unpublish", "tag", "transition", "untag", "update", "upsert", "write",
}  # fmt: skip

KEY = {"k": pa.int64()}
VALUE = {"v": pa.string()}
ROWS = 20_000  # Enough for a part of its own.


def table(time: int, rows: int = ROWS) -> pa.Table:
    """Return updates enough for a part in a blob of its own."""
    values = [f"{k:032}" for k in range(rows)]
    return pa.table({"k": range(rows), "v": values, "_time": [time] * rows, "_diff": [1] * rows})


def fill(client: persist.Client) -> None:
    """Make a collection with something of everything in it: sealed up to 4, complete times 0 to 3."""
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    orders.write(table(0), token="first", seal=1)
    orders.write([((1, "a"), 1, 1), ((2, "b"), 2, 1), ((1, "a"), 3, -1)])
    orders.seal(4).result()
    orders.hold(1, name="consumer")
    client.create_or_load("other", key=KEY).seal(9).result()


def read_everything(client: persist.Client) -> None:
    """Do all that reads, on what `fill` made, in every form in which a result can be taken."""
    assert client.url
    assert client.mode == "read"
    assert client.collections() == ["orders", "other"]
    assert client.seqno >= 0
    client.create_function("as_it_is", lambda values: values, [pa.int64()], pa.int64(), version=1)
    client.load("other")
    assert [held.count() for held in client.snapshots({"orders": 3, "other": None}).values()][1] == 0
    orders = client.create_or_load("orders", key=KEY, value=VALUE)
    assert (orders.upper, orders.since) == (persist.Antichain(4), persist.Antichain(0))
    assert [hold.name for hold in orders.holds()] == ["consumer"]
    assert orders.timeline is None
    assert (client.about.comment, client.comment, orders.about.comment, orders.comment) == ("",) * 4
    assert client.properties == {}
    assert orders.properties == {}
    assert (orders.tags(), orders.retention) == ({}, None)
    assert client.history().num_rows >= orders.history().num_rows > 0
    assert orders.unsealed is None
    assert slider(orders, 2).shown["as_of"] == "2"
    assert orders.published() == []
    assert orders.indexes() == []
    assert orders.get(where="k = 5").num_rows == 1
    assert (orders.handle.as_time("time", 3), orders.handle.as_bound("time", 3)) == (3, 3)
    assert orders.as_of_join({"k": [5], "at": [2]})["v"].to_pylist() == [f"{5:032}"]
    for form in ("rows", "diff"):
        with orders.snapshot(2, form=form) as snapshot:
            assert snapshot.to_arrow().num_rows == snapshot.count() == ROWS + 2
            assert len(snapshot.to_pandas()) == len(snapshot.to_polars()) == len(list(snapshot.rows()))
            assert sum(batch.num_rows for batch in snapshot.to_batches()) == pa.table(snapshot).num_rows
            assert snapshot.slices(2)
            assert sum(table.num_rows for table in snapshot.iterate_unsummed()) >= ROWS + 2
            assert len(snapshot.digest()) == 32
    assert orders.snapshot(columns=["k"], where=pc.field("k") < 3).count() == 4
    with orders.changes(1, 4) as changes:
        assert len(list(changes.updates())) == changes.to_arrow().num_rows == 3
    listen = orders.listen(1)
    progress = listen.poll(timeout_s=WAIT_S)
    assert progress is not None
    assert progress.updates.num_rows == 2
    listen.close()
    subscription = orders.subscribe(1)
    assert next(iter(subscription)).updates.num_rows == ROWS + 1
    subscription.close()
    together = client.follow({orders: 1}, contents=True)
    assert next(together)[orders].updates.num_rows == ROWS + 1
    together.close()
    for name in ("fsck", "metrics"):
        if callable(found := getattr(client, name, None)):
            found()


def writes(client: persist.Client) -> list[Callable[[], object]]:
    """Return a call of every operation that writes."""
    orders = client.load("orders")
    found: list[Callable[[], object]] = [
        client.gc,
        client.maintain,
        client.multi_write,
        lambda: client.set_policy(grace_s=7200),
        client.upgrade,
        lambda: client.drop("orders"),
        lambda: client.create_or_load("new", key=KEY),
        lambda: orders.write([((1, "a"), 9, 1)]),
        lambda: orders.write(table(9)),
        lambda: orders.overwrite([(1, "a")], time=9),
        lambda: orders.delete([1], time=9),
        lambda: orders.seal(9),
        lambda: orders.allow_compaction(1),
        lambda: orders.hold(2),
        lambda: orders.hold(2, name="mine"),
        lambda: orders.hold(name="consumer"),
        lambda: orders.tag("now-and-then", 2),
        lambda: orders.untag("now-and-then"),
        lambda: orders.retain(3),
        lambda: orders.evolve(add={"note": pa.string()}),
        lambda: orders.describe("all of them"),
        lambda: orders.rename("others"),
        lambda: client.describe("here"),
        lambda: client.rename("orders", "others"),
        lambda: orders.follow("consumer"),
        orders.drop,
    ]
    if callable(compact := getattr(orders, "compact", None)):
        found.append(compact)
    return found


def rows_with(snapshot: persist.Snapshot, keys: Any) -> pa.Table:
    """Return the rows with certain keys as Arrow data, in whatever form the keys are."""
    found: pa.Table = snapshot.get(find_distinct_keys(keys, snapshot.scan.schema))
    return found
