"""A store that keeps its contract and has a bad day: clients lose nothing, and are told nothing wrong.

Credentials that expire, 503 for minutes, bodies at a byte now and then, requests that arrive twice, and listings and
reads that are behind what has been written.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import StoreMisconfigured, Unavailable
from persist.blob.layers.retry import RetryBlob
from persist.blob.protocol import Blob
from persist.blob.url import open_blob
from tests.support.clocks import ImpatientClock
from tests.support.servers.hostile_s3 import Answer, HostileS3, Objects, hostile_s3

KEY = {"k": pa.int64()}
OPTIONS = {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}
Apply = Callable[[Objects | None], Answer]


@pytest.fixture
def server() -> Iterator[HostileS3]:
    with hostile_s3() as server:
        yield server


def way(url: str) -> Blob:
    return open_blob("s3://bucket/some/prefix", {**OPTIONS, "endpoint_url": url})


def refused(status: int, code: str) -> Answer:
    return status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>x</Message></Error>".encode(), {}


def opened(blob: Blob, clock: ImpatientClock | None = None) -> persist.Client:
    return persist.open(blob, clock=clock or ImpatientClock(), settings=persist.Settings(background=False))


def rows_seen(server: HostileS3) -> list[int]:
    """Return what a new client sees on the honest way, sorted."""
    with closing(way(server.honest_url)) as blob, opened(blob) as client:
        orders = client.load("orders")
        orders.seal(1).result()
        assert not client.fsck().problems
        return sorted(orders.snapshot(0).to_arrow()["k"].to_pylist())


def test_credentials_that_expire_are_named_and_nothing_is_lost_when_they_are_good_again(server: HostileS3) -> None:
    with closing(way(server.lying_url)) as blob, opened(blob) as client:
        orders = client.create_or_load("orders", key=KEY)
        orders.write([((1, None), 0, 1)]).result()
        server.between = lambda request, path, apply: refused(400, "ExpiredToken")
        with pytest.raises((StoreMisconfigured, Unavailable), match=r"ExpiredToken|expired"):
            orders.write([((2, None), 0, 1)]).result()
        with pytest.raises((StoreMisconfigured, Unavailable), match=r"ExpiredToken|expired"):
            orders.snapshot(0, timeout_s=0)
        server.between = None
        orders.write([((3, None), 0, 1)]).result()
    seen = rows_seen(server)
    assert seen in ([1, 3], [1, 2, 3]), "what was refused may be there once, and what was acknowledged is"


@pytest.mark.thorough
def test_what_is_tried_by_its_token_through_twenty_minutes_of_503_is_written_once(server: HostileS3) -> None:
    """A throttled call waits for five minutes, and then fails and says why."""
    clock = ImpatientClock()
    with closing(way(server.lying_url)) as blob, opened(blob, clock) as client:
        orders = client.create_or_load("orders", key=KEY)
        orders.write([((1, None), 0, 1)], seal=1).result()
        began_s = clock.monotonic_s()

        def between(request: str, path: str, apply: Apply) -> Answer:
            if clock.monotonic_s() >= began_s + 1200:
                return apply(None)
            if request == "PUT" and len(refusals) == 1:
                apply(None)  # It is done all the same.
            return refused(503, "SlowDown")

        server.between = between
        refusals: list[str] = []
        while True:
            try:
                orders.write([((2, None), 1, 1)], token="load 2").result()
                break
            except persist.PersistError as error:
                refusals.append(str(error))
        assert 2 <= len(refusals) <= 20
        assert all("SlowDown" in text or "throttl" in text for text in refusals)
        assert orders.snapshot(0).count() == 1
    with closing(way(server.honest_url)) as blob, opened(blob) as client:
        orders = client.load("orders")
        orders.seal(2).result()
        assert sorted(orders.snapshot(1).to_arrow()["k"].to_pylist()) == [1, 2]


def test_a_value_that_drips_is_asked_for_once_more_when_its_time_is_over(server: HostileS3) -> None:
    with closing(way(server.honest_url)) as blob, opened(blob) as client:
        client.create_or_load("orders", key=KEY).write([((1, None), 0, 1)], seal=1).result()
    lying = {**OPTIONS, "endpoint_url": server.lying_url}
    with closing(RetryBlob(open_blob("s3://bucket/some/prefix", lying, attempt_s=0.5))) as blob:
        assert (key := next(entry.key for entry in blob.list("log/")))
        server.drips = 1
        assert blob.get(key) == server.objects[f"/bucket/some/prefix/{key}"][0]
        assert server.drips <= -1, "two requests came"


@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.thorough)]
)
def test_reads_and_listings_that_are_behind_lose_nothing(server: HostileS3, seed: int) -> None:
    chance = random.Random(seed)
    past: list[Objects] = [{}]

    def between(request: str, path: str, apply: Apply) -> Answer:
        if request in ("GET", "LIST") and chance.random() < 0.3:
            return apply(dict(chance.choice(past[-6:])))
        answer = apply(None)
        if request not in ("GET", "LIST"):
            past.append(dict(server.objects))
        return answer

    server.between = between
    acknowledged: set[int] = set()
    with closing(way(server.lying_url)) as one, closing(way(server.lying_url)) as other:
        with opened(one) as client:
            client.create_or_load("orders", key=KEY)
        for number in range(12):
            try:
                with opened(one if number % 2 else other) as client:
                    client.load("orders").write([((number, None), 0, 1)]).result()
                    acknowledged.add(number)
            except persist.PersistError:
                continue
    server.between = None
    seen = rows_seen(server)
    assert len(seen) == len(set(seen))
    assert len(acknowledged) >= 3
    assert acknowledged <= set(seen)
