"""The command line: `persist COMMAND LOCATION …`, or `python -m persist`. See `persist --help`.

This module loads nothing by itself, so that Ctrl-C is heeded from the first moment on, without a traceback.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence

M_ARENA_MAX = -8  # Of malloc.h.


def entry() -> None:
    """Run this process's command, and exit with its status."""
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # Below nohup it is ignored.
    if is_heeded:
        # While modules are loaded, nothing is begun that would have to be ended: the signal may end the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Listing ten thousand collections makes millions of objects and hardly a circle: look for circles less often.
    gc.set_threshold(100_000, 20, 20)
    _open_streams()
    _choose_allocator()
    from persist.tools.cli.command import INTERRUPTED, TERMINATED, Terminated, close_output, terminate
    from persist.tools.cli.dispatch import run

    status, ends = 0, False
    try:
        if is_heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if ends := signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, terminate)
        status = run()
        sys.stdout.flush()
    except BrokenPipeError:
        close_output()
    except KeyboardInterrupt as signalled:  # It came between the command and here, or just before.
        status = TERMINATED if isinstance(signalled, Terminated) else INTERRUPTED
    if ends:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` excludes the program's name. Return the exit status."""
    from persist.tools.cli.dispatch import run

    return run(arguments)


def _open_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise, the next file that is opened would get the descriptor, and printed text would be written into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 It stays open as long as the process lives.


def _choose_allocator() -> None:
    """Limit the memory that allocators keep, unless a variable is set.

    Only the command line does this, because it owns its process. Arrow is set to use jemalloc, by a variable that it
    reads when it is loaded. Builds for Linux with glibc have jemalloc, others may not. The C library is limited to two
    heaps. Otherwise each thread gets a heap, up to eight for each core, and over months each heap grows to the largest
    piece of work of its threads.
    """
    if sys.platform == "linux" and "CS_GNU_LIBC_VERSION" in os.confstr_names and os.confstr("CS_GNU_LIBC_VERSION"):
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
        if "MALLOC_ARENA_MAX" not in os.environ:
            import ctypes

            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)
