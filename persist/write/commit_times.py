"""Which time a commit gives to those who named none, and which of them may have one record together (rule 21).

The time is assigned when the record is made, from the state that the record follows: beyond the upper of every
collection concerned, and on a timeline not before the clock. So nobody who named no time is ever late. A record that
loses the race for its seqno gets another time with its next attempt, and what was encoded for it stays.

All operations of one record that name no time and touch the same collection get one time, as if they had been one
write: their updates are appended at it, their events in call order, and one seal follows them. Operations that name a
time never share a record with them on the same collection, so each of them finds the state that it would find alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from persist.antichain import Antichain
from persist.codecs import TIME_MAX, TIME_UNITS
from persist.write.operations import AtCommit, Operation


def in_records(operations: Sequence[Operation]) -> list[list[Operation]]:
    """Cut operations, in their order, where one may not be in the record of those before it.

    On one collection, only those that write at the time of the commit, and do nothing else, share it; and only those
    that name their times go together without it.
    """
    if not any(operation.at_commit for operation in operations):
        return [[*operations]]
    records: list[list[Operation]] = [[]]
    sharing: dict[str, bool | None] = {}  # Of the collections of a record: None lets nobody else in.
    for operation in operations:
        how = operation.shares_time
        if how and len(operation.steps) == 2 and sharing.get(operation.at_commit[0].collection) is True:
            records[-1].append(operation)
            continue
        closed = bool(operation.at_commit) and not how
        ids = {step.collection for step in operation.steps} - {""}
        if any(id_ in sharing and (closed or sharing[id_] is not how) for id_ in ids):
            records.append([])
            sharing = {}
        records[-1].append(operation)
        sharing.update(dict.fromkeys(ids, None if closed else how))
    return records


def assigned_times(
    operations: Iterable[Operation], upper_of: Callable[[str], Antichain], wall_ms: int
) -> dict[str, int]:
    """Return, by collection, the time of a commit that is made now for those who named none.

    It is beyond the upper of each collection, and on a timeline not before the clock. Collections that an operation
    writes together get one time: one moment on their timelines, one number where times only count.

    Args:
        upper_of: returns the newest upper of a collection.
        wall_ms: the clock, in milliseconds since 1970.
    """
    together: dict[str, dict[str, AtCommit]] = {}  # The collections of one time, for each of them.
    uppers: dict[str, Antichain] = {}
    for operation in operations:
        asks: dict[str, AtCommit] = {}
        if len(operation.at_commit) == 1 and operation.at_commit[0].collection in together:
            continue  # As most of very many small writes: it shares the time of those before it.
        for asked in operation.at_commit:
            uppers[asked.collection] = max(upper_of(asked.collection), operation.sealed_before(asked))
            asks |= together.get(asked.collection, {}) | {asked.collection: asked}
        together |= dict.fromkeys(asks, asks)
    times: dict[str, int] = {}
    for id_, asks in together.items():
        if id_ not in times:
            times |= times_together(asks, uppers, wall_ms)
    return times


def times_together(asks: Mapping[str, AtCommit], uppers: Mapping[str, Antichain], wall_ms: int) -> dict[str, int]:
    """Return the time that collections get together: one moment on timelines, and one number where times only count.

    On timelines of different units that is a time of the coarsest of them.
    """
    rates = {id_: 1000 ** TIME_UNITS.index(asked.timeline) for id_, asked in asks.items() if asked.timeline is not None}
    number = max((_least(uppers[id_]) for id_ in asks if id_ not in rates), default=0)
    coarsest = min(rates.values(), default=1)
    # Rounded up: a time of a finer timeline that lies between two of the coarsest is not beyond the first of them.
    bounds = (-(-_least(uppers[id_]) * coarsest // rate) for id_, rate in rates.items())
    moment = max(wall_ms * coarsest // 1000, *bounds, 0)
    assigned = {id_: min(moment * (rates[id_] // coarsest), TIME_MAX) if id_ in rates else number for id_ in asks}
    chosen = {id_: asked.time for id_, asked in asks.items() if asked.time is not None}
    return assigned | chosen


def _least(upper: Antichain) -> int:
    """Return the least time that may be written; none may where all are sealed, and then the last one is refused."""
    return TIME_MAX if upper.time is None else min(upper.time, TIME_MAX)
