"""A name that a queued drop or rename frees is free for every call that comes after it in the same client."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa
import pytest

import persist
from tests.support.stepped import Gate, Stepped

ROWS = pa.table({"k": [1], "v": [1.0]})
BROKEN_S = 0.05  # A call that does not wait for the drop answers within that, on most machines.

Make = Callable[[persist.Client], object]


def _create(client: persist.Client) -> None:
    client.create_or_load("later", key={"k": int}, value={"v": float}, timeline="ms").write([(1, 2.0)]).result()


MAKERS: dict[str, Make] = {
    "create_or_load": _create,
    "write": lambda client: client.write("later", ROWS, key=["k"]).result(),
    "overwrite": lambda client: client.write("later", ROWS, key=["k"], mode="overwrite").result(),
    "error": lambda client: client.write("later", ROWS, key=["k"], mode="error").result(),
    "create_view": lambda client: client.create_view("later", "SELECT k, v FROM source").refresh(),
    "clone": lambda client: client.clone("source", "later"),
    "keyed": lambda client: client.create_or_load("later", like=ROWS, key=["k"], keyed=persist.Keyed()),
}
FREEING: dict[str, Make] = {
    "drop": lambda client: client.drop("later"),
    "rename": lambda client: client.rename("later", "earlier"),
}


def _while_queued(free: Make, call: Make) -> object:
    """Free the name, and return what a call does while the commit of that is still under way."""
    store, gate = Stepped(persist.MemoryBlob()), Gate()
    with persist.open(store) as client, ThreadPoolExecutor(1) as pool:
        client.write("source", ROWS, key=["k"]).result()
        client.write("later", pa.table({"other": ["x", "y"]}), key=["other"]).result()
        store.before("create", "log/", gate)
        free(client)
        gate.wait_until_reached()
        answer = pool.submit(call, client)
        wait([answer], BROKEN_S)
        gate.open()
        result = answer.result()
        if "later" in client:
            assert "other" not in client["later"].schema.names
        return result


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("free", FREEING.values(), ids=FREEING)
def test_a_freed_name_can_be_used_at_once(free: Make, make: Make) -> None:
    _while_queued(free, make)


@pytest.mark.parametrize("free", FREEING.values(), ids=FREEING)
def test_a_freed_name_is_not_found_by_reads(free: Make) -> None:
    assert _while_queued(free, lambda client: "later" in client) is False
    assert "later" not in _while_queued(free, lambda client: client.collections())  # type: ignore[operator]
    with pytest.raises(persist.errors.CollectionNotFound):
        _while_queued(free, lambda client: client.load("later"))
    with pytest.raises(persist.InvalidUsage, match="later"):
        _while_queued(free, lambda client: client.sql("SELECT * FROM later"))


def test_drops_of_many_collections_share_commits() -> None:
    with persist.open(persist.MemoryBlob()) as client:
        names = [f"c{at}" for at in range(20)]
        for name in names:
            client.create_or_load(name, key={"k": int})
        before = client.seqno
        dropped = [client.drop(name) for name in names]
        assert [future.result() for future in dropped][-1] - before < len(names)
