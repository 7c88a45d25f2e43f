"""Locations to look at, and the page that shows one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

import persist
from persist.tools.web.app import serve_page

NASTY = '<img src=x onerror="window.hacked=1"><b>bold</b>\u202e\x1b[31m'
START = datetime(2026, 11, 21, 8, tzinfo=UTC)


def fill(folder: Path) -> None:
    """Make a shop: orders that change, items by the minute, and names that are not markup."""
    with persist.open(folder, settings=persist.Settings(background=False)) as client:
        orders = client.create_or_load(
            "orders", key={"order_id": pa.int64()}, value={"status": pa.string(), "amount": pa.float64()}
        )
        for day in range(8):
            rows = [((day * 40 + n, ("new", float(n))), day * 10, 1) for n in range(40)]
            rows += [((day * 40 - 40 + n, ("new", float(n))), day * 10 + 3, -1) for n in range(20) if day]
            rows += [((day * 40 - 40 + n, ("paid", float(n))), day * 10 + 3, 1) for n in range(20) if day]
            orders.write(rows, seal=day * 10 + 10, message=f"day {day}").result()
            if day in (3, 5):
                orders.compact()
        orders.hold(25, name="nightly-report")
        orders.allow_compaction(20).result()
        orders.write([((999, ("late", 1.0)), 95, 1)]).result()
        items = client.create_or_load(
            "shop.items", key={"shop": pa.string(), "item": pa.int64()}, value={"stock": pa.int32()}, timeline="s"
        )
        for minute in range(6):
            at = START + timedelta(minutes=minute)
            items.write([((("north", 1), minute), at, 1)], seal=at + timedelta(seconds=1)).result()
        nasty = client.create_or_load("<i>strange<i>", key={"<u>k<u>": pa.string()})
        nasty.write([((NASTY, None), 0, 1)], seal=1).result()
        client.create_or_load("empty", key={"k": pa.int64()})


def add_views(folder: Path) -> None:
    """Add two views to the shop, the one of the other."""
    with persist.open(folder, settings=persist.Settings(background=False)) as client:
        paid = client.create_view("paid", "SELECT order_id, amount FROM orders WHERE status = 'paid'")
        total = client.create_view("total", "SELECT sum(amount) AS total FROM paid")
        for view in (paid, total):
            view.refresh()
            view.close()


@contextmanager
def shown(folder: Path, token: str | None = None) -> Iterator[str]:
    """Serve the page of a location; yield its address."""
    with persist.open(folder, mode="read") as client, serve_page(client, "127.0.0.1", 0, token) as page:
        thread = threading.Thread(target=page.run)
        thread.start()
        try:
            yield page.url
        finally:
            page.stop()
            thread.join()
