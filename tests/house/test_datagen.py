"""The data to measure with: the same for the same seed, right in every retraction, and the same to all peers."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import persist
from benchmarks import datagen, ours, targets
from benchmarks.__main__ import MEASURES
from benchmarks.__main__ import main as benchmark
from benchmarks.datasets import HISTORIES, DataSet, data_set
from benchmarks.harness import Job, peak_memory
from benchmarks.histories import BLOCK_ROWS, History

# What the library can do so far.
MEASURED = ["write", "read", "tiny", "raw", "flights", "log", "history", "versions", "feed", "append", "micro"]
SMALL = History(
    keys=300, rows=4001, batch_count=13, uneven=True, inserts=0.2, deletes=0.2, late=0.1, seal_every=2, ticks=50
)
KINDS = {
    "uniform": replace(SMALL, late=0.0),
    "zipf": replace(SMALL, skew="zipf"),
    "newest": replace(SMALL, skew="newest"),
    "late": replace(SMALL, late=0.5, late_batches=3),
    "few keys, many deletes": replace(SMALL, keys=3, deletes=0.7),
    "loaded first": replace(SMALL, loaded=300, inserts=0.0, deletes=0.0),
    "inserts": replace(SMALL, keys=5000, inserts=1.0, deletes=0.0),
    "large records": replace(SMALL, record_bytes=200),
    "few texts": replace(SMALL, texts=3),
    "more batches than updates": replace(SMALL, rows=20, batch_count=50),
}
TINY: list[DataSet] = [
    replace(HISTORIES["cdc-5m"], keys=100, rows=300, batch_count=4, late=0.2, late_batches=1),
    data_set("flights", 0.01),
]


@pytest.fixture(params=KINDS)
def history(request: pytest.FixtureRequest) -> History:
    return KINDS[request.param]


def updates_of(data: DataSet) -> pa.Table:
    return pa.concat_tables([batch.updates for batch in data.batches()])


def summed(updates: Iterable[dict[str, Any]], as_of: int) -> dict[tuple[Any, ...], int]:
    """Return the contents by the definition of a collection."""
    sums: dict[tuple[Any, ...], int] = {}
    for update in updates:
        if update["_time"] <= as_of:
            record = tuple(v for name, v in update.items() if name not in ("_time", "_diff"))
            sums[record] = sums.get(record, 0) + update["_diff"]
    return {record: diff for record, diff in sums.items() if diff}


def test_equal_seeds_make_equal_histories_and_others_others() -> None:
    first, again, other = (updates_of(replace(SMALL, seed=seed)) for seed in (7, 7, 8))
    assert first.equals(again)
    assert not first.equals(other)


@pytest.mark.thorough(except_every=5)
def test_every_retraction_is_of_what_its_key_holds_at_that_time(history: History) -> None:
    updates = sorted(enumerate(updates_of(replace(history, late=0.0)).to_pylist()), key=lambda u: (u[1]["_time"], u[0]))
    held: dict[int, tuple[Any, ...]] = {}
    for _, update in updates:
        value = (update["name"], update["amount"], update["at"])
        assert len(update["name"]) == history.record_bytes - 16
        if update["_diff"] < 0:
            assert held.pop(update["id"]) == value
        else:
            assert update["id"] not in held
            held[update["id"]] = value


@pytest.mark.thorough(except_every=5)
def test_contents_are_what_the_diffs_sum_to(history: History) -> None:
    updates = updates_of(history).to_pylist()
    times = [0, history.end - 1, history.end // 3, history.end // 2, history.end // 3]
    for time, found in zip(times, history.contents(times), strict=True):
        rows = {tuple(row.values()): 1 for row in found.to_pylist()}
        assert rows == summed(updates, time), f"as of {time}"


def test_no_update_comes_at_a_sealed_time_however_late(history: History) -> None:
    upper, seen = 0, 0
    for number, batch in enumerate(history.batches()):
        times = batch.updates["_time"].to_pylist()
        assert min(times, default=upper) >= upper
        seen += any(time // history.ticks < number for time in times)
        upper = batch.upper or upper
    if history.rows > 1000:  # Of fewer, none may be late.
        assert (seen > 0) == (history.late > 0)


@pytest.mark.thorough(except_every=5)
def test_steps_add_up_to_the_contents_at_each_seal(history: History) -> None:
    held: dict[int, dict[str, Any]] = {}
    expected = history.contents([upper - 1 for upper in history.uppers])
    steps = list(history.steps())
    assert [step.upper for step in steps] == history.uppers
    for step, contents in zip(steps, expected, strict=True):
        for key in step.deletes["id"].to_pylist():
            held.pop(key, None)
        held |= {row["id"]: row for row in step.upserts.to_pylist()}
        assert [held[key] for key in sorted(held)] == contents.to_pylist()


@pytest.mark.thorough
def test_blocks_leave_no_trace_where_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SMALL.rows < BLOCK_ROWS
    monkeypatch.setattr("benchmarks.histories.BLOCK_ROWS", 500)
    for history in [*KINDS.values()][:2]:
        test_contents_are_what_the_diffs_sum_to(history)
        test_every_retraction_is_of_what_its_key_holds_at_that_time(history)
        test_steps_add_up_to_the_contents_at_each_seal(history)
        test_no_update_comes_at_a_sealed_time_however_late(history)


@pytest.mark.thorough
@pytest.mark.parametrize("data", TINY, ids=lambda data: data.name)
def test_every_target_gets_the_same_contents(data: DataSet, tmp_path: Path) -> None:
    key = list(data.key)
    times = [upper - 1 for upper in data.uppers]
    expected = data.contents(times)
    for target in datagen.TARGETS:
        datagen.write(data, target, tmp_path / target, change_feed=True)
    with persist.open(tmp_path / "collection", mode="read") as client:
        rows = client.load(ours.COLLECTION)
        for version, (time, contents) in enumerate(zip(times, expected, strict=True)):
            assert targets.same_rows(rows.snapshot(time).to_arrow(), contents, key)
            delta = DeltaTable(tmp_path / "delta", version=version).to_pyarrow_table()
            assert targets.same_rows(delta, contents, key)
    assert targets.same_rows(targets.read_iceberg(tmp_path / "iceberg"), expected[-1], key)
    assert len(list((tmp_path / "parquet").iterdir())) == len(list(data.batches()))
    feed = pa.table(DeltaTable(tmp_path / "delta").load_cdf(starting_version=1))
    assert set(feed["_change_type"].to_pylist()) >= {"update_preimage", "update_postimage"}


def test_the_command_line_takes_every_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--keys 50 --rows 400 --batches 4 --uneven --skew zipf --inserts 0.1 --deletes 0.1 --loaded 5 --seed 3"
    options += " --record-bytes 50 --texts 9 --late 0.1 --late-batches 1 --seal-every 2 --ticks 10"
    command = ["custom", "parquet", str(tmp_path / "made"), *options.split()]
    assert datagen.main(command) == 0
    assert len(list((tmp_path / "made").iterdir())) == 4
    assert datagen.main(command) == 2  # The folder exists.
    assert datagen.main(["flights", "parquet", str(tmp_path / "f"), "--keys", "5"]) == 2
    assert datagen.main(["custom", "parquet", str(tmp_path / "g"), "--deletes", "2"]) == 2
    assert "shares from 0 to 1" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_benchmarks_measure_and_find_that_both_sides_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark([*MEASURED, "--rounds", "1", "--scale", "0.001", "--no-memory"]) == 0
    printed = capsys.readouterr().out
    assert "| failed |" not in printed
    assert printed.count("\n| ") >= 1 + len(MEASURED)


def test_a_measure_that_fails_is_reported_and_costs_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MEASURES, "read", lambda work: 1 / 0)
    assert benchmark(["read", "tiny", "--rounds", "1", "--scale", "0.001"]) == 1
    printed = capsys.readouterr()
    assert "| read | - | - | failed |" in printed.out
    assert "tiny writes" in printed.out
    assert "ZeroDivisionError" in printed.err


@pytest.mark.thorough
def test_peak_memory_is_that_of_the_job_alone() -> None:
    ballast = bytearray(300 << 20)  # A new process must not count what the one before it holds.
    peak = peak_memory(Job(np.ones, [100 << 17]))  # Of 8 bytes.
    assert 95 << 20 <= peak <= 150 << 20
    del ballast
