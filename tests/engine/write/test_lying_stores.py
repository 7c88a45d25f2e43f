"""A store that does not refuse what exists is found out before anything is acknowledged; odd answers are settled."""

import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import PersistError, StoreFull, StoreMisconfigured
from persist.blob.layers.unreliable import Fault, UnreliableBlob
from persist.blob.protocol import Blob, MemoryBlob
from persist.blob.stores.s3 import S3Blob
from persist.core.log.keys import make_record_key
from persist.engine.write.store_checks import StoreProof
from tests.core.log.test_commits import create
from tests.support.clocks import DatedBlob, ImpatientClock
from tests.support.servers.hostile_s3 import MISREAD, TRUTH, HostileS3, Lie, hostile_s3, swapped
from tests.support.tuned import tuned

KEY = {"k": pa.int64()}
HOUR = 3600.0
WRITES = 6
PROMPT_S = 1.0  # Of a clock that only waiting moves: no retry with a pause, but for the first.

# What a store, or something before it, may say in place of "it exists" and still be understood.
UNDERSTOOD = swapped(
    "PUT",
    412,
    (304, ""),
    (412, ""),
    (412, "EntityAlreadyExists"),
    (409, "ConditionalRequestConflict"),
    (409, "OperationAborted"),
    (409, "ConcurrentModification"),
    (409, ""),
)
# What may be said of a write that was stored. Whoever reads the slot knows.
STORED = swapped(
    "PUT",
    200,
    (204, ""),
    (304, ""),
    (400, "InvalidRequest"),
    (403, "AccessDenied"),
    (404, "NoSuchKey"),
    (409, "ConditionalRequestConflict"),
    (409, ""),
    (412, "PreconditionFailed"),
    (412, ""),
    (500, "InternalError"),
    (501, "NotImplemented"),
    (501, ""),
    (502, ""),
    (503, "ServiceUnavailable"),
)
# What a store says that does not do conditional writes at all, or not for these credentials.
REFUSED = swapped(
    "PUT", 412, (400, "InvalidRequest"), (403, "AccessDenied"), (404, "NoSuchKey"), (501, "NotImplemented"), (501, "")
)
OVERWRITTEN = (*MISREAD, *swapped("PUT", 412, (200, ""), (204, "")))
DOUBTFUL = swapped("PUT", 412, (500, "InternalError"), (502, ""), (503, "SlowDown"), (503, "ServiceUnavailable"))
READS = (
    *swapped("GET", 404, (200, ""), (204, ""), (403, "AccessDenied"), (500, "InternalError"), (304, "")),
    *swapped("GET", 200, (404, "NoSuchKey"), (204, ""), (304, ""), (412, ""), (500, "InternalError"), (200, "")),
    *swapped("LIST", 200, (200, ""), (404, "NoSuchKey"), (403, "AccessDenied"), (500, "InternalError"), (304, "")),
)
names = pytest.mark.parametrize


@dataclass
class Ways:
    """A server, and a store for each of the ways to it; making one takes boto3 longer than a test takes."""

    server: HostileS3
    honest: S3Blob
    lying: S3Blob

    def telling(self, lie: Lie) -> "Ways":
        """Begin again with no objects and another lie."""
        self.server.lie = lie
        self.server.objects.clear()
        self.server.requests.clear()
        return self


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    with hostile_s3() as server:
        options = {"region": "us-east-1", "access_key_id": "key", "secret_access_key": "secret"}
        honest, lying = (
            S3Blob("bucket", "some/prefix", {**options, "endpoint_url": url})
            for url in (server.honest_url, server.lying_url)
        )
        with closing(honest), closing(lying):
            yield Ways(server, honest, lying)


def opened(blob: Blob, clock: ImpatientClock | None = None) -> persist.Client:
    settings = persist.Settings(background=False)
    return persist.open(blob, clock=clock or ImpatientClock(), settings=settings)


def written(client: persist.Client, numbers: range, acknowledged: set[int]) -> None:
    """Write each number to "orders"; note those that were acknowledged."""
    handle: persist.Collection | None = None
    for number in numbers:
        try:
            handle = handle or client.create_or_load("orders", key=KEY)
            handle.write([((number, None), 0, 1)]).result()
        except PersistError:
            continue
        acknowledged.add(number)


def stored(blob: Blob) -> set[int]:
    """Return what a new client sees."""
    with opened(blob) as client:
        if "orders" not in client.collections():
            return set()
        orders = client.load("orders")
        orders.seal(1).result()
        rows = orders.snapshot(0).to_arrow()["k"].to_pylist()
        assert len(rows) == len(set(rows))
        return set(rows)


def two_clients_write(blob: Blob) -> set[int]:
    """Open two clients, then have both write at the same time; return what was acknowledged."""
    acknowledged: set[int] = set()
    clients: list[persist.Client] = []
    for _ in range(2):
        with suppress(PersistError):
            clients.append(opened(blob))
    both = [
        threading.Thread(target=written, args=(client, range(n * 100, n * 100 + WRITES), acknowledged))
        for n, client in enumerate(clients)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    for client in clients:
        client.close()
    return acknowledged


@pytest.mark.thorough(except_every=8)
@names("lie", [*OVERWRITTEN, *REFUSED, *DOUBTFUL, *READS], ids=lambda lie: lie.name)
def test_two_clients_are_never_told_of_a_write_that_is_lost(ways: Ways, lie: Lie) -> None:
    acknowledged = two_clients_write(ways.telling(lie).lying)
    assert not acknowledged or acknowledged <= stored(ways.honest)


@names("lie", OVERWRITTEN, ids=lambda lie: lie.name)
def test_rule_15_a_store_that_overwrites_is_refused_before_the_first_acknowledgement(ways: Ways, lie: Lie) -> None:
    with opened(ways.telling(lie).lying) as client:
        for _ in range(2):
            with pytest.raises(StoreMisconfigured, match=r"s3://bucket/some/prefix.*(acknowledged|no value)"):
                client.create_or_load("orders", key=KEY).seal(1).result()


@pytest.mark.thorough(except_every=8)
@names("lie", [*UNDERSTOOD, *STORED], ids=lambda lie: lie.name)
def test_an_odd_answer_is_settled_at_once_by_reading_the_slot(ways: Ways, lie: Lie) -> None:
    acknowledged = two_clients_write(ways.telling(lie).lying)
    assert acknowledged == {n * 100 + i for n in range(2) for i in range(WRITES)} == stored(ways.honest)
    clock = ImpatientClock()
    with opened(ways.lying, clock) as client:
        orders = client.create_or_load("orders", key=KEY)
        orders.write([((7, None), 1, 1)]).result()
        assert clock.monotonic_s() < PROMPT_S


@names("lie", REFUSED, ids=lambda lie: lie.name)
def test_a_store_that_does_not_do_conditional_writes_is_refused_at_once(ways: Ways, lie: Lie) -> None:
    clock = ImpatientClock()
    with opened(ways.telling(lie).lying, clock) as client:
        with pytest.raises(StoreMisconfigured, match="s3://bucket/some/prefix"):
            client.create_or_load("orders", key=KEY)
        assert clock.monotonic_s() < PROMPT_S


@names("lie", OVERWRITTEN, ids=lambda lie: lie.name)
def test_a_client_behind_a_bad_proxy_does_no_harm_to_one_that_has_none(ways: Ways, lie: Lie) -> None:
    with opened(ways.telling(lie).honest) as sound:
        orders = sound.create_or_load("orders", key=KEY)
        with opened(ways.lying) as behind:
            theirs = behind.load("orders")
            orders.write([((1, None), 0, 1)]).result()  # In the slot that the other one takes for the next.
            before = dict(ways.server.objects)
            with pytest.raises(StoreMisconfigured, match="was not tried"):
                theirs.write([((2, None), 0, 1)]).result()
            with pytest.raises(StoreMisconfigured, match="was not tried"):
                theirs.seal(1).result()
            assert ways.server.objects == before
        assert stored(ways.honest) == {1}


def test_the_proof_costs_each_client_that_writes_one_put_and_a_look(ways: Ways) -> None:
    server = ways.telling(TRUTH).server
    for commits in (3, 2, 2):  # The first client makes the collection, too.
        known = {path for path in server.objects if "/log/" in path}
        server.requests.clear()  # The proof is made from the opening on, whenever a thread gets to it.
        with opened(ways.honest) as client:
            before = len(server.requests)
            orders = client.create_or_load("orders", key=KEY)
            orders.write([((1, None), 0, 1)]).result()
            orders.write([((2, None), 0, 1)]).result()
        assert [request for request, _ in server.requests].count("PUT") == commits + 1
        # Of the log that was known, only its last record is looked at: before it is offered, and by the first commit.
        assert len([path for request, path in server.requests[before:] if request == "GET" and path in known]) <= 2


class Overwriting(MemoryBlob):
    """A store whose create overwrites."""

    def create(self, key: str, value: bytes) -> bool:
        self.set(key, value)
        return True


@pytest.fixture
def overwriting() -> Overwriting:
    """A store that overwrites, with a location that was made on a sound one."""
    sound, blob = MemoryBlob(), Overwriting()
    with persist.open(sound) as client:
        orders = client.create_or_load("orders", key=KEY)
        orders.write([((1, None), 0, 1)], token="job 1")
        orders.seal(1).result()
    for entry in sound.list(""):
        blob.set(entry.key, sound.get(entry.key) or b"")
    return blob


def test_all_that_was_asked_for_fails_and_the_client_stays_refused(overwriting: Overwriting) -> None:
    with persist.open(overwriting) as client:
        orders = client.load("orders")
        before = {entry.key: overwriting.get(entry.key) for entry in overwriting.list("")}
        futures = [orders.write([((n, None), 5, 1)]) for n in range(10)]
        # Neither what changes nothing nor what has been done before is confirmed.
        futures += [orders.seal(1), orders.write([((1, None), 0, 1)], token="job 1"), orders.write([], seal=1)]
        for future in futures:
            with pytest.raises(StoreMisconfigured, match=r"overwrites.* was not tried\..*If-None-Match"):
                future.result()
        for call in (lambda: client.create_or_load("items", key=KEY), orders.drop().result):
            with pytest.raises(StoreMisconfigured, match="a second time"):
                call()
        assert {entry.key: overwriting.get(entry.key) for entry in overwriting.list("")} == before


def test_an_exclusive_client_is_refused_when_it_opens(overwriting: Overwriting) -> None:
    for blob in (overwriting, Overwriting()):
        with pytest.raises(StoreMisconfigured, match="a second time"):
            persist.open(blob, mode="exclusive")


def test_a_location_on_a_store_that_overwrites_can_be_read(overwriting: Overwriting) -> None:
    modes: tuple[Literal["read", "shared"], ...] = ("read", "shared")
    for mode in modes:
        with persist.open(overwriting, mode=mode) as client:
            assert client.load("orders").snapshot(0).count() == 1


@names("fault", list(Fault))
def test_a_lost_answer_to_the_proof_is_asked_for_again(fault: Fault) -> None:
    inner = MemoryBlob()
    for _ in range(2):  # At first in an empty location.
        blob = UnreliableBlob(inner)
        with persist.open(blob, clock=ImpatientClock()) as client:
            blob.script_faults("create", fault, fault, fault)
            client.create_or_load("orders", key=KEY).write([((1, None), 0, 1)]).result()
    with persist.open(inner) as client:
        orders = client.load("orders")
        orders.seal(1).result()
        assert orders.snapshot(0, form="diff").to_arrow()["_diff"].to_pylist() == [2]


def test_a_store_that_never_answers_the_proof_is_not_trusted() -> None:
    inner = MemoryBlob()
    blob = UnreliableBlob(inner)
    with persist.open(blob, clock=ImpatientClock()) as client:
        blob.script_faults("create", Fault.NONE, *[Fault.UNAVAILABLE] * 1000)
        with pytest.raises(persist.Indeterminate, match=r"may be there.*was given up after") as caught:
            client.create_or_load("orders", key=KEY)
        assert "Nothing was written" not in str(caught.value), "something was"
        with pytest.raises(persist.Unavailable, match="Nothing was written"):
            client.create_or_load("items", key=KEY)
        assert inner.get(make_record_key(1)) is None
        blob.clear_faults()
        client.create_or_load("items", key=KEY)
    assert inner.get(make_record_key(1)) is not None


def test_a_full_store_says_so_at_once() -> None:
    class Full(MemoryBlob):
        def create(self, key: str, value: bytes) -> bool:
            raise StoreFull("no room")

    clock = ImpatientClock()
    before_s = clock.monotonic_s()
    with pytest.raises(StoreFull):
        StoreProof(Full(), clock).offer(create())
    assert clock.monotonic_s() - before_s < 1


def test_a_record_that_was_truncated_meanwhile_is_no_proof_against_the_store() -> None:
    blob = DatedBlob(ImpatientClock())
    settings = tuned(log_retention_s=5 * HOUR, background=False, log_retention_records=50)
    with (
        persist.open(blob, settings=settings, clock=blob.clock) as client,
        persist.open(blob, clock=ImpatientClock()) as asleep,  # By its own clock, no time passes.
    ):
        orders = client.create_or_load("orders", key=KEY)
        theirs = asleep.load("orders")
        for time in range(300):
            orders.seal(time + 1).result()
            blob.clock.sleep(HOUR)
        while client.gc().records:
            blob.clock.sleep(HOUR)
        assert blob.get(make_record_key(0)) is None
        theirs.write([((1, None), 300, 1)]).result()
        assert blob.get(make_record_key(0)) is None
        orders.seal(301).result()
        assert orders.snapshot(300).count() == 1
