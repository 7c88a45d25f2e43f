"""What calls want to have done, and what records say was done, as effects on collections."""

from collections import Counter
from contextlib import suppress
from typing import Any

from tests.proofs.simulator.history import Commit, Event
from tests.proofs.simulator.versions import View
from tests.support.model import Refused

DOUBTS = ("Unavailable", "Indeterminate", "NotDeleted", "StoreFull")
FIRST_MARKER = 1000
MUTATING = ("write", "upsert", "seal", "allow_compaction", "destroy", "multi", "evolve", "restore")
_EXPLAINED = ("create", "clone", "seal", "allow_compaction", "destroy", "evolve")
Effect = tuple[str, str, Any]


def latest_moment(commit: Commit) -> int:
    return commit.at if commit.by is None else commit.by


def is_asked_for(mutation: dict[str, Any], before: View) -> bool:
    """Tell whether somebody must have asked for a mutation: for a resolution, if it also seals."""
    if mutation["kind"] == "resolve":
        return bool(mutation["end"] > before.upper(mutation["collection"]))
    return mutation["kind"] in _EXPLAINED


def said_effect(mutation: dict[str, Any], before: View) -> Effect:
    kind = mutation["kind"]
    if kind == "evolve":
        known, columns = before.columns(mutation["collection"]), frozenset(mutation["columns"])
        how = "add" if columns > known else "drop" if columns < known else "neither"
        return kind, mutation["collection"], (how, *sorted(known ^ columns), mutation["version"] - 1)
    if kind == "resolve":
        return "seal", mutation["collection"], mutation["end"]
    value = {"create": "name", "clone": "name", "seal": "upper", "allow_compaction": "since"}.get(kind)
    return kind, mutation["collection"], mutation[value] if value else None


def effects_of(event: Event) -> list[Effect]:
    """Return what a call wants to have done, in order, with the conditions it makes."""
    args = event.args
    if event.op == "multi":
        found: list[Effect] = []
        for kind, id_, value in args["steps"]:
            if kind != "write" or is_something(value):
                found.append((kind, id_, value))
                found += [("columns", id_, args["columns"][id_])] if kind != "seal" and "columns" in args else []
        return found
    if event.op == "create_or_load":
        return [("create", event.outcome[1], args["name"])] if event.ok else []
    if event.op == "clone":
        return [("clone", event.outcome[1], args["target"])] if event.ok else []
    if event.op not in MUTATING:
        return []
    effects: list[Effect] = []
    if args.get("expected_upper") is not None:
        effects.append(("expect", args["c"], args["expected_upper"]))
    if event.op == "write":
        if is_something(args["updates"]):
            effects.append(("write", args["c"], args["updates"]))
            effects.append(("columns", args["c"], args.get("columns", ())))
        if args.get("seal") is not None:
            effects.append(("seal", args["c"], args["seal"]))
    elif event.op == "upsert":
        effects += [("upsert", args["c"], args["events"]), ("columns", args["c"], args["columns"])]
        effects += [("seal", args["c"], args["seal"])] if args.get("seal") is not None else []
    elif event.op == "restore":
        effects.append(("restore", args["c"], (args["as_of"], args["assigned"])))
        effects += [("seal", args["c"], args["assigned"] + 1)] if args["assigned"] is not None else []
    elif event.op == "destroy":
        effects.append(("destroy", args["c"], None))
    elif event.op == "evolve":
        effects.append(("evolve", args["c"], (args["how"], args["column"], args["version"])))
    else:
        effects.append((event.op, args["c"], args["upper" if event.op == "seal" else "since"]))
    return effects


def is_something(updates: list[Any]) -> bool:
    return any(diff for *_, diff in updates)


def effect_markers(event: Event) -> list[tuple[str, int]]:
    """Return (collection, marker) of each write of a call."""
    effects = effects_of(event) if event.op in ("write", "multi", "upsert") and "bad" not in event.args else []
    found = [(id_, value[0]) for kind, id_, value in effects if kind in ("write", "upsert")]
    return [(id_, first[0]) for id_, first in found if first[0] >= FIRST_MARKER]


def apply_call(event: Event, view: View) -> None:
    """Do what a call wants to have done, apart from what is refused."""
    for kind, id_, value in effects_of(event):
        with suppress(Refused):
            view.step(kind, id_, value)
    if event.args.get("token") is not None:
        for id_ in {id_ for _, id_, _ in effects_of(event)}:
            with suppress(Refused):
                view.step("token", id_, event.args["token"])


def tokens_seen(event: Event, view: View) -> list[bool]:
    """Tell for each collection of a call whether it has seen its token."""
    token = event.args.get("token")
    ids = {effect[1] for effect in effects_of(event)} if token is not None else set()
    return [view.alive(id_) and token in view.tokens(id_) for id_ in ids]


def is_done(event: Event, view: View) -> bool:
    """Tell whether a call was done before, under its token."""
    seen = tokens_seen(event, view)
    return bool(seen) and all(seen)


def changes_nothing(event: Event, view: View) -> bool:
    """Tell whether a valid call has nothing to do in this state."""
    if is_done(event, view):
        return True
    for kind, id_, value in effects_of(event):
        if kind in ("write", "upsert"):
            return False
        if kind == "seal" and view.upper(id_) != value:
            return False
        if kind == "allow_compaction" and view.allowed(id_) < value:
            return False
        if kind in ("destroy", "evolve", "restore"):
            return False
    return True


def may_have_happened(event: Event) -> bool:
    if event.op in (
        "create_or_load",
        "clone",
    ):  # It may fail after it created, and nothing is lost: it can be repeated.
        return event.ok or event.outcome[0] == "crashed" or event.error in DOUBTS
    return event.op in MUTATING and (event.outcome[0] == "crashed" or event.error == "Indeterminate")


def could_be(event: Event, effect: Effect) -> bool:
    if event.op == "create_or_load":
        # It creates another one if somebody has destroyed its first one before it could load that.
        return bool(effect[0] == "create" and event.args["name"] == effect[2])
    if event.op == "clone":
        named = effect[0] == "clone" and event.args["target"] == effect[2]
        return named and (not event.ok or event.outcome[1] == effect[1])
    if event.op == "restore":  # It seals the time that its record assigns.
        return effect[0] == "seal" and event.args["c"] == effect[1]
    return effect in effects_of(event) and not effect_markers(event)


def markers_of(commit: Commit) -> Counter[tuple[str, int]]:
    """Return the markers that a record holds, and how often."""
    found: Counter[tuple[str, int]] = Counter()
    for mutation in commit.mutations:
        for k, v, _, diff in mutation["updates"] if mutation["kind"] == "append" else []:
            if v == "m":
                found[mutation["collection"], k] += diff
    return found


def content_of(view: View) -> dict[str, Counter[Any]]:
    """Return what was appended, consolidated, by collection."""
    found: dict[str, Counter[Any]] = {}
    for id_, updates in view.appended:
        for k, v, time, diff in updates:
            found.setdefault(id_, Counter())[k, v, time] += diff
    return {id_: Counter({u: n for u, n in sums.items() if n}) for id_, sums in found.items()}
