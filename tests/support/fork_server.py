"""Forks of a process that has loaded the library: `python -m tests.support.fork_server SOCKET`; see `forks`."""

import gc
import importlib
import io
import os
import runpy
import select
import signal
import socket
import sys
import time
import types
import warnings
from dataclasses import dataclass, field

LOADED = [
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "persist.api.client",
    "persist.blob.stores.file",
    "persist.tools.cli.main",
    "persist.tools.cli.read_commands",
    "persist.tools.cli.data_commands",
]


@dataclass(frozen=True, slots=True)
class Request:
    """A program to run: arguments as those of Python, a folder, variables, a umask and three streams."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    umask: int
    streams: list[int]


@dataclass
class Server:
    """Accepts requests, and forks for each. One thread does all: threads do not survive a fork."""

    listener: socket.socket
    poller: select.poll = field(default_factory=select.poll)
    callers: dict[int, tuple[socket.socket, int]] = field(
        default_factory=dict
    )  # By descriptor: a socket and a process.
    processes: dict[int, tuple[int, int]] = field(default_factory=dict)  # By descriptor: a process and its caller.

    def serve(self) -> Request | None:
        """Return a request in a fork that is to run it, and None in the server itself when its input ends."""
        self.poller.register(self.listener, select.POLLIN)
        self.poller.register(0, select.POLLIN)
        while True:
            for descriptor, _ in self.poller.poll():
                if descriptor == 0:
                    return None
                if descriptor == self.listener.fileno():
                    caller, _ = self.listener.accept()
                    request = _receive(caller)
                    if (pid := os.fork()) == 0:
                        self._forget(caller)
                        return request
                    for stream in request.streams:
                        os.close(stream)
                    self._add(caller, pid)
                elif descriptor in self.processes:
                    self._end(descriptor)
                elif descriptor in self.callers:
                    self._pass_signal(descriptor)

    def _forget(self, caller: socket.socket) -> None:
        """Close what belongs to the server, in a fork."""
        for open_socket in (self.listener, caller, *(other for other, _ in self.callers.values())):
            open_socket.close()
        for process in self.processes:
            os.close(process)

    def _add(self, caller: socket.socket, pid: int) -> None:
        process = os.pidfd_open(pid)
        self.callers[caller.fileno()] = caller, pid
        self.processes[process] = pid, caller.fileno()
        self.poller.register(process, select.POLLIN)
        self.poller.register(caller, select.POLLIN)

    def _end(self, process: int) -> None:
        """Tell the caller how its program ended."""
        pid, descriptor = self.processes.pop(process)
        self.poller.unregister(process)
        os.close(process)
        _, status = os.waitpid(pid, 0)
        caller, _ = self.callers.pop(descriptor, (None, 0))
        if caller is not None:
            self.poller.unregister(caller)
            caller.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            caller.close()

    def _pass_signal(self, descriptor: int) -> None:
        """Pass a signal on to a program, and kill it if its caller was killed."""
        caller, pid = self.callers[descriptor]
        received = caller.recv(1)
        os.kill(pid, received[0] if received else signal.SIGKILL)
        if not received:
            self.poller.unregister(caller)
            caller.close()
            del self.callers[descriptor]


def _receive(caller: socket.socket) -> Request:
    size, streams, _, _ = socket.recv_fds(caller, 8, 3)
    remaining, data = int.from_bytes(size, "big"), b""
    while len(data) < remaining:
        data += caller.recv(remaining - len(data))
    count, *fields = map(os.fsdecode, data.split(b"\0"))
    arguments, (folder, umask, *variables) = fields[: int(count)], fields[int(count) :]
    environment = dict(variable.split("=", 1) for variable in variables)
    return Request(arguments, folder, environment, int(umask), streams)


def run(request: Request) -> None:
    """Run a program as Python does with these arguments. The caller ends as the program ends."""
    _take_streams(request.streams)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.folder)
    os.umask(request.umask)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    option, *arguments = request.arguments
    if [option, *arguments[:1]] == ["-W", "ignore"]:
        warnings.simplefilter("ignore")
        _, option, *arguments = arguments
    sys.argv[:] = [option, *arguments]
    match option:
        case "-c":
            sys.argv[:], sys.path[0] = ["-c", *arguments[1:]], ""
            _run_code(arguments[0], "<string>")
        case "-m":
            sys.argv[:], sys.path[0] = ["-m", *arguments[1:]], os.getcwd()
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        case _ if option.startswith("-"):
            raise SystemExit(f"{option}: a fork has no options but -c, -m and -W ignore. Use sys.executable.")
        case _:
            sys.path[0] = os.path.dirname(os.path.abspath(option))
            with open(option, encoding="utf-8") as file:
                code = file.read()
            _run_code(code, option)


def _take_streams(streams: list[int]) -> None:
    """Let Python's three streams be these descriptors. Modules may hold the objects, so these stay."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))


def _run_code(code: str, name: str) -> None:
    """Run the code of a program as the module `__main__`."""
    main = types.ModuleType("__main__")
    if name != "<string>":
        main.__file__ = name
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), main.__dict__)


def begin(address: str) -> Request | None:
    """Load the library and serve; return a request in each fork."""
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork")
    for module in LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        return Server(listener).serve()


if __name__ == "__main__":
    request = begin(sys.argv[1])
    if request is not None:
        run(request)
