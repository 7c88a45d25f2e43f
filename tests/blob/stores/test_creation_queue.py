"""Turns at a folder spare the losers of a race their work, and nobody depends on them."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from persist.blob.protocol import acquire_turn
from persist.blob.stores import creation_queue
from persist.blob.stores.file import FileBlob
from tests.blob.places import WRAPPERS
from tests.support.stepped import WAIT_S

RACERS = 8


@contextmanager
def somebody_has_the_turn(folder: Path) -> Iterator[None]:
    """Hold the turn at folder as another process would that was stopped in the middle of a create."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def has_free_turn(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def test_who_loses_a_race_has_written_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    fill = FileBlob._fill

    def counted(blob: FileBlob, temporary: str, value: bytes) -> None:
        written.append(temporary)
        fill(blob, temporary, value)

    monkeypatch.setattr(FileBlob, "_fill", counted)
    FileBlob(tmp_path).create("log/0", b"")  # A folder that is not there yet has no turns.
    together = threading.Barrier(RACERS)
    keys = [f"log/{number}" for number in range(1, 21)]

    def race() -> int:
        blob = FileBlob(tmp_path)
        won = 0
        for key in keys:
            together.wait(WAIT_S)
            won += blob.create(key, b"value")
        return won

    with ThreadPoolExecutor(RACERS) as pool:
        won = sum(future.result() for future in [pool.submit(race) for _ in range(RACERS)])
    assert won == len(keys)
    assert len(written) == 1 + len(keys)


def test_one_who_keeps_the_turn_delays_others_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_queue, "WAIT_MAX_S", 0.2)
    blob = FileBlob(tmp_path)
    assert blob.create("log/0", b"a")
    before = threading.active_count()
    with somebody_has_the_turn(tmp_path / "log"):
        assert blob.create("log/1", b"b")
        monkeypatch.setattr(creation_queue, "WAIT_MAX_S", WAIT_S)
        began = time.monotonic()
        assert all(blob.create(f"log/{number}", b"c") for number in range(2, 5))
        assert time.monotonic() - began < WAIT_S, "one waits again"
        assert threading.active_count() == before + 1, "a thread waits for the turn"
    assert blob.create("log/12", b"d")
    assert not blob.create("log/12", b"e")
    assert blob.get("log/1") == b"b"
    for thread in threading.enumerate():
        if thread.name == "persist-turn":
            thread.join(WAIT_S)
    assert threading.active_count() == before


def test_a_turn_that_comes_in_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation_queue, "WAIT_MAX_S", WAIT_S)
    blob = FileBlob(tmp_path)
    assert blob.create("log/0", b"a")
    with ThreadPoolExecutor(1) as pool:
        with somebody_has_the_turn(tmp_path / "log"):
            created = pool.submit(blob.create, "log/1", b"b")
            time.sleep(0.05)
            assert not created.done()
        assert created.result(WAIT_S)


def test_a_line_is_waited_for_as_long_as_it_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = FileBlob(tmp_path, fsync=False)
    assert blob.create("log/0", b"a")
    folder, has_waited, waits = tmp_path / "log", threading.Event(), list[float | None]()

    class Line(Future[int]):
        """A turn that others take five times, without any time passing. Each of them changes the folder."""

        def result(self, timeout: float | None = None) -> int:
            waits.append(timeout)
            if len(waits) <= 5:
                os.utime(folder, ns=(0, len(waits)))
                raise TimeoutError
            has_waited.set()
            return super().result(WAIT_S)

    monkeypatch.setattr(creation_queue, "Future", Line)
    with ThreadPoolExecutor(1) as pool:
        with somebody_has_the_turn(folder):
            created = pool.submit(blob.create, "log/last", b"b")
            assert has_waited.wait(WAIT_S)
            assert not created.done(), "it did not wait for its turn"
        assert created.result(WAIT_S)
    assert waits == [creation_queue.WAIT_MAX_S] * 6


@pytest.mark.parametrize("wrapper", [*WRAPPERS])
def test_who_has_the_turn_creates_without_waiting_and_others_wait(tmp_path: Path, wrapper: str) -> None:
    blob = WRAPPERS[wrapper](FileBlob(tmp_path, fsync=False))
    assert blob.create("log/0", b"a")
    with acquire_turn(blob, "log/1") as has_waited:
        assert not has_waited
        assert blob.create("log/1", b"b")
        assert not [thread for thread in threading.enumerate() if thread.name == "persist-turn"]
        assert not has_free_turn(tmp_path / "log")
    assert has_free_turn(tmp_path / "log")


def test_a_turn_is_given_back_after_a_failure(tmp_path: Path) -> None:
    blob = FileBlob(tmp_path)
    assert blob.create("log/0", b"a")
    with pytest.raises(ZeroDivisionError), blob._turns.acquire(str(tmp_path / "log")):
        raise ZeroDivisionError
    assert has_free_turn(tmp_path / "log")
