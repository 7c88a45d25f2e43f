"""Sixteen threads and four processes race to create the same keys."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from persist.blob.protocol import Blob, is_remote
from tests.blob.places import Place
from tests.blob.race import is_candidate, race
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

THREADS = 16
PROCESSES = 4
KEYS = [f"log/{number:020d}" for number in range(200)]
# A test server takes some ms per request, and each key is a race of its own: a store that checks first and writes then
# has two winners for one of the first five keys in nearly every run.
KEYS_ON_SERVER = KEYS[:30]


@contextmanager
def racer_process(
    place: Place, racer: int, keys: list[str]
) -> Iterator[tuple[Callable[[], None], Callable[[], list[str]]]]:
    """Run a racer in a process of its own; gives what starts it and what returns the keys that it won."""
    command = [sys.executable, "-m", "tests.blob.race"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        stdin.write(f"{place.to_json()}\n{json.dumps([racer, keys])}\n")
        stdin.flush()

        def start() -> None:
            assert stdout.readline() == "ready\n", "the racer did not start; its error is above"
            stdin.write("go\n")
            stdin.flush()

        def won() -> list[str]:
            keys_won: list[str] = json.loads(stdout.readline())
            return keys_won

        yield start, won


def watch(blob: Blob, keys: list[str], is_over: threading.Event) -> int:
    """Read each key until it has a value, and all again in the end; return the number of reads.

    Fails on part of a value, or one that changes.
    """
    seen: dict[str, bytes] = {}
    reads = 0
    for key in keys:
        while key not in seen:
            is_last = is_over.is_set()
            value = blob.get(key)
            reads += 1
            if value is not None:
                assert is_candidate(key, value), f"{key} holds part of a value, {len(value)} bytes"
                seen[key] = value
            assert value is not None or not is_last, f"{key} has no value in the end"
    is_over.wait()
    assert {key: blob.get(key) for key in keys} == seen
    return reads


@pytest.mark.thorough(except_every=10)
@pytest.mark.timeout(300)
@pytest.mark.costly("it starts processes, each of which loads the client of its store")
def test_each_key_has_exactly_one_winner_and_no_reader_sees_part_of_its_value(place: Place, blob: Blob) -> None:
    processes = PROCESSES if place.is_shared else 0
    racers = THREADS + processes
    keys = KEYS_ON_SERVER if is_remote(blob) else KEYS
    together = threading.Barrier(THREADS, timeout=WAIT_S)  # The threads start on each key at the same moment.
    is_over = threading.Event()
    with ExitStack() as stack, ThreadPoolExecutor(THREADS + 1) as pool:
        others = [stack.enter_context(racer_process(place, n, keys)) for n in range(THREADS, racers)]
        for start, _ in others:
            start()
        watching = pool.submit(watch, blob, keys, is_over)
        running = [pool.submit(race, blob, n, keys, together.wait) for n in range(THREADS)]
        try:
            won = [key for racer in running for key in racer.result()]
            for _, keys_won in others:
                won += keys_won()
        finally:
            is_over.set()
        assert watching.result() >= len(keys)
    assert Counter(won) == dict.fromkeys(keys, 1)
