"""Truncating the log: slots become free again, and somebody who slept must not be acknowledged for one of them.

A truncator declares a floor in the log, makes a checkpoint that says so, and deletes the records below the floor.
A writer believes that a free slot is the end of the log only as long as it has seen the end lately
(`persist.engine.follow.follower.STALE_AFTER_S`); otherwise it looks at the floor of the newest checkpoint, before it
reads on and again after its create. What goes is older than that by far, which is the one thing that clocks are
trusted with. Here, time passes in hours, what was seen in this hour is fresh, and a floor rises only to where a
checkpoint of an hour before stands for what goes. That the records alone are so old is not enough: whoever has just
read the newest checkpoint has a fresh state, and the record after it may be old.

    see       note the time, before the log is asked
    look      read the next slot; after an hour, the newest checkpoint comes first, and what lies below its floor is
              not read: the client goes on from the checkpoint
    offer     create the record in the free slot
    back      look for the record before the own one, unless a release does not
    after     look at the floor, if the end was not seen in this hour. A record below it is not part of the log: it is
              offered anew, unless the create itself took so long that it may have been there and gone: that is doubt

Invariants: what was acknowledged is in the newest checkpoint, or in a record after it that can be reached without a
gap; and nobody reads an operation twice.
"""

from collections.abc import Iterator
from typing import NamedTuple

FLOOR = "floor"  # What a record says that declares a floor.


class Record(NamedTuple):
    """A record: its commit id, and the hour in which it was made."""

    commit: str
    hour: int
    floor: int = 0


class Checkpoint(NamedTuple):
    """What the log says up to a seqno, and from where on it is kept."""

    seqno: int
    floor: int
    commits: tuple[str, ...]


class Client(NamedTuple):
    """What one client knows and is about to do."""

    step: str
    known: tuple[str, ...] = ()  # Commit ids of the records that it counts as read, in the order of the log.
    began: int = 0  # The hour in which it noted the time.
    seen: int = 0  # The hour in which it last saw the end of the log.
    offered: int = 0  # The hour in which its create began.
    heard: str = ""


class State(NamedTuple):
    """What is stored, what time it is, and who is about to do what."""

    hour: int
    log: tuple[Record | None, ...]
    checkpoint: Checkpoint
    aged: int  # The greatest seqno of a checkpoint of an hour before.
    clients: tuple[Client, ...]
    truncator: tuple[str, int]  # Its step, and the floor that it has in mind.


class Truncating:
    """See the module's docstring. The log begins with two records and a checkpoint of an hour ago.

    Args:
        hours: how many may pass.
        looks_back: whether a client looks for the record before its own.
        fault: "age of records": a floor rises over all records of an hour before. "no look after": the floor is not
            looked at after a create. "stamp late": the time is noted after the log was asked. "no look before": a slot
            is believed to be the end, however long ago the log was read.
    """

    def __init__(self, clients: int, hours: int, fault: str = "", *, looks_back: bool = False) -> None:
        self._clients = clients
        self._hours = hours
        self._fault = fault
        self._looks_back = looks_back

    def start(self) -> State:
        log = (Record("x", 0), Record("y", 0))
        checkpoint = Checkpoint(1, 0, ("x", "y"))
        return State(1, log, checkpoint, 1, (Client("see"),) * self._clients, ("wait", 0))

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        if state.hour < self._hours:
            yield "an hour passes", state._replace(hour=state.hour + 1, aged=state.checkpoint.seqno)
        yield from self._truncator(state)
        for n, client in enumerate(state.clients):
            for words, changed, after in self._of(n, client, state):
                clients = (*state.clients[:n], after, *state.clients[n + 1 :])
                yield f"client {n} {words}", changed._replace(clients=clients)

    def _truncator(self, state: State) -> Iterator[tuple[str, State]]:
        step, floor = state.truncator
        if step == "wait":
            old = state.aged + 1
            if self._fault == "age of records":
                old = sum(record is None or record.hour < state.hour for record in state.log)
            for floor in range(state.checkpoint.floor + 1, old + 1):
                log = (*state.log, Record(f"{FLOOR}{floor}", state.hour, floor))
                yield f"the truncator declares the floor {floor}", state._replace(log=log, truncator=("make", floor))
        elif step == "make":
            known = _readable(state)
            checkpoint = Checkpoint(len(state.log) - 1, floor, known)
            yield "it makes a checkpoint", state._replace(checkpoint=checkpoint, truncator=("delete", floor))
        elif step == "delete":
            standing = [seqno for seqno in range(floor) if state.log[seqno] is not None]
            if not standing:
                yield "it is done", state._replace(truncator=("wait", 0))
            for seqno in standing:
                log = (*state.log[:seqno], None, *state.log[seqno + 1 :])
                yield f"it deletes record {seqno}", state._replace(log=log)

    def _of(self, n: int, client: Client, state: State) -> Iterator[tuple[str, State, Client]]:
        slot, newest = len(client.known), state.checkpoint
        held = state.log[slot] if slot < len(state.log) else None
        if client.step == "see":
            yield "notes the time", state, client._replace(step="look", began=state.hour)
        elif client.step == "look":
            is_stale = client.began != client.seen and self._fault != "no look before"
            if is_stale and newest.floor > slot:
                known = newest.commits
                yield "goes on from the checkpoint", state, client._replace(step="see", known=known, seen=client.began)
            elif held is not None:
                known = (*client.known, held.commit)
                yield f"reads {held.commit}", state, client._replace(step="see", known=known)
            else:
                seen = state.hour if self._fault == "stamp late" else client.began
                yield "finds a free slot", state, client._replace(step="offer", seen=seen)
        elif client.step == "offer":
            yield "is about to create", state, client._replace(step="create", offered=state.hour)
        elif client.step == "create" and held is None:
            log = [*state.log, None][: max(len(state.log), slot + 1)]
            log[slot] = Record("abc"[n], state.hour)
            yield (
                "creates its record",
                state._replace(log=tuple(log)),
                client._replace(step="back" if self._looks_back else "after"),
            )
        elif client.step == "create" and held is not None:
            yield f"has lost to {held.commit}", state, client._replace(step="see")
        elif client.step == "back" and state.log[slot - 1] is not None:
            yield "sees the record before", state, client._replace(step="after")
        elif client.step in ("back", "after"):
            is_fresh = client.seen == state.hour or self._fault == "no look after"
            if (is_fresh and client.step == "after") or newest.floor <= slot:
                yield "is done", state, Client("end", heard="done")
            elif client.offered != state.hour:
                yield "does not know", state, Client("end", heard="unknown")
            else:
                yield "begins again", state, client._replace(step="see", known=newest.commits)

    def wrong(self, state: State) -> Iterator[str]:
        readable = _readable(state)
        for n, client in enumerate(state.clients):
            if client.heard == "done" and readable.count("abc"[n]) != 1:
                yield f"client {n} was acknowledged, and readers see {readable}"
        if len({*readable}) < len(readable):
            yield f"something is read twice: {readable}"

    def is_over(self, state: State) -> bool:
        return all(client.step == "end" for client in state.clients)


def _readable(state: State) -> tuple[str, ...]:
    """Return what somebody who opens now reads: the newest checkpoint, and the records that follow it."""
    commits = list(state.checkpoint.commits)
    for record in state.log[state.checkpoint.seqno + 1 :]:
        if record is None:
            break
        commits.append(record.commit)
    return tuple(commits)
