"""Leases: readers keep history and blobs, compaction and collection wait for them, and only the log ends a lease.

A reader claims a time in the log before it plans, and its lease says of which state its oldest read was planned
(`persist.engine.hold.leases`). `since` stays at or before each time that is claimed. What compaction has replaced is
deleted when no lease is left that read a state before that record. A lease that is past its end goes on until a record
ends it, and such a record counts only if the lease was not renewed meanwhile.

    reader       claim time 0, which is refused if since has passed it; plan; fetch the old part, if that is what the
                 state named; renew; release
    compactor    allow compaction to time 1; replace the old part by a new one that holds the same; when nobody waits
                 for the old one any more, delete it
    expirer      read the log; end a lease that is past its end by this client's clock, which may be wrong

Invariants: since is not beyond a time that is claimed; and a part that a reader with a lease in the log has planned to
fetch is there. A reader whose lease the log has ended may find it gone: it says `LeaseExpired`.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Lease(NamedTuple):
    """What the log says of one reader's lease."""

    ends: int  # The hour in which it may be ended.
    reads_old: bool  # Whether its oldest read was planned from a state before the record that replaced the part.


class State(NamedTuple):
    """What the log says, what is stored, and who is about to do what."""

    hour: int
    leases: tuple[Lease | None, ...]  # Of each reader.
    is_allowed: bool  # Whether compaction to time 1 has been asked for.
    since: int
    is_replaced: bool
    is_stored: bool
    readers: tuple[str, ...]
    expirer: tuple[int, int, Lease] | None  # The reader whose lease it ends, the hour by its clock, what it has read.


class Leasing:
    """See the module's docstring.

    Args:
        hours: how many may pass; a lease is for one.
        fault: "move since": since passes claims. "wait for nobody": what was replaced is deleted at once. "say
            nothing": a lease that is past its end is not waited for, though no record ends it. "plan first": a state is
            planned from before the claim, which says that later ones are read.
    """

    def __init__(self, readers: int, hours: int, fault: str = "") -> None:
        self._readers = readers
        self._hours = hours
        self._fault = fault

    def start(self) -> State:
        return State(0, (None,) * self._readers, False, 0, False, True, ("claim",) * self._readers, None)

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        if state.hour < self._hours:
            yield "an hour passes", state._replace(hour=state.hour + 1)
        for n, step in enumerate(state.readers):
            for words, after in self._read(n, step, state):
                yield f"reader {n} {words}", after
        if not state.is_allowed:
            yield "compaction is allowed", self._recorded(state._replace(is_allowed=True))
        if not state.is_replaced:
            yield "the old part is replaced", self._recorded(state)._replace(is_replaced=True)
        if state.is_replaced and state.is_stored and not self._is_waited_for(state):
            yield "the old part is deleted", state._replace(is_stored=False)
        yield from self._expired(state)

    def _read(self, n: int, step: str, state: State) -> Iterator[tuple[str, State]]:
        lease = state.leases[n]
        if step == "claim" and self._fault == "plan first" and not state.is_replaced:
            yield "plans", self._at(n, "claim old", state)
        elif step in ("claim", "claim old"):
            if state.since > 0:
                yield "is refused", self._at(n, "end", state)
            else:
                then = "plan" if step == "claim" else "fetch"
                granted = Lease(state.hour + 1, not state.is_replaced)
                yield "claims time 0", self._recorded(self._with(n, granted, self._at(n, then, state)))
        elif step == "plan":
            yield "plans", self._at(n, "fetch" if not state.is_replaced else "release", state)
        elif step == "fetch":
            yield "dies", self._at(n, "end", state)
            if state.is_stored:
                yield "fetches the part", self._at(n, "release", state)
            elif lease is None:
                yield "says LeaseExpired", self._at(n, "end", state)
            if lease is not None and lease.ends <= state.hour:
                renewed = lease._replace(ends=state.hour + 1)
                yield "renews its lease", self._recorded(self._with(n, renewed, state))
        elif step == "release":
            yield "ends its lease", self._recorded(self._with(n, None, self._at(n, "end", state)))

    def _expired(self, state: State) -> Iterator[tuple[str, State]]:
        if state.expirer is None:
            for n, lease in enumerate(state.leases):
                for hour in (state.hour, state.hour + 1):  # Of a clock that is right, and of one that is ahead.
                    if lease is not None and lease.ends < hour:
                        words = f"the expirer reads that lease {n} is past its end"
                        yield words, state._replace(expirer=(n, hour, lease))
            return
        n, hour, read = state.expirer
        lease, idle = state.leases[n], state._replace(expirer=None)
        if lease is None or lease != read:
            yield "it hears that the lease has gone on", idle
        else:
            yield f"it ends lease {n}", self._recorded(self._with(n, None, idle))

    def _is_waited_for(self, state: State) -> bool:
        live = [lease for lease in state.leases if lease is not None]
        if self._fault == "say nothing":
            live = [lease for lease in live if lease.ends >= state.hour]
        return self._fault != "wait for nobody" and any(lease.reads_old for lease in live)

    def _recorded(self, state: State) -> State:
        """Return the state after a record of the log, which moves since as far as claims let it."""
        is_held = any(lease is not None for lease in state.leases) and self._fault != "move since"
        since = 1 if state.is_allowed and not is_held else state.since
        return state._replace(since=max(state.since, since))

    def _at(self, n: int, step: str, state: State) -> State:
        return state._replace(readers=(*state.readers[:n], step, *state.readers[n + 1 :]))

    def _with(self, n: int, lease: Lease | None, state: State) -> State:
        return state._replace(leases=(*state.leases[:n], lease, *state.leases[n + 1 :]))

    def wrong(self, state: State) -> Iterator[str]:
        for n, (lease, step) in enumerate(zip(state.leases, state.readers, strict=True)):
            if lease is not None and state.since > 0:
                yield f"since is {state.since}, and reader {n} holds time 0"
            if lease is not None and step == "fetch" and not state.is_stored:
                yield f"what reader {n} is about to fetch is gone, and its lease is there"

    def is_over(self, state: State) -> bool:
        return all(step == "end" for step in state.readers)
