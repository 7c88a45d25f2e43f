"""What records contribute to the sums of accumulable aggregates; see `persist.dataflow.operators.aggregates`."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs import whole_numbers
from persist.dataflow.operators.aggregates import (
    COUNT,
    FIRST_LIMB,
    SLOTS,
    Wanted,
    float_slots,
    integer_slots,
    whole_slots,
)
from persist.dataflow.updates.batch import largest, mixed, products
from persist.dataflow.updates.times import Ints
from persist.dataflow.updates.words import NULL, Domain, is_narrow

MANY_ROWS = 4096  # From so many updates on, those of one key and time are summed before they are taken apart.
FEW_GROUPS = 4  # If there are at least so many of them in the mean.


def contributions(kind: str, words: Ints, of: pa.DataType, domain: Domain) -> tuple[Ints, Ints, Ints]:
    """Return what values that are not NULL contribute: the row, the slot and the amount of each contribution."""
    every = np.arange(len(words))
    ones = (every, np.full(len(words), COUNT), np.ones(len(words), np.int64))
    if kind == "count":
        return ones
    if pat.is_floating(of):
        found = float_slots(domain.decode(words, of).cast(pa.float64()).to_numpy(zero_copy_only=False))
    elif (pat.is_decimal(of) and not is_narrow(of)) or pat.is_uint64(of):
        found = whole_slots(whole_numbers(pa.chunked_array([domain.decode(words, of)])).astype(object))
    else:
        found = integer_slots(words)
    return tuple(np.concatenate(pair) for pair in zip(ones, found, strict=True))  # type: ignore[return-value]


def exploded(updates: Ints, keys: int, aggregates: Sequence[Wanted], domain: Domain) -> Ints:
    """Return what updates contribute to slots: key words, slot, times, diffs.

    Args:
        updates: the key's words, one word for each aggregate that is not counted, times and diffs.
        aggregates: in the order of their words.
    """
    summed = [each for each in enumerate(aggregates) if not each[1].is_counted]
    if not summed:
        made = np.empty((len(updates) + 1, updates.shape[1]), np.int64)
        made[:keys], made[keys], made[keys + 1 :] = updates[:keys], 0, updates[keys:]
        return made
    if updates.shape[1] >= MANY_ROWS and not any(_has_many_slots(each) for _, each in summed):
        found = _by_group(updates, keys, summed)
        if found is not None:
            return found
    rows = [np.arange(updates.shape[1])]
    slots = [np.zeros(updates.shape[1], np.int64)]
    amounts = [np.ones(updates.shape[1], np.int64)]
    for at, (number, wanted) in enumerate(summed):
        words = updates[keys + at]
        places = np.flatnonzero(words != NULL)
        found, into, amount = contributions(wanted.kind, words[places], wanted.of, domain)
        rows.append(places[found])
        slots.append(into + (1 + number * SLOTS))
        amounts.append(amount)
    every = np.concatenate(rows)
    kept = [*range(keys), 0, *range(keys + len(summed), len(updates))]
    made = updates.take(kept, axis=0).take(every, axis=1)
    made[keys] = np.concatenate(slots)
    made[-1] = products(made[-1], np.concatenate(amounts))
    return made


def _has_many_slots(wanted: Wanted) -> bool:
    of = wanted.of
    return wanted.kind != "count" and (
        pat.is_floating(of) or (pat.is_decimal(of) and not is_narrow(of)) or pat.is_uint64(of)
    )


def _by_group(updates: Ints, keys: int, summed: Sequence[tuple[int, Wanted]]) -> Ints | None:
    """Return what `exploded` does, one update for each slot of a key and time; None if that does not pay.

    The slots and the amounts in them are those of `integer_slots`, so that single updates take away what was summed.
    """
    times = updates[keys + len(summed) : -1]
    marks = mixed(np.concatenate((updates[:keys], times))) if keys or len(times) else None
    if marks is None:
        return None
    order = marks.argsort(kind="stable")
    marks = marks.take(order)
    starts = np.ones(len(order), np.bool_)
    starts[1:] = marks[1:] != marks[:-1]
    firsts = starts.nonzero()[0]
    if len(firsts) * FEW_GROUPS > len(order):
        return None
    sorted_ = updates.take(order, axis=1)
    names = np.concatenate((sorted_[:keys], sorted_[keys + len(summed) : -1]))
    if (names != names[:, firsts].repeat(np.diff(np.append(firsts, len(order))), axis=1)).any():
        return None  # Two groups have one hash.
    diffs = sorted_[-1]
    most = largest(diffs)
    if most >= 2**30 or (len(diffs) * most >= 2**30 and int(np.abs(diffs).sum()) >= 2**30):
        return None  # Sums of digits might not fit.
    columns = [(0, np.add.reduceat(diffs, firsts))]
    for at, (number, wanted) in enumerate(summed):
        words = sorted_[keys + at]
        counts = np.where(words == NULL, 0, diffs)
        base = 1 + number * SLOTS
        columns.append((base + COUNT, np.add.reduceat(counts, firsts)))
        if wanted.kind != "count":
            is_small = (words >= -(2**31)) & (words < 2**31)
            low = np.where(is_small, words, words & np.int64(0xFFFFFFFF)) * counts
            high = np.where(is_small, 0, words >> np.int64(32)) * counts
            columns.append((base + FIRST_LIMB, np.add.reduceat(low, firsts)))
            columns.append((base + FIRST_LIMB + 1, np.add.reduceat(high, firsts)))
    made = np.empty((keys + 1 + len(times) + 1, len(firsts) * len(columns)), np.int64)
    for at, (slot, sums) in enumerate(columns):
        part = made[:, at * len(firsts) : (at + 1) * len(firsts)]
        part[:keys], part[keys], part[keys + 1 : -1], part[-1] = names[:keys, firsts], slot, names[keys:, firsts], sums
    return made[:, made[-1] != 0]
