"""The command line of `persist`.

Promises: it stands on what every user has, and shows what is stored without interpreting it; a user's mistake gives one
line and an exit status, never a traceback. Modules that name commands load nothing that takes long: see `command`.
"""

from persist.tools.cli.main import entry

__all__ = ["entry"]  # What the script `persist` calls.
