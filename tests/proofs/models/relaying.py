"""Committing through a server: an operation is in the log once, or never, whatever becomes of request and answer.

A client asks a server to commit its operation, and may give up waiting at any moment. The log settles what became of it
(`persist.engine.write.relay`, `persist.engine.follow.log_queries`): the client looks for its operation, and what is
not there it commits itself, in a record which says that the operation will not come in another way. If it is refused,
such a record comes first, too. The server adds no operation that a record which it has read rules out. Both need the
next slot.

Of three clients, the operation of the first is refused until that of the second is in the log, and the operation of the
third is refused from then on: so what was refused may become right again, and the other way round.

    client    ask, or lose the request; hear the answer, or give up; look; settle
    server    take a request; read the log; create a record, whose answer may come late; answer, or die with it

Invariants: an operation is in one record at most; who heard "done" is in the log; who heard "refused" never is.
"""

from collections.abc import Iterator
from typing import NamedTuple

FIRST, SECOND, THIRD = range(3)


class Record(NamedTuple):
    """A record: whose operation is in it, and of which client it says that nothing more comes."""

    holds: int | None
    says: int | None


class Client(NamedTuple):
    """What a client knows and is about to do."""

    step: str = "ask"
    known: int = 0  # The records that it has read.
    heard: str = ""


class Server(NamedTuple):
    """The request in the server's hands, and what it has read of the log."""

    asked: int | None = None
    known: int = 0
    is_read: bool = False


class State(NamedTuple):
    """The log, what is under way, and who is about to do what."""

    log: tuple[Record, ...]
    requests: frozenset[int]
    late: frozenset[tuple[int, int]]  # Creates of the server that may still land: slot, and whose operation.
    answers: frozenset[tuple[int, str]]
    server: Server
    clients: tuple[Client, ...]


class Relaying:
    """See the module's docstring.

    Args:
        fault: "rule nothing out": a client commits its operation in a plain record. "refuse at once": it hands out a
            refusal without a record. "read nothing": the server does not look whether an operation was ruled out.
    """

    def __init__(self, clients: int, fault: str = "") -> None:
        self._clients = clients
        self._fault = fault

    def start(self) -> State:
        none = frozenset[tuple[int, str]]()
        return State((), frozenset(), frozenset(), none, Server(), (Client(),) * self._clients)

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for slot, asked in state.late:
            late = state.late - {(slot, asked)}
            yield f"the late record with {asked} lands", _appended(state._replace(late=late), Record(asked, asked))
        yield from self._served(state)
        for n, client in enumerate(state.clients):
            for words, changed, after in self._of(n, client, state):
                clients = (*state.clients[:n], after, *state.clients[n + 1 :])
                yield f"client {n} {words}", changed._replace(clients=clients)

    def _served(self, state: State) -> Iterator[tuple[str, State]]:
        server, idle = state.server, state._replace(server=Server())
        if server.asked is None:
            for n in state.requests:
                taken = state._replace(requests=state.requests - {n}, server=Server(n))
                yield f"the server takes the request of {n}", taken
            return
        n = server.asked
        yield "the server dies", idle
        if not server.is_read:
            yield "it reads the log", state._replace(server=Server(n, len(state.log), is_read=True))
        elif server.known < len(state.log):
            yield "it has lost the race", state._replace(server=Server(n))
        elif any(r == (n, n) for r in state.log):
            yield f"it answers {n}: done", idle._replace(answers=state.answers | {(n, "done")})
        elif any(r.says == n for r in state.log) and self._fault != "read nothing":
            yield f"it leaves {n} in doubt", idle
        elif not _is_right(n, state.log):
            yield f"it answers {n}: refused", idle._replace(answers=state.answers | {(n, "refused")})
        else:
            made = _appended(state, Record(n, n))
            yield f"it commits {n}, and answers", made._replace(server=Server(), answers=state.answers | {(n, "done")})
            yield f"it commits {n}, and dies", made._replace(server=Server())
            yield f"it sends a record with {n}, which is late", idle._replace(late=state.late | {(len(state.log), n)})

    def _of(self, n: int, client: Client, state: State) -> Iterator[tuple[str, State, Client]]:
        end = len(state.log)
        if client.step == "ask":
            yield "asks", state._replace(requests=state.requests | {n}), Client("wait")
            yield "does not reach the server", state, Client("look")
        elif client.step == "wait":
            for asked, heard in state.answers:
                if asked == n:
                    answers = state.answers - {(asked, heard)}
                    yield f"hears: {heard}", state._replace(answers=answers), Client("end", heard=heard)
            yield "gives up waiting", state, Client("look")
        elif client.step == "look" and any(r == (n, n) for r in state.log):
            yield "finds its operation", state, Client("end", heard="done")
        elif client.step == "look":
            yield "does not find its operation", state, Client("settle", known=end)
        elif client.step == "settle" and client.known < end:
            yield "has lost the race", state, Client("look")
        elif client.step == "settle":
            says = None if self._fault == "rule nothing out" else n
            if _is_right(n, state.log):
                made = _appended(state, Record(n, says))
                yield "commits it by itself", made, Client("end", heard="done")
            elif self._fault == "refuse at once":
                yield "refuses it", state, Client("end", heard="refused")
            else:
                yield "rules it out", _appended(state, Record(None, n)), Client("end", heard="refused")

    def wrong(self, state: State) -> Iterator[str]:
        held = [record.holds for record in state.log if record.holds is not None]
        if len({*held}) < len(held):
            yield "an operation is in the log twice"
        for n, client in enumerate(state.clients):
            if client.heard == "done" and n not in held:
                yield f"{n} was acknowledged, and the log does not have it"
            if client.heard == "refused" and n in held:
                yield f"{n} was refused, and the log has it"

    def is_over(self, state: State) -> bool:
        return all(client.step == "end" for client in state.clients)


def _appended(state: State, record: Record) -> State:
    """Return the state after a record, without the late ones that can have no effect because their slot is taken."""
    log = (*state.log, record)
    return state._replace(log=log, late=frozenset(each for each in state.late if each[0] == len(log)))


def _is_right(n: int, log: tuple[Record, ...]) -> bool:
    has_second = any(record.holds == SECOND for record in log)
    return {FIRST: has_second, SECOND: True, THIRD: not has_second}[n]
