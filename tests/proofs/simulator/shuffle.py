"""Runs in which clients act at once, one thread at a time, in an order that a seed decides: see `baton`.

Each slot has a driver, a thread that takes its steps one after the other. The world hands out the steps in their order,
and mostly does not wait until one is done before it hands out the next.
"""

import gc
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from persist.blob.protocol import Blob
from tests.proofs.simulator.baton import Baton
from tests.proofs.simulator.history import History
from tests.proofs.simulator.language import Step, generate
from tests.proofs.simulator.players import SETTINGS, Run, features
from tests.proofs.simulator.relayed import Server, Wires
from tests.proofs.simulator.world import ClientClock, Nuisance
from tests.support.tuned import tuned

BACKLOG_MAX = 3  # Steps that wait for their driver; more would make all that is believed about frontiers wrong.


@dataclass(frozen=True, slots=True)
class Manner:
    """How much is at once, and what delays it.

    Attributes:
        patience: how often the world waits for a step to be done, for waits_s at most.
        stalls, freezes, seconds: see `Nuisance`.
        kills: how often a client that is to die does so in the middle of what it does.
    """

    patience: float = 0.4
    waits_s: float = 100.0
    stalls: float = 0.01
    freezes: float = 0.005
    seconds: tuple[float, ...] = (0.01, 1.0, 10.0, 40.0)
    kills: float = 0.5


@dataclass(slots=True)
class Driver:
    """What one slot still has to do."""

    changed: threading.Condition
    steps: deque[Step] = field(default_factory=deque)
    is_busy: bool = False


class ShuffledRun(Run):
    """A run with a baton; to be executed by `shuffled`."""

    patience_s = 1e9

    def __init__(self, baton: Baton, manner: Manner, blob: Blob | None = None) -> None:
        super().__init__(blob, baton)
        self._baton = baton
        self._manner = manner
        self.nuisance = Nuisance(baton, manner.stalls, manner.freezes, manner.seconds)
        self._drivers: dict[int, Driver] = {}
        self._failed: list[BaseException] = []
        self._wires = Wires(baton)
        self._servers: dict[str, Server] = {}  # By the name of the client that commits through it.

    def execute(self, steps: list[Step]) -> History:
        with self._wires.laid():
            return super().execute(steps)

    def _more_options(self, step: Step, name: str) -> dict[str, Any]:
        if not step.get("is_through"):
            return {}
        store = self.store_type(self.tap, name, self.nuisance)
        self.stores.append(store)
        if "server_dies" in step:
            store.cut_at(**step["server_dies"])
        settings = tuned(background=False, **SETTINGS)
        self._servers[name] = server = Server(store, ClientClock(self.world, 0), settings)
        return {"commit_through": self._wires.lead_to(server)}

    def _leave(self, number: int) -> None:
        slot = self.slots.get(number)
        if slot is not None and slot.name in self._servers:
            self._servers[slot.name].kill()
        super()._leave(number)

    def _do(self, step: Step) -> None:
        if self._failed:
            raise self._failed[0]
        slot = step["slot"]
        if slot is None or step["op"] == "down":
            super()._do(step)
            return
        if step["op"] == "crash" and self._baton.chance.random() < self._manner.kills:
            self._leave(slot)
            return
        driver = self._drivers.get(slot) or self._new_driver(slot)
        with driver.changed:
            if len(driver.steps) < BACKLOG_MAX:  # Or else it is stopped somewhere, and the others go on without it.
                driver.steps.append(step)
                driver.changed.notify_all()
            if self._baton.chance.random() < self._manner.patience:
                driver.changed.wait_for(lambda: not driver.steps and not driver.is_busy, self._manner.waits_s)
        self._baton.turn()

    def _finish(self) -> None:
        for driver in self._drivers.values():
            with driver.changed:
                driver.changed.wait_for(lambda: not driver.steps and not driver.is_busy)  # noqa: B023
        if self._failed:
            raise self._failed[0]

    def _new_driver(self, slot: int) -> Driver:
        driver = self._drivers[slot] = Driver(threading.Condition())
        thread = threading.Thread(target=self._drive, args=(slot, driver), name=f"driver {slot}", daemon=True)
        thread.start()
        return driver

    def _drive(self, slot: int, driver: Driver) -> None:
        task = self._baton.task()
        assert task is not None
        task.group = slot
        while True:
            with driver.changed:
                driver.changed.wait_for(lambda: driver.steps)
                step = driver.steps.popleft()
                driver.is_busy = True
            try:
                super()._do(step)
            except Exception as error:
                self._failed.append(error)
            finally:
                with driver.changed:
                    driver.is_busy = False
                    driver.changed.notify_all()


_is_warm = False


def _warm_up() -> None:
    """Have done what is done once in a process, and would make its first run another one than the same run later."""
    global _is_warm
    if not _is_warm:
        _is_warm = True
        shuffled(generate(0, 120, features()), 0, Manner())
        gc.collect()
        gc.freeze()  # What is there by now stays, so no collection between two runs has to look at it.


def shuffled(steps: list[Step], seed: Any, manner: Manner, blob: Blob | None = None) -> tuple[History, ShuffledRun]:
    """Execute steps; the same seed, manner and steps give the same history."""
    _warm_up()
    baton = Baton(seed)
    runs: list[ShuffledRun] = []

    def execute() -> History:
        runs.append(ShuffledRun(baton, manner, blob))
        return runs[0].execute(steps)

    history = baton.run(execute)
    return history, runs[0]
