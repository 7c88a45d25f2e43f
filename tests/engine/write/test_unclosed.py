"""Clients that nobody closes: nothing is lost in silence, and no process hangs."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import persist
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S

# What the programs below have in common. `Slow` is a store whose commits begin only when a file is there.
BEGIN = """
import gc, os, sys, threading, time, warnings
import multiprocessing as mp
import pyarrow as pa
import persist
from persist.blob.stores.file import FileBlob
from persist.blob.errors import Unavailable

class Slow(FileBlob):
    seconds, is_down = 0.0, False
    def create(self, key, value):
        time.sleep(self.seconds)
        if self.is_down:
            raise Unavailable("it is down")
        return super().create(key, value)

QUICK = persist.Settings(background=False, exit_timeout_s=1.0, retry_s=3600.0)
HERE = sys.argv[1]

def opened(where=HERE, **options):
    client = persist.open(where, **options)
    return client, client.create_or_load("orders", key={"k": pa.int64()})

def update(k, time=1):
    return [((k, None), time, 1)]
"""


def run(
    program: str,
    folder: Path,
    *options: str,
    timeout_s: float = WAIT_S,
    during: Callable[["subprocess.Popen[str]"], None] = lambda process: None,
) -> "subprocess.CompletedProcess[str]":
    path = folder.parent / "program.py"  # A file, because spawned children import it again.
    path.write_text(BEGIN + program)
    command = [*([sys.executable] if options else forked_python()), *options, str(path), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        during(process)
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def rows(folder: Path) -> int:
    with persist.open(folder) as client:
        orders = client.load("orders")
        orders.seal(100).result()
        return orders.snapshot(99).count()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "location"


def test_what_was_written_last_is_finished_when_the_process_ends(folder: Path) -> None:
    done = run(
        "client, orders = opened(Slow(HERE)); client.engine.blob; Slow.seconds = 0.3\n"
        "for k in range(100): orders.write(update(k))\n"
        "orders.write(pa.table({'k': range(100_000), '_time': [1] * 100_000, '_diff': [1] * 100_000}))\n",
        folder,
    )
    assert done.returncode == 0
    assert "lost" not in done.stderr
    assert rows(folder) == 100_100


def test_an_error_that_nobody_looked_at_is_printed_and_fails_the_process(folder: Path) -> None:
    done = run(
        "import atexit; atexit.register(print, 'others'); file = open(HERE + '.txt', 'w'); file.write('not yet')\n"
        "client, orders = opened(); orders.seal(10).result(); orders.write(update(1)); orders.write(update(2))\n",
        folder,
    )
    assert done.returncode == 120
    assert "2 operations failed, and no caller read their errors" in done.stderr
    assert "UpdateNotBeyondUpper: update at time 1 is not beyond upper=" in done.stderr
    assert done.stdout == "others\n"
    assert Path(f"{folder}.txt").read_text() == "not yet"


def test_a_client_closed_by_an_exit_function_of_its_user_is_closed_as_usual(folder: Path) -> None:
    done = run(
        "import atexit\nbox = []\n"
        "@atexit.register\ndef close(): box[0].close(); print('closed')\n"
        "client, orders = opened(mode='exclusive'); box.append(client); orders.write(update(1))\n",
        folder,
    )
    assert (done.returncode, done.stdout) == (0, "closed\n")
    assert "lost" not in done.stderr
    assert rows(folder) == 1


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_finishes_what_it_wrote(method: str, folder: Path) -> None:
    done = run(
        "def child(fails):\n"
        "    global client\n"
        "    client, orders = opened(Slow(HERE)); Slow.seconds = 0.2\n"
        "    for k in range(10): orders.write(update(k, 0 if fails else 1))\n"
        "if __name__ == '__main__':\n"
        f"    mp.set_start_method({method!r})\n"
        "    for fails in (False, True):\n"
        "        if fails:\n"
        "            client, orders = opened(); orders.seal(1).result(); client.close()\n"
        "        process = mp.Process(target=child, args=(fails,)); process.start(); process.join(300)\n"
        "        print(process.exitcode)\n",
        folder,
    )
    good, bad = done.stdout.split()
    assert good == "0", done.stderr
    assert bad != "0"
    assert bad != "None"
    assert "10 operations failed" in done.stderr
    assert done.returncode == 0
    assert rows(folder) == 10


def test_a_forked_child_leaves_its_parents_client_alone_and_is_told_so(folder: Path) -> None:
    done = run(
        "client, orders = opened(Slow(HERE)); Slow.seconds = 0.5\n"
        "snapshot = None\n"
        "f = orders.write(update(1))\n"
        "if os.fork() == 0:\n"
        "    uses = [lambda: orders.write(update(2)), lambda: orders.seal(9), lambda: orders.snapshot(0), f.result,\n"
        "            f.exception, client.gc, client.collections, lambda: client.load('orders'), client.multi_write,\n"
        "            lambda: orders.hold(0), lambda: orders.upper, client.maintain, lambda: client.seqno]\n"
        "    for use in uses:\n"
        "        try: use(); print('nothing was raised')\n"
        "        except persist.InvalidUsage as error: assert 'fork' in str(error), error\n"
        "    client.close(); print('told')\n"
        "    sys.exit(0)\n"
        "pid, status = os.wait()\n"
        "print(os.waitstatus_to_exitcode(status), f.result() >= 0)\n",
        folder,
        "-Wignore:This process:DeprecationWarning",  # From Python 3.12 on, of any fork beside threads.
    )
    assert done.stderr == ""
    assert done.stdout == "told\n0 True\n"
    assert rows(folder) == 1


@pytest.mark.thorough
@pytest.mark.costly("forks twenty processes beside four busy threads, which work for as long as that takes")
def test_a_forked_child_that_ends_while_its_parent_is_busy_neither_hangs_nor_commits(folder: Path) -> None:
    done = run(
        "client, orders = opened(Slow(HERE)); Slow.seconds = 0.01\n"
        "stop = threading.Event()\n"
        "def work():\n"
        "    k = 0\n"
        "    while not stop.is_set(): orders.write(update(k)).result(); orders.snapshot; k += 1\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "ended = []\n"
        "for _ in range(20):\n"
        "    pid = os.fork()\n"
        "    if pid == 0: sys.exit(0)\n"
        "    ended.append(os.waitpid(pid, 0)[1])\n"
        "stop.set(); print(set(ended))\n",
        folder,
    )
    assert (done.stdout, done.stderr) == ("{0}\n", "")


def test_ctrl_c_ends_the_program_not_its_commits_and_again_the_wait_for_them(folder: Path) -> None:
    def interrupt(process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        for line in process.stderr:
            if "finishing for" in line:
                process.send_signal(signal.SIGINT)
                return

    done = run(
        "client, orders = opened(Slow(HERE), settings=persist.Settings(exit_timeout_s=3600)); Slow.seconds = 3600\n"
        "orders.write(update(1)); print('ready', flush=True); time.sleep(3600)\n",
        folder,
        during=interrupt,
    )
    assert "1 operation of 'orders' was pending when the process ended, and may be lost" in done.stderr
    assert done.returncode != 0


def test_a_closed_client_is_not_kept_and_its_process_says_nothing(folder: Path) -> None:
    done = run(
        "import weakref\n"
        "client, orders = opened(); orders.write(update(1)); client.close()\n"
        "seen = [weakref.ref(client), weakref.ref(client.engine)]\n"
        "left, _ = opened(); seen.append(weakref.ref(left.engine))\n"
        "del client, orders, left, _; gc.collect(); print([ref() for ref in seen])\n",
        folder,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[None, None, None]\n", "")
