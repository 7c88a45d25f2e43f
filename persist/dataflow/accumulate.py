"""What records contribute to the sums of accumulable aggregates; see `persist.dataflow.aggregates`."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.order.limbs import whole_numbers
from persist.dataflow.aggregates import COUNT, SLOTS, Wanted, float_slots, integer_slots, whole_slots
from persist.dataflow.batch import products
from persist.dataflow.times import Ints
from persist.dataflow.words import NULL, Domain, is_narrow


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
