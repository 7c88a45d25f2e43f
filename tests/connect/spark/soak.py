"""Random work on a standalone cluster, whose processes are killed meanwhile: `scripts/soak cluster [--rounds N]`.

Each round writes, overwrites, deletes, compacts or reads by the tasks of two workers. At a random moment of it, a
worker, an executor, the Python processes of tasks, or the driver is killed, each of them once in four rounds. A new
driver does the same again, under the same token. The oracle is a dictionary of this process: after each round, a client
reads exactly its rows. At the end nothing is missing, and garbage collection leaves no part that no record names.
"""

import argparse
import hashlib
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import persist
from tests.connect.spark.cluster import Cluster, Driver, DriverEnded, environment, running_cluster
from tests.support.tuned import tuned

VICTIMS = ("worker", "executor", "python", "driver")
KINDS = ("write", "overwrite", "delete", "compact", "snapshot")
SETTINGS = tuned(background=False, grace_s=0, orphan_grace_s=0, hold_linger_s=0)
DELAY_S_MAX = 4.0  # An operation takes about so long.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--seed", type=int, default=int(time.time()))


def run(args: argparse.Namespace) -> int:
    """Run rounds; return 1 if a row was lost or doubled."""
    print(f"seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="persist-cluster-") as name:
        folder = Path(name)
        with running_cluster(folder, environment(folder)) as (cluster, driver):
            soak = Soak(cluster, driver, str(folder / "location"), random.Random(args.seed))
            is_right = all(soak.round(number) for number in range(args.rounds)) and soak.is_clean()
    print(f"killed: {dict(soak.killed)}; {'clean' if is_right else 'WRONG'}")
    return 0 if is_right else 1


def values(keys: Iterable[int]) -> dict[int, str]:
    """Return the values that Spark computes for keys."""
    return {k: hashlib.sha256(str(k).encode()).hexdigest() for k in keys}


class Soak:
    """A cluster at work, and the rows that the collection has to hold."""

    def __init__(self, cluster: Cluster, driver: Driver, location: str, random_: random.Random) -> None:
        self._cluster, self._driver, self._location, self._random = cluster, driver, location, random_
        self._expected = values(range(3000))  # Negative keys have other remainders in Spark than here.
        self._victims: list[str] = []
        self._is_ended = threading.Event()
        self.killed = Counter[str]()
        with self._opened() as client:
            rows = [((k, v), 0, 1) for k, v in self._expected.items()]
            client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()}).write(rows, seal=1).result()

    def round(self, number: int) -> bool:
        """Do something, kill something; return whether the contents are right then."""
        self._cluster.restore()
        if not self._victims:
            self._victims = self._random.sample(VICTIMS, len(VICTIMS))
        victim = self._victims.pop()
        kind = self._random.choice(KINDS[:-1] if victim == "python" else KINDS)  # The JVM alone reads a snapshot.
        arguments = self._plan(kind, number)
        found = self._survived(kind, victim, arguments)
        with self._opened() as client:
            rows = sorted(tuple(row.values()) for row in client.load("c").to_arrow().to_pylist())
        expected = sorted(self._expected.items())
        is_right = rows == expected and (kind != "snapshot" or sorted(map(tuple, found)) == expected)
        print(
            f"round {number}: {kind}, killed {victim}: {len(rows):,} rows, {'right' if is_right else 'WRONG'}",
            flush=True,
        )
        return is_right

    def is_clean(self) -> bool:
        """Return whether nothing is missing, and nothing is left over once garbage has been collected."""
        with self._opened() as client:
            client.gc()
            client.gc()
            report = client.fsck()
            print(report)
            return bool(report.is_clean and not report.unreferenced)

    def _plan(self, kind: str, number: int) -> dict[str, Any]:
        """Return the arguments of an operation, and let the oracle do it."""
        if kind in ("compact", "snapshot"):
            return {"form": "rows"} if kind == "snapshot" else {}
        named = {"at": number + 1, "token": f"round {number}"}
        if kind == "delete":
            rest = self._random.randrange(5)
            self._expected = {k: v for k, v in self._expected.items() if k % 5 != rest}
            return {**named, "condition": f"k % 5 = {rest}"}
        # New keys each time, and for an overwrite some of those before.
        start = (number + 1) * 3000 - (1500 if kind == "overwrite" else 0)
        new = values(range(start, start + 3000))
        self._expected = new if kind == "overwrite" else {**self._expected, **new}
        return {**named, "start": start, "end": start + 3000}

    def _survived(self, kind: str, victim: str, arguments: dict[str, Any]) -> Any:
        """Have something done while something is killed; again if the driver was."""
        self._is_ended.clear()
        timer = threading.Timer(self._random.uniform(0, DELAY_S_MAX), self._kill, [victim])
        timer.start()
        try:
            return self._driver.call(kind, location=self._location, storage={}, **arguments)
        except DriverEnded:
            timer.join()
            self._cluster.restore()
            self._driver.restart()
            return self._driver.call(kind, location=self._location, storage={}, **arguments)
        finally:
            self._is_ended.set()
            timer.join()

    def _kill(self, victim: str) -> None:
        """Kill something that runs; wait for it while the operation goes on."""
        if victim == "driver":
            if not self._is_ended.is_set():
                self._driver.kill()
                self.killed[victim] += 1
            return
        while not (count := self._cluster.kill_some(victim, self._random)) and not self._is_ended.wait(0.05):
            pass
        self.killed[victim] += count

    def _opened(self) -> persist.Client:
        return persist.open(self._location, settings=SETTINGS)
