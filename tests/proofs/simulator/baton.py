"""Runs threads one at a time, in an order and at times that a seed decides.

`Baton.run(call)` calls in a world of its own. Each thread that is started in it is a task, and only the task that has
the baton runs. A task gives the baton on where it waits: for a lock, an event, a queue, a future, another thread or
the clock. It also may where `turn` is called, which the stores of the simulator do before and after each request, and
where it releases a lock or looks at the clock: at one of about `GLANCES` of these, drawn by chance (`glance`).
Time passes only when every task waits; then it jumps to the next moment at which one goes on. So hours take no time,
a deadlock is found at once, and a run with the same seed is the same run.

Production code is not changed. For the time of a run, what it takes from the standard library is replaced by what works
with the baton: locks (and with them conditions, events, queues, futures and pools, which are made of locks), threads,
random numbers and ids. Clocks and stores are passed in by the simulator.

What is not controlled:
- Threads of Arrow. They never call a store here.
- Locks that modules made when they were imported. Nobody gives the baton on while having one.
- The order of Python's sets of strings, unless PYTHONHASHSEED is set; `scripts/soak` sets it.
- Reads of `time.monotonic` by pools that are closed; they only bound a wait that the baton ends.
"""

import _thread
import concurrent.futures.thread
import gc
import itertools
import logging
import queue
import random
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import persist.blob.threads
import persist.core.log.framing
import persist.engine.hold.leases

_real_lock = _thread.allocate_lock
_start, _join, _is_alive = threading.Thread.start, threading.Thread.join, threading.Thread.is_alive
_Random = random.Random
FOREVER = float("inf")
GLANCES = 40  # There are ten times as many of them as requests.


class Stopped(BaseException):
    """Ends a task when the run is over."""


class Deadlock(BaseException):
    """Every task waits for another one."""


class Task:
    """A thread, and what it waits for.

    Attributes:
        group: whose thread it is: that of the task which started it, unless somebody says otherwise.
        wakes_s: when it goes on at the latest; 0 if it can go on now.
        waits_for: the lock that may let it go on sooner.
    """

    def __init__(self, number: int, name: str, group: Any) -> None:
        self.number = number
        self.name = name
        self.group = group
        self.gate = _real_lock()
        self.gate.acquire()
        self.wakes_s = 0.0
        self.waits_for: Any = None
        self.is_done = False
        self.ended = Lock()
        self.ended.acquire()

    def __str__(self) -> str:
        return f"{self.name} of {self.group}"


class Baton:
    """See the module's docstring.

    Attributes:
        now_s: the time.
        turns: how often the baton was, or could have been, given on.
        current: the task that has it.
        frozen: groups that do not run before a time.
    """

    active: "Baton | None" = None

    def __init__(self, seed: Any) -> None:
        self.chance = _Random(seed)
        self.now_s = 0.0
        self.turns = 0
        self.frozen: dict[Any, float] = {}
        self._tasks: list[Task] = []
        self._numbers = itertools.count()
        self._glances_left = self.chance.randrange(2 * GLANCES)
        self._by_ident: dict[int, Task] = {}
        self.is_over = self._is_stuck = False
        self.current: Task | None = None

    def run(self, call: Callable[[], Any]) -> Any:
        """Return what call returns, and end all tasks that are left over then."""
        task = self.current = self._new_task("the world", None)
        self._by_ident[_thread.get_ident()] = task
        with _patched(self):
            try:
                return call()
            finally:
                self._end_all(task)

    # What tasks do

    def task(self) -> Task | None:
        """Return the task of this thread; None of a thread that is none of ours."""
        return self._by_ident.get(_thread.get_ident())

    def turn(self) -> None:
        """Perhaps let another task go on first."""
        task = self.task()
        if task is not None:
            self._give_on(task)

    def glance(self) -> None:
        """Perhaps let another task go on first, where that is rare."""
        self._glances_left -= 1
        if self._glances_left < 0 and not (self.is_over or self._is_stuck):
            self._glances_left = self.chance.randrange(2 * GLANCES)
            self.turn()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        task = self.task()
        if task is not None:
            task.wakes_s = self.now_s + max(0.0, seconds)
            self._give_on(task)

    def wait(self, lock: Any, timeout_s: float) -> None:
        """Let others go on until somebody releases lock, for timeout_s at most."""
        task = self.task()
        assert task is not None
        task.waits_for, task.wakes_s = lock, self.now_s + timeout_s
        lock.waiting += 1
        try:
            self._give_on(task)
        finally:
            lock.waiting -= 1

    def released(self, lock: Any) -> None:
        """Let go on who waits for lock."""
        for task in self._tasks:
            if task.waits_for is lock:
                task.waits_for, task.wakes_s = None, 0.0

    def freeze(self, group: Any, seconds: float) -> None:
        """Let no task of a group go on for a time, but the calling one until it gives the baton on."""
        self.frozen[group] = self.now_s + seconds

    def _give_on(self, task: Task) -> None:
        self.turns += 1
        if self.is_over:
            raise Stopped
        following = self._next()
        if following is not task:
            self._pass(following)
            task.gate.acquire()
        if self.is_over:
            raise Stopped
        if self._is_stuck:
            raise Deadlock(f"each of these waits for another one: {', '.join(map(str, self._tasks))}")

    def _next(self) -> Task:
        """Return a task that can go on, when the time for one has come."""
        while True:
            now_s = self.now_s
            if self.frozen:
                self.frozen = {group: until_s for group, until_s in self.frozen.items() if until_s > now_s}
            tasks, frozen = self._tasks, self.frozen
            ready = [task for task in tasks if task.wakes_s <= now_s and task.group not in frozen]
            if ready:
                chosen = ready[0] if len(ready) == 1 else ready[self.chance.randrange(len(ready))]
                chosen.waits_for, chosen.wakes_s = None, 0.0
                return chosen
            soonest_s = min(max(task.wakes_s, frozen.get(task.group, 0.0)) for task in tasks)
            if soonest_s == FOREVER:
                self._is_stuck = True
                return self._tasks[0]
            self.now_s = soonest_s

    def _pass(self, following: Task) -> None:
        self.current = following
        following.gate.release()

    # Threads

    def _new_task(self, name: str, group: Any) -> Task:
        task = Task(next(self._numbers), name, group)
        self._tasks.append(task)
        return task

    def start(self, thread: Any) -> None:
        """Make a thread a task, which runs when it gets the baton."""
        starter = self.task()
        if starter is None:
            _start(thread)
            return
        if self.is_over:
            raise Stopped
        task = self._new_task(thread.name, starter.group)
        run, thread._started = thread.run, _Flag()
        thread._task = weakref.ref(task)

        def in_turn() -> None:
            self._by_ident[_thread.get_ident()] = task
            task.gate.acquire()
            try:
                if not self.is_over:
                    run()
            except Stopped:
                pass
            except BaseException:
                if not self.is_over:
                    raise
            finally:
                self._end(task)

        thread.run = in_turn
        _start(thread)

    def _end(self, task: Task) -> None:
        task.is_done = True
        self._tasks.remove(task)
        self._by_ident.pop(_thread.get_ident(), None)
        task.ended.release()
        self._pass(self._next())

    def _end_all(self, task: Task) -> None:
        """Let each task that is left run to its end, which is where it gives the baton on."""
        logging.disable(logging.CRITICAL)
        try:
            self.is_over = True
            for _ in range(100_000):
                others = [each for each in self._tasks if each is not task]
                if not others:
                    return
                for each in self._tasks:
                    each.waits_for, each.wakes_s = None, FOREVER
                others[0].wakes_s = task.wakes_s = 0.0
                self.frozen.clear()
                self._pass(others[0])
                task.gate.acquire()
            raise RuntimeError(f"these do not end: {[str(each) for each in self._tasks]}")
        finally:
            logging.disable(logging.NOTSET)


class Lock:
    """A lock whose waiters give the baton on. Without a baton, it is any lock."""

    __slots__ = ("__weakref__", "_real", "waiting")

    def __init__(self) -> None:
        self._real = _real_lock()
        self.waiting = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._real.acquire(False):
            return True
        baton = Baton.active
        if not blocking or timeout == 0:
            return False
        if baton is None or baton.task() is None:
            return self._real.acquire(True, timeout)
        ends_s = FOREVER if timeout < 0 else baton.now_s + timeout
        while not self._real.acquire(False):
            if baton.now_s >= ends_s:
                return False
            baton.wait(self, ends_s - baton.now_s)
        return True

    def release(self) -> None:
        try:
            self._real.release()
        except RuntimeError:  # When all is over, tasks are ended while they wait for a lock that they had.
            if Baton.active is None or not Baton.active.is_over:
                raise
        baton = Baton.active
        if baton is not None:
            if self.waiting:
                baton.released(self)
            baton.glance()

    def locked(self) -> bool:
        return self._real.locked()

    def _at_fork_reinit(self) -> None:
        self._real = _real_lock()

    __enter__ = acquire

    def __exit__(self, *error: Any) -> None:
        self.release()


class _Flag:
    """In place of the event by which a thread says that it was started, which nobody gives the baton on for."""

    def __init__(self) -> None:
        self._gate = _real_lock()
        self._gate.acquire()
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._gate.release()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        with self._gate:
            return True


def _joined(thread: Any, timeout: float | None = None) -> None:
    task = thread._task() if hasattr(thread, "_task") else None
    if task is not None and Baton.active is not None and Baton.active.task() is not None:
        if not task.ended.acquire(True, -1 if timeout is None else timeout):
            return
        task.ended.release()
    elif timeout is not None:
        _join(thread, timeout)
        return
    _join(thread)


def _lives(thread: Any) -> bool:
    if not hasattr(thread, "_task"):
        return _is_alive(thread)
    task = thread._task()
    return task is not None and not task.is_done


@contextmanager
def _patched(baton: Baton) -> Iterator[None]:
    """Have what is made of the standard library's parts work with the baton."""
    assert Baton.active is None, "one run at a time"
    chance, state, ids = baton.chance, random.getstate(), _Random(baton.chance.random())

    class Seeded(_Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(chance.random() if seed is None else seed)

    def shared_hold(hold: Any, *args: Any, **named: Any) -> None:
        made(hold, *args, **named)
        hold.moving = Lock()  # Its class was told which lock to make when it was defined.

    made = persist.engine.hold.leases._SharedHold.__init__
    places: list[tuple[Any, str, Any]] = [
        (persist.engine.hold.leases._SharedHold, "__init__", shared_hold),
        (threading, "Lock", Lock),
        (threading, "_allocate_lock", Lock),
        (threading, "_CRLock", None),
        (threading, "_time", lambda: baton.now_s),
        (threading.Thread, "start", lambda thread: baton.start(thread)),
        (threading.Thread, "join", _joined),
        (threading.Thread, "is_alive", _lives),
        (concurrent.futures.thread, "_global_shutdown_lock", Lock()),  # Held while a pool takes in a call.
        (persist.core.log.framing, "_making_decoder", Lock()),
        (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
        (persist.blob.threads, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
        (random, "Random", Seeded),
        (uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4)),
    ]
    collected = gc.isenabled()
    gc.disable()  # Finalizers run where they are due, and not by the number of objects there are.
    random.seed(chance.random())
    Baton.active = baton
    try:
        with pytest.MonkeyPatch.context() as patch:
            for place, name, value in places:
                patch.setattr(place, name, value)
            yield
    finally:
        Baton.active = None
        random.setstate(state)
        if collected:
            gc.enable()
