"""The aggregates of `agg`: their types, and which of them are sums of numbers that records contribute.

count, sum and mean are *accumulable*: a group's state is a few sums, whatever its size, to which each record adds whole
numbers. A record adds to slots, which are numbered sums of its group. A slot is stored as the record (key, slot), and
its sum as the multiplicity. So the ordinary arrangement keeps the sums, and a retraction leaves no residue.

    slot 0               the number of records: 1 for each
    slot (a, nulls)      1 for each value of aggregate a that is NULL; NULLs are rare
    slot (a, limb i)     the digits of the value at 2**(32 * i)

Integers have two limbs. A float is a whole number of 2**-1074, with digits in at most three limbs. The sum of the limbs
is the exact sum of the floats, and is rounded once when it is read (sparse Kulisch accumulators). NaN and the
infinities are counted in slots of their own. Neumaier's compensated sum was rejected: after a retraction it may differ
from the sum of the other values.

`split_values_by_kind` computes the digits of values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from persist.codecs.errors import DiffOverflow, SchemaMismatch
from persist.codecs.order.sums import to_whole_numbers
from persist.compute.dataflow.operators.moments import split_products
from persist.compute.dataflow.updates.batch import NONE, multiply_diffs
from persist.compute.dataflow.updates.times import Ints
from persist.compute.dataflow.updates.words import FIRST_WIDE, NULL, Domain

VARIANCES = ("var_pop", "var_samp", "stddev_pop", "stddev_samp", "sem")  # Of floats.
ACCUMULABLE = ("count", "sum", "mean", "wide_sum", "total", *VARIANCES)
NULLS, NAN, INFINITE, MINUS_INFINITE, FIRST_LIMB = range(5)
SQUARES = 96  # From here on, slots are for squares of floats.
SLOTS = 256  # Slots of one aggregate; the first of aggregate a is 1 + a * SLOTS.
_BITS = np.int64(32)
_MASK = np.int64(0xFFFFFFFF)
_LOWEST = 1074  # The least positive float is 2**-1074.
_UNIT = 1 << _LOWEST


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """One requested aggregate of a reduction.

    Attributes:
        of, result: the types of the aggregated values and of the result.
        constant: the value that all records have, if it is a constant: their number then determines the aggregate.
    """

    name: str
    kind: str
    of: pa.DataType
    result: pa.DataType
    constant: int | None = None

    @property
    def is_counted(self) -> bool:
        """Whether the number of records determines the aggregate."""
        return self.constant is not None and self.kind in ("count", "sum")


def find_result_type(kind: str, of: pa.DataType, name: str) -> pa.DataType:
    """Return the type of an aggregate of values of a type."""
    if kind == "count":
        return pa.int64()
    if kind in ("wide_sum", "total") and pat.is_integer(of):
        return pa.decimal128(38, 0)
    if kind == "mean" and pat.is_decimal(of):
        return pa.float64()
    if kind in VARIANCES and pat.is_float64(of):
        return of
    if kind in ("sum", "mean"):
        if pat.is_floating(of) or (kind == "mean" and pat.is_integer(of)):
            return pa.float64()
        if kind == "sum" and pat.is_integer(of) and not pat.is_uint64(of):
            return pa.int64()
        if kind == "sum" and pat.is_duration(of):
            return of
        if kind == "sum" and pat.is_decimal128(of):
            return pa.decimal128(38, of.scale)
        raise SchemaMismatch(f"agg: {name} is the {kind} of values of type {of}, which are not numbers; cast them")
    return of


def split_floats(values: npt.NDArray[np.float64]) -> tuple[Ints, Ints, Ints]:
    """Split floats into exact 32-bit digits: the row, slot (digit position) and amount of each."""
    rows, slots, amounts = [], [], []
    for slot, where in ((NAN, np.isnan(values)), (INFINITE, values == np.inf), (MINUS_INFINITE, values == -np.inf)):
        if where.any():
            contributing = where.nonzero()[0]
            rows.append(contributing)
            slots.append(np.full(len(contributing), slot))
            amounts.append(np.ones(len(contributing), np.int64))
    finite = np.where(np.isfinite(values), values, 0.0)
    mantissas, exponents = np.frexp(finite)
    whole = np.ldexp(mantissas, 53).astype(np.int64)  # finite = whole * 2**(exponents - 53)
    places = exponents.astype(np.int64) - 53 + _LOWEST
    # Subnormal numbers begin below the lowest place, with zeros there.
    below = np.maximum(-places, 0)
    whole, places = whole >> below, places + below
    limb, shift = places >> 5, places & 31
    low = (whole & _MASK) << shift  # Below 2**63.
    high = (whole >> _BITS) << shift  # Signed, below 2**53.
    carry = low >> _BITS
    for at, amount in ((limb, low & _MASK), (limb + 1, (high & _MASK) + carry), (limb + 2, high >> _BITS)):
        contributing = amount.nonzero()[0]
        rows.append(contributing)
        slots.append(at[contributing] + FIRST_LIMB)
        amounts.append(amount[contributing])
    return np.concatenate(rows), np.concatenate(slots), np.concatenate(amounts)


def _split_floats_and_squares(values: npt.NDArray[np.float64]) -> tuple[Ints, Ints, Ints]:
    """Split floats and their squares into exact digits, as `split_floats` does, for variances."""
    rows, places, amounts = split_products([np.where(np.isfinite(values), values, 0.0)] * 2)
    contributions = zip(split_floats(values), (rows, places + SQUARES, amounts), strict=True)
    rows_of_both, slots, more = (np.concatenate(pair) for pair in contributions)
    return rows_of_both, slots, more


def split_integers_of_any_size(values: npt.NDArray[np.object_]) -> tuple[Ints, Ints, Ints]:
    """Split Python integers into 32-bit digits: row, slot and amount of each."""
    rows, slots, amounts = [], [], []
    remainders, limb = values, 0
    while len(remainders) and limb < 5:
        last = limb == 4
        amount = (remainders if last else remainders & int(_MASK)).astype(np.int64)
        contributing = amount.nonzero()[0]
        rows.append(contributing)
        slots.append(np.full(len(contributing), FIRST_LIMB + limb))
        amounts.append(amount[contributing])
        remainders, limb = remainders >> 32, limb + 1
    return tuple(np.concatenate(pieces or [np.empty(0, np.int64)]) for pieces in (rows, slots, amounts))  # type: ignore[return-value]


def split_int64s(values: Ints) -> tuple[Ints, Ints, Ints]:
    """Split int64s into digits as `split_floats` does: small ones take one slot, others two."""
    every = np.arange(len(values))
    is_small = (values >= -(2**31)) & (values < 2**31)
    if is_small.all():
        return every, np.full(len(values), FIRST_LIMB), values
    # A large value is split: the first slot gets its lower 32 bits, and the second the rest, with the sign.
    high = (~is_small).nonzero()[0]
    low = np.where(is_small, values, values & _MASK)
    slots = np.repeat([FIRST_LIMB, FIRST_LIMB + 1], [len(values), len(high)])
    return np.concatenate((every, high)), slots, np.concatenate((low, values[high] >> _BITS))


def compute_exact_sums(groups: Ints, slots: Ints, amounts: Ints, count: int) -> list[int]:
    """Return each group's exact sum, from its amount for each slot (digit position)."""
    limbs = slots - FIRST_LIMB
    sums = np.zeros(count, object)
    np.add.at(sums, groups, amounts.astype(object) << (limbs.astype(object) * 32))
    return sums.tolist()


def to_float(total: int, divisor: int = 1) -> float:
    """Return `total` times 2**-1074 over a divisor as a float, rounded once."""
    try:
        return total / (_UNIT * divisor)
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def check_int64(sums: list[int], name: str) -> Ints:
    """Return sums as int64. Raises DiffOverflow: one does not fit."""
    if sums and (max(sums) >= 2**63 or min(sums) <= -(2**63)):
        raise DiffOverflow(f"the sum {name!r} became {max(sums, key=abs)}, which does not fit int64; cast to float64")
    return np.array(sums, np.int64)


def split_values_by_kind(kind: str, words: Ints, of: pa.DataType, domain: Domain) -> tuple[Ints, Ints, Ints]:
    """Split values that are not NULL into what an aggregate sums: row, slot and amount."""
    if kind == "count":
        return NONE, NONE, NONE
    if pat.is_floating(of):
        values = domain.decode(words, of).cast(pa.float64()).to_numpy(zero_copy_only=False)
        return _split_floats_and_squares(values) if kind in VARIANCES else split_floats(values)
    if pat.is_decimal128(of):  # Each value is split by itself, because it may be retracted by itself.
        large = (words >= FIRST_WIDE).nonzero()[0]
        if not len(large):
            return split_int64s(words)
        small = (words < FIRST_WIDE).nonzero()[0]
        (rows, *digits), (large_rows, *more) = (
            split_int64s(words.take(small)),
            _split_values(words.take(large), of, domain),
        )
        parts = zip((small.take(rows), *digits), (large.take(large_rows), *more), strict=True)
        return tuple(np.concatenate(pieces) for pieces in parts)  # type: ignore[return-value]
    return _split_values(words, of, domain) if pat.is_decimal(of) or pat.is_uint64(of) else split_int64s(words)


def _split_values(words: Ints, of: pa.DataType, domain: Domain) -> tuple[Ints, Ints, Ints]:
    """Split integers or decimals into 32-bit digits: row, slot and amount of each."""
    return split_integers_of_any_size(to_whole_numbers(pa.chunked_array([domain.decode(words, of)])).astype(object))


def explode_to_slots(updates: Ints, keys: int, aggregates: Sequence[AggregateCall], domain: Domain) -> Ints:
    """Return updates that add each record's values to slots: key words, slot, times, diffs.

    Args:
        updates: the key's words, one word for each aggregate that needs its values, times and diffs.
        aggregates: the calls, in the order of these words.
    """
    summed = [numbered for numbered in enumerate(aggregates) if not numbered[1].is_counted]
    if not summed:
        contributed = np.empty((len(updates) + 1, updates.shape[1]), np.int64)
        contributed[:keys], contributed[keys], contributed[keys + 1 :] = updates[:keys], 0, updates[keys:]
        return contributed
    # The contributions, one array for each source: of which update, to which slot, how much.
    rows = [np.arange(updates.shape[1])]
    slots = [np.zeros(updates.shape[1], np.int64)]
    amounts = [np.ones(updates.shape[1], np.int64)]
    for at, (number, aggregation) in enumerate(summed):
        words = updates[keys + at]
        is_null = words == NULL
        if is_null.any():
            nulls, places = is_null.nonzero()[0], (~is_null).nonzero()[0]
            rows.append(nulls)
            slots.append(np.full(len(nulls), NULLS + (1 + number * SLOTS)))
            amounts.append(np.ones(len(nulls), np.int64))
            value_rows, into, amount = split_values_by_kind(aggregation.kind, words[places], aggregation.of, domain)
            value_rows = places[value_rows]
        else:
            value_rows, into, amount = split_values_by_kind(aggregation.kind, words, aggregation.of, domain)
        rows.append(value_rows)
        slots.append(into + (1 + number * SLOTS))
        amounts.append(amount)
    every = np.concatenate(rows)
    # Each update as often as it contributes; its values make room for the slot.
    picks = [*range(keys), 0, *range(keys + len(summed), len(updates))]
    contributed = updates.take(picks, axis=0).take(every, axis=1)
    contributed[keys] = np.concatenate(slots)
    contributed[-1] = multiply_diffs(contributed[-1], np.concatenate(amounts))
    return contributed
