"""Our errors as Spark's user sees them.

Spark formats an exception of a Python worker, with its traceback, into one of its own; the class is lost, and our
message ends up below our frames and Spark's. For an error that is meant for the user the frames say nothing, so the
worker is asked to leave them out: what is left is the name of the error and its message. The worker process ends right
after it has reported an error, so the request concerns nothing else.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from persist.errors import PersistError


@contextmanager
def surfaced_errors() -> Iterator[None]:
    """Let a PersistError reach Spark's user as its class name and message, without frames."""
    try:
        yield
    except PersistError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        # The module of a class is shown with its name, and users know it as persist.<name>.
        type(error).__module__ = "persist"
        raise
