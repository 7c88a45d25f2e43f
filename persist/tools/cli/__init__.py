"""The command line of `persist`.

The commands use the public API, and show stored text without interpreting it. A user's mistake prints one line and sets
the exit status, without a traceback. Modules that define commands import nothing that is slow to load: see `command`.
"""

from persist.tools.cli.main import entry

__all__ = ["entry"]  # The entry point of the script `persist`.
