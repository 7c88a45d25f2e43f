"""How many requests a refresh makes: the counts depend on no machine, so they are exact."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import BlobEntry, MemoryBlob
from persist.dataflow import Program, col
from persist.sql import answer
from tests.compute.index.always import QUIET

JOINED = "SELECT g, count(*) AS n, sum(amount) AS total FROM facts JOIN dims USING (d) GROUP BY g"


class Counted(MemoryBlob):
    """A store in memory that several clients open, and that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._lock_of_asked = threading.Lock()

    def _ask(self, what: str, key: str) -> None:
        with self._lock_of_asked:
            self.asked.append(f"{what} {key}")

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        self._ask("get", key)
        return super().get(key, range)

    def create(self, key: str, value: bytes) -> bool:
        self._ask("create", key)
        return super().create(key, value)

    def set(self, key: str, value: bytes) -> None:
        self._ask("set", key)
        super().set(key, value)

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """Yield what is asked for in the block."""
        self.asked.clear()
        asked: list[str] = []
        yield asked
        asked += self.asked

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        self._ask("list", prefix)
        return super().list(prefix, start_after)


def filled(store: Counted) -> None:
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


def change(store: Counted, time: int) -> None:
    with persist.open(store, settings=QUIET) as client, client.multi_write() as multi:
        facts, dims = client.load("facts"), client.load("dims")
        multi.write(facts, [((n + 1000 * time), (n, 1)) for n in range(10)], time=time)
        multi.seal(facts, time + 1)
        multi.seal(dims, time + 1)


def test_a_fresh_process_that_refreshes_a_view_asks_for_little() -> None:
    store = Counted()
    filled(store)
    change(store, 1)
    with store.counting() as asked, persist.open(store, settings=QUIET) as client:
        opened = len(store.asked)
        client.view("totals").refresh(policy="incremental")
    assert [what.split("/")[0] for what in asked[opened:]] == [
        "get log",  # The view is looked up.
        "get log",  # The refresh looks once, and finds nothing new.
        "get log",  # The newest record is there,
        "create log",  # and the store refuses it: that it does so must be seen before a client may write.
        "create log",  # The commit.
        "get log",  # What it follows is there still.
    ]
    assert len(asked) <= 14, asked


def test_a_refresh_that_knows_of_something_to_do_still_finds_what_others_wrote() -> None:
    store = Counted()
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
    store = Counted()
    filled(store)
    with persist.open(store, settings=QUIET) as client:
        view = client.view("totals")
        view.open_state()
        change(store, 1)
        view.refresh()
        change(store, 2)
        with store.counting() as changed:
            view.refresh()
        with store.counting() as unchanged:
            view.refresh()
    assert [what.split("/")[0] for what in unchanged] == ["get log"]
    commit = changed.index(next(what for what in changed if what.startswith("create")))
    assert all(what.startswith("get log") for what in changed[:commit])  # Records of others, and none after them.
    after = [what.split("/")[0] for what in changed[commit + 1 :]]
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
