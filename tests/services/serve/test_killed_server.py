"""A server that is killed while it commits for others: what was acknowledged is there once, all else once or never."""

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.api.client import Client
from tests.support.paths import ROOT
from tests.support.stepped import wait_until

QUIET = persist.Settings(background=False)
TOKEN = "secret"


@contextmanager
def serving(folder: Path, url: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `persist serve --commits` on a folder; yields the process and where it is, and kills it."""
    command = [sys.executable, "-m", "persist", "serve", str(folder), "--json", "--commits", "--flight", url]
    environment = os.environ | {"PERSIST_SERVE_TOKEN": TOKEN}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server, json.loads(server.stdout.readline())["url"]
        finally:
            server.kill()


class Load:
    """Clients that write one row after the other through a server, and note what they were told of each."""

    def __init__(self, folder: Path, url: str, clients: int) -> None:
        self.outcomes: dict[int, str] = {}
        self._is_over = threading.Event()
        self.clients = [
            persist.open(folder, settings=QUIET, commit_through=persist.Notify(url, TOKEN)) for _ in range(clients)
        ]
        self._threads = [threading.Thread(target=self._write, args=each) for each in enumerate(self.clients)]
        for thread in self._threads:
            thread.start()

    def counted(self, what: str) -> int:
        return sum(client.metrics().groups["commits"][what] for client in self.clients)  # type: ignore[misc]

    def end(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for client in self.clients:
            client.close()

    def _write(self, number: int, client: Client) -> None:
        orders = client["orders"]
        for key in range(number, 10**9, len(self.clients)):
            if self._is_over.is_set():
                return
            token = f"t{key}" if key % 3 == 0 else None
            late: Any = [((key, "late"), 0, 1)]
            futures = [orders.write([((key, "x"), 1, 1)], token=token), orders.write(late)]
            for future, what in zip(futures, (key, -1 - key), strict=True):
                try:
                    future.result()
                    self.outcomes[what] = "ok"
                except persist.PersistError as error:
                    self.outcomes[what] = type(error).__name__


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("kills", [1, 3])
def test_what_was_acknowledged_through_a_killed_server_is_there_once(tmp_path: Path, kills: int) -> None:
    with persist.open(tmp_path, settings=QUIET) as client:
        client.create_or_load("orders", key={"k": int}, value={"v": str}).seal(1).result()
    load, url = None, "grpc://127.0.0.1:0"
    try:
        for _ in range(kills):
            with serving(tmp_path, url) as (server, url):
                load = load or Load(tmp_path, url, 4)
                before, in_doubt = load.counted("relayed"), load.counted("in_doubt")
                wait_until(lambda load=load, before=before: load.counted("relayed") > before + 20)  # type: ignore[misc]
                server.kill()
                wait_until(lambda load=load, known=in_doubt: load.counted("in_doubt") > known)  # type: ignore[misc]
        assert load is not None
        made = load.counted("records")
        wait_until(lambda: load.counted("records") > made + 5)  # Now they commit by themselves.
    finally:
        if load is not None:
            load.end()
    with persist.open(tmp_path, settings=QUIET) as client:
        client["orders"].seal(2).result()
        found = Counter(client["orders"].snapshot(1).to_arrow()["k"].to_pylist())
        assert client.fsck().is_clean
    written = {key: outcome for key, outcome in load.outcomes.items() if key >= 0}
    assert {*written.values()} == {"ok"}, "the store was there all the time, so all could be found out"
    assert found == Counter(written.keys())
    assert {outcome for key, outcome in load.outcomes.items() if key < 0} == {"UpdateNotBeyondUpper"}
