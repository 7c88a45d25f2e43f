"""The records of groups before and after each of the times at which they change."""

import numpy as np

from persist.compute.dataflow.updates.batch import find_run_starts
from persist.compute.dataflow.updates.times import Flags, Ints


def find_rows_of_keys(first: int, end: int, numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the rows of consecutive keys, with their keys numbered from 0."""
    if bool((numbers[1:] >= numbers[:-1]).all()):
        start, stop = numbers.searchsorted((first, end)).tolist()
        return numbers[start:stop] - first, rows[:, start:stop]
    places = ((numbers >= first) & (numbers < end)).nonzero()[0]
    return numbers.take(places) - first, rows.take(places, axis=1)


def find_rows_of_other_keys(flags: Flags, numbers: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the rows of the keys that are not flagged, with the numbers of their keys among these."""
    keep = ~flags.take(numbers)
    return ((~flags).cumsum() - 1).take(numbers[keep]), rows[:, keep]


def number_moments(numbers: Ints, times: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the distinct times of keys, sorted by key and time; each key's first place in them, and how many it has;
    and the rank of each row's time in its key."""
    order = np.lexsort((times, numbers))
    owners, moments = numbers[order], times[order]
    # A moment begins where the key or the time differs from the row before.
    news = np.ones(len(order), np.bool_)
    news[1:] = (owners[1:] != owners[:-1]) | (moments[1:] != moments[:-1])
    owners, moments = owners[news], moments[news]
    firsts = find_run_starts(owners)
    # The number of each row's moment, less the first one of its key.
    ranks = np.empty(len(order), np.int64)
    ranks[order] = news.cumsum() - 1
    return moments, firsts, np.diff(np.append(firsts, len(owners))), ranks - firsts.take(numbers)


def split_versions(changes: Ints, values: int, sizes: Ints, firsts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the records of each version of each key, sorted by version.

    Args:
        changes: a batch of [key number, values …, rank, diff].
        sizes: how many moments each key has; it has one version more.
    """
    words = changes[1:-2]
    # The changes of one record are a unit: they follow each other, by their ranks.
    starts = np.ones(changes.shape[1], np.bool_)
    starts[1:] = (words[:, 1:] != words[:, :-1]).any(axis=0)
    units = starts.nonzero()[0]
    # A unit has a cell for each version of its key: the one before all moments, and one from each moment on.
    owners = words[0].take(units)
    widths = sizes.take(owners) + 1
    ends = widths.cumsum()
    begins = ends - widths
    cells = np.zeros(int(ends[-1]), np.int64)
    unit_of = starts.cumsum() - 1
    # Summed up within a unit, the diffs are the multiplicities of its record in each version.
    cells[begins.take(unit_of) + changes[-2] + 1] = changes[-1]
    running = cells.cumsum()
    running -= (running.take(begins) - cells.take(begins)).repeat(widths)
    # A record is in the versions where its multiplicity is not 0. Versions are numbered through all keys.
    present = running.nonzero()[0]
    unit = np.arange(len(units)).repeat(widths).take(present)
    groups = present - begins.take(unit) + (firsts.take(owners) + owners).take(unit)
    order = groups.argsort(kind="stable")
    rows = units.take(unit.take(order))
    return groups.take(order), words[1:].take(rows, axis=1), running.take(present.take(order))
