"""A real cluster on loopback: a master and workers as processes of their own, and a driver that runs what it is asked.

Workers and driver have the library as its users do, from a wheel in a virtual environment; of the environment that runs
the tests they see the dependencies only. The driver is a process, too (`tests/connect/spark/cluster_driver.py`): a
process can have one Spark, and the one of the tests' own is local. Whatever is started is ended by its id.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyspark

from tests.support.paths import ROOT

DRIVER = Path(__file__).parent / "cluster_driver.py"
# Spark speculates on another host only; all of 127.0.0.0/8 is loopback.
HOSTS = {"127.0.0.1", "127.0.0.2"}
PATIENCE_S = 300.0
# These processes do little, so what counts is how soon they have begun.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

T = TypeVar("T")


def until(found: Callable[[], T | None], what: str) -> T:
    """Return what is found once it is neither None nor False nor empty."""
    ends_s = time.monotonic() + PATIENCE_S
    while not (result := found()):
        if time.monotonic() > ends_s:
            raise TimeoutError(f"{what} took more than {PATIENCE_S:g} s")
        time.sleep(0.05)
    return result


def environment(folder: Path) -> Path:
    """Make a virtual environment with the wheel of this checkout and nothing else of it; return its Python."""
    # Through an sdist: a wheel built in place would pick up leftovers of earlier builds.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = (folder / "dist").glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True, capture_output=True)
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    # What this path leads to is not searched for .pth files, so the editable install there stays unseen.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def clean_environ(python: Path) -> dict[str, str]:
    """Return the environment for processes of the cluster: no trace of the checkout, and Spark on loopback."""
    unwanted = ("PYTHON", "PYSPARK", "SPARK", "AWS_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    home = os.path.dirname(pyspark.__file__)
    return {
        **environ,
        "SPARK_HOME": home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "SPARK_DAEMON_MEMORY": "700m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
    }


class Daemons:
    """Processes of Spark's own programs, which write logs to a folder."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self._environ = clean_environ(python)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, host: str, *command: str) -> "subprocess.Popen[bytes]":
        """Run a program of Spark's with arguments, on an address of this machine."""
        program = str(Path(self._environ["SPARK_HOME"], "bin", "spark-class"))
        environ = {**self._environ, "SPARK_LOCAL_IP": host}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([program, *command], stdout=log, stderr=log, env=environ, cwd=self.folder)
        self._running[name] = process
        return process

    def said(self, name: str, pattern: str) -> str:
        """Return the group of a pattern that a process has written, or will write."""
        log = self.folder / f"{name}.log"

        def found() -> re.Match[str] | None:
            text = log.read_text(errors="replace")
            assert self._running[name].poll() is None, text
            return re.search(pattern, text)

        return until(found, f"{name} to say {pattern!r}")[1]

    def kill(self, name: str) -> None:
        """Kill a process."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all processes, the last first."""
        processes = [*reversed(self._running.values())]
        for process in processes:
            process.terminate()
        for process in processes:
            _end(process)


class Cluster:
    """A master and two workers of one core each.

    Attributes:
        url: of the master.
    """

    def __init__(self, folder: Path, python: Path) -> None:
        self._daemons = Daemons(folder, python)
        self._started = 0
        self._workers: dict[str, tuple[str, int]] = {}  # By host: name and process id.
        try:
            master = (
                "org.apache.spark.deploy.master.Master",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--webui-port",
                "0",
            )
            self._daemons.start("master", "127.0.0.1", *master)
            self.url = "spark://" + self._daemons.said("master", r"Starting Spark master at spark://(\S+)")
            self.restore()
        except BaseException:
            self.close()
            raise

    def restore(self) -> None:
        """Have all workers, and the master know them."""
        for host in sorted(HOSTS - self._workers.keys()):
            self._started += 1
            name = f"worker{self._started}"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(self._daemons.folder / name))
            worker = ("org.apache.spark.deploy.worker.Worker", "--host", host, "--webui-port", "0", *size, self.url)
            self._workers[host] = name, self._daemons.start(name, host, *worker).pid
        for name, _ in self._workers.values():
            self._daemons.said(name, "Successfully registered with (master)")

    def kill_worker_of(self, pid: int) -> None:
        """Kill the worker on which a process runs, and its executor."""
        hosts = {worker: host for host, (_, worker) in self._workers.items()}
        line = [pid]
        while line[-1] not in hosts:
            line.append(_parent(line[-1]))
            assert line[-1] > 1, f"process {pid} runs on no worker of this cluster"
        name, _ = self._workers.pop(hosts[line[-1]])
        self._daemons.kill(name)
        os.kill(line[-2], signal.SIGKILL)

    def kill_some(self, kind: str, random_: random.Random) -> int:
        """Kill a worker with its executors, an executor, or a Python process of tasks; return how many there were."""
        host = random_.choice(sorted(self._workers))
        name, worker = self._workers[host]
        executors = _children(worker)
        if kind == "worker":
            del self._workers[host]
            self._daemons.kill(name)
            victims = executors
        elif kind == "executor":
            victims = executors
        else:
            victims = [child for executor in executors for daemon in _children(executor) for child in _children(daemon)]
        for pid in victims:
            with suppress(ProcessLookupError):  # It has ended meanwhile.
                os.kill(pid, signal.SIGKILL)
        return len(victims) if kind != "worker" else 1

    def close(self) -> None:
        """End all processes: a worker ends its executors."""
        self._daemons.close()


class DriverEnded(Exception):
    """The driver's process has ended before it answered."""


class Driver:
    """A process that runs functions of `cluster_driver.py`, one at a time."""

    def __init__(self, python: Path, environ: dict[str, str], folder: Path, master: str) -> None:
        self._command = [str(python), "-W", "ignore", str(DRIVER), master, JAVA_OPTIONS]
        self._environ, self._folder = environ, folder
        self._start()

    def _start(self) -> None:
        with (self._folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environ,
                cwd=self._folder,
                text=True,
            )

    def kill(self) -> None:
        """Kill it, and the JVM that it has started."""
        for pid in [*_children(self._process.pid), self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        """Start another process in place of one that was killed."""
        self.kill()
        self._start()

    def ask(self, function: str, **arguments: Any) -> Callable[[], Any]:
        """Have a function called; return what waits for its result."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([function, arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise DriverEnded from error
        return self._answer

    def call(self, function: str, **arguments: Any) -> Any:
        """Have a function called; return its result."""
        return self.ask(function, **arguments)()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        _end(self._process)
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DriverEnded("see driver.log")
        kind, result = json.loads(line)
        assert kind == "returned", result
        return result


@contextmanager
def running_cluster(folder: Path, python: Path) -> Iterator[tuple[Cluster, Driver]]:
    """Run a cluster whose tasks run a Python, and a driver for it."""
    cluster = Cluster(folder, python)
    try:
        with running_driver(folder, python, cluster.url) as driver:
            yield cluster, driver
    finally:
        cluster.close()


@contextmanager
def running_connect(folder: Path, python: Path) -> Iterator[Driver]:
    """Run a server of Spark Connect, with Spark in it, and a client of it."""
    settings = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    program = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
    daemons = Daemons(folder, python)
    try:
        daemons.start("connect", "127.0.0.1", "org.apache.spark.deploy.SparkSubmit", *given, *program)
        port = daemons.said("connect", r"Spark Connect server started at: \S*:(\d+)")
        with running_driver(folder, python, f"sc://127.0.0.1:{port}") as driver:
            yield driver
    finally:
        daemons.close()


@contextmanager
def running_driver(folder: Path, python: Path, master: str) -> Iterator[Driver]:
    """Run a driver."""
    driver = Driver(python, clean_environ(python), folder, master)
    try:
        yield driver
    finally:
        driver.close()


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(child) for thread in threads for child in thread.read_text().split()]
    return []


def _parent(pid: int) -> int:
    # The name of the program, in parentheses, may hold anything.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _end(process: "subprocess.Popen[Any]") -> None:
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
