"""Optimistic commits: plan from the newest state, commit, and plan again if another client came first.

Nothing is locked while a plan is made. Its steps carry conditions on what it has read, such as `ExpectUpper` or
`ExpectErasures`. The log refuses the record if a condition does not hold, so a plan is right when it is committed, or
nothing happens.

*Invariant.* Each attempt begins from the newest state that its client can see. Nothing of an earlier attempt counts
unless the conditions of the new commit cover it.

*A plan may read* the newest state of its client's follower, and the blobs that this state names. It may store parts for
its own commit. If the commit is refused, the plan deletes them before it raises; after `Indeterminate` it leaves them,
because the record may yet appear.

*Another client came first* if the plan raises one of its conflicts; `CONFLICTS` are the usual ones. All other errors
are raised at once. The hook `prepare` raises a conflict that no further attempt can resolve.

*Limits.* There are `ATTEMPTS_MAX` attempts. The second one follows at once, because most races are between two clients.
Before each later one the thread sleeps for a random time. Its bound is `WAIT_FIRST_S` at first, doubles after each
attempt, and ends at `WAIT_MAX_S`. Clients that lost to the same record therefore come back at different moments. The
waits use the clock of the client, so tests wait in virtual time.
"""

import math
from collections.abc import Callable
from typing import TypeVar

from persist.blob.threads import Backoff, Clock
from persist.core.errors import Conflict, PersistError, Superseded, UpdatesBeyondUpper, UpperMismatch

ATTEMPTS_MAX = 100
WAIT_FIRST_S = 0.01
WAIT_MAX_S = 1.0

CONFLICTS: tuple[type[PersistError], ...] = (Superseded, UpperMismatch, UpdatesBeyondUpper)

T = TypeVar("T")


def commit_with_retry(
    plan: Callable[[], T],
    *,
    action: str,
    clock: Clock,
    conflicts: tuple[type[PersistError], ...] = CONFLICTS,
    prepare: Callable[[PersistError], object] = lambda error: None,
) -> T:
    """Call plan, which plans and commits; repeat it as long as other clients commit first.

    Args:
        plan: plans from the newest state, commits, and waits until the commit is durable.
        action: names the call in errors.
        clock: sleeps between attempts.
        conflicts: the errors of plan after which it is called again.
        prepare: called before each attempt but the first, with the last conflict; its error ends the attempts.

    Raises:
        Conflict: other clients came first `ATTEMPTS_MAX` times.
        PersistError: other errors of plan, and the errors of prepare.
    """
    backoff: Backoff | None = None
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return plan()
        except conflicts as error:
            conflict = error
        if backoff is not None and attempt < ATTEMPTS_MAX:
            backoff.wait()
        backoff = backoff or Backoff(clock, math.inf, first_s=WAIT_FIRST_S, bound_max_s=WAIT_MAX_S)
        prepare(conflict)
    raise Conflict(
        f"{action}: other clients committed first {ATTEMPTS_MAX} times, so nothing of it was applied. Try it again "
        f"when they write less. The last reason: {conflict}"
    ) from conflict
