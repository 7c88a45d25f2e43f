"""The simulator in a small size: clients do everything there is over a store that fails, and nobody is lied to.

At any size: `scripts/soak simulator --operations 200000 --seed 1`.
"""

import logging

import pytest

from persist.blob.protocol import MemoryBlob
from tests.proofs.simulator.campaign import Episode, Report, episodes, execute, explain
from tests.proofs.simulator.language import Step, generate
from tests.proofs.simulator.players import features
from tests.proofs.simulator.shrink import shrink
from tests.proofs.simulator.weights import WEIGHTS
from tests.support.tiers import examples


@pytest.fixture(autouse=True)
def _quiet_about_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "persist")


CALLS = examples(100_000)  # Of the ten cases: 1,000,000 if everything is run, and otherwise 10,000 each.


@pytest.mark.costly("it makes 10,000 calls of the store")
@pytest.mark.thorough
@pytest.mark.parametrize("campaign", range(10))
def test_nothing_is_wrong_after_any_call_of_the_store(campaign: int) -> None:
    calls = 0
    for episode in (e for e in episodes(38_000 + campaign) if e.scheduler == "shuffled"):
        calls += innocent(episode).requests
        if calls >= CALLS:
            return


@pytest.mark.thorough(except_every=20)
@pytest.mark.parametrize("seed", range(20))
def test_every_answer_is_right_whatever_storage_does_and_whoever_is_stopped_or_dies(seed: int) -> None:
    innocent(Episode(seed, 300))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_every_reader_keeps_its_answer_while_compaction_and_collection_run_flat_out(seed: int) -> None:
    report = innocent(Episode(seed, 300, flat_out=True))
    assert report.retries["compaction: keyframes"] + report.retries["compaction: runs_merged"] > 0


@pytest.mark.thorough(except_every=20)
@pytest.mark.parametrize("seed", range(20))
def test_every_answer_about_keys_is_right_whatever_storage_does(seed: int) -> None:
    report = innocent(Episode(2000 + seed, 300, flat_out=seed % 3 == 2, is_keyed=True))
    # How the threads take turns depends on what the process has done before; blocks of several collections upsert, too.
    assert report.operations["upsert"] + report.operations["multi"] > 1


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [10, 11, 12, 13, 14, 15, 16, 17, 18, 19])
def test_what_checkpoints_name_is_there_though_collectors_are_stopped_in_the_middle(seed: int) -> None:
    report = innocent(Episode(seed, 300, collects=True))
    assert report.virtual_s > 1000


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_what_is_named_is_there_though_a_collector_sleeps_for_hours_while_others_collect(seed: int) -> None:
    report = innocent(Episode(5000 + seed, 400, sleeps=True))
    assert report.virtual_s > 8000


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_a_call_happens_once_whatever_becomes_of_the_server_that_is_asked_to_commit_it(seed: int) -> None:
    report = innocent(Episode(6000 + seed, 300, is_keyed=seed % 3 == 2, through=True))
    assert report.retries["commits: relayed"] + report.retries["commits: in_doubt"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_clones_hold_what_their_sources_held_and_keep_what_they_share(seed: int) -> None:
    report = innocent(Episode(3000 + seed, 300, is_keyed=seed % 3 == 2, clones=True))
    assert report.operations["clone"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(10))
def test_tables_hold_whole_times_for_programs_that_know_nothing_of_the_log(seed: int) -> None:
    report = innocent(Episode(4000 + seed, 300, is_keyed=seed % 3 == 2, publishes=True))
    assert report.operations["publish"] > 5


@pytest.mark.thorough(except_every=10)
@pytest.mark.parametrize("seed", range(10))
def test_contents_become_what_they_were_and_a_store_without_room_loses_nothing(seed: int) -> None:
    report = innocent(Episode(7000 + seed, 300, recovers=True, clones=seed % 3 == 1, publishes=seed % 3 == 2))
    assert report.operations["restore"] > 0


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("seed", range(4))
def test_every_answer_is_right_on_files(seed: int) -> None:
    innocent(Episode(seed, examples(300, quick=150), "on files", is_keyed=seed % 2 == 1, publishes=seed % 2 == 0))


@pytest.mark.thorough(except_every=7)
@pytest.mark.parametrize("seed", [1000, *range(1002, 1008)])  # The clients of 1001 commit all by themselves.
def test_every_answer_is_right_whatever_servers_do(seed: int) -> None:
    report = innocent(Episode(seed, examples(200, quick=100), "served"))
    assert report.retries["commits: relayed"] > 0


@pytest.mark.thorough
def test_a_token_known_to_one_collection_that_evolved_since_may_be_refused_as_naming_other_data() -> None:
    innocent(Episode(5061, 250))


def doomed(requests: int, how: str, *, is_keyed: bool) -> list[Step]:
    """Return a story in which the client of slot 0 dies at one of its requests, and the other ones go on."""
    steps = [
        s
        for s in generate(3, 120, features(), is_keyed=is_keyed)
        if s["op"] not in ("crash", "down", "open") or s["id"] < 10
    ]
    calm = [{name: value for name, value in step.items() if name not in ("faults", "crash", "stop")} for step in steps]
    first = next(n for n, step in enumerate(calm) if step["slot"] == 0)
    calm[first + 1] = {**calm[first + 1], "doom": {"calls": requests, "how": how}}
    return calm


# Every third request of either story, on each of its sides.
@pytest.mark.thorough(except_every=20)
@pytest.mark.parametrize("requests", range(0, 60, 3))
@pytest.mark.costly("it runs three episodes")
def test_a_call_happens_when_its_record_is_created_whichever_request_its_client_dies_at(requests: int) -> None:
    for how in ("before", "after", "limbo"):
        _, violations, _ = execute(Episode(3, 120), doomed(requests, how, is_keyed=requests % 2 == 0))
        assert violations == [], how


def innocent(episode: Episode) -> Report:
    history, violations, report = execute(episode, episode.steps())
    if violations:
        pytest.fail(explain(episode, history, violations), pytrace=False)
    return report


def test_steps_depend_on_nothing_but_the_seed() -> None:
    assert generate(7, 200, features()) == generate(7, 200, features())
    assert generate(7, 200, features()) != generate(8, 200, features())


def test_the_same_seed_is_the_same_run() -> None:
    episode = Episode(7, 60, is_keyed=True)
    one, other = (execute(episode, episode.steps())[0].to_json() for _ in range(2))
    assert one == other


@pytest.mark.thorough
def test_every_operation_is_issued_and_every_fault_met() -> None:
    operations: set[str] = set()
    faults: set[str] = set()
    for seed in (0, 1, 2, 3, 5):
        episode = Episode(seed, 250)
        _, _, report = execute(episode, episode.steps())
        operations |= set(report.operations)
        faults |= {fault for fault, n in report.faults.items() if n}
    silent = {"crash", "deliver", "up", "down", "pass", "settle", "write_bad", "close_snapshot"}
    assert set(WEIGHTS) - operations <= silent
    assert faults == {"NONE", "UNAVAILABLE", "NOT_HAPPENED_DOUBTFUL", "HAPPENED_BUT_FAILED", "SLOW"}


@pytest.mark.thorough
def test_any_part_of_the_steps_can_be_executed() -> None:
    steps = generate(3, 200, features())
    for part in (steps[::2], steps[1::3], steps[100:], []):
        assert execute(Episode(3, 200), part)[1] == []


class ForgetfulBlob(MemoryBlob):
    """Says that it created records of the log, and does not keep every eighth."""

    def create(self, key: str, value: bytes) -> bool:
        if key.startswith("log/") and int(key[4:]) % 8 == 7:
            return True
        return super().create(key, value)


@pytest.mark.thorough
def test_a_store_that_loses_an_acknowledged_write_is_found_out_and_the_history_made_short() -> None:
    steps = generate(1, 26, features())

    def fails(candidate: list[dict[str, object]]) -> bool:
        return bool(execute(Episode(1, 26), candidate, ForgetfulBlob())[1])

    assert fails(steps)
    short = shrink(steps, fails, tries=1)
    assert fails(short)
    assert len(short) <= 15
