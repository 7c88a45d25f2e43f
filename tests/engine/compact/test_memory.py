"""What a compaction leaves behind in allocators goes back to the operating system."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

import persist
import persist.engine.compact.compactor
from persist.blob.protocol import MemoryBlob
from persist.core.settings import Tuning
from persist.engine.compact import release_unused_memory

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"), reason="it is about glibc's allocator"
)
LEFT = 40 << 20


def resident() -> int:
    """Return how many bytes of this process are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def leave_holes() -> list[np.ndarray]:
    """Allocate and free much more than `LEFT` in small pieces; return one that keeps the heap from shrinking."""
    pieces = [np.ones(4 << 10) for _ in range(2 * LEFT // (32 << 10))]
    return pieces[-1:]


def test_memory_that_nobody_uses_is_given_back() -> None:
    kept = leave_holes()
    before = resident()
    release_unused_memory()
    assert before - resident() > LEFT
    assert kept[0].all()


@pytest.mark.parametrize("is_large", [True, False])
def test_a_large_compaction_gives_back_what_it_does_not_need(monkeypatch: pytest.MonkeyPatch, is_large: bool) -> None:
    if is_large:
        monkeypatch.setattr(persist.engine.compact.compactor, "LARGE_BYTES", 1)
    policy = Tuning(keyframe_rows_min=20, inline_bytes=4000)
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False, tuning=policy)) as client:
        rows = client.create_or_load("c", key={"k": "int64"})
        for time in range(12):
            rows.write([(key, None) for key in range(500)], time=time, seal=time + 1).result()
        kept = leave_holes()
        before = resident()
        assert rows.compact().bytes_read > 0
        assert (before - resident() > LEFT) == is_large
    assert kept[0].all()


def test_a_collection_of_garbage_gives_back_what_many_small_pieces_of_work_have_left() -> None:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        client.create_or_load("c", key={"k": "int64"})
        kept = leave_holes()
        before = resident()
        client.gc()
        assert before - resident() > LEFT
    assert kept[0].all()
