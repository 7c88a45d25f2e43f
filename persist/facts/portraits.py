"""Everything there is to say of one collection without reading its data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import persist
from persist.facts.surveys import Facts, monthly_dollars, names_by_id
from persist.state import definition_number


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


def portrait(client: "persist.Client", collection: "persist.Collection") -> Portrait:
    """Return all of one collection. Cost: a GET or two."""
    facts = Facts(collection.handle.contents())
    plan = None
    if facts.latest is not None:
        with collection.snapshot(facts.latest) as snapshot:
            plan = snapshot.explain()
    return Portrait(client.url, collection.schema, facts, collection.holds(), plan, names_by_id(client))
