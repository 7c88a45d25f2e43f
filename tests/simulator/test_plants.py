"""Faults in the library, put there on purpose: each is found by a seed that is stated here."""

import logging
from dataclasses import replace

import pytest

from tests.simulator.campaign import Episode, execute
from tests.simulator.plants import PLANTS, planted

SEEDS = 12
# The episode that finds each fault, and what it may say is broken.
FOUND_BY: dict[str, tuple[Episode, set[str]]] = {
    "a commit is acknowledged before its create is known to have happened": (Episode(6, 150), {"lost"}),
    "since passes what readers hold": (Episode(8, 120), {"compaction", "hold", "since"}),
    "a token is not remembered": (Episode(1, 150), {"phantom", "once", "token"}),
    "a write at a sealed time is taken": (Episode(1, 150), {"late"}),
    "a collector waits for nobody who reads": (Episode(6, 250, collects=True), {"deletion"}),
    "a collector does not wait for the grace period": (Episode(1, 150, flat_out=True), {"deletion"}),
    "a resolution loses an update": (Episode(1, 120, is_keyed=True), {"resolved"}),
    "a fenced writer goes on": (Episode(3, 120), {"exclusive"}),
    "a read does not look whether there is news": (Episode(1, 120), {"refused", "frontier", "sealed"}),
}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "persist")


@pytest.mark.parametrize("fault", PLANTS)
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


def test_the_same_seeds_find_nothing_without_a_fault() -> None:
    for episode in [*{episode for episode, _ in FOUND_BY.values()}][::3]:
        _, violations, _ = execute(episode, episode.steps())
        assert violations == [], episode
