"""The year and its bounds: a short one is clean, and each bound is broken by a fault."""

import subprocess
import sys
from pathlib import Path

import pytest

import persist
from tests.proofs.year.bounds import FIRST_MIN, SAMPLES_MIN, Gauges, fitted
from tests.proofs.year.census import Census, Count, Found
from tests.proofs.year.plants import PLANTS
from tests.proofs.year.scenario import Plan, Year
from tests.proofs.year.soak import live, table
from tests.support.clocks import DatedBlob, ImpatientClock

SHORT = Plan(days=10, commits=2_500, collections=80, maintain_hours=12)


def found(stored: int, needed: int) -> Found:
    return Found(Count(stored, stored, stored), Count(needed, needed, needed), {})


def test_memory_that_rises_is_told_with_the_day_and_by_how_much() -> None:
    gauges = Gauges(365, resident=[(day, 2**20 * (1000 + day)) for day in range(1, 365)])
    gauges.check_memory(364)
    (broken,) = gauges.broken
    assert (broken.bound, broken.day) == ("memory", 364)
    assert "rise by 31.5% from 1037 to 1364 MiB" in str(broken)


def test_memory_that_is_flat_after_the_first_tenth_or_jumps_up_and_down_is_fine() -> None:
    sizes = [(day, 2**20 * (day * 20 if day < 37 else 1000 + 40 * (day % 2))) for day in range(1, 366)]
    gauges = Gauges(365, resident=sizes)
    gauges.check_memory(365)
    assert gauges.broken == []


def test_a_line_goes_through_the_middle_of_what_was_seen() -> None:
    line = fitted([(1, 10), (2, 20), (3, 10), (4, 20)])
    assert line.first == pytest.approx(12)
    assert line.last == pytest.approx(18)


@pytest.mark.parametrize(("stored", "is_broken"), [(160, False), (161, True)])
def test_more_than_the_share_of_what_is_needed_is_too_much(stored: int, is_broken: bool) -> None:
    gauges = Gauges(10)
    gauges.check_storage(3, found(stored, 100))
    assert bool(gauges.broken) == is_broken


def test_a_slow_operation_is_told_and_rare_ones_are_not_judged_by_a_moment() -> None:
    gauges = Gauges(4)
    for day in range(1, 4):
        for operation, calls, cost in (("often", SAMPLES_MIN, day), ("rarely", FIRST_MIN, 100 * day)):
            for _ in range(calls):
                gauges.add(operation, float(cost))
        gauges.end_day(day + 1, None)
    assert gauges.broken == []
    for _ in range(SAMPLES_MIN):
        gauges.add("often", 3.1)
    gauges.end_day(4, None)
    assert [str(broken) for broken in gauges.broken] == [
        "speed, day 4: the 99th percentile of 'often' is 3.10 ms of 1000 calls; the median of the first day is 1.00, "
        "and 3.00 are allowed"
    ]


def test_the_census_finds_that_nothing_is_too_much_and_what_nobody_needs() -> None:
    clock = ImpatientClock()
    blob = DatedBlob(clock)
    with persist.open(blob, settings=persist.Settings(background=False), clock=clock) as client:
        made = client.create_or_load("c", key={"k": int})
        for time in range(40):
            made.write([(time, None)], time=time, seal=time + 1).result()
        clock.sleep(2 * 3600.0)
        client.gc()
        census = Census(blob)
        fine = census.take(clock.wall_ms() / 1000)
        assert max(fine.ratios["objects"], fine.ratios["bytes"]) < 1.1
        for n in range(60):
            blob.set(f"part/{made.id}/{n:020}-{n:032x}.parquet", b"nobody names it")
        clock.sleep(2 * 3600.0)
        litter = census.take(clock.wall_ms() / 1000)
    assert litter.stored.objects - litter.needed.objects >= 60
    assert litter.by_kind["part"][1] == Count(0, 0)


@pytest.mark.thorough
def test_ten_days_are_clean(tmp_path: Path) -> None:
    year = Year(SHORT, tmp_path)
    # Processor time of a busy machine is no bound here; `scripts/soak year` judges it.
    assert [broken for broken in live(year) if broken.bound != "speed"] == []
    done = year.counts
    assert done["erase"] == 3
    for what in ("add column", "drop column", "fill disk", "restore", "upgrade", "deaths"):
        assert done[what.replace(" ", "_")] == 1, table(year)
    assert done["commits"] >= SHORT.commits


@pytest.mark.thorough
@pytest.mark.parametrize("bound", ["storage", "answers", "speed"])
def test_each_bound_is_broken_by_a_fault(tmp_path: Path, bound: str) -> None:
    (broken, *_) = live(Year(SHORT, tmp_path), PLANTS[bound])
    assert broken.bound == bound


@pytest.mark.thorough
def test_the_command_says_which_bound_broke_and_fails(tmp_path: Path) -> None:
    size = ["--days", "10", "--commits", "1000", "--collections", "75", "--maintain-hours", "24", "--plant", "answers"]
    command = [
        sys.executable,
        "-m",
        "tests.support.soak",
        "year",
        *size,
        "--folder",
        str(tmp_path),
        "--plant",
        "answers",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "BROKEN answers, day" in done.stdout
    assert [*tmp_path.iterdir()] == []
