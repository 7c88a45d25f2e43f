"""Output of the commands that inspect a location: the portrait of a collection, and records of the log."""

from contextlib import suppress
from typing import Any

import msgspec

import persist
from persist.core.log import kinds
from persist.core.log.fields import TimeText
from persist.core.log.kinds import Mutation
from persist.core.log.records import Record, read_record
from persist.core.rendering import format_count
from persist.tools.cli.text import print_table, print_text
from persist.tools.reports.surveys import Portrait, format_hold, get_names_by_id
from persist.tools.reports.times import make_time_format

RUNS_SHOWN_MAX = 20


def print_portrait(portrait: Portrait) -> None:
    """Print the facts, columns, history and read plan of a collection."""
    facts = portrait.facts
    print_text(f"{facts.name} at {portrait.url}\n")
    print_table(("side", "column", "type"), portrait.columns)
    unit = facts.contents.timeline
    meaning = "numbers without a meaning of their own" if unit is None else f"{unit} since 1970-01-01T00:00Z"
    print_text(f"\ntimes     {meaning}")
    _print_origin(portrait)
    print_text(f"since     {facts.brief(facts.since)}")
    print_text(f"upper     {'none: complete for ever' if facts.upper is None else facts.brief(facts.upper)}")
    print_text(f"unsealed  {facts.unsealed.advice if facts.unsealed else 'nothing'}")
    rows_told = format_count(facts.rows, "row") if facts.rows is not None else "rows that only reading counts"
    print_text(f"size      {rows_told}, {facts.bytes:,} bytes in {format_count(facts.parts, 'part')}")
    if portrait.holds:
        print_text("\nholds")
        rows = [(format_hold(h.name, portrait.names), facts.brief(h.kept), h.holder or "-") for h in portrait.holds]
        print_table(("hold", "time", "holder"), rows)
    if facts.contents.tags:
        print_text("\ntags")
        tags = [(name, facts.brief(time)) for name, time in sorted(facts.contents.tags.items())]
        print_table(("tag", "time"), tags)
    _print_runs(portrait, "history, runs", portrait.history, ("first", "last"))
    _print_runs(portrait, "keyframes", portrait.keyframes, ("as_of",))


def _print_origin(portrait: Portrait) -> None:
    """Print what fills a collection: a view, events or a source; nothing for plain writes."""
    if portrait.keyed is not None:
        keyed = portrait.keyed
        when = {"seal": "when their times are sealed", "background": "after the seal, and by readers before that"}
        rules = f"events are resolved by {keyed['machine']!r}, {when[keyed['resolve']]}"
        rules += f"; the later by {', '.join(keyed['order_by'])} counts" * bool(keyed["order_by"])
        rules += "".join(f"; of {', '.join(names)} the later by {by}" for by, names in keyed["groups"].items())
        rules += "; of events that tie, the greatest value counts" * (keyed["ties"] == "greatest")
        rules += f"; column {keyed['tombstone']} says that a key is deleted" * bool(keyed["tombstone"])
        print_text(f"keyed     {rules}")
    if portrait.view is not None:
        print_text(f"view of   {', '.join(portrait.view['inputs'])}")
        print_text(f"query     {' '.join(portrait.view['sql'].split())}")


def _print_runs(portrait: Portrait, title: str, runs: list[dict[str, Any]], times: tuple[str, ...]) -> None:
    """Print runs of parts as a table, the newest ones only."""
    if not runs:
        return
    left_out = len(runs) - RUNS_SHOWN_MAX
    print_text(f"\n{title}{f' (the last {RUNS_SHOWN_MAX} of {len(runs)})' if left_out > 0 else ''}")
    head = (*times, "rows", "bytes", "parts")
    brief = portrait.facts.brief
    rows = [(*(brief(run[t]) for t in times), *(f"{run[c]:,}" for c in head[-3:])) for run in runs[-RUNS_SHOWN_MAX:]]
    print_table(head, rows, right=range(len(head)))


def read_last_records(client: "persist.Client", last: int, collection: str | None) -> tuple[list[Record], bool]:
    """Return the last records, and whether older ones were deleted.

    Cost: a GET for each. `collection`: the id of the collection whose records to return; None for all.
    """
    seqno = client.seqno
    records: list[Record] = []
    while seqno >= 0 and len(records) < last:
        record = read_record(client.engine.blob, seqno)
        if record is None:
            return records[::-1], True
        if collection is None or any(mutation.collection == collection for mutation in record.mutations):
            records.append(record)
        seqno -= 1
    return records[::-1], False


class RecordTexts:
    """Describes records in words, with names and moments for the ids and numbers in them.

    Names are the present ones, since records only have ids. Cost: a GET for each collection that is mentioned, once.
    """

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._names = get_names_by_id(client)
        self._times: dict[str, TimeText] = {}

    def sentences(self, record: Record) -> list[str]:
        """Describe the changes of a record, one sentence each."""
        return [self._describe_mutation(mutation) for mutation in record.mutations]

    def _describe_mutation(self, mutation: Mutation) -> str:
        """Return a mutation of a record as a sentence."""
        if not (id_ := mutation.collection):
            return mutation.describe("", str)
        present_name = mutation.name if isinstance(mutation, kinds.Makes) else self._names.get(id_)
        name = f"a collection that is gone ({id_[:8]})" if present_name is None else repr(present_name)
        if isinstance(mutation, kinds.SetHold):
            mutation = msgspec.structs.replace(mutation, hold=format_hold(mutation.hold, self._names))
        if id_ not in self._times:
            self._times[id_] = str  # For a collection that is dropped, also while this runs.
            if id_ in self._names:
                with suppress(persist.errors.CollectionNotFound):
                    self._times[id_] = make_time_format(self._client.load(self._names[id_]))
        return mutation.describe(name, self._times[id_])
