"""Checkpoints that take over what earlier ones name, and collectors that delete what none names (rule 24).

A checkpoint names objects: some that it takes over from the one it is made of, and one made for itself. Whoever makes
it may sleep between reading the one and storing the other. `persist.engine.upkeep.garbage` says why this is safe:
before anything is deleted, a record at seqno v names one checkpoint N that the collector has read. Checkpoints at v or
later are made of N, or of one at v or later; and nothing is deleted before one at v or later has been read.

    maker       append a record; read the newest checkpoint that is allowed; store an object; create the checkpoint
    collector   read the newest checkpoint N; list; declare N; make a checkpoint; read the newest one; delete what
                neither names, of seqnos up to that of N

Invariant: what the newest checkpoint names exists. Older ones may name what is gone, because nobody opens them.
"""

from collections.abc import Iterator
from typing import NamedTuple

Object = tuple[int, int]  # The seqno for which it was made, and its maker.
Names = frozenset[Object]


class Taken(NamedTuple):
    """What a declaration says: its seqno, and the checkpoint of which later ones are made."""

    seqno: int
    checkpoint: int

    def allows(self, checkpoint: int) -> bool:
        return checkpoint == self.checkpoint or checkpoint >= self.seqno


class Client(NamedTuple):
    """A maker, or a collector, which is a maker in between."""

    step: str
    left: int = 0  # Checkpoints that a maker has still to make.
    seqno: int = 0  # Of the record up to which the client has read the log, for which it makes a checkpoint.
    names: Names = frozenset()  # What the checkpoint that it makes will name; of a collector, what it may delete.
    newest: int = 0  # The checkpoint that a collector read first.


class State(NamedTuple):
    """What is stored, and who is about to do what."""

    log: tuple[int | None, ...]  # The checkpoint that each record declares, if any.
    checkpoints: tuple[tuple[int, Names], ...]  # By seqno, the newest last.
    stored: Names
    clients: tuple[Client, ...]


class TakingOver:
    """See the module's docstring. It begins with a checkpoint at 0, which names what was made for it.

    Args:
        makers: how many clients append records and make checkpoints, `rounds` each.
        fault: "declare nothing": collectors delete what neither the checkpoint that they read first nor the newest one
            names. "read no newer": nothing is read after the declaration.
    """

    def __init__(self, makers: int, collectors: int, rounds: int, fault: str = "") -> None:
        self._makers = makers
        self._collectors = collectors
        self._rounds = rounds
        self._fault = fault

    def start(self) -> State:
        first = frozenset({(0, 9)})
        clients = (Client("append", self._rounds),) * self._makers + (Client("list"),) * self._collectors
        return State((None,), ((0, first),), first, clients)

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        for n, client in enumerate(state.clients):
            words = "maker" if n < self._makers else "collector"
            for what, changed, after in self._of(n, client, state):
                clients = (*state.clients[:n], after, *state.clients[n + 1 :])
                yield f"{words} {n} {what}", changed._replace(clients=clients)

    def _of(self, n: int, client: Client, state: State) -> Iterator[tuple[str, State, Client]]:
        log, end = state.log, len(state.log)
        match client.step:
            case "append":
                yield f"appends record {end}", state._replace(log=(*log, None)), client._replace(step="base", seqno=end)
            case "base":
                yield from self._based(n, client, state)
            case "store":
                stored = state.stored | {(client.seqno, n)}
                yield "stores its object", state._replace(stored=stored), client._replace(step="create")
            case "create":
                made, seqno = state, client.seqno
                if all(other != seqno for other, _ in state.checkpoints):
                    made = state._replace(checkpoints=(*sorted((*state.checkpoints, (seqno, client.names))),))
                yield f"creates checkpoint {seqno}", made, self._after(n, client)
            case "list":
                seqno, names = state.checkpoints[-1]
                unused = frozenset(each for each in state.stored - names if each[0] <= seqno)
                step = "look" if self._fault == "declare nothing" else "declare"
                yield f"reads checkpoint {seqno}, and lists", state, Client(step, names=unused, newest=seqno)
            case "declare":
                declared = state._replace(log=(*log, client.newest))
                mine = client._replace(step="base", seqno=end)
                if self._fault == "read no newer":
                    mine = client._replace(step="delete")
                yield f"declares checkpoint {client.newest} at {end}", declared, mine
            case "look":
                yield from self._looked(client, state)
            case "delete" if client.names:
                for each in client.names:
                    left = client._replace(names=client.names - {each})
                    yield f"deletes {each}", state._replace(stored=state.stored - {each}), left
            case "delete":
                yield "is done", state, Client("end")

    def _based(self, n: int, client: Client, state: State) -> Iterator[tuple[str, State, Client]]:
        """Read the newest checkpoint that is allowed, and decide what of it is taken over."""
        taken = _taken(state.log[: client.seqno + 1])
        allowed = [c for c in state.checkpoints if c[0] <= client.seqno and (taken is None or taken.allows(c[0]))]
        mine, is_collector = (client.seqno, n), n >= self._makers
        seqno, names = allowed[-1] if allowed else (-1, frozenset())
        if seqno == client.seqno:
            yield "finds its checkpoint made", state, self._after(n, client)
            return
        for kept in (names, frozenset[Object]()):
            # A collector's own list of what may go is kept beside what its checkpoint is to name.
            made = client._replace(step="store", names=kept | {mine})
            if is_collector:
                yield (
                    f"takes {len(kept)} over from {seqno}, and makes a checkpoint",
                    _made(state, made, mine),
                    (client._replace(step="look")),
                )
            else:
                yield f"takes {len(kept)} over from {seqno}", state, made

    def _after(self, n: int, client: Client) -> Client:
        if n >= self._makers:
            return client._replace(step="look")
        return Client("append", client.left - 1) if client.left > 1 else Client("end")

    def _looked(self, client: Client, state: State) -> Iterator[tuple[str, State, Client]]:
        """Find out what no checkpoint will ever name, once the newest one comes after the declaration."""
        newest, names = state.checkpoints[-1]
        taken = _taken(state.log)
        if self._fault == "declare nothing":
            yield "reads the newest checkpoint", state, client._replace(step="delete", names=client.names - names)
            return
        assert taken is not None, "this client has declared one"
        basis = dict(state.checkpoints).get(taken.checkpoint)
        if newest < taken.seqno or basis is None:
            yield "gives up", state, Client("end")
            return
        dead = frozenset(each for each in client.names - names - basis if each[0] <= taken.checkpoint)
        yield f"reads checkpoint {newest}", state, client._replace(step="delete", names=dead)

    def wrong(self, state: State) -> Iterator[str]:
        seqno, names = state.checkpoints[-1]
        if missing := names - state.stored:
            yield f"checkpoint {seqno} names {set(missing)}, which are gone"

    def is_over(self, state: State) -> bool:
        return all(client.step == "end" for client in state.clients)


def _made(state: State, client: Client, own: Object) -> State:
    """Return the state after a checkpoint was made without a pause; makers are those that pause in between."""
    checkpoints = state.checkpoints
    if all(seqno != client.seqno for seqno, _ in checkpoints):
        checkpoints = (*sorted((*checkpoints, (client.seqno, client.names))),)
    return state._replace(checkpoints=checkpoints, stored=state.stored | {own})


def _taken(log: tuple[int | None, ...]) -> Taken | None:
    """Return which declaration counts: one changes nothing if an earlier one does not allow it."""
    taken: Taken | None = None
    for seqno, checkpoint in enumerate(log):
        if checkpoint is not None and (taken is None or taken.allows(checkpoint)):
            taken = Taken(seqno, checkpoint)
    return taken
