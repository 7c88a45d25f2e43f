"""The Nemesis in a small size: clients do everything there is over a store that fails, and nobody is lied to.

At any size: `scripts/soak nemesis --operations 200000 --seed 1`.
"""

import logging

import pytest

from persist.blob import MemoryBlob
from tests.nemesis.campaign import Episode, Report, execute, explain
from tests.nemesis.generator import WEIGHTS, generate
from tests.nemesis.runner import Run, features
from tests.nemesis.shrink import shrink
from tests.nemesis.validator import judge


@pytest.fixture(autouse=True)
def _quiet_about_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "persist")


@pytest.mark.sampled(0.25)
@pytest.mark.parametrize("seed", range(12))
def test_every_answer_is_right_whatever_storage_does(seed: int) -> None:
    innocent(Episode(seed, 300, on_files=seed % 8 == 7))


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("seed", range(5))
def test_every_reader_keeps_its_answer_while_compaction_and_collection_run_flat_out(seed: int) -> None:
    report = innocent(Episode(seed, 300, flat_out=True))
    assert report.retries["compaction: keyframes"] > 0
    assert report.retries["compaction: runs_merged"] > 0


@pytest.mark.sampled(0.25)
@pytest.mark.parametrize("seed", range(8))
def test_every_answer_is_right_whatever_servers_do(seed: int) -> None:
    report = innocent(Episode(1000 + seed, 200, is_served=True))
    assert report.retries["commits: relayed"] > 0


def test_a_token_known_to_one_collection_that_evolved_since_may_be_refused_as_naming_other_data() -> None:
    innocent(Episode(5061, 250))


@pytest.mark.sampled(0.25)
@pytest.mark.parametrize("seed", range(12))
def test_every_answer_about_keys_is_right_whatever_storage_does(seed: int) -> None:
    report = innocent(Episode(2000 + seed, 300, on_files=seed % 8 == 7, flat_out=seed % 3 == 2, is_keyed=True))
    assert report.operations["upsert"] > 5


def innocent(episode: Episode) -> Report:
    history, violations, report = execute(episode, episode.steps())
    if violations:
        pytest.fail(explain(episode, history, violations), pytrace=False)
    return report


def test_steps_depend_on_nothing_but_the_seed() -> None:
    assert generate(7, 200, features()) == generate(7, 200, features())
    assert generate(7, 200, features()) != generate(8, 200, features())


def test_every_operation_is_issued_and_every_fault_met() -> None:
    operations: set[str] = set()
    faults: set[str] = set()
    for seed in range(4):
        episode = Episode(seed, 300)
        _, _, report = execute(episode, episode.steps())
        operations |= set(report.operations)
        faults |= {fault for fault, n in report.faults.items() if n}
    silent = {"crash", "deliver", "up", "down", "pass", "settle", "write_bad", "close_snapshot"}
    assert set(WEIGHTS) - operations <= silent
    assert faults == {"NONE", "UNAVAILABLE", "NOT_HAPPENED_DOUBTFUL", "HAPPENED_BUT_FAILED", "SLOW"}


def test_any_part_of_the_steps_can_be_executed() -> None:
    steps = generate(3, 200, features())
    for part in (steps[::2], steps[1::3], steps[100:], []):
        assert judge(Run().execute(part)) == []


class ForgetfulBlob(MemoryBlob):
    """Says that it created records of the log, and does not keep every eighth."""

    def create(self, key: str, value: bytes) -> bool:
        if key.startswith("log/") and int(key[4:]) % 8 == 7:
            return True
        return super().create(key, value)


def test_a_store_that_loses_an_acknowledged_write_is_found_out_and_the_history_made_short() -> None:
    steps = generate(1, 60, features())

    def fails(candidate: list[dict[str, object]]) -> bool:
        return bool(judge(Run(ForgetfulBlob()).execute(candidate)))

    assert fails(steps)
    short = shrink(steps, fails, tries=1)
    assert fails(short)
    assert len(short) <= 15
