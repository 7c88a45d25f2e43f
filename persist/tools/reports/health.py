"""The health of a location: lags, holders of history, waiting deletions, and due work.

The report is made from one refresh of the log: the state at one seqno, the states of collections (`load_facts`), and
the newest records. The log lacks the bytes that garbage collection will free, so this lists the folders of up to
`LISTED_MAX` collections. Nothing is written, and no data is read.

- A *lag* is how far an upper is behind the clock, in seconds; only moments have one. A view is *behind* if its upper is
  before the least upper of its inputs.
- *Live* bytes are read for the latest contents: the newest keyframe, and the history after it. The others are history,
  which stays as long as `since` is before its times.
- A hold or tag *keeps back* history if `since` would be later without it. The report names the least of them.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import persist
from persist.connect.egress.sink import SINK
from persist.connect.ingest.source import BEHIND, SOURCE
from persist.core.antichain import to_time
from persist.core.log import kinds
from persist.core.log.keys import CHECKPOINTS, get_second_part, get_table_root, list_records
from persist.core.log.records import read_record
from persist.core.names import read_release
from persist.core.rendering import format_moment
from persist.core.state_rules.keyed_rules import list_due_parts as events_due
from persist.core.state_rules.location import Dropped, LocationState, is_still_readable
from persist.engine.collection.failures import load_failures
from persist.engine.compact import choose_next_work, must_destroy
from persist.engine.upkeep import Ages, find_sharers, list_checkpoint_marks, list_named
from persist.tools.reports.surveys import THREADS, Facts, FactsCache, RecordOrigin, format_hold, get_names_by_id

LISTED_MAX = 64
READS = (kinds.GrantLease, kinds.EndLease, kinds.SetHold, kinds.ReleaseHold)  # Mutations that readers commit.
RECENT = 16  # Records that are looked at, all at once, for who made them.


@dataclass(frozen=True)
class Lag:
    """The upper of a collection; `behind_s` is the time from it to the clock, None without moments."""

    collection: str
    upper: int | None
    upper_moment: str | None
    behind_s: float | None
    unsealed: int


@dataclass(frozen=True)
class LastFailure:
    """The last failure of a refresh, source or sink. The error has no values of rows."""

    at: str
    by: str
    error: str


@dataclass(frozen=True)
class ViewLag:
    """How far a view is behind, and which input is furthest behind.

    `behind_s` is None without moments, or before the first seal; `is_due`: a refresh would advance it.
    """

    view: str
    upper: int | None
    upper_moment: str | None
    input: str | None
    input_upper: int | None
    input_upper_moment: str | None
    behind_s: float | None
    is_due: bool
    failed: "LastFailure | None" = None


@dataclass(frozen=True)
class SourceHealth:
    """A source, its collections, and how far the slowest of them is behind.

    `behind_bytes`: the unread bytes of the source at its last read; None if unknown.
    """

    source: str
    collections: tuple[str, ...]
    behind_s: float | None
    behind_bytes: int | None
    failed: "LastFailure | None" = None


@dataclass(frozen=True)
class SinkHealth:
    """A sink and its collections, and how far the slowest of them is behind.

    `behind_s`: the seconds between its last sent and its last sealed moment. `sink`: for a sink that failed before it
    had a hold, the name of that hold.
    """

    sink: str
    hold: str
    collections: tuple[str, ...]
    behind_s: float | None
    behind_bytes: int
    failed: "LastFailure | None" = None


@dataclass(frozen=True)
class SinceBlocker:
    """A hold or tag that keeps since back; without it, since would be `allowed`."""

    collection: str
    hold: str
    holder: str | None
    since: int
    since_moment: str | None
    allowed: int | None
    allowed_moment: str | None


@dataclass(frozen=True)
class WaitingBlobs:
    """Unneeded blobs that are still stored, and until when.

    Attributes:
        why: "dropped", "replaced" by compaction, or "erased": records of the log from before an erasure.
        blobs, bytes: None if they were not listed; see `LISTED_MAX`.
        given_up_at, until: ISO 8601: when they fell out of use, and about when gc, by the store's clock, removes them.
        waits_for: "the grace period", a lease with its holder, or "the next gc".
    """

    collection: str
    why: str
    blobs: int | None
    bytes: int | None
    given_up_at: str
    until: str
    waits_for: str


@dataclass(frozen=True)
class DueWork:
    """A kind of due maintenance, its collections, and the command that does it."""

    work: str
    command: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class ClientActivity:
    """A client that reads or writes.

    `does`: "reads", "writes", "reads, writes" or "writes exclusively"; `at`: the moment of its last known write.
    """

    client: str
    release: str | None
    does: str
    at: str | None


@dataclass(frozen=True)
class Health:
    """The health of a location as of one seqno.

    Attributes:
        written_at: when its newest record was made, by the clock of its writer; None if that record is gone.
        clients: the holders of leases, the exclusive writer, and who made the `RECENT` newest records.
        live_bytes, history_bytes: see the module. waiting_bytes: None if not all folders were listed.
    """

    location: str
    seqno: int
    records: int
    written_at: str | None
    format: int | None
    live_bytes: int
    history_bytes: int
    waiting_bytes: int | None
    keeps_all: int
    collections: tuple[Lag, ...]
    views: tuple[ViewLag, ...]
    sources: tuple[SourceHealth, ...]
    sinks: tuple[SinkHealth, ...]
    kept_back: tuple[SinceBlocker, ...]
    waiting: tuple[WaitingBlobs, ...]
    due: tuple[DueWork, ...]
    clients: tuple[ClientActivity, ...]


def report_health(client: "persist.Client", now_s: float | None = None, *, known: FactsCache | None = None) -> Health:
    """Return a location's health. Cost: states of all collections, new records, and listings.

    `known`: the cache of an earlier report, so that only changed collections are read.
    """
    now_s = time.time() if now_s is None else now_s
    state = client.engine.follower.refresh()
    known = known or FactsCache(client)
    all_facts = known.of(state.list_names())
    names, by_id = get_names_by_id(client), {facts.contents.id: facts for facts in all_facts}
    recent = _list_recent_records(client, known, state.seqno, state.control.log_floor)
    record = recent[0] if recent else None
    listed = [facts for facts in all_facts if not facts.name.startswith(".")]
    waiting = list_waiting_blobs(client, now_s)
    views = [_compute_view_lag(facts, by_id) for facts in listed if facts.contents.view is not None]
    lags = [
        Lag(f.name, f.upper, f.moment(f.upper), f.lag_s(now_s), 0 if f.unsealed is None else f.unsealed.updates)
        for f in listed
    ]
    live = sum(map(_sum_live_bytes, all_facts))
    sizes = [blobs.bytes for blobs in waiting]
    return Health(
        location=client.url,
        seqno=state.seqno,
        records=state.seqno + 1 - state.control.log_floor,
        written_at=None if record is None else format_moment(record.written_ms / 1000),
        format=None if record is None else record.format,
        live_bytes=live,
        history_bytes=sum(facts.bytes for facts in all_facts) - live,
        waiting_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        keeps_all=sum(facts.contents.allowed == 0 for facts in listed),
        collections=tuple(sorted(lags, key=lambda lag: -(lag.behind_s or 0.0))),
        views=tuple(sorted(views, key=lambda view: not view.is_due)),
        sources=_list_sources(client, listed, now_s),
        sinks=_list_sinks(client, listed),
        kept_back=tuple(entry for facts in all_facts for entry in _find_since_blockers(facts, names, state.control)),
        waiting=tuple(waiting),
        due=tuple(_list_due_work(client, listed, views, waiting, state.control, now_s)),
        clients=_list_clients(state.control, recent),
    )


def _compute_view_lag(facts: Facts, by_id: Mapping[str, Facts]) -> ViewLag:
    """Return how far a view is behind, and its slowest input."""
    assert facts.contents.view is not None
    inputs = [by_id[id_] for id_ in facts.contents.view["inputs"] if id_ in by_id]
    least = min(inputs, key=lambda input_: input_.contents.upper, default=None)
    is_due = least is not None and least.contents.upper > facts.contents.upper
    own_s, its_s = facts.lag_s(0.0), None if least is None else least.lag_s(0.0)
    return ViewLag(
        facts.name,
        facts.upper,
        facts.moment(facts.upper),
        None if least is None else least.name,
        None if least is None else least.upper,
        None if least is None else least.moment(least.upper),
        None if own_s is None or its_s is None else max(0.0, own_s - its_s),
        is_due,
        _load_failure(facts),
    )


def _load_failure(facts: Facts, sink: str = "") -> LastFailure | None:
    """Return the stored failure of a refresh or source, or of a named sink; or None."""
    failure = load_failures(facts.contents).get(sink)
    return None if failure is None else LastFailure(format_moment(failure.at_ms / 1000), failure.by, failure.error)


def _list_sources(client: "persist.Client", all_facts: Sequence[Facts], now_s: float) -> tuple[SourceHealth, ...]:
    """Return the sources of collections, with their lags and failures."""
    filled = defaultdict[str, list[Facts]](list)
    for facts in all_facts:
        if (source := facts.contents.about.properties.get(SOURCE)) is not None:
            filled[source].append(facts)
    return tuple(
        SourceHealth(
            source,
            tuple(facts.name for facts in some),
            max(
                (lag for facts in some if (lag := _compute_source_lag_s(client, facts, now_s)) is not None),
                default=None,
            ),
            max(
                (int(behind) for facts in some if (behind := facts.contents.about.properties.get(BEHIND))), default=None
            ),
            next(filter(None, map(_load_failure, some)), None),
        )
        for source, some in sorted(filled.items())
    )


def _list_sinks(client: "persist.Client", all_facts: Sequence[Facts]) -> tuple[SinkHealth, ...]:
    """Return sinks with a hold, and failed ones without a hold."""
    fed = defaultdict[tuple[str, str], list[tuple[Facts, float | None, int]]](list)
    for facts in all_facts:
        properties, holds = facts.contents.about.properties, facts.contents.holds
        sinks = {name.removeprefix(SINK): sink for name, sink in properties.items() if name.startswith(SINK)}
        for hold in {*sinks, *load_failures(facts.contents)} - {""}:
            if hold in sinks and hold in holds:
                fed[sinks[hold], hold].append((facts, *_measure_unsent(client, facts, holds[hold].time)))
            elif _load_failure(facts, hold):
                fed[hold, hold].append((facts, None, facts.bytes))
    return tuple(
        SinkHealth(
            sink,
            hold,
            tuple(facts.name for facts, _, _ in some),
            max((lag for _, lag, _ in some if lag is not None), default=None),
            sum(unsent_bytes for _, _, unsent_bytes in some),
            next((failed for facts, _, _ in some if (failed := _load_failure(facts, hold))), None),
        )
        for (sink, hold), some in sorted(fed.items())
    )


def _measure_unsent(client: "persist.Client", facts: Facts, sent: int) -> tuple[float | None, int]:
    """Return how many seconds and bytes of sealed updates a sink has not sent."""
    if facts.latest is None or facts.latest <= sent:
        return 0.0, 0
    unsent_bytes = sum(part.bytes for part in facts.contents.history_parts if part.time_max > sent)
    handle = client.load(facts.name).handle
    since, until = handle.find_moment(sent), handle.find_moment(facts.latest)
    return None if since is None or until is None else (until - since).total_seconds(), unsent_bytes


def _compute_source_lag_s(client: "persist.Client", facts: Facts, now_s: float) -> float | None:
    """Return how many seconds a collection of a source is behind now; None without moments."""
    if facts.timeline is not None:
        return facts.lag_s(now_s)
    read = client.load(facts.name).handle.read_until()
    return None if read is None else now_s - read.timestamp()


def _find_since_blockers(facts: Facts, names: Mapping[str, str], control: LocationState) -> list[SinceBlocker]:
    """Return the holds and tags that keep since from advancing."""
    contents, since = facts.contents, facts.since
    if since is None or contents.allowed <= since:
        return []
    holders = [
        (
            format_hold(None if held_time.lease else hold, names),
            control.leases[held_time.lease].holder if held_time.lease in control.leases else None,
        )
        for hold, held_time in contents.holds.items()
        if held_time.time <= since
    ]
    holders += [(f"tag {tag!r}", None) for tag, at in contents.tags.items() if at <= since]
    then = to_time(contents.allowed)
    return [
        SinceBlocker(facts.name, hold, holder, since, facts.moment(since), then, facts.moment(then))
        for hold, holder in holders
    ]


def _sum_live_bytes(facts: Facts) -> int:
    """Return the bytes that a read of the latest contents needs."""
    contents = facts.contents
    newest = max(contents.keyframes, key=lambda keyframe: keyframe.as_of, default=None)
    newest_parts = () if newest is None else contents.list_parts(newest.parts)
    after = [part for part in contents.history_parts if newest is None or part.time_max > newest.as_of]
    return sum(part.bytes for part in (*newest_parts, *after, *contents.pending.values()))


def list_waiting_blobs(client: "persist.Client", now_s: float) -> list[WaitingBlobs]:
    """Return unneeded blobs that are still stored, oldest first, except blobs that clones use.

    Cost: a LIST for each folder of a collection, `LISTED_MAX` at most, and the states of the clones with parts there.
    """
    engine, state = client.engine, client.engine.follower.state
    dropped, names, shares = state.control.dropped, get_names_by_id(client), find_sharers(state)
    folders = [[*dict.fromkeys((entry.collection, *map(get_second_part, entry.blobs)))] for entry in dropped]
    ids = [*dict.fromkeys(folder for of_entry in folders for folder in of_entry)][:LISTED_MAX]

    def list_sizes(id_: str) -> dict[str, int]:
        named = list_named(engine.blob, state, id_, shares) if id_ in shares else set()
        return {entry.key: entry.bytes for entry in engine.blob.list(get_table_root(id_)) if entry.key not in named}

    with ThreadPoolExecutor(THREADS, "persist-survey") as threads:
        listed = dict(zip(ids, threads.map(list_sizes, ids), strict=True))
    ages = Ages(state, engine.follower.policies, now_s, list_checkpoint_marks(engine.blob.list(CHECKPOINTS)))
    waiting = []
    for entry, within in zip(dropped, folders, strict=True):
        listings = [listed[folder] for folder in within if folder in listed]
        sizes = (
            {key: size for listing in listings for key, size in listing.items()}
            if len(listings) == len(within)
            else None
        )
        waiting.append(_make_waiting_blobs(entry, names.get(entry.collection), sizes, ages))
    return waiting + _list_old_log(client, names, ages)


def _list_old_log(client: "persist.Client", names: Mapping[str, str], ages: Ages) -> list[WaitingBlobs]:
    """Return the log records that still contain erased values, as waiting blobs.

    They are deleted some time after the first checkpoint that follows the erasure, as in `persist.engine.upkeep`.
    """
    blob, control, now_s = client.engine.blob, ages.state.control, ages.now_s
    if not control.erasures or control.erasures[-1][0] <= control.log_floor:
        return []
    seqno, collection = control.erasures[-1]
    until_s = ages.estimate_old_at_s(seqno, ages.erase_after_s)
    records = [entry for at, entry in list_records(blob) if at < seqno]
    record = read_record(blob, seqno)
    return [
        WaitingBlobs(
            names.get(collection) or f"one that is gone ({collection[:8]})",
            "erased",
            len(records),
            sum(entry.bytes for entry in records),
            format_moment(now_s if record is None else record.written_ms / 1000),
            format_moment(until_s),
            "the next gc" if until_s <= now_s else "the grace period",
        )
    ]


def _make_waiting_blobs(
    dropped: Dropped, name: str | None, sizes: Mapping[str, int] | None, ages: Ages
) -> WaitingBlobs:
    """Return the report on one deletion: its blobs, and until when they stay."""
    control, policy, now_s = ages.state.control, ages.policy, ages.now_s
    keys = [] if sizes is None else [*sizes] if dropped.is_destroyed else [k for k in dropped.blobs if k in sizes]
    until_s, waits_for = dropped.written_ms / 1000 + policy.grace_s, "the grace period"
    if until_s <= now_s:
        waits_for = "the next gc"
    if is_still_readable(control, dropped):
        lease = max(
            (control.leases[id_] for id_ in dropped.leases if id_ in control.leases), key=lambda lease: lease.expires_ms
        )
        until_s = max(until_s, lease.expires_ms / 1000 + policy.clock_skew_s)
        waits_for = f"the lease of {lease.holder}"
    return WaitingBlobs(
        name or f"one that is gone ({dropped.collection[:8]})",
        "dropped" if dropped.is_destroyed else "replaced",
        None if sizes is None else len(keys),
        None if sizes is None else sum(sizes[key] for key in keys),
        format_moment(dropped.written_ms / 1000),
        format_moment(until_s),
        waits_for,
    )


def _list_due_work(
    client: "persist.Client",
    all_facts: Sequence[Facts],
    views: Sequence[ViewLag],
    waiting: Sequence[WaitingBlobs],
    control: LocationState,
    now_s: float,
) -> list[DueWork]:
    """Return the maintenance that is due, by kind."""
    tuning, skew_s = client.engine.settings.tuning, client.engine.follower.policies.newest.clock_skew_s
    work = {
        ("refresh views", "persist refresh"): [view.view for view in views if view.is_due],
        ("resolve events", "persist compact"): [
            f.name for f in all_facts if f.contents.keyed is not None and events_due(f.contents, f.contents.upper)
        ],
        ("compact", "persist maintain"): [f.name for f in all_facts if choose_next_work(f.contents, tuning)],
        ("destroy what was retracted", "persist compact"): [
            f.name for f in all_facts if must_destroy(f.contents) is not None
        ],
        ("delete blobs", "persist gc"): [w.collection for w in waiting if w.waits_for == "the next gc"],
        ("end leases that ran out", "persist gc"): [
            lease.holder for lease in control.leases.values() if lease.expires_ms / 1000 + skew_s < now_s
        ],
    }
    return [DueWork(*what, len(names), tuple(names[:3])) for what, names in work.items() if names]


def _list_recent_records(
    client: "persist.Client", known_facts: FactsCache, newest: int, floor: int
) -> list[RecordOrigin]:
    """Return the writers of the newest records, newest first; reads only records that the cache lacks."""
    seqnos = range(newest, max(floor, newest + 1 - RECENT) - 1, -1)
    unknown = [seqno for seqno in seqnos if seqno not in known_facts.made]
    with ThreadPoolExecutor(THREADS, "persist-recent") as threads:
        records = [*threads.map(lambda seqno: read_record(client.engine.blob, seqno), unknown)]
    fresh = {
        record.seqno: RecordOrigin(
            record.writer, record.written_ms, record.format, not all(isinstance(m, READS) for m in record.mutations)
        )
        for record in records
        if record is not None
    }
    known_facts.made = {
        seqno: record_origin
        for seqno in seqnos
        if (record_origin := fresh.get(seqno) or known_facts.made.get(seqno)) is not None
    }
    return [*known_facts.made.values()]


def _list_clients(control: LocationState, recent: Sequence[RecordOrigin]) -> tuple[ClientActivity, ...]:
    """Return the clients that hold a lease or wrote a recent record."""
    wrote: dict[str, int] = {}
    for record_origin in recent:
        if record_origin.writes:
            wrote.setdefault(record_origin.writer, record_origin.written_ms)
    reads = {lease.holder for lease in control.leases.values()}
    does = {client: "reads, writes" if client in reads else "writes" for client in wrote}
    does |= dict.fromkeys(reads - {*wrote}, "reads")
    if control.writer is not None:
        does[control.writer.holder] = "writes exclusively"
    return tuple(
        ClientActivity(
            client, read_release(client), what, format_moment(wrote[client] / 1000) if client in wrote else None
        )
        for client, what in sorted(does.items(), key=lambda item: -wrote.get(item[0], 0))
    )
