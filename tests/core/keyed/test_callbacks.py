"""Rules 3, 5 and 6 hold in callbacks of futures, of the same client and of others in the process."""

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
        future = writer.make_future()
        hold = writer.committer.submit([], {})

        def wait() -> Committed:
            assert self._gate.wait(WAIT_S)
            return hold.get_commit()

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


def committed(client: persist.Client, of: str, n: int = 1) -> "persist.CommitFuture":
    """Return a future of a plain write or of a keyed seal."""
    return plain(client).write([(n, n)]) if of == "plain" else keyed(client).upsert([(n, n, n - 1)], seal=n)


@pytest.mark.parametrize("asked", ["plain", "keyed"])
def test_a_callback_of_a_plain_write_may_commit_but_not_wait_for_its_own_client(
    client: persist.Client, asked: str
) -> None:
    committed(client, asked).result()
    futures = list[persist.CommitFuture]()

    def call() -> None:
        futures.extend(committed(client, asked, n) for n in range(2, 22))
        waits: list[Callable[[], object]] = [futures[-1].result, lambda: client[asked].snapshot().count()]
        for wait in waits:
            with pytest.raises(persist.InvalidUsage, match="callback waits for another commit"):
                wait()

    in_callback(client["plain"].write([(99, 99)]) if asked == "plain" else plain(client).write([(99, 99)]), call)
    for future in futures:
        future.result(timeout=WAIT_S)
    assert client[asked].snapshot().count() == (22 if asked == "plain" else 21)


@pytest.mark.parametrize("of", ["plain", "keyed"])
@pytest.mark.parametrize("asked", ["plain", "keyed"])
def test_a_callback_of_a_future_that_failed_may_write_and_wait_for_another_client(
    client: persist.Client, other: persist.Client, of: str, asked: str
) -> None:
    target = plain(client) if of == "plain" else keyed(client)
    target.seal(9).result()
    late = target.write([((5, 5), 1, 1)]) if of == "plain" else target.upsert([(5, 5, 1)], seal=20)
    in_callback(late, lambda: committed(other, asked, 1).result(timeout=WAIT_S))
    assert other[asked].snapshot().count() == 1
    with pytest.raises(persist.errors.UpdateNotBeyondUpper):
        late.result()


@pytest.mark.parametrize("of", ["plain", "keyed"])
def test_a_commit_to_both_kinds_in_a_callback_happens_whole(
    client: persist.Client, other: persist.Client, of: str
) -> None:
    orders, users = plain(other, "orders"), keyed(other, "users")

    def call() -> None:
        with other.multi_write() as multi:
            multi.write(orders, [((1, 1), 0, 1)])
            multi.upsert(users, [(1, 1, 0)])
            multi.seal(orders, 1)
            multi.seal(users, 1)
        assert (orders.snapshot(0).count(), users.snapshot(0).count()) == (1, 1)

    in_callback(committed(client, of), call)


@pytest.mark.parametrize("of", ["plain", "keyed"])
@pytest.mark.parametrize("asked", ["plain", "keyed"])
def test_clients_that_commit_in_callbacks_of_each_other_all_go_on(
    client: persist.Client, other: persist.Client, of: str, asked: str
) -> None:
    for each, kind in ((client, of), (other, asked)):
        plain(each) if kind == "plain" else keyed(each)
    done, count, errors = threading.Event(), 30, list[BaseException]()

    def go_on(n: int) -> None:
        try:
            if n > count:
                done.set()
                return
            future = committed(client, of, n) if n % 2 else committed(other, asked, n)
            future.add_done_callback(lambda _: go_on(n + 1))
        except BaseException as error:
            errors.append(error)
            done.set()

    go_on(1)
    assert done.wait(WAIT_S), "a callback waits for its own thread"
    assert not errors
    assert (client[of].snapshot().count(), other[asked].snapshot().count()) == (count // 2, count // 2)


@pytest.mark.parametrize("of", ["plain", "keyed"])
@pytest.mark.parametrize("asked", ["plain", "keyed"])
def test_a_callback_may_close_another_client_that_still_has_commits(
    client: persist.Client, of: str, asked: str
) -> None:
    other = persist.open(MemoryBlob(), settings=SETTINGS)
    futures = list[persist.CommitFuture]()

    def call() -> None:
        futures.extend(committed(other, asked, n) for n in range(1, 21))
        other.close()

    in_callback(committed(client, of), call)
    seqnos = [future.result(timeout=WAIT_S) for future in futures]
    assert seqnos == sorted(seqnos)
