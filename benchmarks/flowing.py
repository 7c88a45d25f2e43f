"""Postgres flowing in while everything fails, and how far behind it is: needs Debian's postgresql, and root for ENOSPC.

    python -m benchmarks.flowing bank --kills 200
    python -m benchmarks.flowing lag --seconds 300 --rate 500
    python -m benchmarks.flowing rate --rows 10000000

`bank` moves money between accounts, while `persist ingest` and the server are killed, connections are cut, and the disk
of the location is full for a while. Then the sum at every time must be right, and `pg_dump` must equal the collection.
`lag` runs pgbench beside a table of probes, and says how long it takes until a committed row is seen by a reader.
`rate` says how fast rows come in, by the first copy, by many transactions and by a large one, and in what memory.
"""

import argparse
import contextlib
import itertools
import os
import random
import resource
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc

import persist
from tests.connect.ingest.servers import Server, running

ACCOUNTS = 100
MONEY = 1_000 * ACCOUNTS


class Cable:
    """A TCP port of this machine that leads to the socket of a server, and can be cut."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections."""
        pairs, self._pairs = self._pairs, []
        for each in pairs:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(self._target)
            except OSError:
                near.close()
                continue
            self._pairs += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data:
                        return
                    other[ready].sendall(data)


@contextlib.contextmanager
def small_disk(mebibytes: int) -> Iterator[Path]:
    """Yield a folder on a disk of its own, which can be full."""
    folder = Path(tempfile.mkdtemp(prefix="small-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


def full(disk: Path, seconds: float) -> None:
    """Fill a disk for a while."""
    free = shutil.disk_usage(disk).free
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free)
    time.sleep(seconds)
    ballast.unlink()


def run(url: str, *statements: str) -> list[Any]:
    """Run statements; return what the last one gives."""
    with contextlib.closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("; ".join(statements))
        return cursor.fetchall() if cursor.description else []


def move_money(url: str, stop: threading.Event) -> None:
    """Move money, whatever happens to the server."""
    rng, numbers = random.Random(3), itertools.count()
    while not stop.is_set():
        with contextlib.suppress(psycopg2.Error), contextlib.closing(psycopg2.connect(url)) as connection:
            while not stop.is_set():
                a, b, amount = rng.randint(1, ACCOUNTS), rng.randint(1, ACCOUNTS), rng.randint(1, 50)
                with connection, connection.cursor() as cursor:
                    cursor.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, a))
                    cursor.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, b))
                    cursor.execute("INSERT INTO transfers VALUES (%s, %s, %s, %s)", (next(numbers), a, b, amount))
                time.sleep(0.004)


def bank(kills: int) -> None:
    """Let everything fail."""
    with running() as server, small_disk(256) as disk:
        direct = server.url
        run(
            direct,
            "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)",
            "CREATE TABLE transfers (id int PRIMARY KEY, a int, b int, amount int)",
            f"INSERT INTO accounts SELECT g, 1000 FROM generate_series(1, {ACCOUNTS}) g",
            "CREATE PUBLICATION p FOR ALL TABLES",
        )
        cable = Cable(f"{server.folder}/.s.PGSQL.5432")
        url, location = f"postgresql://postgres@127.0.0.1:{cable.port}/postgres", str(disk / "location")
        persist.ingest(location, url, publication="p", once=True)
        stop = threading.Event()
        mover = threading.Thread(target=move_money, args=(direct, stop))
        mover.start()
        command = [sys.executable, "-m", "persist", "ingest", location, url, "--publication", "p"]
        done = {"kills of ingest": 0, "kills of the server": 0, "cuts": 0, "full disks": 0}
        rng, process = random.Random(1), None
        try:
            while done["kills of ingest"] + done["kills of the server"] < kills:
                if process is None or process.poll() is not None:
                    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(rng.uniform(0.3, 2.5))
                what = rng.choices([*done], [70, 15, 8, 4])[0]
                done[what] += 1
                if what == "kills of ingest":
                    process.kill()
                    process.wait()
                elif what == "kills of the server":
                    server.stop()
                    server.start()
                elif what == "cuts":
                    cable.cut()
                else:
                    full(disk, 1.0)
        finally:
            stop.set()
            mover.join()
            if process is not None:
                process.kill()
                process.wait()
        persist.ingest(location, direct, publication="p", once=True)
        print(", ".join(f"{count} {what}" for what, count in done.items()))
        judge(server, location)


def judge(server: Server, location: str) -> None:
    """Compare what flowed in with the database, at the end and at every time."""
    for name in ("accounts", "transfers"):
        dump = [str(server.programs / "pg_dump"), "--data-only", "-t", name, server.url]
        lines = subprocess.run(dump, check=True, capture_output=True, text=True).stdout.split("\n")
        begin = next(at for at, line in enumerate(lines) if line.startswith("COPY"))
        wanted = [tuple(map(int, line.split("\t"))) for line in lines[begin + 1 : lines.index("\\.")]]
        with persist.open(location, mode="read") as client:
            have = [tuple(row.values()) for row in client.load(name).snapshot().to_arrow().to_pylist()]
        assert sorted(wanted) == sorted(have), name
        print(f"pg_dump of {name} equals the collection: {len(have):,} rows")
    with persist.open(location, mode="read") as client:
        changes = client.load("accounts").changes(0).to_arrow()
    money = pc.multiply(changes["balance"], changes["_diff"])
    sums = pa.table({"time": changes["_time"], "money": money}).group_by("time").aggregate([("money", "sum")])
    by_time = dict(zip(sums["time"].to_pylist(), sums["money_sum"].to_pylist(), strict=True))
    assert by_time.pop(min(by_time)) == MONEY
    assert {*by_time.values()} == {0}
    print(f"the sum is {MONEY:,} at each of {len(by_time) + 1:,} times")


def lag(seconds: int, rate: int) -> None:
    """Measure how far behind a reader is."""
    with running() as server, tempfile.TemporaryDirectory() as folder:
        bench = [str(server.programs / "pgbench"), "-h", str(server.folder), "-U", "postgres", "postgres"]
        subprocess.run([*bench, "-i", "-s", "5", "-q"], check=True, capture_output=True)
        run(
            server.url,
            "ALTER TABLE pgbench_history REPLICA IDENTITY FULL",
            "CREATE TABLE probes (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR ALL TABLES",
        )
        location, sent = f"{folder}/location", dict[int, float]()
        persist.ingest(location, server.url, publication="p", once=True)
        command = [sys.executable, "-m", "persist", "ingest", location, server.url, "--publication", "p"]
        following = subprocess.Popen(command)
        limit = ["-R", str(rate)] if rate else []
        load = subprocess.Popen([*bench, "-T", str(seconds), "-c", "2", *limit], stdout=subprocess.PIPE, text=True)
        stop = threading.Event()

        def probe() -> None:
            with contextlib.closing(psycopg2.connect(server.url)) as connection, connection.cursor() as cursor:
                connection.autocommit = True
                for number in itertools.count():
                    if stop.wait(0.5):
                        return
                    cursor.execute("INSERT INTO probes VALUES (%s)", (number,))
                    sent[number] = time.monotonic()

        prober = threading.Thread(target=probe)
        prober.start()
        lags = []
        with persist.open(location, mode="read") as client:
            probes = client.load("probes")
            with probes.listen((probes.upper.time or 0) - 1) as listen:
                for progress in listen:
                    now = time.monotonic()
                    lags += [now - sent[id_] for id_ in progress.updates["id"].to_pylist() if id_ in sent]
                    if load.poll() is not None:
                        break
        stop.set()
        prober.join()
        following.terminate()
        following.wait()
        said = load.communicate()[0]
        print(*[line for line in said.split("\n") if "tps" in line or "actually" in line], sep="\n")
        ranks = statistics.quantiles(lags, n=100)
        print(f"lag of {len(lags)} probes: median {ranks[49]:.2f} s, 95% {ranks[94]:.2f} s, most {max(lags):.2f} s")


def rate(rows: int) -> None:
    """Measure how fast rows come in, for a second of our CPU and of the clock."""
    with running() as server, tempfile.TemporaryDirectory() as folder:
        run(
            server.url,
            "CREATE TABLE t (id bigint PRIMARY KEY, a int, b text, c timestamptz, d float8)",
            f"INSERT INTO t SELECT g, g % 1000, 'name ' || g, now(), g * 0.5 FROM generate_series(1, {rows}) g",
            "CREATE PUBLICATION p FOR ALL TABLES",
        )

        def measured(what: str) -> None:
            cpu_s, wall_s = time.process_time(), time.monotonic()
            done = persist.ingest(f"{folder}/location", server.url, publication="p", once=True)
            cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            print(
                f"{what}: {done.rows:,} rows, {done.rows / cpu_s:,.0f} for a second of CPU, {done.rows / wall_s:,.0f} "
                f"of the clock; up to now {peak} MiB of memory", flush=True,
            )  # fmt: skip

        measured("the first copy")
        for begin in range(0, min(rows, 200_000), 1000):
            run(
                server.url,
                f"UPDATE t SET a = a + 1 WHERE id > {begin} AND id <= {begin + 500}",
                f"INSERT INTO t SELECT -g, 1, 'n', now(), 1 FROM generate_series({begin + 1}, {begin + 500}) g",
            )
        measured("transactions of 1,000 rows")
        run(server.url, f"UPDATE t SET a = a + 1 WHERE id <= {min(rows, 1_000_000)}")
        measured("one transaction")
        run(server.url, "TRUNCATE t")
        measured("TRUNCATE")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["bank", "lag", "rate"])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--rate", type=int, default=500, help="transactions of pgbench a second; 0 for all it can")
    parser.add_argument("--rows", type=int, default=1_000_000)
    given = parser.parse_args()
    if given.what == "bank":
        bank(given.kills)
    elif given.what == "lag":
        lag(given.seconds, given.rate)
    else:
        rate(given.rows)
