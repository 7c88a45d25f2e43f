"""Runs whose clients are told of records by servers, commit through others, and share a folder of cached blobs.

Two servers tell of records, and a third one lies: it plays old pushes again, and tells of records that are not there.
Each client that commits through a server has one of its own, which counts as part of it: a record is the client's,
whichever of the two made it. Steps of the kind "server" kill servers, start them again, break and stall the lines to
them, and lead clients from one to the other. Nothing of that may change an answer.
"""

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.flight as flight

import persist
from persist.blob.protocol import Blob
from tests.proofs.simulator.history import History
from tests.proofs.simulator.language import Step
from tests.proofs.simulator.players import Run
from tests.proofs.simulator.world import ClientClock, ClientStore
from tests.services.serve.line import Line
from tests.support.stepped import Stepped

LOCAL = "grpc://127.0.0.1:0"
TOKEN = "right"
TELLING = 3  # Two that are honest, and one that lies.
QUIET = persist.Settings(background=False)
HOW = ("kill", "restart", "break", "stall", "resume", "swap", "lose before", "lose after", "kill its own")


def served_steps(steps: list[Step], seed: int) -> list[Step]:
    """Return steps of which those that open a client say how it is served, and steps about servers between them."""
    chance, found = random.Random(seed), []
    for step in steps:
        if step["op"] == "open":
            step = step | {
                "told_by": chance.choice([None, *range(TELLING)]),
                "has_token": chance.random() < 0.9,
                "is_cached": chance.random() < 0.6,
                "is_through": step["mode"] == "shared" and chance.random() < 0.6,
            }
        found.append(step)
        if chance.random() < 0.12:
            about = {"how": chance.choice(HOW), "server": chance.randrange(TELLING), "of": chance.randrange(4)}
            found.append({"op": "server", "slot": None, "id": 10**6 + len(found), **about})
    return found


class Liar(flight.FlightServerBase):  # type: ignore[misc]
    """Answers each wait at once: with a record of long ago, or with one that nobody has made."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(LOCAL)
        self._chance = chance

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        seqno = self._chance.choice([-1, 0, 3, 40, 10**6, 2**63 - 1])
        return [msgspec.json.encode({"location": None, "seqno": seqno})]


class Own:
    """The server through which one client commits."""

    def __init__(self, run: "ServedRun", name: str) -> None:
        self._store = ClientStore(run.tap, name)
        self._clock = ClientClock(run.world, 0)
        self.steps = Stepped(self._store)
        self._client = persist.open(self.steps, settings=QUIET, clock=self._clock)
        self.line = Line(self._client.serve(LOCAL, commits=True, token=TOKEN).url)

    def kill(self) -> None:
        """End it as SIGKILL does: nothing that it was doing comes to its end."""
        self._store.cut()
        self._clock.die()
        self.line.cut()

    def close(self) -> None:
        self.kill()
        self.line.close()
        with contextlib.suppress(persist.PersistError, ExceptionGroup):
            self._client.close()


class ServedRun(Run):
    """A run with servers."""

    def __init__(self, blob: Blob | None = None, seed: int = 0) -> None:
        super().__init__(blob)
        self._folder = Path(tempfile.mkdtemp(prefix="persist-cache-"))
        self._telling = [persist.open(ClientStore(self.tap, f"server {n}"), mode="read") for n in range(TELLING - 1)]
        self._liar = Liar(random.Random(seed))
        self._urls = [*(client.serve(LOCAL, token=TOKEN).url for client in self._telling), self._liar.url]
        self._lines = [Line(url) for url in self._urls]
        self._own: dict[str, Own] = {}

    def execute(self, steps: list[Step]) -> History:
        try:
            return super().execute(steps)
        finally:
            for own in self._own.values():
                own.close()
            for line in self._lines:
                line.close()
            for client in self._telling:
                client.close()
            self._liar.shutdown()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _more_settings(self, step: Step) -> dict[str, Any]:
        return {"cache_folder": self._folder} if step.get("is_cached") else {}

    def _more_options(self, step: Step, name: str) -> dict[str, Any]:
        token = TOKEN if step.get("has_token") else "wrong"
        options: dict[str, Any] = {}
        if step.get("told_by") is not None:
            options["notify"] = persist.Notify(self._lines[step["told_by"]].url, token)
        if step.get("is_through"):
            self._own[name] = Own(self, name)
            options["commit_through"] = persist.Notify(self._own[name].line.url, TOKEN)
        return options

    def _leave(self, number: int) -> None:
        slot = self.slots.get(number)
        if slot is not None and slot.name in self._own:
            self._own[slot.name].kill()
        super()._leave(number)

    def _server(self, step: Step) -> None:
        number, line = step["server"], self._lines[step["server"]]
        slot = self.slots.get(step["of"])
        own = None if slot is None else self._own.get(slot.name)
        about_telling: dict[str, Callable[[], object]] = {
            "kill": lambda: self._kill(number),
            "restart": lambda: self._restart(number),
            "break": line.interrupt,
            "stall": line.stall,
            "resume": line.resume,
            "swap": lambda: line.lead_to(self._urls[step["of"] % TELLING]),
        }
        if step["how"] in about_telling:
            about_telling[step["how"]]()
        elif own is not None and step["how"] == "kill its own":
            own.kill()
        elif own is not None and own.steps.is_done:
            at = own.steps.before if step["how"] == "lose before" else own.steps.after
            at("create", "log/", own.line.interrupt)

    def _kill(self, number: int) -> None:
        if number < len(self._telling):
            self._telling[number].close()

    def _restart(self, number: int) -> None:
        if number < len(self._telling):
            self._telling[number].close()
            store = ClientStore(self.tap, f"server {number} again")
            self._telling[number] = persist.open(store, mode="read")
            self._urls[number] = self._telling[number].serve(LOCAL, token=TOKEN).url
            self._lines[number].interrupt()
            self._lines[number].lead_to(self._urls[number])
