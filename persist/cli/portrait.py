"""Everything there is to say of one collection without reading its data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import persist
from persist.cli.survey import GETS_1000, Facts, hold_for_people, monthly_dollars, names_by_id
from persist.cli.text import print_table, say
from persist.shown import counted
from persist.state.contents import definition_number
from persist.timeline import shown_time

RUNS_SHOWN_MAX = 20


@dataclass(frozen=True)
class Portrait:
    """One collection in one state: facts, holds, and the plan of reading it as of its latest sealed time.

    Attributes:
        names: of all collections, by their ids.
    """

    url: str
    schema: Any
    facts: Facts
    holds: "list[persist.HoldInfo]"
    plan: "persist.Explanation | None"
    names: Mapping[str, str]

    @property
    def keyed(self) -> dict[str, Any] | None:
        """How a keyed collection makes updates of events; None of one that is not keyed."""
        form = self.facts.contents.keyed
        if form is None:
            return None
        return {
            "machine": form.machine.name,
            "resolve": form.resolve,
            "order_by": list(form.order_by),
            "ties": form.ties,
            "tombstone": form.tombstone,
            "tombstone_value": form.tombstone_value,
        }

    @property
    def view(self) -> dict[str, Any] | None:
        """What a view is derived from, and how; None of a collection that users write."""
        view = self.facts.contents.view
        if view is None:
            return None
        inputs = [self.names.get(id_, "a collection that is gone") for id_ in view["inputs"]]
        return {"sql": view["sql"], "inputs": inputs, "definition": definition_number(self.facts.contents)}

    @property
    def columns(self) -> list[tuple[str, str, str]]:
        """Side, name and type of each column."""
        sides = (("key", self.schema.key), ("value", self.schema.value))
        return [
            (side, field.name, str(field.type) + (f" through {fields.codec_name}" if fields.codec_name else ""))
            for side, fields in sides
            for field in fields.fields
        ]

    @property
    def history(self) -> list[dict[str, Any]]:
        """The runs of history, the oldest first."""
        contents = self.facts.contents
        return [self._run(contents.parts_of(run)) for run in contents.history]

    @property
    def keyframes(self) -> list[dict[str, Any]]:
        contents = self.facts.contents
        return [{"as_of": k.as_of, **self._run(contents.parts_of(k.parts))} for k in contents.keyframes]

    @staticmethod
    def _run(parts: Any) -> dict[str, Any]:
        times = {
            "first": min((p.time_min for p in parts), default=0),
            "last": max((p.time_max for p in parts), default=0),
        }
        return {
            **times,
            "rows": sum(p.rows for p in parts),
            "bytes": sum(p.bytes for p in parts),
            "parts": len(parts),
            "inline": sum(bool(p.inline) for p in parts),
        }

    def as_json(self) -> dict[str, Any]:
        facts, plan = self.facts, self.plan
        hidden = facts.unsealed
        return {
            **facts.as_json(),
            "id": facts.contents.id,
            "location": self.url,
            "timeline": facts.contents.timeline,
            "keyed": self.keyed,
            "view": self.view,
            "columns": [dict(zip(("side", "name", "type"), each, strict=True)) for each in self.columns],
            "not_sealed": None if hidden is None else str(hidden),
            "holds": [
                {"name": h.name, "time": h.time, "holder": h.holder, "expires_ms": h.expires_ms} for h in self.holds
            ],
            "tags": dict(facts.contents.tags),
            "history": self.history,
            "keyframes": self.keyframes,
            "read": None if plan is None else {"as_of": plan.as_of, "parts": plan.parts, "bytes": plan.bytes},
            "dollars_a_month": monthly_dollars(facts.bytes),
        }

    def print(self) -> None:
        facts = self.facts
        say(f"{facts.name} at {self.url}\n")
        print_table(("side", "column", "type"), self.columns)
        say(f"\ntimes     {self._times()}")
        self._print_origin()
        say(f"since     {facts.time(facts.since)}")
        say(f"upper     {'none: complete for ever' if facts.upper is None else facts.time(facts.upper)}")
        say(f"unsealed  {facts.unsealed.advice if facts.unsealed else 'nothing'}")
        rows_told = counted(facts.rows, "row") if facts.rows is not None else "rows that only reading counts"
        say(f"size      {rows_told}, {facts.bytes:,} bytes in {counted(facts.parts, 'part')}")
        self._print_cost()
        if self.holds:
            say("\nholds")
            rows = [
                (hold_for_people(h.name, self.names), shown_time(h.time, facts.timeline), h.holder or "-")
                for h in self.holds
            ]
            print_table(("hold", "time", "holder"), rows)
        if facts.contents.tags:
            say("\ntags")
            tags = [(name, shown_time(time, facts.timeline)) for name, time in sorted(facts.contents.tags.items())]
            print_table(("tag", "time"), tags)
        self._print_runs("history, runs", self.history, ("first", "last"))
        self._print_runs("keyframes", self.keyframes, ("as_of",))

    def _times(self) -> str:
        unit = self.facts.contents.timeline
        return "numbers without a meaning of their own" if unit is None else f"{unit} since 1970-01-01T00:00Z"

    def _print_origin(self) -> None:
        """Say where its updates come from, if nobody writes them."""
        if self.keyed is not None:
            keyed = self.keyed
            when = {"seal": "when their times are sealed", "background": "after the seal, and by readers before that"}
            told = f"events are resolved by {keyed['machine']!r}, {when[keyed['resolve']]}"
            told += f"; the later by {', '.join(keyed['order_by'])} counts" * bool(keyed["order_by"])
            told += "; of events that tie, the greatest value counts" * (keyed["ties"] == "greatest")
            told += f"; column {keyed['tombstone']} says that a key is deleted" * bool(keyed["tombstone"])
            say(f"keyed     {told}")
        if self.view is not None:
            say(f"view of   {', '.join(self.view['inputs'])}")
            say(f"query     {' '.join(self.view['sql'].split())}")

    def _print_cost(self) -> None:
        if self.plan is not None:
            gets = max(1, self.plan.parts) / 1000 * GETS_1000
            say(
                f"reading   {self.plan.bytes:,} bytes of {counted(self.plan.parts, 'part')} for the latest contents; "
                f"on S3 a million such reads cost ${gets * 1e6:,.2f} of requests"
            )
        gib = monthly_dollars(1 << 30)
        dollars = monthly_dollars(self.facts.bytes)
        cost = f"${dollars:,.2f}" if dollars >= 0.01 or not dollars else "less than $0.01"
        say(f"keeping   {cost} a month on S3 Standard, at ${gib} for a GiB")

    def _print_runs(self, title: str, runs: list[dict[str, Any]], times: tuple[str, ...]) -> None:
        if not runs:
            return
        left_out = len(runs) - RUNS_SHOWN_MAX
        say(f"\n{title}{f' (the last {RUNS_SHOWN_MAX} of {len(runs)})' if left_out > 0 else ''}")
        head = (*times, "rows", "bytes", "parts")
        timeline = self.facts.timeline
        rows = [
            (*(shown_time(run[t], timeline) for t in times), *(f"{run[c]:,}" for c in head[-3:]))
            for run in runs[-RUNS_SHOWN_MAX:]
        ]
        print_table(head, rows, right=range(len(head)))


def portrait(client: "persist.Client", collection: "persist.Collection") -> Portrait:
    """Return all of one collection. Cost: a GET or two."""
    facts = Facts(collection.handle.contents())
    plan = None
    if facts.latest is not None:
        with collection.snapshot(facts.latest) as snapshot:
            plan = snapshot.explain()
    return Portrait(client.url, collection.schema, facts, collection.holds(), plan, names_by_id(client))
