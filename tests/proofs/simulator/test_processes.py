"""Real processes on one location, of which some are killed and some stopped: nobody is lied to."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.blob.conftest import CLOUDS
from tests.proofs.simulator.judge import judge
from tests.proofs.simulator.processes import Fate, Race


def innocent(race: Race, *, seed: int, size: int, slots: int, fate: Fate, is_keyed: bool = False) -> None:
    violations = judge(race.run(seed, size, slots, fate, is_keyed=is_keyed))

    assert not violations, "\n".join(map(str, violations[:10]))
    # So that a race in which nothing happened does not pass for one in which nothing went wrong.
    assert race.counts["acknowledged"] >= 1
    assert race.counts["lost"] >= 1


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [6, 7])
def test_processes_that_are_killed_and_stopped_agree_on_one_order(tmp_path: Path, seed: int) -> None:
    race = Race(str(tmp_path / "location"), {}, tmp_path / "journals")
    innocent(race, seed=seed, size=300, slots=4, fate=Fate(kills=4, stops=2))
    assert race.counts["killed"] > 0


@pytest.mark.thorough
def test_processes_that_write_events_agree_on_one_order_though_some_are_killed(tmp_path: Path) -> None:
    race = Race(str(tmp_path / "location"), {}, tmp_path / "journals")
    innocent(race, seed=5, size=200, slots=4, fate=Fate(kills=3, stops=2), is_keyed=True)


@pytest.mark.thorough
def test_eight_processes_race_for_one_log(tmp_path: Path) -> None:
    race = Race(str(tmp_path / "location"), {}, tmp_path / "journals")
    innocent(race, seed=7, size=400, slots=8, fate=Fate())
    assert race.counts["lost"] >= 5


@pytest.mark.thorough
def test_a_bucket_keeps_what_it_acknowledged_though_processes_are_killed(
    s3_location: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    innocent(Race(*s3_location, tmp_path / "journals"), seed=6, size=150, slots=4, fate=Fate(kills=3, stops=1))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", CLOUDS)
def test_stores_of_other_clouds_keep_it_too(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    options = request.getfixturevalue(f"{kind}_options")
    race = Race(f"{CLOUDS[kind]}/{uuid.uuid4().hex}", options, tmp_path / "journals")
    innocent(race, seed=6, size=150, slots=4, fate=Fate(kills=3, stops=1))
