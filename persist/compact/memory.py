"""Giving memory back to the operating system after large work.

Allocators keep what was freed, for the next time: after a compaction that is often ten times what is still in use, and
the next compaction may be hours away. Reads and writes do not give back: they follow each other, and to get the same
pages again costs them more than it spares others.
"""

import ctypes
import sys

import pyarrow as pa

LARGE_BYTES = 32 << 20  # Of parts that were read; less work leaves little behind.


def give_back() -> None:
    """Let Arrow's allocator and that of the C library return what they keep and nobody uses.

    Nothing that is in use is touched, whoever in the process uses it. Cost: milliseconds.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        # NumPy's arrays and encoded parts are glibc's. Other C libraries have no such function.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
