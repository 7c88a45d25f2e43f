"""Shuffled runs whose clients commit through servers, under the baton: requests, answers and deaths come when it says.

The client is the library's own, and so is what the server does with a request; only the wire between them is another
one. A request is a task of the server, whose tasks are a group: all of them may be stopped at once. Chance loses
requests and answers; a request without an answer may be done long after. A server may die at any of its requests to
the store, and dies with its client.

Each client has a server of its own, which counts as part of it, as in `served.py`.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow.flight as flight
import pytest

import persist
from persist.blob import wire
from persist.services.serve.commits import CommitsForOthers
from persist.services.serve.messages import Commits
from tests.proofs.simulator.language import Step
from tests.proofs.simulator.world import ClientClock, ClientStore

TOKEN = "right"
LOST, LATE = 0.04, 0.04  # Requests and answers that are lost, each; requests that arrive late.
DELAYS_S = (1.0, 15.0, 200.0)


def relayed_steps(steps: list[Step], seed: int) -> list[Step]:
    """Return steps of which those that open a client say whether it commits through a server, and when that dies."""
    chance = random.Random(seed)
    return [_with_server(step, chance) if step["op"] == "open" and step["mode"] == "shared" else step for step in steps]


def _with_server(step: Step, chance: random.Random) -> Step:
    step = step | {"is_through": chance.random() < 0.7}
    if step["is_through"] and chance.random() < 0.4:
        step["server_dies"] = {"calls": chance.randrange(40), "how": chance.choice(["before", "after", "limbo"])}
    return step


class Server:
    """A client that commits for another one."""

    def __init__(self, store: ClientStore, clock: ClientClock, settings: persist.Settings) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._group = object()
        self._opening = threading.Lock()
        self._client: persist.Client | None = None  # Which is closed when nobody has it any more.
        self._commits: CommitsForOthers | None = None

    def kill(self) -> None:
        """End it: nothing that it was doing comes to its end."""
        self._store.cut()
        self._clock.die()

    def asked(self, baton: Any, request: Callable[["Server"], bytes], timeout_s: float) -> bytes:
        """Return the answer to a request, which is a task of the server. Raises one of `wire.CALL_FAILED`."""
        answers: list[bytes | Exception] = []
        came = threading.Event()
        lost, late = baton.chance.random(), baton.chance.random()
        delay_s = baton.chance.choice(DELAYS_S) if late < LATE else 0.0

        def answer() -> None:
            baton.task().group = self._group
            baton.sleep(delay_s)
            try:
                answers.append(request(self))
            except Exception as error:
                answers.append(error)
            if lost >= 2 * LOST:
                came.set()

        if self._store.is_cut:
            raise flight.FlightUnavailableError("nobody is there")
        if lost >= LOST:
            threading.Thread(target=answer, name="a request", daemon=True).start()
        if not came.wait(timeout_s) or self._store.is_cut:
            raise flight.FlightTimedOutError("there is no answer")
        (answer_or_error,) = answers
        if isinstance(answer_or_error, Exception):
            raise flight.FlightServerError(str(answer_or_error))
        return answer_or_error

    def commits(self) -> CommitsForOthers:
        """Return what answers requests to commit, of a client that is opened for the first one."""
        with self._opening:
            if self._commits is None:
                self._client = persist.open(self._store, clock=self._clock, settings=self._settings)
                engine = self._client.engine
                self._commits = CommitsForOthers(engine.writer("serve").committer, engine.follower)
            return self._commits


class Wires:
    """What leads to the servers of a run, in place of Arrow Flight."""

    def __init__(self, baton: Any) -> None:
        self._baton = baton
        self._servers: dict[str, Server] = {}

    def lead_to(self, server: Server) -> persist.Notify:
        """Return the address of a server."""
        url = f"grpc://127.0.0.1:{len(self._servers) + 1}"
        self._servers[url] = server
        return persist.Notify(url, TOKEN)

    @contextlib.contextmanager
    def laid(self) -> Iterator[None]:
        """Have calls of these servers go these ways; a client of another test may still call a real one."""
        connected, answers, answer_in_pieces = wire.connect, wire.call_action, wire.exchange_pieces

        def lead(url: str, certificate: Any) -> Any:
            return _Connection(self._servers[url]) if url in self._servers else connected(url, certificate)

        def ours(act: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
            return lambda to, *rest: (act if isinstance(to, _Connection) else real)(to, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "connect", lead)
            patch.setattr(wire, "call_action", ours(self._answers, answers))
            patch.setattr(wire, "exchange_pieces", ours(self._answer, answer_in_pieces))
            yield

    def _answers(self, to: "_Connection", token: str, what: str, body: bytes, timeout_s: float) -> Iterator[bytes]:
        assert what == "commits", "nothing else is asked for"
        yield to.server.asked(
            self._baton, lambda server: msgspec.json.encode(Commits(server.commits().location())), timeout_s
        )

    def _answer(self, to: "_Connection", token: str, command: bytes, body: bytes, timeout_s: float) -> bytes:
        return to.server.asked(self._baton, lambda server: server.commits().answer(body), timeout_s)


class _Connection:
    def __init__(self, server: Server) -> None:
        self.server = server

    def close(self) -> None:
        """Do nothing."""
