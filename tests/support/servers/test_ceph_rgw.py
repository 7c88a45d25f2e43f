"""Ceph's gateways, two over one cluster: one winner per key through both, and a killed gateway loses nothing."""

import threading
from collections import Counter
from contextlib import ExitStack

import pyarrow as pa
import pytest

import persist
from tests.blob.places import Place
from tests.blob.test_race import racer_process
from tests.support.servers.fixtures import Served, make_bucket

PROCESSES = 8
KEYS = [f"log/{number:020d}" for number in range(40)]
WRITES = 40
KILL_AFTER = 30  # Acknowledgements, of 4 * WRITES.


@pytest.mark.costly("starts eight processes")
def test_eight_processes_through_two_gateways_have_one_winner_for_each_key(rgw: Served) -> None:
    url = f"s3://{make_bucket(rgw.options('a'))}/race"
    places = [Place(url, rgw.options("ab"[n % 2]), is_shared=True) for n in range(PROCESSES)]
    with ExitStack() as stack:
        racers = [stack.enter_context(racer_process(place, n, KEYS)) for n, place in enumerate(places)]
        for start, _ in racers:
            start()
        won = [key for _, keys_won in racers for key in keys_won()]
    assert Counter(won) == dict.fromkeys(KEYS, 1)


@pytest.mark.costly("four clients write while a gateway comes back")
def test_nothing_that_was_acknowledged_is_lost_when_a_gateway_is_killed(rgw: Served) -> None:
    url = f"s3://{make_bucket(rgw.options('a'))}/killed"
    acknowledged: list[int] = []
    due = threading.Event()
    with persist.open(url, storage_options=rgw.options("a")) as client:
        client.create_or_load("c", key={"k": pa.int64()})

    def write(writer: int) -> None:
        with persist.open(url, storage_options=rgw.options("ab"[writer % 2])) as client:
            c = client.load("c")
            for n in range(WRITES):
                number = writer * WRITES + n
                c.write([((number, None), 0, 1)], token=str(number)).result()
                acknowledged.append(number)
                if len(acknowledged) >= KILL_AFTER:
                    due.set()

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    assert due.wait(120)
    rgw.kill("b")
    rgw.start("b")
    for writer in writers:
        writer.join()
    assert sorted(acknowledged) == list(range(4 * WRITES)), "all went on when the gateway was back"
    with persist.open(url, storage_options=rgw.options("b")) as client:
        c = client.load("c")
        c.seal(1).result()
        assert sorted(c.snapshot(0).to_arrow()["k"].to_pylist()) == sorted(acknowledged)
