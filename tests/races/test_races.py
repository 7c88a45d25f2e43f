"""Eight processes append to and seal four collections of one location; what they are told is linearizable.

Run with `-s` to see how many commits there were, how many races were lost, and what each process got.
`tests.races.soak` runs the same for as long as it is told to.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.races.fleet import Trouble
from tests.races.scenario import Outcome, exclusive_writers, run
from tests.servers.fixtures import make_bucket

SECONDS = 3.0
SEED = 20240521


@pytest.fixture(params=["folder", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """The URL of a location that processes share, and its `storage_options`."""
    if request.param == "folder":
        return str(tmp_path / "location"), {}
    options = request.getfixturevalue("s3_options")
    return f"s3://{make_bucket(options)}/races", options


def judge(outcome: Outcome) -> None:
    print(f"\n{outcome}")
    assert not outcome.report.violations, "\n".join(outcome.report.violations[:20])
    # So that a race in which nothing happened does not pass for one in which nothing went wrong.
    assert outcome.total["acknowledged"] >= 5
    assert outcome.total["lost"] >= 2
    assert outcome.total["reads"] >= 3


@pytest.mark.sampled(0.15, group="long")
def test_shared_writers_and_readers_agree_on_one_order(location: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    judge(run(*location, tmp_path / "history", writers=["shared"] * 8, seconds=SECONDS, seed=SEED, lost_answers=0.05))


@pytest.mark.sampled(0.15, group="long")
def test_writers_that_read_agree_on_one_order(tmp_path: Path) -> None:
    location = str(tmp_path / "location")
    judge(run(location, {}, tmp_path / "history", writers=["shared"] * 8, seconds=SECONDS, seed=SEED, holds=True))


@pytest.mark.sampled(0.15, group="long")
def test_exclusive_writers_take_turns_and_fenced_ones_stop(
    location: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    writers, troubles = exclusive_writers(8, SECONDS, SEED)
    outcome = run(*location, tmp_path / "history", writers=writers, seconds=SECONDS, seed=SEED, troubles=troubles)
    judge(outcome)
    assert outcome.total["WriterFenced"] + outcome.total["Locked"] >= 3


@pytest.mark.sampled(0.15, group="long")
def test_a_killed_exclusive_writer_leaves_nothing_half_done(tmp_path: Path) -> None:
    writers, _ = exclusive_writers(8, SECONDS, SEED)
    troubles = [Trouble(number, 0.4 + number / 2, None) for number in range(3)]
    location = str(tmp_path / "location")
    judge(run(location, {}, tmp_path / "history", writers=writers, seconds=SECONDS, seed=SEED, troubles=troubles))


@pytest.mark.sampled(0.15, group="long")
def test_writers_of_events_agree_on_one_order_though_some_are_killed(tmp_path: Path) -> None:
    troubles = [Trouble(0, 1.5, None), Trouble(1, 1.0, 0.5)]
    location = str(tmp_path / "location")
    writers = ["shared"] * 5
    judge(
        run(
            location,
            {},
            tmp_path / "history",
            writers=writers,
            seconds=SECONDS,
            seed=SEED,
            keyed=True,
            troubles=troubles,
        )
    )
