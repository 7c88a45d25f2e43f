"""A bounded crew of daemon threads that take a job at once or not at all.

Unlike a thread pool's, they never make a process wait at its exit, and no job queues behind one that hangs.
"""

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], Callable[[], None]]


class Hands:
    """Runs jobs in at most threads_max threads, each made when it is needed first.

    A job does not raise, and returns what reports its result, which is called when the thread counts as idle again:
    so a caller who has the report does not find the thread that gave it still busy.

    A crew dropped without `close` ends its threads as soon as they are idle.
    """

    def __init__(self, threads_max: int, name: str) -> None:
        self._name = name
        self._crew = _Crew(threads_max)
        weakref.finalize(self, self._crew.stop)

    def try_run(self, job: Job) -> bool:
        """Have a thread run job now, and return True; or False if all are busy or the crew is closed."""
        crew = self._crew
        with crew.lock:
            if crew.is_stopped:
                return False
            if crew.idle:
                crew.idle -= 1
            elif len(crew.threads) < crew.threads_max:
                thread = threading.Thread(target=_work, args=(crew,), name=self._name, daemon=True)
                crew.threads.append(thread)
                thread.start()
            else:
                return False
            crew.jobs.put(job)
            return True

    def close(self, timeout_s: float) -> None:
        """End the threads; wait this long in all for those that are busy, which end by themselves after that."""
        self._crew.stop()
        ends_s = time.monotonic() + timeout_s
        for thread in self._crew.threads:
            thread.join(max(0.0, ends_s - time.monotonic()))


class _Crew:
    """What the threads share; it does not refer to `Hands`, so that those can be dropped."""

    def __init__(self, threads_max: int) -> None:
        self.threads_max = threads_max
        self.lock = threading.Lock()
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.idle = 0  # Threads that wait for a job and that no job in the queue is meant for.
        self.is_stopped = False

    def stop(self) -> None:
        with self.lock:
            if not self.is_stopped:
                self.is_stopped = True
                for _ in self.threads:
                    self.jobs.put(None)


def _work(crew: _Crew) -> None:
    while (job := crew.jobs.get()) is not None:
        report = job()
        with crew.lock:
            crew.idle += 1
        report()
        del job, report  # They may hold a value of many bytes.
