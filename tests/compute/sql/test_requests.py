"""How many requests a refresh makes: the counts depend on no machine, so they are exact."""

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.dataflow import Program, col
from persist.sql import answer
from tests.compute.index.always import QUIET
from tests.support.watched import WatchedBlob

JOINED = "SELECT g, count(*) AS n, sum(amount) AS total FROM facts JOIN dims USING (d) GROUP BY g"


def list_asked(store: WatchedBlob) -> list[str]:
    """Return what a store was asked for, each with the folder of its key."""
    return [f"{operation} {key.split('/')[0]}" for operation, key in store.asked]


def filled(store: WatchedBlob) -> None:
    """Make facts, dimensions and a view of them, with a checkpoint behind them."""
    with persist.open(store, settings=QUIET) as client:
        facts = client.create_or_load("facts", key={"id": int}, value={"d": int, "amount": int})
        dims = client.create_or_load("dims", key={"d": int}, value={"g": int})
        facts.write([((n), (n % 10, n)) for n in range(1000)], time=0, seal=1).result()
        dims.write([(d, d % 3) for d in range(10)], time=0, seal=1).result()
        client.create_view("totals", JOINED).refresh()
        while client.seqno % 16:
            client.describe(f"at {client.seqno}").result()
        client.maintain()


def change(store: WatchedBlob, time: int) -> None:
    with persist.open(store, settings=QUIET) as client, client.multi_write() as multi:
        facts, dims = client.load("facts"), client.load("dims")
        multi.write(facts, [((n + 1000 * time), (n, 1)) for n in range(10)], time=time)
        multi.seal(facts, time + 1)
        multi.seal(dims, time + 1)


def test_a_fresh_process_that_refreshes_a_view_asks_for_little() -> None:
    store = WatchedBlob(MemoryBlob())
    filled(store)
    change(store, 1)
    store.asked.clear()
    with persist.open(store, settings=QUIET) as client:
        opened = len(store.asked)
        client.view("totals").refresh(policy="incremental")
    asked = list_asked(store)
    assert asked[opened:] == [
        "get log",  # The view is looked up.
        "get log",  # The refresh looks once, and finds nothing new.
        "get log",  # The newest record is there,
        "create log",  # and the store refuses it: that it does so must be seen before a client may write.
        "create log",  # The commit.
        "get log",  # What it follows is there still.
    ]
    assert len(asked) <= 14, asked


def test_a_refresh_that_knows_of_something_to_do_still_finds_what_others_wrote() -> None:
    store = WatchedBlob(MemoryBlob())
    filled(store)
    with persist.open(store, settings=QUIET) as client:
        view = client.view("totals")
        for time in (1, 2):
            change(store, 2 * time)
            assert (
                client["facts"].upper.time == client["dims"].upper.time == 2 * time + 1
            )  # This client knows of that, and not of what follows.
            change(store, 2 * time + 1)
            assert view.refresh(policy="incremental").time == 2 * time + 2
            with client.sql(JOINED) as wanted:
                assert sorted(wanted.to_arrow().to_pylist(), key=str) == sorted(
                    view.snapshot().to_arrow().to_pylist(), key=str
                )
            view.open_state()  # Once by a step, once by a handle that keeps its state.


def test_a_refresh_of_an_open_handle_looks_once_and_commits_once() -> None:
    store = WatchedBlob(MemoryBlob())
    filled(store)
    with persist.open(store, settings=QUIET) as client:
        view = client.view("totals")
        view.open_state()
        change(store, 1)
        view.refresh()
        change(store, 2)
        store.asked.clear()
        view.refresh()
        changed = list_asked(store)
        store.asked.clear()
        view.refresh()
        assert list_asked(store) == ["get log"]
    commit = changed.index("create log")
    assert {*changed[:commit]} <= {"get log"}  # Records of others, and none after them.
    after = changed[commit + 1 :]
    assert 0 < len(after) <= 2
    assert {*after} == {"get log"}  # What the commit follows is there still.


def test_a_query_may_be_part_of_a_program() -> None:
    program = Program("mixed")
    orders = program.input("orders", key={"id": pa.int64()}, value={"k": pa.string(), "n": pa.int64()})
    large = orders.filter(col("n") > 1)
    totals = answer(program, "SELECT k, max(n) AS most FROM big GROUP BY k", big=large)
    seen = totals.filter(col("most") < 9).capture()
    with program.open() as running:
        running["orders"].insert([((1, ("x", 5)), 0, 1), ((2, ("x", 1)), 0, 1), ((3, ("y", 9)), 0, 1)])
        running["orders"].advance_to(1)
        running.step()
        assert seen.rows() == [(("x", 5), 0, 1)]


def test_a_query_of_a_program_reads_collections_that_a_client_knows() -> None:
    with persist.open("memory://inside") as client:
        source = client.create_or_load("numbers", key={"n": pa.int64()})
        source.write([((n, None), 0, 1) for n in range(5)], seal=1).result()
        program = Program("counting").using(client)
        answer(program, "SELECT count(*) AS n FROM numbers WHERE n > 1").persist("counted", key=["n"])
        with program.open(client) as running:
            running.step()
        assert client.load("counted").snapshot().to_arrow()["n"].to_pylist() == [3]


def test_names_that_are_nothing_are_refused() -> None:
    program = Program("mixed")
    program.input("orders", key={"id": pa.int64()})
    with pytest.raises(persist.InvalidUsage, match="no collection of that name"):
        answer(program, "SELECT id FROM orders")
    with pytest.raises(persist.InvalidUsage, match="is not a stream"):
        answer(program, "SELECT id FROM orders", orders=3)  # type: ignore[arg-type]
