"""Indexes that are used however little they save: collections of tests are small."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import persist

QUIET = persist.Settings(background=False)


@contextmanager
def indexes_that_always_pay() -> Iterator[None]:
    """Let look-ups and refreshes read by an index whatever that reads."""
    with pytest.MonkeyPatch.context() as constants:
        constants.setattr("persist.compute.index.lookups.PAYS", 0)
        constants.setattr("persist.compute.dataflow.ports.past.PAYS", 0)
        yield
