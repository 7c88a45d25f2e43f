"""Records of the log, as a person reads them."""

from collections.abc import Callable, Mapping
from typing import Any

import persist
from persist.log.commits import read_record
from persist.log.records import (
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
    Tokens,
    TruncateLog,
    VoidUploads,
)


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


def sentences(record: Record, names: Mapping[str, str]) -> list[str]:
    """Return what a record did, a sentence each; names are those of collections, by id."""
    made = {m.collection: m.name for m in record.mutations if isinstance(m, Create)}

    def name(id_: str) -> str:
        known = made.get(id_) or names.get(id_)
        return repr(known) if known is not None else f"a collection that is gone ({id_[:8]})"

    return [_sentence(mutation, name) for mutation in record.mutations]


def _sentence(mutation: Mutation, name: Callable[[str], str]) -> str:
    kind = type(mutation)
    say: Callable[[Any, str], str] = _SAYS.get(kind, lambda m, n: f"{kind.__name__} {n}".strip())
    return say(mutation, name(mutation.collection) if mutation.collection else "")


def _frontier(times: tuple[int, ...]) -> str:
    return str(times[0]) if times else "for ever"


def _append(m: Append, name: str) -> str:
    rows, size = sum(p.rows for p in m.parts), sum(p.bytes for p in m.parts)
    first, last = min(p.time_min for p in m.parts), max(p.time_max for p in m.parts)
    at = f"time {first}" if first == last else f"times {first} to {last}"
    inline = ", in the record itself" if all(p.inline for p in m.parts) else ""
    return f"wrote {rows:,} update{'' if rows == 1 else 's'} to {name} at {at} ({size:,} bytes{inline})"


def _replace(m: Replace, name: str) -> str:
    done = []
    if m.keyframes:
        done.append(f"made a keyframe as of {', '.join(str(k.as_of) for k in m.keyframes)}")
    if m.removed_runs:
        done.append(f"merged {len(m.removed_runs)} runs into {len(m.runs)}")
    if m.removed_keyframes:
        done.append(f"dropped {len(m.removed_keyframes)} keyframes")
    if m.history_from is not None:
        done.append(f"forgot the history before {m.history_from}")
    return f"compacted {name}: {'; '.join(done) or 'rearranged its parts'}"


def _hold(m: SetHold, name: str) -> str:
    if m.lease is not None:
        return f"a reader holds {name} at {m.time} by a lease"
    moved = "set" if m.expected is None else f"moved from {m.expected}"
    return (
        f"the hold {m.hold!r} of {name} was {moved} at {m.time}"
        if m.expected is None
        else (f"the hold {m.hold!r} of {name} was {moved} to {m.time}")
    )


def _pend(m: Pend, name: str) -> str:
    rows = sum(p.rows for p in m.parts)
    return f"wrote {rows:,} event{'' if rows == 1 else 's'} to {name}, which become updates when their times are sealed"


def _resolve(m: Resolve, name: str) -> str:
    rows = sum(p.rows for p in m.parts)
    return f"turned the events of {name} before {_frontier(m.end)} into {rows:,} update{'' if rows == 1 else 's'}"


_SAYS: dict[type, Callable[[Any, str], str]] = {
    Create: lambda m, name: f"created {name}",
    Append: _append,
    Replace: _replace,
    Tokens: lambda m, name: f"remembered {', '.join(repr(mark.token) for mark in m.tokens)} as written to {name}",
    Batch: lambda m, name: f"was batch {m.batch} of the streaming query {m.query!r} into {name}",
    Pend: _pend,
    Resolve: _resolve,
    AdvanceLateBound: lambda m, name: f"moved the late bound of {name}",
    Seal: lambda m, name: f"sealed {name} {'to ' if m.upper else ''}{_frontier(m.upper)}",
    AllowCompaction: lambda m, name: f"allowed compaction of {name} up to {_frontier(m.since)}",
    Destroy: lambda m, name: f"destroyed {name}",
    SetHold: _hold,
    ReleaseHold: lambda m, name: f"a hold of {name} was released",
    Redefine: lambda m, name: f"gave {name} its definition {m.view.get('number')}: {str(m.view.get('sql'))[:80]}",
    Rename: lambda m, name: f"renamed {name} to {m.name!r}",
    Evolve: lambda m, name: f"changed the schema of {name}",
    Describe: lambda m, name: f"described {name}",
    DescribeLocation: lambda m, _: "described the location",
    SetTag: lambda m, name: f"tagged {name} as of {m.time} as {m.tag!r}",
    DropTag: lambda m, name: f"dropped the tag {m.tag!r} of {name}",
    SetRetention: lambda m, name: f"set how long {name} keeps its history",
    Note: lambda m, name: f"noted on {name}: {m.message}" if name else f"noted: {m.message}",
    GrantLease: lambda m, _: f"{m.holder} {'renewed' if m.renews else 'took'} a lease",
    EndLease: lambda m, _: f"the lease {m.lease[:8]} ended",
    OpenWriter: lambda m, _: f"{m.holder} opened the location exclusively{' by force' if m.force else ''}",
    CloseWriter: lambda m, _: "the exclusive writer closed",
    TruncateLog: lambda m, _: f"declared the log before {m.floor} as not needed",
    VoidUploads: lambda m, _: f"declared uploads begun before {m.floor} void",
    Collected: lambda m, _: f"forgot {len(m.dropped)} things whose blobs were deleted",
}
