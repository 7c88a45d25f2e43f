"""Programs in processes of their own that need not load the library: a server has loaded it, and forks.

    command = [*forked_python(), "-c", program, argument]

`forked_python` returns what stands for `sys.executable` in a command. It is a small program: it passes its arguments,
folder, environment and open streams to the server, and ends as the fork ends. Loading persist, pyarrow and pandas takes
a second of processor time, and a fork some milliseconds.

A fork is like a program that Python starts with `-c`, `-m` or a file. It runs the functions of `atexit` and gets
signals. These differ: options other than `-W ignore` are refused, variables such as PYTHONHASHSEED come too late, the
modules are loaded, and a killed program ends a moment after the process that stands for it. A test of any of these
uses `sys.executable`.
"""

import atexit
import functools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.paths import ROOT

STAND_IN = Path(__file__).with_name("fork_stand_in.py")


def forked_python() -> Sequence[str]:
    """Return the beginning of a command that runs a program in a fork of the server of this process."""
    if sys.platform != "linux":  # Other systems have no descriptor for a process.
        return [sys.executable]
    return [sys.executable, "-I", "-S", str(STAND_IN), _server()]


@functools.cache
def _server() -> str:
    """Start the server, and return the address of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="persist-forks-")
    address = f"{folder.name}/socket"
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.fork_server", address]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", "the server of forks did not start"

    def end() -> None:
        process.communicate()  # It ends with its standard input.
        folder.cleanup()

    atexit.register(end)
    return address
