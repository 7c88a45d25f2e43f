"""Keyed collections over a store that fails, with clients that die, and many at once: nobody is told anything wrong."""

import json
import logging
import random
from pathlib import Path

import msgspec
import pytest

import persist
from persist.blob import open_blob
from tests.upsert.faults.campaign import CLEAR, SHOWERS, Campaign, Outcome
from tests.upsert.faults.client import BEHIND, KEY, VALUE, RandomClient, forms
from tests.upsert.faults.history import Call, Line, Read, read_lines
from tests.upsert.faults.judge import judge
from tests.upsert.faults.process import race


@pytest.fixture(autouse=True)
def _quiet_about_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "persist")


def right(outcome: Outcome) -> Outcome:
    assert not outcome.wrong, "\n".join(outcome.wrong[:10])
    return outcome


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("seed", range(10))
def test_every_answer_is_right_whatever_storage_does_and_whoever_dies(seed: int) -> None:
    outcome = right(Campaign(seed, SHOWERS, 0.05, at_once=False).run(60))
    assert outcome.counts["ok"] > 10


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("seed", range(10))
def test_clients_that_write_seal_and_resolve_at_once_agree_on_one_order(seed: int) -> None:
    weather, deaths = ((CLEAR, 0.0), (SHOWERS, 0.05))[seed % 2]
    outcome = right(Campaign(seed, weather, deaths, at_once=True).run(60))
    assert outcome.counts["ok"] > 10


@pytest.mark.sampled(0.34)
@pytest.mark.parametrize("seed", range(3))
def test_processes_of_which_some_are_killed_agree_on_one_order(tmp_path: Path, seed: int) -> None:
    location = str(tmp_path / "location")
    with persist.open(location) as client:
        made = {name: client.create_or_load(name, key=KEY, value=VALUE, keyed=form) for name, form in forms().items()}
        names = {each.id: name for name, each in made.items()}
    dies_at = [0, *(random.Random(seed).randrange(20, 120) for _ in range(2))]
    lines = read_lines(race(location, tmp_path, seed, dies_at, steps=60))
    with persist.open(location) as client:
        RandomClient("last", client, random.Random(0), lines.append).finish()
        assert client.fsck().is_clean
    blob = open_blob(location)
    records = [json.loads(blob.get(entry.key) or b"")["mutations"] for entry in blob.list("log/")]
    assert judge(lines, records, names, BEHIND) == []
    assert sum(isinstance(line, Call) and line.is_told for line in lines) > 20


@pytest.fixture(scope="module")
def story() -> Outcome:
    campaign = Campaign(1, CLEAR, 0.0, at_once=False)
    return right(campaign.run(40))


def judged(outcome: Outcome, lines: list[Line]) -> list[str]:
    return judge(lines, outcome.records, outcome.names, BEHIND)


def told(outcome: Outcome) -> list[Call]:
    return [line for line in outcome.lines if isinstance(line, Call) and line.is_told]


def test_the_judge_notices_a_call_that_is_lost_or_was_never_made(story: Outcome) -> None:
    lost = told(story)[5]
    made_up = msgspec.structs.replace(lost, token="made-up")
    assert any("0 times in the log" in wrong for wrong in judged(story, [*story.lines, made_up]))
    without = [line for line in story.lines if not isinstance(line, Call) or line.token != lost.token]
    assert any("nobody made the call" in wrong for wrong in judged(story, without))


def test_the_judge_notices_a_wrong_read_and_an_unjust_refusal(story: Outcome) -> None:
    read = next(line for line in story.lines if isinstance(line, Read) and line.what == "contents" and line.found)
    less = msgspec.structs.replace(read, found=read.found[1:])
    assert any("should be" in wrong for wrong in judged(story, [*story.lines, less]))
    call = told(story)[5]
    attempt = msgspec.structs.replace(call.attempts[0], outcome="refused", error="PendingEvents")
    refused = msgspec.structs.replace(call, token="refused", attempts=[attempt])
    assert any("nothing refuses" in wrong for wrong in judged(story, [*story.lines, refused]))


def test_the_judge_notices_events_that_arrive_in_another_order_than_they_were_sent(story: Outcome) -> None:
    swapped = Outcome([], story.lines, story.records[::-1], story.names)
    assert judged(swapped, story.lines)
