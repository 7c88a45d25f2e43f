"""Processes killed at random moments, and the judge of what they leave, who must know a violation when he sees one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.blob import MemoryBlob
from tests.crash.checker import Violation, check_log, check_records, recovered
from tests.crash.kills import kill_often
from tests.crash.nursery import Nursery, nursery
from tests.crash.story import LARGE_ROWS, Model, Op, Teller, updates_of

SEED = 1
FOLDER_KILLS = 30
S3_KILLS = 6


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    with nursery() as warm:
        yield warm


@pytest.mark.sampled(0.15, group="long")
def test_a_folder_keeps_every_acknowledged_call_and_no_half_of_any_other(children: Nursery, tmp_path: Path) -> None:
    tally = kill_often(children, str(tmp_path / "location"), {}, crashes=FOLDER_KILLS, seed=SEED, ages=True)

    assert tally.kills == FOLDER_KILLS
    assert tally.acknowledged["write"] > 0
    assert tally.acknowledged["multi"] > 0


@pytest.mark.sampled(0.15, group="long")
def test_a_bucket_keeps_every_acknowledged_call_and_no_half_of_any_other(
    children: Nursery, s3_location: tuple[str, dict[str, Any]]
) -> None:
    tally = kill_often(children, *s3_location, crashes=S3_KILLS, seed=SEED)

    assert tally.kills == S3_KILLS
    assert tally.acknowledged["write"] > 0


CALLS = [
    Op(0, "create", ("apples",)),
    Op(1, "create", ("pears",)),
    Op(2, "write", ("apples",), 0, 3),
    Op(3, "seal", ("apples",), 5),
    Op(4, "multi", ("apples", "pears"), 6, LARGE_ROWS, 7),
    Op(5, "write", ("pears",), 8, 2),
]


def carry_out(blob: MemoryBlob, calls: list[Op]) -> None:
    with persist.open(blob) as client:
        teller = Teller(client)
        for op in calls:
            future = teller.ask(op)
            if future is not None:
                future.result()


def judge(blob: MemoryBlob, acknowledged: int, calls: list[Op] = CALLS) -> int:
    with persist.open(blob) as client:
        return recovered(client, blob, Model(), calls, acknowledged).found


@pytest.mark.parametrize("happened", range(len(CALLS) + 1))
def test_the_judge_finds_how_many_calls_happened(blob: MemoryBlob, happened: int) -> None:
    carry_out(blob, CALLS[:happened])

    assert judge(blob, 0) == happened


def half_of_a_multi_write(client: persist.Client) -> None:
    client.load("apples").write(updates_of(CALLS[4])).result()
    client.load("apples").seal(7).result()


def part_of_a_large_write(client: persist.Client) -> None:
    with client.multi_write() as multi:
        multi.write(client.load("apples"), updates_of(CALLS[4]).slice(0, 1000))
        multi.write(client.load("pears"), updates_of(CALLS[4]))
        multi.seal(client.load("apples"), 7)


def a_seal_that_nobody_asked_for(client: persist.Client) -> None:
    client.load("apples").seal(6).result()


def a_write_that_happened_twice(client: persist.Client) -> None:
    for _ in range(2):
        with client.multi_write() as multi:
            multi.write(client.load("apples"), updates_of(CALLS[4]))
            multi.write(client.load("pears"), updates_of(CALLS[4]))
    client.load("apples").seal(7).result()


def a_write_that_overtook_another(client: persist.Client) -> None:
    client.load("pears").write(updates_of(CALLS[5])).result()


def a_since_that_nobody_asked_for(client: persist.Client) -> None:
    client.load("apples").allow_compaction(2).result()


@pytest.mark.parametrize(
    "deed",
    [
        half_of_a_multi_write,
        part_of_a_large_write,
        a_seal_that_nobody_asked_for,
        a_write_that_happened_twice,
        a_write_that_overtook_another,
        a_since_that_nobody_asked_for,
    ],
)
def test_the_judge_notices(blob: MemoryBlob, deed: Callable[[persist.Client], None]) -> None:
    carry_out(blob, CALLS[:4])
    with persist.open(blob) as client:
        deed(client)

    with pytest.raises(Violation):
        judge(blob, 4)


def test_the_judge_notices_that_an_acknowledged_call_is_lost(blob: MemoryBlob) -> None:
    carry_out(blob, CALLS[:5])

    with pytest.raises(Violation, match=r"operation: rows|agree with no prefix"):
        judge(blob, 6)


def test_the_judge_notices_a_part_that_is_gone(blob: MemoryBlob) -> None:
    carry_out(blob, CALLS)
    blob.delete(next(blob.list("part/")).key)

    with persist.open(blob) as client, pytest.raises(Violation, match="names parts that are not there"):
        check_records(client, blob)
    with pytest.raises(persist.PersistError):
        judge(blob, 6)


def test_the_judge_notices_a_hole_in_the_log(blob: MemoryBlob) -> None:
    carry_out(blob, CALLS)
    blob.delete("log/00000000000000000003")

    with pytest.raises(Violation, match=r"lacks the records \[3\]"):
        check_log(blob)
