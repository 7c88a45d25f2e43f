"""A folder in which somebody has put what is not a blob: a client says so at once, and reads what is whole."""

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import CorruptBlob
from persist.core.log.keys import make_record_key
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S, Gate, Stepped

QUIET = persist.Settings(background=False)


def _location(folder: Path) -> int:
    """Make a location with a part, a state object and two checkpoints; return the next seqno."""
    with persist.open(folder, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
        for time_ in range(34):
            orders.write([((time_, str(time_)), time_, 1)]).result()
        orders.write(
            pa.table({"k": range(200_000), "v": ["x"] * 200_000, "_time": [40] * 200_000, "_diff": [1] * 200_000})
        )
        orders.seal(50).result()
        return client.seqno + 1


# Each in a process of its own with a limit of time and of memory, because what it tests is that neither is used up.
READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
import persist
try:
    with persist.open(sys.argv[1], mode="read") as client:
        print(client.load("orders").snapshot(timeout_s=0).to_arrow().num_rows)
except persist.errors.CorruptBlob as error:
    print("CorruptBlob", error.key, error)
print(persist.fsck(sys.argv[1]))
"""


def _read(folder: Path) -> str:
    done = subprocess.run([*forked_python(), "-c", READ, str(folder)], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _put(path: Path, what: str) -> None:
    path.unlink(missing_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "link":
        path.symlink_to(path.parent / make_record_key(0).rpartition("/")[2])
    else:
        with open(path, "wb") as file:
            file.truncate(50 << 30)


@pytest.mark.thorough(except_every=7)
@pytest.mark.parametrize("what", ["fifo", "sparse", "folder", "loop", "link"])
@pytest.mark.parametrize("where", ["next record", "last record", "checkpoint", "part"])
def test_what_is_no_blob_is_named_and_neither_waited_for_nor_read(where: str, what: str, tmp_path: Path) -> None:
    next_seqno = _location(tmp_path)
    path = {
        "next record": tmp_path / make_record_key(next_seqno),
        "last record": tmp_path / make_record_key(next_seqno - 1),
        "checkpoint": sorted((tmp_path / "checkpoint").iterdir())[0],
        "part": next(tmp_path.glob("part/*/*")),
    }[where]
    _put(path, what)

    out = _read(tmp_path)

    if where == "checkpoint" and what != "sparse":  # Listings pass over it, so the checkpoint before it serves.
        assert out.startswith("200034")
        return
    key = str(path.relative_to(tmp_path))
    assert out.startswith(f"CorruptBlob {key}"), out
    assert out.count(key) > 2, out  # The examination names it, too.


def test_an_open_client_does_not_hang_at_a_fifo_in_the_place_of_the_next_record(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=QUIET) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()})
        orders.write([((1, None), 1, 1)]).result()
        fifo = tmp_path / make_record_key(client.seqno + 1)
        os.mkfifo(fifo)
        with pytest.raises(CorruptBlob, match=f"{fifo.name} is a FIFO and no plain file: remove it"):
            orders.write([((2, None), 1, 1)]).result()
        fifo.unlink()
        orders.write([((3, None), 1, 1)]).result()
        orders.seal(2).result()
        assert orders.snapshot().count() == 2


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
