"""Rules 3 and 5 hold in callbacks of futures, of the same client and of others in the process."""

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from persist.engine.write.commit_future import Committed
from tests.support.stepped import WAIT_S

SETTINGS = persist.Settings(background=False, tuning=Tuning(hold_linger_s=0))
KEY, VALUE = {"k": pa.int64()}, {"v": pa.int64()}


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=SETTINGS) as client:
        yield client


@pytest.fixture
def other() -> Iterator[persist.Client]:
    with persist.open(MemoryBlob(), settings=SETTINGS) as client:
        yield client


def keyed(client: persist.Client, name: str = "keyed") -> persist.Collection:
    return client.create_or_load(name, key=KEY, value=VALUE, keyed=persist.Keyed())


def plain(client: persist.Client, name: str = "plain") -> persist.Collection:
    return client.create_or_load(name, key=KEY, value=VALUE)


def in_callback(future: "persist.CommitFuture", call: Callable[[], object]) -> None:
    """Call something in a callback of a future, and raise what it raises."""
    done, errors = threading.Event(), []

    def callback(_: object) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    future.add_done_callback(callback)
    assert done.wait(WAIT_S), "the callback waits for its own thread"
    if errors:
        raise errors[0]


class Gate:
    """Holds a client's keyed thread until all that a test asks for is queued."""

    def __init__(self, client: persist.Client) -> None:
        self._gate = threading.Event()
        writer = client.engine.writer("a test")
        future = writer.new_future()
        hold = writer.committer.submit([], {})

        def wait() -> Committed:
            assert self._gate.wait(WAIT_S)
            return hold.committed()

        self.future = writer.keyed.submit([], future, wait, 0)

    def open(self) -> None:
        self._gate.set()


@pytest.mark.parametrize("asked", ["plain", "keyed"])
def test_a_read_in_a_callback_of_a_keyed_seal_sees_what_its_client_wrote_before(
    client: persist.Client, asked: str
) -> None:
    users = keyed(client)
    target = plain(client) if asked == "plain" else keyed(client, "another")

    def call() -> None:
        for n in range(20):
            if asked == "plain":
                target.write([(n, n)])
            else:
                target.upsert([(n, n, n)], seal=n + 1)
        assert target.snapshot().count() == 20

    in_callback(users.upsert([(1, 1, 0)], seal=1), call)


@pytest.mark.parametrize("of", ["plain", "keyed"])
@pytest.mark.parametrize("asked", ["plain", "keyed"])
def test_a_read_in_a_callback_of_another_client_sees_what_its_client_wrote_before(
    client: persist.Client, other: persist.Client, of: str, asked: str
) -> None:
    target = plain(other) if asked == "plain" else keyed(other)

    def call() -> None:
        for n in range(20):
            if asked == "plain":
                target.write([(n, n)])
            else:
                target.upsert([(n, n, n)], seal=n + 1)
        assert target.snapshot().count() == 20

    future = plain(client).write([(1, 1)]) if of == "plain" else keyed(client).upsert([(1, 1, 0)], seal=1)
    in_callback(future, call)


@pytest.mark.parametrize("is_own", [True, False])
def test_calls_in_a_callback_of_a_keyed_seal_are_done_in_their_order(
    client: persist.Client, other: persist.Client, is_own: bool
) -> None:
    users, late = keyed(client), keyed(client if is_own else other, "late")
    futures: list[persist.CommitFuture] = []

    def call() -> None:
        futures.append(late.upsert([(k, 1, 0) for k in range(1000)], seal=5))
        futures.append(late.seal(7))
        futures.append(late.upsert([(1, 2, 7)], seal=8))

    in_callback(users.upsert([(1, 1, 0)], seal=1), call)
    for future in futures:
        future.result(timeout=WAIT_S)
    assert late.upper == persist.Antichain(8)


def test_a_callback_of_a_keyed_seal_may_wait_for_what_its_client_does_next(client: persist.Client) -> None:
    users, orders = keyed(client), plain(client)
    seqnos: list[int] = []

    def call() -> None:
        seqnos.append(users.upsert([(1, 2, 1)], seal=2).result(timeout=WAIT_S))
        seqnos.append(orders.write([(1, 1)]).result(timeout=WAIT_S))

    in_callback(users.upsert([(1, 1, 0)], seal=1), call)
    assert seqnos == sorted(seqnos)
    assert users.snapshot(1).count() == 1


def test_callbacks_of_many_keyed_seals_that_all_read_are_run_in_order_and_not_in_each_other(
    client: persist.Client,
) -> None:
    users, ran, depths = keyed(client), [], []
    deep = threading.local()
    gate = Gate(client)
    done = threading.Event()
    count = 80

    def callback(n: int) -> Callable[[object], None]:
        def call(_: object) -> None:
            deep.now = getattr(deep, "now", 0) + 1
            users.snapshot(0).count()
            ran.append(n)
            depths.append(deep.now)
            deep.now -= 1
            if n == count - 1:
                done.set()

        return call

    for n in range(count):
        users.upsert([(n, n, n)], seal=n + 1).add_done_callback(callback(n))
    gate.open()
    assert done.wait(WAIT_S)
    assert ran == [*range(count)]
    assert max(depths) == 1


def test_a_callback_of_a_keyed_seal_may_close_its_client() -> None:
    client = persist.open(MemoryBlob(), settings=SETTINGS)
    users = keyed(client)
    gate = Gate(client)
    first, second = users.upsert([(1, 1, 0)], seal=1), users.upsert([(1, 2, 1)], seal=2)
    threading.Thread(target=gate.open).start()
    in_callback(first, client.close)
    assert second.result(timeout=WAIT_S) > first.result()
