"""Records of the log, as a person reads them."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

import persist
from persist.facts import hold_for_people, names_by_id, times_of
from persist.log import (
    AdvanceLateBound,
    AllowCompaction,
    Append,
    Batch,
    CloseWriter,
    Collected,
    Create,
    Describe,
    DescribeLocation,
    Destroy,
    DropTag,
    EndLease,
    Evolve,
    GrantLease,
    Mutation,
    Note,
    OpenWriter,
    Pend,
    Record,
    Redefine,
    ReleaseHold,
    Rename,
    Replace,
    Resolve,
    Seal,
    SetHold,
    SetRetention,
    SetTag,
    TakeOver,
    Tokens,
    TruncateLog,
    VoidUploads,
    read_record,
)
from persist.shown import counted

Time: TypeAlias = Callable[[int], str]  # How a time is told.


def records_before(
    client: "persist.Client", before: int | None, last: int, collection: str | None
) -> tuple[list[Record], bool]:
    """Return the last records before a seqno, in order, and whether older ones are gone. Cost: a GET for each.

    Args:
        collection: the id of the only one of interest.
    """
    seqno = client.seqno if before is None else min(before - 1, client.seqno)
    found: list[Record] = []
    while seqno >= 0 and len(found) < last:
        record = read_record(client.engine.blob, seqno)
        if record is None:
            return found[::-1], True
        if collection is None or any(mutation.collection == collection for mutation in record.mutations):
            found.append(record)
        seqno -= 1
    return found[::-1], False


class Told:
    """What records speak of, as people know it: collections by their names, and times by their moments.

    A name is the present one: records bear ids. Cost: a GET for each collection that is spoken of, once.
    """

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._names = names_by_id(client)
        self._times: dict[str, Callable[[int], str]] = {}

    def sentences(self, record: Record) -> list[str]:
        """Return what a record did, a sentence each."""
        return [self._sentence(mutation) for mutation in record.mutations]

    def _sentence(self, mutation: Mutation) -> str:
        kind, id_ = type(mutation), mutation.collection
        say: Callable[[Any, str, Time], str] = _SAYS.get(kind, lambda m, name, _: f"{kind.__name__} {name}".strip())
        if not id_:
            return say(mutation, "", str)
        known = mutation.name if isinstance(mutation, Create) else self._names.get(id_)
        name = f"a collection that is gone ({id_[:8]})" if known is None else repr(known)
        if isinstance(mutation, SetHold):
            mutation = msgspec.structs.replace(mutation, hold=hold_for_people(mutation.hold, self._names))
        return say(mutation, name, self._times_of(id_))

    def _times_of(self, id_: str) -> Callable[[int], str]:
        if id_ not in self._times:
            self._times[id_] = str  # Of one that is gone, or goes meanwhile.
            if id_ in self._names:
                with suppress(persist.CollectionNotFound):
                    self._times[id_] = times_of(self._client.load(self._names[id_]))
        return self._times[id_]


def _frontier(times: tuple[int, ...], time: Time) -> str:
    return time(times[0]) if times else "for ever"


def _append(m: Append, name: str, time: Time) -> str:
    size = sum(p.bytes for p in m.parts)
    first, last = min(p.time_min for p in m.parts), max(p.time_max for p in m.parts)
    at = f"time {time(first)}" if first == last else f"times {time(first)} to {time(last)}"
    inline = ", in the record itself" if all(p.inline for p in m.parts) else ""
    return f"wrote {_rows(m, 'update')} to {name} at {at} ({size:,} bytes{inline})"


def _replace(m: Replace, name: str, time: Time) -> str:
    done = []
    if m.keyframes:
        done.append(f"made a keyframe as of {', '.join(time(k.as_of) for k in m.keyframes)}")
    if m.removed_runs:
        done.append(f"merged {counted(len(m.removed_runs), 'run')} into {len(m.runs)}")
    if m.removed_keyframes:
        done.append(f"dropped {counted(len(m.removed_keyframes), 'keyframe')}")
    if m.history_from is not None:
        done.append(f"forgot the history before {time(m.history_from)}")
    return f"compacted {name}: {'; '.join(done) or 'rearranged its parts'}"


def _hold(m: SetHold, name: str, time: Time) -> str:
    if m.lease is not None:
        return f"a reader holds {name} at {time(m.time)} by a lease"
    if m.expected is None:
        return f"the hold {m.hold!r} of {name} was set at {time(m.time)}"
    return f"the hold {m.hold!r} of {name} was moved from {time(m.expected)} to {time(m.time)}"


def _pend(m: Pend, name: str, _: Time) -> str:
    return f"wrote {_rows(m, 'event')} to {name}, which become updates when their times are sealed"


def _resolve(m: Resolve, name: str, time: Time) -> str:
    return f"turned the events of {name} before {_frontier(m.end, time)} into {_rows(m, 'update')}"


def _evolve(m: Evolve, name: str, _: Time) -> str:
    columns = [field[0] for side in ("key", "value") for field in (m.schema.get(side) or {}).get("fields", ())]
    keyed = "; it takes events from then on" * (m.keyed is not None)
    return f"gave {name} version {m.schema.get('version')} of its schema: {', '.join(map(str, columns))}{keyed}"


def _rows(m: "Append | Pend | Resolve", noun: str) -> str:
    return counted(sum(part.rows for part in m.parts), noun)


_SAYS: dict[type, Callable[[Any, str, Time], str]] = {
    Create: lambda m, name, _: f"created {'' if m.view is None else 'the view '}{name}",
    Append: _append,
    Replace: _replace,
    Tokens: lambda m, name, _: f"remembered {', '.join(repr(mark.token) for mark in m.tokens)} as written to {name}",
    Batch: lambda m, name, _: f"was batch {m.batch} of the streaming query {m.query!r} into {name}",
    Pend: _pend,
    Resolve: _resolve,
    AdvanceLateBound: lambda m, name, _: f"moved the late bound of {name}",
    Seal: lambda m, name, time: f"sealed {name} {'to ' if m.upper else ''}{_frontier(m.upper, time)}",
    AllowCompaction: lambda m, name, time: f"allowed compaction of {name} up to {_frontier(m.since, time)}",
    Destroy: lambda m, name, _: f"destroyed {name}",
    SetHold: _hold,
    ReleaseHold: lambda m, name, _: f"a hold of {name} was released",
    Redefine: lambda m, name, _: f"gave {name} its definition {m.view.get('number')}: {str(m.view.get('sql'))[:80]}",
    Rename: lambda m, name, _: f"gave {name} the name {m.name!r}",
    Evolve: _evolve,
    Describe: lambda m, name, _: f"described {name}",
    DescribeLocation: lambda m, _, __: "described the location",
    SetTag: lambda m, name, time: f"tagged {name} as of {time(m.time)} as {m.tag!r}",
    DropTag: lambda m, name, _: f"dropped the tag {m.tag!r} of {name}",
    SetRetention: lambda m, name, _: f"set how long {name} keeps its history",
    Note: lambda m, name, _: f"noted on {name}: {m.message}" if name else f"noted: {m.message}",
    GrantLease: lambda m, _, __: f"{m.holder} {'renewed' if m.renews else 'took'} a lease",
    EndLease: lambda m, _, __: f"the lease {m.lease[:8]} ended",
    OpenWriter: lambda m, _, __: f"{m.holder} opened the location exclusively{' by force' if m.force else ''}",
    CloseWriter: lambda m, _, __: "the exclusive writer closed",
    TruncateLog: lambda m, _, __: f"declared the log before {m.floor} as not needed",
    VoidUploads: lambda m, _, __: f"declared uploads begun before {m.floor} void",
    TakeOver: lambda m, _, __: f"declared that checkpoints are made of {m.checkpoint.blob}",
    Collected: lambda m, _, __: f"forgot {len(m.dropped)} things whose blobs were deleted",
}
