"""Faults in the library, put there on purpose: each is found by a seed that is stated here."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from tests.proofs.simulator.campaign import Episode, execute
from tests.proofs.simulator.judge import judge
from tests.proofs.simulator.language import Step
from tests.proofs.simulator.plants import PLANTS, planted
from tests.proofs.simulator.shuffle import Manner, shuffled

SEEDS = 20
# The episode that finds each fault, and what it may say is broken.
FOUND_BY: dict[str, tuple[Episode, set[str]]] = {
    "a commit is acknowledged before its create is known to have happened": (Episode(13, 300), {"lost"}),
    "what there is no room for is acknowledged": (Episode(7000, 300, recovers=True), {"lost", "refused", "sealed"}),
    "a restoration goes back less far than is asked": (
        Episode(7000, 300, recovers=True),
        {"restore", "lost", "atomic"},
    ),
    "since passes what readers hold": (Episode(57, 120), {"compaction", "hold", "since"}),
    "a token is not remembered": (Episode(1, 150), {"phantom", "once", "token", "invariant"}),
    "a write at a sealed time is taken": (Episode(1, 150), {"late"}),
    "a collector asks no clone what it names": (Episode(19, 250, clones=True), {"deletion", "invariant"}),
    "compaction gives up what a published table needs": (Episode(1, 250, publishes=True), {"published", "deletion"}),
    "a published table shows a row that has changed": (Episode(9, 400, is_keyed=True, publishes=True), {"published"}),
    "a collector does not wait for the grace period": (Episode(1, 150, flat_out=True), {"deletion"}),
    "a late collector believes what it listed": (Episode(15, 400, sleeps=True), {"invariant"}),
    "what a server did not answer is not looked up": (Episode(7, 300, through=True), {"lost", "once", "phantom"}),
    "a resolution loses an update": (Episode(1, 120, is_keyed=True), {"resolved"}),
    "a block leaves one of its keyed collections out": (Episode(3, 150, is_keyed=True), {"atomic", "lost", "once"}),
    "an erasure leaves what the clones of its collection hold": (Episode(24, 300, clones=True), {"erase"}),
    "an index lacks what has changed since": (Episode(1, 200), {"derived"}),
    "an erasure leaves the views of its collection as they are": (Episode(61, 300), {"derived"}),
    "a client raises the format by any record": (Episode(2, 100), {"upgrade"}),
    "a tag keeps nothing": (Episode(15, 300, flat_out=True), {"tag", "compaction", "since"}),
    "a fenced writer goes on": (Episode(3, 120), {"exclusive"}),
    "a read does not look whether there is news": (Episode(13, 120), {"refused", "frontier", "sealed"}),
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "persist")


# Schedules that are written down find these, too; the second one is rarely met by chance.
LATE = "a late collector believes what it listed"
HASTY = "a collector waits for nobody who reads"


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [fault for fault in PLANTS if fault != HASTY])
def test_a_planted_fault_is_found_by_its_seed(fault: str) -> None:
    first, rules = FOUND_BY[fault]
    # What else changes in the library may change what a seed meets, so the ones after it may find the fault, too.
    for seed in range(first.seed, first.seed + SEEDS):
        episode = replace(first, seed=seed)
        with planted(fault):
            _, violations, _ = execute(episode, episode.steps())
        if {violation.rule for violation in violations} & rules:
            return
    pytest.fail(f"{fault}: none of {SEEDS} seeds from {first} on finds it")


@pytest.mark.thorough
def test_the_same_seeds_find_nothing_without_a_fault() -> None:
    for episode in [*{episode for episode, _ in FOUND_BY.values()}][::3]:
        _, violations, _ = execute(episode, episode.steps())
        assert violations == [], episode


def two_collectors() -> list[Step]:
    """Return a schedule: one collector stops when it has listed checkpoints; all of those are collected meanwhile."""
    steps: list[Step] = []

    def add(op: str, slot: int | None, **more: Any) -> None:
        steps.append({"id": len(steps), "op": op, "slot": slot, **more})

    def commit(count: int) -> None:
        for _ in range(count):
            add("seal", 1, name="a", upper=len(steps), wait="now")

    for slot in (0, 1):
        add("open", slot, mode="shared", skew_s=0)
        for name in ("a", "b"):
            add("create_or_load", slot, name=name, schema="k")
    for marker in range(1001, 1004):
        add("write", 1, name="b", updates=[[marker, "m", 0, 1]], wait="now")
    add("seal", 1, name="b", upper=1, wait="now")
    add("compact", 1, name="b", full=True)  # So that the next checkpoint has a state object for it.
    commit(32)
    add("pass", None, seconds=1000)
    add("gc", 0, stop={"request": "list checkpoint/", "skipped": 5, "seconds": 7000})
    commit(40)
    add("pass", None, seconds=4000)  # Of checkpoints older than an hour, one stays for each hour.
    commit(40)
    add("gc", 1)
    add("pass", None, seconds=4000)
    add("load", 1, name="b")
    return steps


def test_a_collector_that_is_late_deletes_nothing_that_newer_checkpoints_name() -> None:
    calm = Manner(patience=1.0, waits_s=5.0, stalls=0.0, freezes=0.0)
    history, run = shuffled(two_collectors(), 1, calm)
    assert run.tap.broken == []
    assert judge(history) == []

    with planted(LATE):
        _, run = shuffled(two_collectors(), 1, calm)
    assert "is missing" in run.tap.broken[0]


def one_reader() -> list[Step]:
    """Return a schedule: what a snapshot reads is compacted away by another client, and the grace period passes."""
    steps: list[Step] = []

    def add(op: str, slot: int | None, **more: Any) -> None:
        steps.append({"id": len(steps), "op": op, "slot": slot, **more})

    for slot in (0, 1):
        add("open", slot, mode="shared", skew_s=0)
        add("create_or_load", slot, name="a", schema="k")
    for time in range(2):
        add("write", 1, name="a", updates=[[1001 + time, "m", time, 1]], seal=time + 1, wait="now")
        add("compact", 1, name="a", full=True)
        if not time:
            add("snapshot", 0, name="a", as_of=0, form="rows", columns="kv", above=None, reads=False)
    for _ in range(5):
        add("pass", None, seconds=1000)
        add("maintain", 0)
    add("gc", 1)
    return steps


def test_what_a_claim_may_read_is_missed_after_the_very_call_that_deletes_it() -> None:
    calm = Manner(patience=1.0, waits_s=5.0, stalls=0.0, freezes=0.0)
    history, run = shuffled(one_reader(), 1, calm)
    assert run.tap.broken == []
    assert judge(history) == []

    with planted(HASTY):
        _, run = shuffled(one_reader(), 1, calm)
    assert "what c" in run.tap.broken[0]
