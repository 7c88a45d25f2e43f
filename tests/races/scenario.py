"""A race from beginning to end: make the collections, race, read back with a fresh client, and judge all of it."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import persist
from persist.blob import open_blob
from persist.upsert import InsertIfAbsent
from tests.invariants import check_named
from tests.races.checker import Report, check
from tests.races.fleet import Trouble, race
from tests.races.history import Call, read_calls, with_log
from tests.races.racer import KEY, KEYED_VALUE, VALUE, Plan, RecordedClient, Recorder

COLLECTIONS = ["k0", "k1", "k2", "k3"]
KEYED = {
    "u-seal": persist.Keyed(),
    "u-background": persist.Keyed(resolve="background"),
    "u-first": persist.Keyed(machine=InsertIfAbsent()),
}
MACHINES = {"u-seal": "upsert", "u-background": "upsert", "u-first": "insert-if-absent"}
READERS = 2
TIMEOUT_S = 240
FAR = 1_000_000  # Beyond all times that racers write at.


@dataclass
class Outcome:
    """A race and its verdict; counts are of each process that was not killed, by its number."""

    calls: list[Call]
    report: Report
    counts: dict[int, Counter[str]]
    seconds: float

    @property
    def total(self) -> Counter[str]:
        """The counts of all processes together."""
        return sum(self.counts.values(), Counter())

    def __str__(self) -> str:
        total = self.total
        writers = {number: counts for number, counts in self.counts.items() if counts["tried"]}
        refused = {name: n for name, n in sorted(total.items()) if name[0].isupper()}
        shares = ", ".join(f"{number}: {counts['acknowledged']}" for number, counts in sorted(writers.items()))
        records, rate = self.report.records, self.report.records / self.seconds
        return (
            f"{len(self.calls)} calls in {self.seconds:.1f} s: {records} records of {total['acknowledged']} acked "
            f"commits ({rate:.0f} records/s), {total['reads']} reads, refused {refused}; {total['lost']} of "
            f"{total['tried']} creates lost their race ({total['lost'] / max(1, records):.2f} per record); "
            f"acknowledged by process {{{shares}}}"
        )


def exclusive_writers(processes: int, seconds: float, seed: int) -> tuple[list[str], list[Trouble]]:
    """Return the modes of processes, most of which want to write alone, and when these are stopped for a while.

    One that is stopped does not know that another took over meanwhile.
    """
    chance = random.Random(seed)
    exclusive = max(2, processes * 5 // 8)
    troubles = []
    at_s = 0.3
    while at_s + 0.3 < seconds:
        troubles.append(Trouble(chance.randrange(exclusive), at_s, chance.uniform(0.05, 0.3)))
        at_s += 0.35
    return ["exclusive"] * exclusive + ["shared"] * (processes - exclusive), troubles


def run(
    url: str,
    options: dict[str, Any],
    folder: Path,
    *,
    writers: Sequence[str],
    seconds: float,
    seed: int,
    lost_answers: float = 0.0,
    holds: bool = False,
    keyed: bool = False,
    troubles: Sequence[Trouble] = (),
) -> Outcome:
    """Race a process for each of writers (their modes), and `READERS` more that read; keep the history in folder."""
    names = [*KEYED, *COLLECTIONS[:2]] if keyed else COLLECTIONS
    with persist.open(url, storage_options=options) as client:
        for name in names:
            form = KEYED.get(name)
            client.create_or_load(name, key=KEY, value=KEYED_VALUE if form else VALUE, keyed=form)
    folder.mkdir()
    plans = [
        Plan(
            url=url,
            options=options,
            folder=str(folder),
            number=number,
            seed=seed,
            mode=mode,
            collections=names,
            seconds=seconds,
            reentrance_ids=["red", "blue"],
            lost_answers=lost_answers,
            holds=holds or keyed,
            keyed=[name for name in names if name in KEYED],
        )
        for number, mode in enumerate([*writers, *["read"] * READERS])
    ]
    counts = race(plans, troubles, seconds + TIMEOUT_S)
    read_back(url, options, folder, names, exclusive="exclusive" in writers)
    blob = open_blob(url, options)
    check_named(blob)
    records = [json.loads(blob.get(entry.key) or b"") for entry in blob.list("log/")]
    blob.close()
    calls = with_log(read_calls(sorted(folder.glob("history-*.jsonl"))), records)
    racing = [call for call in calls if call.client not in ("final", "last")]
    took_ns = max(call.invoked_ns for call in racing) - min(call.invoked_ns for call in racing)
    machines = {name: machine for name, machine in MACHINES.items() if keyed}
    return Outcome(calls, check(calls, holds=holds, machines=machines), counts, took_ns / 1e9)


def read_back(url: str, options: dict[str, Any], folder: Path, names: Sequence[str], *, exclusive: bool) -> None:
    """Seal everything and read all of it with clients that are new, so that the checker judges the final state, too."""
    recorder = Recorder(folder / "history-final.jsonl")
    blob = open_blob(url, options)
    check_named(blob)
    mode: dict[str, Any] = (
        {"mode": "exclusive", "reentrance_id": "last", "force": True} if exclusive else {"mode": "shared"}
    )
    client = RecordedClient(recorder, "final", blob, **mode)
    for name in names:
        assert client.commit([["seal", name, FAR]])() is None
        client.read("upper", name)
    client.close()
    # One that only reads takes no hold, so that since stays as the checker knows it.
    client = RecordedClient(recorder, "last", blob, "read")
    for name in names:
        since = client.read("since", name)
        client.read("snapshot", name, as_of=FAR - 1)
        client.read("changes", name, lower=since + 1, upper=FAR)
    client.close()
    blob.close()
    recorder.close()
