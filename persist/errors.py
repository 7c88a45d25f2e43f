"""Every error of the library, grouped by what a handler does about it.

PersistError
├── InvalidUsage (also ValueError)  the caller's mistake; fix the call
├── Conflict                        someone else was first; read again, then retry
├── Unavailable                     the store did nothing; retry with back-off
├── Indeterminate                   the write may have landed; read back before trying again
└── Corruption                      bytes contradict themselves; stop, naming the blob
"""

from persist.core.errors import *  # noqa: F403
from persist.core.errors import __all__ as __all__
