"""Giving back what threads that decode have freed, or others in their place.

Mimalloc, which is Arrow's default, keeps what was freed for the thread that had allocated it, and only that thread can
return it. What one slice was decoded to is freed where the slice is merged. The threads that decoded it then wait for
their next part, or allocate in other sizes: together they held 100 to 150 MiB that nobody used, beyond any budget.
"""

import threading

import pyarrow as pa

STEP_BYTES = 16 << 20  # With less, reading takes longer, because the same pages are asked for again.


class _Decoded(threading.local):
    bytes = 0


_decoded = _Decoded()


def give_back_freed(decoded_bytes: int) -> None:
    """Let Arrow's allocator return what this very thread has freed, once it has decoded `STEP_BYTES` since it last did.

    Nothing that is in use is touched. Only mimalloc is asked: jemalloc returns what was freed after a while, and glibc
    would walk through the memory of all threads.
    """
    _decoded.bytes += decoded_bytes
    if _decoded.bytes >= STEP_BYTES:
        _decoded.bytes = 0
        pool = pa.default_memory_pool()
        if pool.backend_name == "mimalloc":
            pool.release_unused()
