"""Committing: the next slot of the log, put-if-absent, and answers that are lost
(`persist.core.log.records.create_record`).

Each client commits a few operations, one record each. It reads slots until one is free, and creates its record there.

    look      read the next slot: somebody's record is applied, and a free slot is where the own record goes
    offer     create the record. It may land and be answered; land without an answer; be refused without having
              happened, which is certain; get no answer and not land; or get none and land later, at any moment
    doubt     read the slot: the own commit id there means "done", another one "lost the race", and nothing "offer the
              same bytes again", or give up, and the caller hears that it is not known

Invariants: the log is one chain; what was acknowledged is in it once; what was said not to have happened is not in it;
nothing is in it twice.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.proofs.simulator.chain import Broken, follows

Record = tuple[str, str | None]  # Its commit id, and that of the record before it.
Late = tuple[int, Record]  # A request that is under way: the slot, and what it would create there.


class Client(NamedTuple):
    """What one client knows and is about to do."""

    step: str
    known: tuple[str, ...]  # Commit ids that it has read or made, in order.
    left: int  # Operations that it has not begun.
    is_doubtful: bool = False  # Whether the record that it offers may be in the log, now or later.
    told: tuple[tuple[str, str], ...] = ()  # Of each operation that is over: its commit id, and what the caller heard.


class State(NamedTuple):
    """The log, and who is about to do what."""

    log: tuple[Record, ...]
    late: frozenset[Late]
    clients: tuple[Client, ...]


Change = tuple[str, tuple[Record, ...], frozenset[Late], Client]


def _state(log: tuple[Record, ...], late: frozenset[Late], clients: tuple[Client, ...]) -> State:
    """Return a state without the requests that can have no effect any more, because their slot is taken."""
    return State(log, frozenset((slot, record) for slot, record in late if slot == len(log)), clients)


class Committing:
    """See the module's docstring.

    Args:
        fault: what is left out, to see that it is missed: "believe no answer" takes a lost answer for "it did not
            happen"; "compare nothing" takes whatever is in the slot for a lost race; "new bytes" offers another record
            after a lost answer.
    """

    def __init__(self, clients: int, operations: int, fault: str = "") -> None:
        self._clients = clients
        self._operations = operations
        self._fault = fault

    def start(self) -> State:
        return State((), frozenset(), (Client("look", (), self._operations),) * self._clients)

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for slot, record in state.late:
            late = state.late - {(slot, record)}
            yield f"the late request of {record[0]} arrives", _state((*state.log, record), late, state.clients)
        for n, client in enumerate(state.clients):
            for words, log, late, after in self._of(n, client, state):
                clients = (*state.clients[:n], after, *state.clients[n + 1 :])
                yield f"client {n} {words}", _state(log, late, clients)

    def _of(self, n: int, client: Client, state: State) -> Iterator[Change]:
        log, late, slot = state.log, state.late, len(client.known)
        if client.step == "end":
            return
        yield "dies", log, late, client._replace(step="end")
        mine = (self._id(n, client), client.known[-1] if client.known else None)
        held = log[slot][0] if slot < len(log) else None
        begun = client._replace(step="look", is_doubtful=False)
        if client.step == "look" and held is not None:
            yield f"reads {held}", log, late, client._replace(known=(*client.known, held))
        elif client.step == "look":
            yield "finds a free slot", log, late, client._replace(step="offer")
        elif client.step == "offer" and held is None:
            landed = (*log, mine)
            yield f"creates {mine[0]}", landed, late, self._told(begun, mine[0], "done", reads=True)
            doubt = client._replace(step="doubt", is_doubtful=True)
            yield f"creates {mine[0]}, and hears nothing", landed, late, doubt
            yield f"sends {mine[0]}, which gets lost", log, late, doubt
            yield f"sends {mine[0]}, which is late", log, late | {(slot, mine)}, doubt
            yield "is refused by the store", log, late, client._replace(step="doubt")
        elif client.step == "offer":
            yield "hears that the slot is taken", log, late, client._replace(step="doubt")
            yield "hears nothing", log, late, client._replace(step="doubt", is_doubtful=True)
        elif held is None:
            if self._fault == "new bytes" and client.is_doubtful:
                again = client._replace(step="offer", left=client.left, told=(*client.told, (mine[0], "")))
                yield "offers another record", log, late, again
            else:
                yield "offers the same again", log, late, client._replace(step="offer")
            is_certain = not client.is_doubtful or self._fault == "believe no answer"
            yield (
                "gives up",
                log,
                late,
                self._told(begun, mine[0], "not" if is_certain else "unknown")._replace(step="end"),
            )
        elif held == mine[0] and self._fault != "compare nothing":
            yield f"finds its {held}", log, late, self._told(begun, held, "done", reads=True)
        else:
            known = (*client.known, held)
            yield f"has lost to {held}", log, late, begun._replace(known=known, is_doubtful=False)

    def _id(self, n: int, client: Client) -> str:
        return f"{'abc'[n]}{self._operations - client.left}{len(client.told) if self._fault else ''}"

    def _told(self, client: Client, commit: str, heard: str, *, reads: bool = False) -> Client:
        left = client.left - 1
        known = (*client.known, commit) if reads else client.known
        told = (*client.told, (commit, heard))
        return client._replace(step="look" if left else "end", known=known, left=left, told=told)

    def wrong(self, state: State) -> Iterator[str]:
        known: dict[int, str] = {}
        for seqno, (commit, previous) in enumerate(state.log):
            try:
                follows(known, seqno, commit, previous)
            except Broken as error:
                yield str(error)
        made = [commit for commit, _ in state.log]
        operations = [commit[:2] for commit in made]
        if len({*operations}) < len(operations):
            yield "an operation is in the log twice"
        for client in state.clients:
            for commit, heard in client.told:
                if heard == "done" and commit not in made:
                    yield f"{commit} was acknowledged, and the log does not have it"
                if heard == "not" and (commit in made or any(record[0] == commit for _, record in state.late)):
                    yield f"{commit} was said not to have happened, and it has, or may yet"

    def is_over(self, state: State) -> bool:
        return not state.late and all(client.step == "end" for client in state.clients)
