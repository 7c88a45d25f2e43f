"""The judge passes a good history of keyed collections, and finds each planted violation of rule 18."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.proofs.simulator.history import History
from tests.proofs.simulator.judge import judge
from tests.proofs.simulator.test_judge import Story

FIRST = [[1001, "m", 0], [1, "x", 0], [2, "y", 3]]
SECOND = [[1002, "m", 0], [1, "z", 0]]
THIRD = [[1003, "m", 1], [1, None, 1], [2, "w", 3]]
OF_ZERO = [[1, "z", 0, 1], [1001, "m", 0, 1], [1002, "m", 0, 1]]
OF_ONE = [[1, "z", 1, -1], [1003, "m", 1, 1]]
OF_THREE = [[2, "w", 3, 1]]


def pend(*parts: list[Any]) -> dict[str, Any]:
    return {"kind": "pend", "collection": "k", "parts": copy.deepcopy([*parts]), "blobs": [""] * len(parts)}


def resolve(start: int, end: int, pending: list[int], updates: list[Any]) -> dict[str, Any]:
    updates = copy.deepcopy(updates)
    parts = {"parts": [updates], "blobs": [""], "updates": updates, "unused": []}
    return {"kind": "resolve", "collection": "k", "start": start, "end": end, "pending": pending, **parts}


def good(policy: str) -> History:
    """Two writers, whose events at one time and of one key tell the order in which they arrived."""
    s = Story()
    for client in "AB":
        s.call(client, "open", mode="shared")
    made = s.begin("A", "create_or_load", name="k", schema="k")
    s.commit("A", {"kind": "create", "collection": "k", "name": "k", "schema": "k", "keyed": ["upsert", policy]})
    s.end(made, "k")
    s.write("A", "upsert", None, pend(FIRST), c="k", events=FIRST, columns=[])
    s.write("B", "upsert", None, pend(SECOND), c="k", events=SECOND, columns=[])
    if policy == "seal":
        s.write("A", "seal", None, resolve(0, 1, [0, 1], OF_ZERO), c="k", upper=1)
        sealing = [resolve(1, 3, [0], OF_ONE), pend([[2, "w", 3]])]
    else:
        s.write("A", "seal", None, {"kind": "seal", "collection": "k", "upper": 1}, c="k", upper=1)
        s.write("B", "resolve", None, resolve(0, 1, [0, 1], OF_ZERO), c="k")
        sealing = [pend(THIRD), {"kind": "seal", "collection": "k", "upper": 3}]
    s.write("B", "upsert", None, *sealing, c="k", events=THIRD, columns=[], seal=3)
    s.refused(
        "A", "upsert", None, "UpdateNotBeyondUpper", {"time": 2, "upper": 3},
        c="k", events=[[1009, "m", 2]], columns=[],
    )  # fmt: skip
    s.call("A", "changes", c="k", lower=0, upper=3, value=[*OF_ZERO, *OF_ONE])
    if policy == "seal":
        s.write("A", "seal", None, resolve(3, 4, [0, 4], OF_THREE), c="k", upper=4)
    else:
        s.write("A", "resolve", None, resolve(1, 3, [0, 3], OF_ONE), c="k")
        s.write("A", "seal", None, {"kind": "seal", "collection": "k", "upper": 4}, c="k", upper=4)
        s.write("A", "resolve", None, resolve(3, 4, [0, 3], OF_THREE), c="k")
    return s.history


@pytest.mark.parametrize("policy", ["seal", "background"])
def test_a_good_history_of_events_passes(policy: str) -> None:
    assert judge(good(policy)) == []


def another_winner(h: History) -> None:
    """The event that arrived first counts."""
    found = next(m for c in h.commits for m in c.mutations if m["kind"] == "resolve")
    found["updates"][0][1] = "x"


def nothing_retracted(h: History) -> None:
    found = [m for c in h.commits for m in c.mutations if m["kind"] == "resolve"]
    found[1]["updates"][:1] = []


def one_left_out(h: History) -> None:
    """A resolution does not know of all that waits."""
    next(m for c in h.commits for m in c.mutations if m["kind"] == "resolve")["pending"].pop()


def arrives_changed(h: History) -> None:
    next(m for c in h.commits for m in c.mutations if m["kind"] == "pend")["parts"][0][2][1] = "other"


def half_is_there(h: History) -> None:
    next(m for c in h.commits for m in c.mutations if m["kind"] == "pend")["parts"][0].pop()


def begins_elsewhere(h: History) -> None:
    next(m for c in h.commits for m in c.mutations if m["kind"] == "resolve")["start"] = 1


@pytest.mark.parametrize("policy", ["seal", "background"])
@pytest.mark.parametrize(
    "plant", [another_winner, nothing_retracted, one_left_out, arrives_changed, half_is_there, begins_elsewhere]
)
def test_a_planted_violation_is_found(plant: Callable[[History], None], policy: str) -> None:
    history = copy.deepcopy(good(policy))
    plant(history)
    assert "resolved" in {violation.rule for violation in judge(history)}


@pytest.mark.parametrize("policy", ["seal", "background"])
def test_a_read_of_something_else_is_found(policy: str) -> None:
    history = copy.deepcopy(good(policy))
    read = next(event for event in history.events if event.op == "changes")
    read.outcome[1].pop(0)
    assert {violation.rule for violation in judge(history)} == {"feed"}
