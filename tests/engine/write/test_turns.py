"""Of many clients of one folder, each that lost a race gets the next slot in its turn."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa

import persist
from persist.blob.protocol import Blob, MemoryBlob, acquire_turn
from persist.blob.stores.file import FileBlob
from tests.blob.stores.test_creation_queue import has_free_turn
from tests.support.stepped import WAIT_S, Stepped

QUIET = persist.Settings(background=False)


class SteppedFolder(Stepped):
    """A folder that lets something happen at a named step."""

    def __init__(self, inner: Blob) -> None:
        super().__init__(inner)
        self._folder = inner

    def turn(self, key: str) -> AbstractContextManager[bool]:
        return acquire_turn(self._folder, key)


def test_who_lost_a_race_reads_on_in_its_turn_and_reports_after_it(tmp_path: Path) -> None:
    store, free = SteppedFolder(FileBlob(tmp_path, fsync=False)), []
    with persist.open(tmp_path, settings=QUIET) as rival, persist.open(store, settings=QUIET) as client:
        mine = client.create_or_load("c", key={"k": pa.int64()}, value=None)
        mine.seal(1).result()
        theirs = rival["c"]

        def lose() -> None:
            theirs.seal(2).result()
            store.after("get", "log/", lambda: store.after("get", "log/", note))

        def note() -> None:
            free.append(has_free_turn(tmp_path / "log"))

        store.before("create", "log/", lose)
        future = mine.seal(3)
        future.add_done_callback(lambda _: note())
        future.result()
    assert store.is_done
    assert free == [False, True]  # The callback has run, because the client was closed.
    assert client.metrics().groups["commits"]["lost_races"] == 1


class Queued(Stepped):
    """A store with turns, at which whoever asks for one has to wait, or has not."""

    def __init__(self, inner: Blob) -> None:
        super().__init__(inner)
        self.asked, self.is_crowded = 0, True

    @contextmanager
    def turn(self, key: str) -> Iterator[bool]:
        self.asked += 1
        yield self.is_crowded


def test_who_lost_a_race_queues_before_it_reads_until_there_is_no_queue_any_more() -> None:
    memory = MemoryBlob()
    store = Queued(memory)
    with persist.open(memory, settings=QUIET) as rival, persist.open(store, settings=QUIET) as client:
        mine = client.create_or_load("c", key={"k": pa.int64()}, value=None)
        mine.seal(1).result()
        assert store.asked == 0, "nobody else writes"
        store.before("create", "log/", lambda: rival["c"].seal(2).result())
        mine.seal(3).result()
        assert (store.asked, client.metrics().groups["commits"]["lost_races"]) == (1, 1)
        rival["c"].seal(4).result()
        mine.seal(5).result()
        assert (store.asked, client.metrics().groups["commits"]["lost_races"]) == (2, 1), "it read on in its turn"
        store.is_crowded = False
        mine.seal(6).result()
        assert store.asked == 3
        mine.seal(7).result()
        assert store.asked == 3


def test_racing_clients_of_a_folder_lose_few_races(tmp_path: Path) -> None:
    """Each commit would lose as many as there are rivals, if whoever loses had to queue again."""
    clients, commits = 8, 12
    with persist.open(tmp_path, settings=QUIET) as client:
        client.create_or_load("c", key={"k": pa.int64()}, value=None)
    together, lost = threading.Barrier(clients), []

    def run(number: int) -> None:
        with persist.open(FileBlob(tmp_path, fsync=False), settings=QUIET) as client:
            collection = client["c"]
            together.wait(WAIT_S)
            for step in range(commits):
                collection.write([((number * commits + step, None), 0, 1)]).result()
            lost.append(client.metrics().groups["commits"]["lost_races"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with persist.open(tmp_path, settings=QUIET) as client:
        client["c"].seal(1).result()
        assert client["c"].snapshot(0).count() == clients * commits
    assert sum(lost) < clients * commits
