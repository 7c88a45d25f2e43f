"""How a call is made and written down: when it began and ended, and what was answered."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import persist
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from tests.proofs.simulator.baton import Baton
from tests.proofs.simulator.effects import DOUBTS
from tests.proofs.simulator.history import Event
from tests.proofs.simulator.language import Step
from tests.proofs.simulator.spelling import error_answer
from tests.proofs.simulator.world import ClientClock, ClientStore, Moments, World

PATIENCE_S = 300.0  # A call that takes longer in real time hangs.
DEADLINE_S = 20.0  # Who was stopped for longer may give up, as if storage had failed him.


@dataclass(slots=True)
class Pending:
    """A call whose future has been given out."""

    event: Event
    future: "persist.CommitFuture"
    told: threading.Event


@dataclass(slots=True)
class Slot:
    """A client and what was taken from it."""

    name: str
    client: persist.Client
    store: ClientStore
    unreliable: UnreliableBlob
    clock: ClientClock
    handles: dict[str, persist.Collection] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    taken: dict[int, tuple[Event, Any]] = field(default_factory=dict)  # By id of the step.
    is_down: bool = False
    is_closed: bool = False

    def faults(self) -> int:
        """How often storage has failed this client."""
        harmless = (Fault.NONE, Fault.SLOW)
        failed = sum(n for fault, n in self.unreliable.faults.items() if fault not in harmless)
        return failed + self.store.is_cut + self.store.refused + int(self.store.stopped_s / DEADLINE_S)


class Caller:
    """Makes calls of clients, and notes them."""

    patience_s = PATIENCE_S

    def __init__(self, baton: Baton | None = None) -> None:
        self.moments = Moments()
        self.world = World(baton)
        self.events: list[Event] = []
        self._numbers = itertools.count()

    def _on_handle(
        self, slot: Slot, step: Step, args: dict[str, Any], call: Callable[[persist.Collection], Any]
    ) -> Event | None:
        handle = slot.handles.get(step["name"])
        if handle is None:
            return None
        return self._call(slot, step["op"], {"c": handle.id, **args}, lambda: call(handle))

    def _began(self, slot: Slot, op: str, args: dict[str, Any]) -> Event:
        event = Event(next(self._numbers), slot.name, op, args, self.moments.next(), clock_s=self.world.now_s())
        self.events.append(event)
        return event

    def _call(self, slot: Slot, op: str, args: dict[str, Any], call: Callable[[], Any]) -> Event:
        """Make a call that answers by itself."""
        event = self._began(slot, op, args)
        before, refused = slot.faults(), slot.store.refused
        try:
            answer: list[Any] = ["ok", call()]
        except BaseException as error:
            answer = error_answer(error, op)
        if slot.store.refused > refused:
            event.args["no_room"] = True
        self._ended(slot, event, before, answer)
        return event

    def _submit(
        self, slot: Slot, step: Step, args: dict[str, Any], call: "Callable[[persist.Collection], Future[int]]"
    ) -> None:
        """Make a call that answers with a future, and look at it now, later or never."""
        handle = slot.handles.get(step["name"])
        if handle is None:
            return
        event = self._began(slot, step["op"], {"c": handle.id, **args})
        before = slot.faults()
        try:
            future: Any = call(handle)
        except Exception as error:
            self._ended(slot, event, before, error_answer(error, step["op"]))
            return
        told = threading.Event()

        def tell(done: "Future[int]") -> None:
            # Not by the future's own method, which would count as having looked at the error.
            error = Future.exception(done)
            if error is None and "assigned" in event.args:
                event.args["assigned"] = future.time
            self._ended(
                slot, event, before, ["ok", done.result()] if error is None else error_answer(error, step["op"])
            )
            told.set()

        future.add_done_callback(tell)
        pending = Pending(event, future, told)
        slot.pending.append(pending)
        if step["wait"] == "now":
            self._look(pending)
            slot.pending.remove(pending)
        elif step["wait"] == "never":
            event.args["looked"] = False

    def _ended(self, slot: Slot, event: Event, faults_before: int, answer: list[Any]) -> None:
        event.faults = slot.faults() - faults_before
        if slot.store.is_cut and answer[0] == "error" and answer[1] in DOUBTS:
            return  # Its client died, so nobody got this answer.
        event.returned = self.moments.next()
        if slot.store.is_cut and answer[0] == "error" and {*DOUBTS}.intersection(answer[2].get("classes", ())):
            return  # Nor did anybody get this one, of a `close`, which ended what the client can do all the same.
        event.outcome = answer

    def _look(self, pending: Pending) -> None:
        pending.event.args["looked"] = True
        try:
            pending.future.exception(self.patience_s)
        except TimeoutError:
            pending.event.outcome = ["error", "hangs", {}]
            pending.event.returned = self.moments.next()
            return
        pending.told.wait(self.patience_s)

    def _await(self, pending: list[Pending]) -> None:
        """Wait until all these have an answer, without looking at it."""
        for each in pending:
            if not each.told.wait(self.patience_s):
                each.event.outcome = ["error", "hangs", {}]
                each.event.returned = self.moments.next()
