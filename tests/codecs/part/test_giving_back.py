"""Threads of a pool give back what they have freed, and none asks an allocator that must not be asked."""

import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

from persist.codecs.part import lending


@pytest.mark.parametrize(("backend", "asked"), [("mimalloc", 2), ("jemalloc", 0), ("system", 0)])
def test_mimalloc_is_asked_once_for_each_step_of_allocations(
    monkeypatch: pytest.MonkeyPatch, backend: str, asked: int
) -> None:
    calls: list[str] = []
    allocated = iter([*range(0, 250, 50), *range(0, 250, 50)])
    pool = SimpleNamespace(
        backend_name=backend,
        release_unused=lambda: calls.append(threading.current_thread().name),
        total_bytes_allocated=lambda: next(allocated),
    )
    monkeypatch.setattr(pa, "default_memory_pool", lambda: pool)

    def work() -> None:
        for _ in range(5):
            lending.release_freed(100)

    # Threads count for themselves: what one has freed, another cannot return.
    one, other = (threading.Thread(target=work, name=name) for name in ("one", "other"))
    for thread in (one, other):
        thread.start()
        thread.join()
    assert calls == ["one"] * asked + ["other"] * asked
