"""A process that makes calls until it is killed, and the warm process that it is forked from.

`python -m tests.crash.child` is the warm one: it imports everything once, has no threads, and forks a child for each
job it is sent over the socket that is its standard input. A job comes with the writing end of a pipe. The child writes
a line before it makes a call and another when the call is acknowledged; what is in a pipe outlives its writer, so
none is lost by a kill. A child that dies of itself leaves its traceback as the last line.
"""

import faulthandler
import os
import random
import signal
import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Literal

import msgspec

import persist
from persist.blob import Blob, BlobEntry, open_blob
from persist.codecs import CollectionSchema, encode_parts, to_updates
from tests.crash.story import (
    KEY,
    KEYED,
    UNLOGGED,
    VALUE,
    Held,
    Model,
    Op,
    Teller,
    make_everything_small,
    random_ops,
    small_policy,
)
from tests.tuned import tuned

IN_FLIGHT_MAX = 6
MESSAGE_BYTES_MAX = 1 << 20


class Step(msgspec.Struct, frozen=True, order=True):
    """The n-th call (from 0) to the store of one operation on one kind of key, and which side of it."""

    operation: Literal["set", "create", "delete"]
    kind: str
    n: int
    side: Literal["before", "after"] = "before"


class Job(msgspec.Struct, frozen=True):
    """What a child has to do.

    Attributes:
        location, options: where.
        seed: of the random calls, if there is no script.
        settings: those of its client, by name.
        held, first_number: what random calls start from.
        script: calls to make one after the other, each acknowledged before the next.
        kill_at: where to die; None lives until the end of the script.
    """

    location: str
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    seed: int = 0
    held: dict[str, Held] = {}
    first_number: int = 0
    script: tuple[Op, ...] = ()
    kill_at: Step | None = None


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a child says: a call it is about to make, one that was acknowledged, a step it took, or why it failed."""

    asked: Op | None = None
    done: int | None = None
    step: Step | None = None
    failed: str | None = None
    ended: bool = False


class MortalBlob:
    """Passes calls on to another store, tells of each that changes something, and dies where it is told to."""

    def __init__(self, inner: Blob, kill_at: Step | None, tell: Callable[[Line], None]) -> None:
        self._inner = inner
        self._kill_at = kill_at
        self._tell = tell
        self._counts: dict[tuple[str, str], int] = {}

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        return self._inner.get(key, range)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        return self._inner.list(prefix, start_after)

    def set(self, key: str, value: bytes) -> None:
        self._around("set", key, lambda: self._inner.set(key, value))

    def create(self, key: str, value: bytes) -> bool:
        return bool(self._around("create", key, lambda: self._inner.create(key, value)))

    def delete(self, key: str) -> None:
        self._around("delete", key, lambda: self._inner.delete(key))

    def close(self) -> None:
        self._inner.close()

    def _around(self, operation: Literal["set", "create", "delete"], key: str, call: Callable[[], Any]) -> Any:
        kind = key.partition("/")[0]
        n = self._counts.get((operation, kind), 0)
        self._counts[operation, kind] = n + 1
        self._pass(Step(operation, kind, n, "before"))
        result = call()
        self._pass(Step(operation, kind, n, "after"))
        return result

    def _pass(self, step: Step) -> None:
        self._tell(Line(step=step))
        if step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def work(job: Job, blob: Blob, tell: Callable[[Line], None]) -> None:
    """Do a job, telling of every call before it is made and when it is acknowledged."""
    settings = tuned(small_policy(), **job.settings)
    if job.script:
        with persist.open(MortalBlob(blob, job.kill_at, tell), settings=settings) as client:
            _make_calls(Teller(client), iter(job.script), tell, lambda: 0)
    else:
        chance = random.Random(job.seed)
        ops = random_ops(job.seed, Model(dict(job.held)), job.first_number)
        with persist.open(blob, settings=settings) as client:
            _make_calls(Teller(client), ops, tell, lambda: chance.randrange(IN_FLIGHT_MAX))
    tell(Line(ended=True))


def _make_calls(teller: Teller, ops: Iterator[Op], tell: Callable[[Line], None], ahead: Callable[[], int]) -> None:
    """Make calls, with at most `ahead` (drawn for each) not acknowledged yet."""
    in_flight: deque[tuple[int, Future[int]]] = deque()

    def settle(most: int) -> None:
        while len(in_flight) > most:
            number, future = in_flight.popleft()
            future.result()
            tell(Line(done=number))

    for op in ops:
        # What looks things up is not done in the order of calls to other collections.
        is_keyed = bool({*op.names} & {*KEYED})
        if op.kind in ("create", *UNLOGGED) or is_keyed:
            settle(0)  # These look at the newest state, so what was asked for before must be in it.
        tell(Line(asked=op))
        future = teller.ask(op)
        if future is None:
            settle(0)
            tell(Line(done=op.number))
        else:
            in_flight.append((op.number, future))
            settle(0 if is_keyed else ahead())
    settle(0)


def main() -> None:
    """Fork a child for each job; answer with its pid, then wait for the word to collect what is left of it."""
    faulthandler.enable()
    make_everything_small()
    _warm_up()
    door = socket.socket(fileno=os.dup(0))
    blobs: dict[str, Blob] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(door, MESSAGE_BYTES_MAX, 1)
        if not message:
            return
        job = msgspec.json.decode(message, type=Job)
        # Setting up boto3 takes longer than a child lives. Nothing is asked of the store here, so it has no sockets.
        if job.location not in blobs:
            blobs[job.location] = open_blob(job.location, job.options)
        pid = os.fork()
        if pid == 0:
            door.close()
            _be_a_child(job, blobs[job.location], descriptors[0])
        os.close(descriptors[0])
        door.send(str(pid).encode())
        assert door.recv(1)
        _, status = os.waitpid(pid, 0)
        door.send(str(os.waitstatus_to_exitcode(status)).encode())


def _warm_up() -> None:
    """Encode something, because the first time takes a quarter of a second."""
    schema = CollectionSchema.of(KEY, VALUE)
    encode_parts(to_updates([((1, "one"), 0, 1)], schema), schema)


def _be_a_child(job: Job, blob: Blob, pipe: int) -> None:
    def tell(line: Line) -> None:
        os.write(pipe, msgspec.json.encode(line) + b"\n")  # One write, so that a line is whole or absent.

    try:
        work(job, blob, tell)
    except BaseException:
        tell(Line(failed=traceback.format_exc()[-3000:]))
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
