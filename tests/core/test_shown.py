"""What a person sees of clients, collections and reports, in a terminal and a notebook; and how event loops wait."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.core.rendering import list_some
from persist.core.settings import Tuning

QUIET = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e"


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
        orders.write([((1, "a"), 0, 1)], seal=1).result()
        client.create_or_load("<b>bold</b>".replace("/", ""), key={"<i>": pa.int64()})
        orders.describe(HOSTILE, properties={HOSTILE: HOSTILE}, columns={"v": HOSTILE}).result()
        client.describe(HOSTILE).result()
        yield client


def everything(client: persist.Client) -> dict[str, Any]:
    orders = client["orders"]
    orders.retain(5).result()
    return {
        "client": client,
        "collection": orders,
        "snapshot": orders.snapshot(),
        "explain": orders.snapshot().explain(),
        "changes": orders.changes(0, 1),
        "listen": orders.listen(),
        "joint": client.follow({orders: 0}),
        "following": orders.follow("mailer"),
        "metrics": client.metrics(),
        "fsck": client.fsck(),
        "compaction": orders.compact(),
        "garbage": client.gc(),
        "retention": orders.retention,
        "collections": client.collections(),
    }


def test_everything_shows_itself_in_a_terminal_and_in_a_notebook(client: persist.Client) -> None:
    for name, each in everything(client).items():
        text, html = repr(each), each._repr_html_()
        assert "object at 0x" not in text, name
        assert text.strip(), name
        assert html.startswith(("<table>", "<pre>")), name
        for shown in (text, html):
            assert not any(ord(c) < 32 and c != "\n" for c in shown), name
            assert "\u202e" not in shown, name
        assert "<script>" not in html, name
        assert "<b>" not in html, name
        assert "<i>" not in html, name
        if hasattr(each, "close") and each is not client:
            each.close()


def test_what_a_notebook_shows_of_a_collection_is_what_a_person_asks_for(client: persist.Client) -> None:
    html = client["orders"]._repr_html_()
    for expected in ("orders", "upper", "key k", "int64", "&lt;script&gt;", "string"):
        assert expected in html
    assert "&lt;b&gt;bold&lt;b&gt;, orders" in client._repr_html_()
    assert str(client.gc()) == repr(client.gc()) == "nothing to delete"
    assert "p50 ms" in repr(client.metrics())
    assert repr(client["orders"].listen()) == "<Listen to 'orders', next time 0>"


def test_an_event_loop_opens_writes_and_follows() -> None:
    async def run() -> list[int]:
        found = []
        async with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
            orders = client.create_or_load("orders", key={"k": pa.int64()})
            async with client.multi_write() as multi:
                multi.write(orders, [((1, None), 0, 1)])
                multi.seal(orders, 1)
            await orders.write([((2, None), 1, 1)], seal=persist.Antichain())
            async with orders.listen() as listen:
                async for progress in listen:
                    found += progress.updates["k"].to_pylist()
            async with client.follow({orders: 0}) as together:
                found += [len(step[orders].updates) async for step in together]
        assert client.engine.is_closed
        return found

    assert asyncio.run(run()) == [1, 2, 1]


def test_a_cancelled_wait_loses_no_progress() -> None:
    async def run() -> list[int]:
        async with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
            orders = client.create_or_load("orders", key={"k": pa.int64()})
            async with orders.listen() as listen:
                waiting = asyncio.ensure_future(anext(listen))
                await asyncio.sleep(0)  # So that it waits.
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                await orders.write([((1, None), 0, 1)], seal=1)
                return (await anext(listen)).updates["k"].to_pylist()  # type: ignore[no-any-return]

    assert asyncio.run(run()) == [1]


def test_a_client_that_closes_while_a_task_waits_leaves_no_error_behind() -> None:
    left_behind: list[str] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: left_behind.append(context["message"]))
        client = persist.open(persist.MemoryBlob(), settings=QUIET)
        listen = client.create_or_load("orders", key={"k": pa.int64()}).listen()
        waiting = asyncio.ensure_future(anext(listen))
        await asyncio.sleep(0)  # So that it waits.
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(client.close)
        step = listen._coming
        assert step is not None
        await asyncio.wait([step])
        del step, waiting, listen

    asyncio.run(run())
    gc.collect()
    assert left_behind == []


def test_a_notebook_shows_the_first_rows_of_what_is_read(client: persist.Client) -> None:
    orders = client["orders"]
    rows = [((k, HOSTILE), 1, 1) for k in range(2, 30)]
    orders.write(rows, seal=2).result()
    html = orders.snapshot()._repr_html_()
    assert '<td style="text-align:left">1</td>' in html
    assert html.count("<tr>") == 1 + 10
    assert "more rows" in html
    assert "<script>" not in html
    closed = orders.snapshot()
    closed.close()
    assert "Snapshot" in closed._repr_html_()


def test_a_list_of_collections_is_a_table_of_what_is_known_of_them(client: persist.Client) -> None:
    found = client.collections("orders")
    assert found == ["orders"], "it is a list all the same"
    clicks = client.create_or_load("clicks", key={"page": pa.string()}, timeline="s")
    clicks.write([("/", None)], time="2026-11-21T12:00:00Z", seal="2026-11-22").result()
    clicks.describe("pages seen").result()
    client.create_or_load("empty", key=None)
    assert repr(client.collections("c")).splitlines() == [
        "name    rows  sealed before         comment",
        "clicks     1  2026-11-22T00:00:00Z  pages seen",
    ]
    assert repr(client.collections("empty")).splitlines()[1].split() == ["empty", "0", "-"]
    assert repr(client.collections("none")) == "no collections"
    assert "<td" in client.collections("c")._repr_html_()


def test_a_long_list_of_collections_says_how_many_more_there_are(client: persist.Client) -> None:
    for number in range(52):
        client.create_or_load(f"t{number:02}", key=None)
    assert repr(client.collections("t")).splitlines()[-1] == "… and 2 more"
    assert "… and 2 more" in client.collections("t")._repr_html_()


def test_a_client_shows_its_collections_with_what_it_knows_of_their_times(tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        client.create_or_load("a<b", key={"k": int}, timeline="s").seal("2026-11-21T00:00:00Z").result()
        client.create_or_load("done", key={"k": int}).seal(persist.Antichain()).result()
        shown = client._repr_html_()
    assert "a&lt;b" in shown
    assert "2026-11-21T00:00:00Z" in shown
    assert "for ever" in shown


def test_an_error_lists_no_more_names_than_a_person_reads() -> None:
    assert list_some(["a", "b"]) == "['a', 'b']"
    assert list_some([f"n{n}" for n in range(1_023)]).endswith("'n19'] and 1,003 more")
