"""How many requests of the store clients made, by hour: kept in what the location says of itself.

Each process counts its own requests (`MeteredBlob`). A client that writes adds its counts to the property
`requests.hours` of the location, a JSON object:

    { "<hours since 1970>": { "PUT" | "GET" | "LIST" | "DELETE" | "persist <release>": [requests, bytes] } }

A release has the sum of all kinds that its clients told: so the ledger says which releases were in use, and when.
It does so by a record of its own, every `TELL_S` and when it closes, if at least `TELL_MIN` requests were not told yet.
So telling adds one request to a hundred at most, and none to a commit. The record names the version that it adds to:
if another client told something first, it is made again from that. Hours before the last `HOURS_KEPT` are left out.

What is not told: a client that only reads writes nothing; tasks on Spark's workers have stores of their own; a process
that ends leaves fewer than `TELL_MIN` requests untold, or all since it last told if it is killed. In folders nobody
tells anything, because requests cost nothing there. An answer that is lost counts as told: counts are rather too small.
"""

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from persist import __version__
from persist.blob.layers.metered import Count
from persist.blob.threads import Clock
from persist.core.errors import DescriptionMoved, Indeterminate, PersistError
from persist.core.log import kinds
from persist.core.log.fields import Words
from persist.core.state_rules.annotations import About
from persist.engine.follow.follower import Follower
from persist.engine.write.commit_future import CommitFuture
from persist.engine.write.operations import Step

logger = logging.getLogger(__name__)
REQUESTS: Final = "requests.hours"  # A property of the location.
KIND_OF = {"create": "PUT", "set": "PUT", "get": "GET", "list": "LIST", "delete": "DELETE"}
RELEASE: Final = "persist "  # What stands before a release.
REQUEST_KINDS = tuple(dict.fromkeys(KIND_OF.values()))
TELL_S = 900.0
TELL_MIN = 100
ATTEMPTS = 5  # When a client closes.
HOUR_S = 3600
HOURS_KEPT = 25

Ledger = dict[int, dict[str, tuple[int, int]]]  # By hour and kind: requests, bytes.


def requests_told(about: About) -> Ledger:
    """Return what clients told of their requests; nothing if the property is somebody else's."""
    try:
        return msgspec.json.decode(about.properties.get(REQUESTS, "{}"), type=Ledger)
    except msgspec.MsgspecError:
        return {}


def releases_told(about: About) -> dict[str, int]:
    """Return the releases of the clients that told of their requests, and the start of the last such hour, in s."""
    hours = sorted(requests_told(about).items())
    return {
        name.removeprefix(RELEASE): hour * HOUR_S for hour, told in hours for name in told if name.startswith(RELEASE)
    }


@dataclass(frozen=True, slots=True)
class _Asked:
    """Counts that are on their way into the log, and the future of their commit."""

    totals: Counter[tuple[str, str]]
    future: CommitFuture


class RequestTeller:
    """Tells the location of one client's requests. For one thread at a time."""

    def __init__(
        self,
        counts: Callable[[], Mapping[str, Count]],
        follower: Follower,
        submit: Callable[[Sequence[Step], dict[str, str]], CommitFuture],
        clock: Clock,
    ) -> None:
        """Make one; counts returns what the client has asked of its store so far, by operation."""
        self._counts = counts
        self._follower = follower
        self._submit = submit
        self._clock = clock
        self._told: Counter[tuple[str, str]] = Counter()
        self._asked: _Asked | None = None
        # Clients that were opened together should not tell together.
        self._next_s = clock.monotonic_s() + TELL_S * random.uniform(0.5, 1.0)

    def tick(self) -> None:
        """Tell if it is time for it. This waits for nothing: the next call looks whether it succeeded."""
        was_beaten = self._settle()
        now_s = self._clock.monotonic_s()
        if self._asked is None and (was_beaten or now_s >= self._next_s):
            self._next_s = now_s + TELL_S
            self._ask()

    def close(self) -> None:
        """Tell what is left, and wait for that."""
        for _ in range(ATTEMPTS):
            if self._asked is None:
                self._ask()
            if self._asked is None or not self._settle(wait=True):
                return

    def _ask(self) -> None:
        totals: Counter[tuple[str, str]] = Counter()
        for operation, count in self._counts().items():
            totals[KIND_OF[operation], "requests"] += count.requests
            totals[KIND_OF[operation], "bytes"] += count.bytes
        untold = totals - self._told
        state = self._follower.state
        is_worth_it = sum(n for (_, what), n in untold.items() if what == "requests") >= TELL_MIN
        if not is_worth_it or state.seqno < 0 or self._follower.interrupted is not None:
            return
        words = Words(None, {REQUESTS: _added(state.control.about, untold, self._clock.wall_ms())})
        try:
            step = kinds.DescribeLocation(words, state.control.about.version)
            self._asked = _Asked(totals, self._submit([step], {}))
        except PersistError as problem:
            logger.debug("the location was not told how many requests this client made: %s", problem)

    def _settle(self, *, wait: bool = False) -> bool:
        """Look at the answer, if there is one; return whether another client told something first."""
        asked = self._asked
        if asked is None or not (wait or asked.future.done()):
            return False
        self._asked, problem = None, asked.future.exception()
        if problem is None or isinstance(problem, Indeterminate):
            self._told = asked.totals
        else:
            logger.debug("the location was not told how many requests this client made: %s", problem)
        return isinstance(problem, DescriptionMoved)


def _added(about: About, untold: Mapping[tuple[str, str], int], now_ms: int) -> str:
    """Return the property with counts added to those of this hour."""
    hour = now_ms // 1000 // HOUR_S
    kept = {at: told for at, told in requests_told(about).items() if hour - HOURS_KEPT < at <= hour + 1}
    present = kept.get(hour, {})
    counts = Counter(dict(untold))
    for what in ("requests", "bytes"):
        counts[RELEASE + __version__, what] = sum(n for (_, counted), n in untold.items() if counted == what)
    kept[hour] = present | {
        kind: (requests + counts[kind, "requests"], size + counts[kind, "bytes"])
        for kind in (*REQUEST_KINDS, RELEASE + __version__)
        for requests, size in [present.get(kind, (0, 0))]
    }
    return msgspec.json.encode(kept).decode()
