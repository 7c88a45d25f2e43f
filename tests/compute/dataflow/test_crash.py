"""Programs whose store fails at any call or leaves it in doubt, and that die; their requests may arrive afterwards."""

import random
import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.layers.unreliable import UnreliableBlob
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from persist.dataflow import Program, Running, col
from tests.compute.dataflow.ledger import Bank, check, ledger, rows_at
from tests.proofs.simulator.world import ClientStore, Moments, Tap
from tests.support.clocks import ImpatientClock
from tests.support.stepped import WAIT_S, Stepped, wait_until

ONCE = persist.Settings(background=False, tuning=Tuning(attempts_max=1))
IMPATIENT = persist.Settings(tuning=Tuning(attempts_max=1))
FAILURES = (persist.Unavailable, persist.Indeterminate)
DELAY = 2


def program() -> Program:
    """The ledger, and what came some time ago, which is kept in a hidden collection."""
    made = ledger()
    moves = made.source("moves", schema={"id": pa.int64()})
    moves.delay(col("_time") + DELAY).persist("late", key=["id"])
    return made


class Copy:
    """One process that runs the program, as far as its store lets it."""

    def __init__(self, tap: Tap, name: str, chance: random.Random) -> None:
        self.store = ClientStore(tap, name)
        # Only what writes fails by chance: a copy opens with so many reads that it would hardly ever begin.
        shaky = UnreliableBlob(
            self.store,
            chance,
            unavailable=0.05,
            not_happened_doubtful=0.05,
            happened_but_failed=0.1,
            operations=("create", "set"),
        )
        self.client: persist.Client | None = None
        self.running: Running | None = None
        with suppress(*FAILURES):
            self.client = persist.open(shaky, settings=ONCE, clock=ImpatientClock())
            self.running = program().open(self.client)

    def step(self, chance: random.Random) -> bool:
        """Make a step; return whether it was whole."""
        if self.running is None:
            return False
        try:
            self.running.step(times=chance.choice([1, 2, None]))
        except FAILURES:
            return False
        return True

    def end(self) -> None:
        self.store.cut()
        for each in (self.running, self.client):
            with suppress(*FAILURES, BaseExceptionGroup):
                if each is not None:
                    each.close()


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("seed", range(6))
def test_copies_that_die_and_are_in_doubt_write_every_update_once(seed: int) -> None:
    chance = random.Random(seed)
    tap = Tap(MemoryBlob(), Moments(), lambda: 1e9)
    happened = Counter[str]()
    with persist.open(ClientStore(tap, "writer"), settings=ONCE, clock=ImpatientClock()) as writer:
        bank = Bank(writer, seed)
        bank.transfer()
        with program().open(writer) as running:
            running.step()
        copies, dead = [Copy(tap, f"copy {at}", chance) for at in range(2)], list[Copy]()
        for turn in range(40):
            at = chance.randrange(2)
            match chance.choice(["step", "step", "step", "transfer", "transfer", "die", "dead hand"]):
                case "step":
                    happened["steps" if copies[at].step(chance) else "failures"] += 1
                case "transfer":
                    bank.transfer()
                case "die":
                    how = chance.choice(["before", "after", "limbo"])
                    copies[at].store.cut_at(chance.randrange(3), how)
                    copies[at].step(chance)
                    copies[at].end()
                    dead.append(copies[at])
                    copies[at] = Copy(tap, f"copy {turn}", chance)
                    happened["deaths"] += 1
                case "dead hand" if dead:
                    happened["late requests"] += dead.pop(0).store.deliver()
            if copies[at].running is None:
                copies[at].end()
                copies[at] = Copy(tap, f"again {turn}", chance)
            assert [row["all"] for row in writer.load("sum").snapshot().to_arrow().to_pylist()] == [0]
        for each in (*copies, *dead):
            each.end()
            each.store.deliver()
        with program().open(writer) as running:
            running.run(until=bank.time - 1)
        check(writer)
        late = writer.load("late")
        assert late.upper == persist.Antichain(bank.time)
        for time in range(DELAY, bank.time):
            came = bank.moves.snapshot(time - DELAY).to_arrow()["id"].to_pylist()
            assert rows_at(late, time) == Counter((each,) for each in came), time
    assert happened["steps"] > 5
    assert happened["deaths"] > 0


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


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("first", range(2))
@pytest.mark.parametrize("times_before", [0, 2], ids=["begins", "goes on"])
def test_whichever_call_of_the_store_fails_once_nothing_is_lost_or_doubled(times_before: int, first: int) -> None:
    failing, failed, was_reached = first, 0, True
    while was_reached:
        inner = MemoryBlob()
        with persist.open(inner) as writer:
            bank = Bank(writer)
            bank.transfer()
            for _ in range(times_before):
                with ledger().open(writer) as running:
                    running.run(until=bank.time - 1)
                bank.transfer()
            flaky = OneFailure(inner)
            with persist.open(flaky, settings=IMPATIENT) as client, ledger().open(client) as running:
                flaky.left = failing  # So many calls more work before the one that fails.
                for _ in range(2):
                    while True:
                        try:
                            running.run(until=bank.time - 1)
                            break
                        except FAILURES:
                            failed += 1
                    bank.transfer()
                was_reached, flaky.left = flaky.left < 0, None
            check(writer)
        failing += 2
    assert failed > 2


def test_run_forever_repeats_a_step_whose_commit_is_in_doubt() -> None:
    """The record is created, and whether the one before it is still there cannot be found out."""
    inner = MemoryBlob()
    with persist.open(inner) as writer:
        bank = Bank(writer)
        bank.transfer()
        store = Stepped(inner)
        settings = persist.Settings(tuning=Tuning(attempts_max=1))

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
            worker.join(WAIT_S)
            assert not worker.is_alive()
        check(writer)


def test_run_forever_goes_on_when_the_store_comes_back_and_ends_when_it_is_stopped() -> None:
    inner = MemoryBlob()
    with persist.open(inner) as writer:
        bank = Bank(writer)
        bank.transfer()
        shaky = UnreliableBlob(inner)
        with persist.open(shaky, settings=IMPATIENT) as client, ledger().open(client) as running:
            worker = threading.Thread(target=running.run_forever, kwargs={"backoff_s": 0.01})
            worker.start()
            shaky.go_down()
            bank.transfer()
            shaky.clear_faults()
            bank.transfer()
            # Waits until the program has come that far.
            writer.load("totals").snapshot(bank.time - 1, timeout_s=120).count()
            running.stop()
            worker.join(WAIT_S)
            assert not worker.is_alive()
        check(writer)
