"""Children of `tests.crash.child`, from the side of whoever has them killed."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.crash.child import Job, Line, Step
from tests.crash.story import Op

ROOT = Path(__file__).parent.parent.parent
ANSWER_S = 60.0


@dataclass
class Life:
    """What a child said in its life.

    Attributes:
        asked: the calls it was about to make, in order.
        acknowledged: how many of them have certainly happened, as calls happen in order.
        steps: the changes to the store that it reached.
        ended: whether it did all of its job.
    """

    asked: list[Op] = field(default_factory=list)
    acknowledged: int = 0
    steps: list[Step] = field(default_factory=list)
    ended: bool = False

    def hear(self, text: bytes) -> None:
        """Take in one line."""
        line = msgspec.json.decode(text, type=Line)
        if line.failed is not None:
            raise AssertionError(f"a child failed by itself, in {self.asked[self.acknowledged :]}:\n{line.failed}")
        if line.asked is not None:
            self.asked.append(line.asked)
        if line.done is not None:
            numbers = [op.number for op in self.asked]
            self.acknowledged = max(self.acknowledged, numbers.index(line.done) + 1)
        if line.step is not None:
            self.steps.append(line.step)
        self.ended |= line.ended


class Nursery:
    """A warm process that forks children."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door

    def live(self, job: Job, *, killed_after_s: float | None = None, calls: int | None = None) -> Life:
        """Have a child do a job and return what it said before it died; it is gone when this returns.

        Args:
            killed_after_s: when to kill it; None lets it live until it ends or kills itself.
            calls: count that time from when so many calls were acknowledged and another one is asked for, not from
                its birth.
        """
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._door, [msgspec.json.encode(job)], [writing])
            os.close(writing)
            pid = int(self._door.recv(32))
            life = Life()
            kill_at_s = None if killed_after_s is None or calls is not None else time.monotonic() + killed_after_s
            text = b""
            while True:
                left_s = ANSWER_S if kill_at_s is None else max(0.0, kill_at_s - time.monotonic())
                if not select.select([reading], [], [], left_s)[0]:
                    os.kill(pid, signal.SIGKILL)  # Not collected yet, so the number is still its own.
                    assert kill_at_s is not None, f"a child said nothing for {ANSWER_S} s, after {life}"
                    kill_at_s = None
                    continue
                chunk = os.read(reading, 1 << 16)
                if not chunk:
                    break
                *lines, text = (text + chunk).split(b"\n")
                for line in lines:
                    life.hear(line)
                is_due = calls is not None and life.acknowledged >= calls and len(life.asked) > calls
                if kill_at_s is None and killed_after_s is not None and is_due:
                    kill_at_s, killed_after_s = time.monotonic() + killed_after_s, None
        finally:
            os.close(reading)
        self._door.send(b"!")
        status = int(self._door.recv(32))
        assert status in (0, -signal.SIGKILL), f"a child ended with status {status}, after {life}"
        return life


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Run the warm process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    command = [sys.executable, "-m", "tests.crash.child"]
    with ours, subprocess.Popen(command, cwd=ROOT, env=environment, stdin=theirs.fileno()) as process:
        theirs.close()
        try:
            yield Nursery(ours)
        finally:
            ours.close()
            process.wait(timeout=30)
