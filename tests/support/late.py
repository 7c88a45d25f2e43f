"""Makes threads, tasks of pools and checkpoints begin late, as on a busy machine: `pytest -p tests.support.late PATHS`.

A test that fails only with this plugin assumes something about time. A share of threads and tasks waits up to `LATE_S`
before it begins, and each checkpoint waits so long. `LATE_SEED` in the environment chooses other waits.
"""

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from persist.engine.write.checkpointing import Checkpointing

LATE_S, SHARE = 0.4, 0.1

_chance = random.Random(os.environ.get("LATE_SEED", "1"))
_sleep = time.sleep  # Tests may replace it.
_run, _submit, _make = threading.Thread.run, ThreadPoolExecutor.submit, Checkpointing._make_checkpoint


def _wait(share: float) -> None:
    if _chance.random() < share:
        _sleep(_chance.random() * LATE_S)


def _run_late(thread: threading.Thread) -> None:
    _wait(SHARE)
    _run(thread)


def _submit_late(
    pool: ThreadPoolExecutor, call: Callable[..., Any], /, *arguments: Any, **options: Any
) -> "Future[Any]":
    def late() -> Any:
        _wait(SHARE)
        return call(*arguments, **options)

    return _submit(pool, late)


def _make_late(checkpointing: Checkpointing) -> None:
    _wait(1.0)
    _make(checkpointing)


def pytest_configure(config: pytest.Config) -> None:
    """Replace what begins threads and tasks, until the end of the process."""
    replaced: list[tuple[Any, str, Any]] = [
        (threading.Thread, "run", _run_late),
        (ThreadPoolExecutor, "submit", _submit_late),
        (Checkpointing, "_make", _make_late),
    ]
    for owner, name, late in replaced:
        setattr(owner, name, late)
