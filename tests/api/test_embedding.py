"""What the program around a client may do to it: call back, fork, exit, and end its main thread."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.core.state_rules.contents import CollectionState
from persist.core.state_rules.frozen_map import FrozenMap
from tests.support.clocks import ImpatientClock
from tests.support.forks import forked_python
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

KEY = {"k": pa.int64()}
ROW = [((1, None), 5, 1)]


def row(key: int) -> list[tuple[tuple[int, None], int, int]]:
    return [((key, None), 5, 1)]


def run(script: str) -> str:
    """Run script in a process of its own, which must end well; return what it printed."""
    done = ended(script)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(script: str) -> subprocess.CompletedProcess[str]:
    """Run script in a process of its own, which must end."""
    return subprocess.run(
        [*forked_python(), "-c", "import os, sys, threading, persist, pyarrow as pa\n" + script],
        timeout=WAIT_S,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


class GatedBlob(MemoryBlob):
    """A store in memory that creates nothing while its gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def create(self, key: str, value: bytes) -> bool:
        self.gate.wait(WAIT_S)
        return super().create(key, value)


def test_a_read_in_a_callback_does_not_wait_for_a_thread_that_waits_for_the_callback() -> None:
    blob, seen = GatedBlob(), list[object]()
    with persist.open(blob) as client:
        c = client.create_or_load("c", key=KEY)
        c.write([((1, None), 0, 1)], seal=1).result()
        leases = client.engine.writer("a test").leases
        assert leases is not None

        def claim() -> None:  # A read would wait for the callback before it claims anything.
            leases.claim(c.id, c.name, 0).release()
            seen.append("claimed")

        other = threading.Thread(target=claim, daemon=True)

        def callback(_: object) -> None:
            other.start()
            while not any(held.moving.locked() for held in leases._held.values()):
                time.sleep(0.001)
            try:
                c.snapshot(0)
            except persist.PersistError as error:
                seen.append(type(error))

        blob.gate.clear()
        c.write(ROW).add_done_callback(callback)
        blob.gate.set()
        c.seal(2).result()
        other.join(WAIT_S)
        assert seen == [persist.InvalidUsage, "claimed"]


def test_a_callback_may_write_though_there_is_no_room(blob: MemoryBlob, monkeypatch: pytest.MonkeyPatch) -> None:
    with persist.open(blob) as client:
        monkeypatch.setattr(client.engine.writer("a test").committer, "_in_flight_bytes_max", 1)
        c = client.create_or_load("c", key=KEY)
        written: list[persist.CommitFuture] = []
        called = threading.Event()

        def callback(_: object) -> None:
            written.append(c.write(row(2)))
            called.set()

        c.write(row(1)).add_done_callback(callback)
        assert called.wait(WAIT_S), "the write in the callback waits for room, which only the thread it is in can make"
        written[0].result(WAIT_S)
        c.seal(6).result()
        assert c.snapshot().count() == 2


def test_a_callback_that_exits_fails_nothing_that_was_committed_with_it(blob: MemoryBlob) -> None:
    with persist.open(blob) as client:
        c = client.create_or_load("c", key=KEY)
        futures = [c.write(row(key)) for key in range(20)]
        for future in futures[::5]:
            future.add_done_callback(lambda _: sys.exit(1))
        for future in futures:
            future.result(WAIT_S)
        c.seal(6).result()
        assert c.snapshot().count() == 20


@pytest.mark.thorough
def test_threads_that_outlive_the_main_thread_write_and_read_on(tmp_path: Path) -> None:
    """Python's own pools take no more work then; a commit that needs a checkpoint must not look failed for that."""
    printed = run(f"""
client = persist.open({str(tmp_path)!r})
c = client.create_or_load("c", key={{"k": pa.int64()}})
def work():
    main.join()
    for n in range(40):
        c.write([((n, None), n, 1)]).result()
    for n in range(40, 42):
        rows = 20_000
        c.write(pa.table({{"k": range(rows), "_time": [n] * rows, "_diff": [1] * rows}})).result()
    c.seal(100).result()
    print(c.snapshot().to_arrow().num_rows)
    client.close()
main = threading.current_thread()
threading.Thread(target=work).start()
""")
    assert printed.split() == ["40040"]
    with persist.open(tmp_path, mode="read") as client:
        assert client.engine.follower.state.seqno >= 40


def test_a_process_that_exits_waits_for_uploads_to_a_store_that_is_down_for_its_timeout_only() -> None:
    done = ended("""
from persist.blob.protocol import MemoryBlob
class Down(MemoryBlob):
    def set(self, key, value):
        raise persist.Unavailable("down")
client = persist.open(Down(), settings=persist.Settings(exit_timeout_s=0.5))
c = client.create_or_load("c", key={"k": pa.int64()})
rows = 20_000
for n in range(40):
    c.write(pa.table({"k": range(rows), "_time": [n] * rows, "_diff": [1] * rows}))
""")
    assert done.returncode == 120, done.stderr
    assert "40 operations of 'c' were pending when the process ended, and may be lost" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_that_leaves_the_block_of_its_parents_client_ends_and_changes_nothing(tmp_path: Path) -> None:
    printed = run(f"""
with persist.open({str(tmp_path)!r}) as client:
    c = client.create_or_load("c", key={{"k": pa.int64()}})
    c.seal(1).result()
    held, listen = c.hold(0), c.listen(0)
    # Another thread of the parent may have it at the moment of the fork.
    with client.engine.writer("a test").committer._changed:
        child = os.fork()
    if not child:
        try:
            next(listen)
        except persist.InvalidUsage:
            print("refused", flush=True)
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print(len(c.holds()))
""")
    assert printed.split() == ["refused", "1"]


def test_contents_that_are_lost_while_others_are_loaded_are_loaded_again(blob: MemoryBlob) -> None:
    """To load one collection may send the client back to a checkpoint, which has the contents of none."""
    with persist.open(blob, clock=ImpatientClock()) as client:
        one, two = client.create_or_load("one", key=KEY), client.create_or_load("two", key=KEY)
        follower, left = client.engine.follower, [3]
        load = follower.load

        def load_and_forget(id_: str) -> CollectionState | None:
            found = load(id_)
            if left[0]:
                left[0] -= 1
                forgotten = {e.id: msgspec.structs.replace(e, contents=None) for e in follower.state.entries.values()}
                follower._state = replace(follower.state, entries=FrozenMap(forgotten))
            return found

        follower.load = load_and_forget  # type: ignore[method-assign]
        with client.multi_write() as multi:
            multi.write(one, ROW)
            multi.write(two, ROW)
            multi.seal(one, 6)
        assert one.snapshot().count() == 1


@pytest.mark.parametrize("bad", ["", "a\nb", "\ud800", "x" * 201, 7])
def test_a_reentrance_id_that_cannot_be_stored_or_shown_is_refused(blob: MemoryBlob, bad: str) -> None:
    with pytest.raises(persist.InvalidUsage, match="reentrance_id"):
        persist.open(blob, mode="exclusive", reentrance_id=bad)


def test_without_pyspark_the_import_says_what_to_install() -> None:
    script = "import sys; sys.modules['pyspark'] = None; import persist.spark"
    done = subprocess.run([*forked_python(), "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: persist.spark needs PySpark, which is not installed. pip install 'pyspark>=4.3,<5'"
    )
