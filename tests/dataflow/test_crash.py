"""Programs that are killed at any moment, and stores that fail, are slow, or leave it in doubt."""

import random
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.blob import FileBlob, MemoryBlob, RetryPolicy, UnreliableBlob
from persist.settings import Tuning
from tests.copies import Copies
from tests.dataflow.ledger import Bank, check, ledger
from tests.stepped import Stepped, wait_until

KILLS = 4


def keep_up(folder: str, told: Connection) -> None:
    """Run the ledger until killed; tell after each step."""
    with persist.open(FileBlob(Path(folder), fsync=False)) as client, ledger().open(client) as running:
        while True:
            running.step()
            told.send(None)


@pytest.fixture
def copies() -> Iterator[Copies]:
    made = Copies(keep_up)
    yield made
    made.kill_all()


def total(client: persist.Client) -> list[dict[str, int]]:
    """Return the one row that says what all accounts hold together."""
    sums = client.load("sum")
    rows: list[dict[str, int]] = sums.snapshot().to_arrow().to_pylist()
    return rows


@pytest.mark.thorough
def test_two_copies_killed_again_and_again_lose_and_double_nothing(copies: Copies, tmp_path: Path) -> None:
    chance = random.Random(11)
    with persist.open(FileBlob(tmp_path, fsync=False)) as client:
        bank = Bank(client)
        bank.transfer()
        copies.start(str(tmp_path))
        copies.start(str(tmp_path))
        for _ in range(KILLS):
            copies.wait(chance.randrange(1, 4))
            for _ in range(chance.randrange(1, 4)):
                bank.transfer()
            # Whatever moment a reader looks at, the accounts sum to zero.
            assert [row["all"] for row in total(client)] == [0]
            copies.kill()
            copies.start(str(tmp_path))
        copies.kill_all()
        with ledger().open(client) as running:
            running.run(until=bank.time - 1)
        check(client)


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails_and_leaves_it_in_doubt_doubles_nothing(seed: int) -> None:
    inner = MemoryBlob()
    chance = random.Random(seed)
    with persist.open(inner) as writer:
        bank = Bank(writer, seed)
        bank.transfer()
        shaky = UnreliableBlob(inner, chance, unavailable=0.05, not_happened_doubtful=0.05, happened_but_failed=0.05)
        settings = persist.Settings(tuning=Tuning(retry=RetryPolicy(deadline_s=0.01, attempts_max=1)))
        failures = 0
        for _ in range(4):
            try:
                with persist.open(shaky, settings=settings) as client, ledger().open(client) as running:
                    for _ in range(8):
                        bank.transfer()
                        try:
                            running.step()
                        except (persist.Unavailable, persist.Indeterminate):
                            failures += 1
            except (persist.Unavailable, persist.Indeterminate, BaseExceptionGroup):
                failures += 1
        assert failures > 0
        with ledger().open(writer) as running:
            running.run(until=bank.time - 1)
        check(writer, since=writer.load("totals").since.time or 0)


class OneFailure:
    """Passes calls on to a store, and fails one of them, once it is armed."""

    def __init__(self, inner: MemoryBlob) -> None:
        self.left: int | None = None
        self._inner = inner
        self._unavailable = UnreliableBlob(inner)
        self._unavailable.go_down()

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "get_at_most", "set", "create", "list", "delete") and self.left is not None:
            self.left -= 1
            if self.left == -1:
                return getattr(self._unavailable, name)
        return getattr(self._inner, name)


@pytest.mark.parametrize("times_before", [0, 2], ids=["begins", "goes on"])
def test_whichever_call_of_the_store_fails_once_nothing_is_lost_or_doubled(times_before: int) -> None:
    failing, failed, was_reached = 0, 0, True
    while was_reached:
        inner = MemoryBlob()
        settings = persist.Settings(tuning=Tuning(retry=RetryPolicy(deadline_s=0.01, attempts_max=1)))
        with persist.open(inner) as writer:
            bank = Bank(writer)
            bank.transfer()
            for _ in range(times_before):
                with ledger().open(writer) as running:
                    running.run(until=bank.time - 1)
                bank.transfer()
            flaky = OneFailure(inner)
            with persist.open(flaky, settings=settings) as client, ledger().open(client) as running:
                flaky.left = failing  # So many calls more work before the one that fails.
                for _ in range(2):
                    while True:
                        try:
                            running.run(until=bank.time - 1)
                            break
                        except (persist.Unavailable, persist.Indeterminate):
                            failed += 1
                    bank.transfer()
                was_reached, flaky.left = flaky.left < 0, None
            check(writer)
        failing += 1
    assert failed > 5


def test_run_forever_repeats_a_step_whose_commit_is_in_doubt() -> None:
    """The record is created, and whether the one before it is still there cannot be found out."""
    inner = MemoryBlob()
    with persist.open(inner) as writer:
        bank = Bank(writer)
        bank.transfer()
        store = Stepped(inner)
        settings = persist.Settings(tuning=Tuning(retry=RetryPolicy(deadline_s=0.01, attempts_max=1)))

        def fail() -> None:
            raise persist.Unavailable("no answer")

        with persist.open(store, settings=settings) as client, ledger().open(client) as running:
            store.after("create", "log/", lambda: store.before("get", "log/", fail))
            worker = threading.Thread(target=running.run_forever, kwargs={"backoff_s": 0.01})
            worker.start()
            wait_until(lambda: store.is_done or not worker.is_alive())
            bank.transfer()
            writer.load("totals").snapshot(bank.time - 1, timeout_s=60).count()
            running.stop()
            worker.join(30)
            assert not worker.is_alive()
        check(writer)


def test_run_forever_goes_on_when_the_store_comes_back_and_ends_when_it_is_stopped() -> None:
    inner = MemoryBlob()
    with persist.open(inner) as writer:
        bank = Bank(writer)
        bank.transfer()
        shaky = UnreliableBlob(inner)
        settings = persist.Settings(tuning=Tuning(retry=RetryPolicy(deadline_s=0.01, attempts_max=1)))
        with persist.open(shaky, settings=settings) as client, ledger().open(client) as running:
            worker = threading.Thread(target=running.run_forever, kwargs={"backoff_s": 0.01})
            worker.start()
            shaky.go_down()
            bank.transfer()
            shaky.clear_faults()
            bank.transfer()
            # Waits until the program has come that far.
            writer.load("totals").snapshot(bank.time - 1, timeout_s=120).count()
            running.stop()
            worker.join(30)
            assert not worker.is_alive()
        check(writer)
