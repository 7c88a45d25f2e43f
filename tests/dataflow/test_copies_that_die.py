"""Copies of a program over the simulator: they fail, are in doubt, die, and reach the store afterwards."""

import random
from collections import Counter
from contextlib import suppress

import pyarrow as pa
import pytest

import persist
from persist.blob import MemoryBlob, RetryPolicy, UnreliableBlob
from persist.dataflow import Program, Running, col
from persist.settings import Tuning
from tests.clocks import ImpatientClock
from tests.dataflow.ledger import Bank, check, ledger, rows_at
from tests.simulator.world import ClientStore, Moments, Tap

ONCE = persist.Settings(background=False, tuning=Tuning(retry=RetryPolicy(deadline_s=0.01, attempts_max=1)))
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
