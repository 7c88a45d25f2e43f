"""Values as words: every column of a record is one int64 inside operators, and Arrow again where it is used.

- Integers up to 64 bits, booleans, dates, times of day, timestamps and durations are their own number.
- Decimals of up to 18 digits are whole numbers of their last digit.
- Decimals of 19 to 38 digits are the same if the number is small enough; other values of these types are interned.
- Floats are their bits, put in the order of their values; -0.0 is 0.0, and NaN is one value, the greatest.
- All other values (text, bytes, decimals of 256 bits, uint64, lists, structs, maps) are *interned*: the dataflow's
  `Domain` numbers them, and equal values have one number. Texts and bytes are kept in columns (`updates.texts`), others
  as Python objects.
- NULL is `NULL`, the least int64. So a column cannot hold -2**63 as a number, and such a value is refused.

Two words of a column are equal exactly when the values are. `is_ordered` returns whether the words of a type are in the
order of its values. Words are not hashes: two values can have the same hash, so each comparison of hashes would need
the values as well.
"""

from collections.abc import Sequence
from decimal import Context
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from persist.blob.errors import InvalidUsage
from persist.codecs.order.arrays import get_int64_values
from persist.codecs.order.ordering import combine_chunks, make_canonical, make_order_keys
from persist.codecs.types.arrow_types import is_text
from persist.compute.dataflow.updates.texts import Texts
from persist.compute.dataflow.updates.times import Ints
from persist.core.expression.sql_numbers import from_unscaled, to_unscaled

NULL = -(2**63)
FIRST_WIDE = 2**62
_EXACT = Context(prec=76)
_MAGNITUDE = np.int64(2**63 - 1)
_NAN = np.array([np.nan]).view(np.int64)[0]


def is_ordered(kind: pa.DataType) -> bool:
    """Return whether words of this type are in the order of the values."""
    return not is_interned(kind)


@cache
def is_interned(kind: pa.DataType) -> bool:
    """Return whether values of this type are interned."""
    is_number = pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)
    if is_narrow(kind):
        return False
    return not (is_number or pat.is_temporal(kind)) or pat.is_uint64(kind)


@cache
def is_narrow(kind: pa.DataType) -> bool:
    """Return whether values of this type are decimals that fit a word."""
    return bool(pat.is_decimal128(kind) and kind.precision <= 18)


_is_integer, _is_floating = cache(pat.is_integer), cache(pat.is_floating)  # Arrow's own take longer.


class Interner:
    """A table that numbers the values of one type. Memory: each value once, in Python."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self._is_nested = pat.is_nested(kind)
        self._encode_integers: dict[Any, int] = {}
        self._values: npt.NDArray[np.object_] = np.empty(16, object)
        self._free: list[int] = []
        self._pinned: set[int] = set()
        self._end = 0

    @cached_property
    def _plain(self) -> pa.DataType:
        """The type with integers in place of moments, whose values Python can represent."""
        return _without_moments(self.kind)

    @property
    def size(self) -> int:
        """How much memory the values take, as far as that is known: 0 for values of Python."""
        return 0

    def __len__(self) -> int:
        return len(self._encode_integers)

    def encode(self, array: pa.Array) -> Ints:
        """Return the numbers of values, new ones for those not seen before."""
        if self._is_nested:  # Equal values have one number, so they must look the same.
            array = combine_chunks(make_canonical(pa.table({"values": array}))["values"])
        return self._number_values((array if self._plain == self.kind else array.cast(self._plain)).to_pylist())

    def _number_values(self, values: list[Any]) -> Ints:
        """Return the numbers of values in Python, in the types of `to_pylist`."""
        keys = [_to_hashable(value) for value in values] if self._is_nested else values
        numbers = self._encode_integers
        words = list(map(numbers.get, keys))
        for row, number in enumerate(words) if None in words else ():
            if number is None:
                key = keys[row]
                # An earlier row may have added the same value, so it is looked up again.
                words[row] = NULL if key is None else numbers.get(key)
                if words[row] is None:
                    words[row] = self._add_value(key, values[row])
        return np.array(words, np.int64)

    def _add_value(self, key: Any, value: Any) -> int:
        """Store a value under a free number; return the number."""
        if self._free:
            number = self._free.pop()
        else:
            number, self._end = self._end, self._end + 1
            if number == len(self._values):
                self._values = np.append(self._values, np.empty(number, object))
        self._encode_integers[key] = number
        self._values[number] = value
        return number

    def decode(self, words: Ints) -> pa.Array:
        """Return the values of numbers."""
        if len(words) and words.min() == NULL:
            is_null = words == NULL
            objects: Any = self._values.take(np.where(is_null, 0, words))
            objects[is_null] = None
        else:
            objects = self._values.take(words)
        array = pa.array(objects.tolist(), self._plain, from_pandas=False)
        return array if self._plain == self.kind else array.cast(self.kind)

    def get_value(self, number: int) -> Any:
        """Return the value of a number, in Python."""
        return self._values[number]

    def pin(self, number: int) -> None:
        """Keep a value for ever, because a constant of the program uses it."""
        if number != NULL:
            self._pinned.add(number)

    def retain(self, live: Ints) -> None:
        """Forget all values except pinned ones and those with numbers in live. Numbers keep their meaning."""
        keep = np.zeros(self._end, np.bool_)
        keep[live[live != NULL]] = True
        keep[list(self._pinned)] = True
        for key in [key for key, number in self._encode_integers.items() if not keep[number]]:
            number = self._encode_integers.pop(key)
            self._values[number] = None
            self._free.append(number)


class TextInterner(Interner):
    """An interner for texts and bytes, which looks up whole columns at once."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._texts = Texts()
        self._is_utf8 = pat.is_string(kind) or pat.is_large_string(kind)

    @property
    def size(self) -> int:
        return self._texts.size

    def __len__(self) -> int:
        return len(self._texts)

    def encode(self, array: pa.Array) -> Ints:
        """Return the words of texts; NULL has a fixed one."""
        if not array.null_count:
            return self._texts.encode(array)
        places = array.is_valid().to_numpy(zero_copy_only=False).nonzero()[0]
        words = np.full(len(array), NULL)
        words[places] = self._texts.encode(array.drop_null())
        return words

    def decode(self, words: Ints) -> pa.Array:
        """Return the texts of words as Arrow."""
        is_null = words == NULL
        return self._texts.decode(words, self.kind, is_null if is_null.any() else None)

    def get_value(self, number: int) -> Any:
        """Return the text, or bytes, of a number."""
        text = self._texts.get_bytes(number)
        return text.decode() if self._is_utf8 else text

    def retain(self, live: Ints) -> None:
        """Forget all texts but the live and the pinned ones."""
        keep = np.zeros(self._texts.end, np.bool_)
        keep[live[live != NULL]] = True
        keep[list(self._pinned)] = True
        self._texts.retain(keep)


class WideDecimals(Interner):
    """Words of decimals of more than 18 digits: small ones are whole numbers of their last digit.

    Sums and products have types of up to 38 digits, but most of their values need fewer than 19. So hardly any value is
    interned, and a whole column is converted at once, in both directions. Words from `FIRST_WIDE` on stand for interned
    values.
    """

    def encode(self, array: pa.Array) -> Ints:
        """Return the words of decimals; a small decimal needs no interned value."""
        if not len(array):
            return np.empty(0, np.int64)
        raw = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
        words, high = raw[::2], raw[1::2]
        # A value of 128 bits fits its low word if the high word only repeats the sign.
        is_large = (high != words >> 63) | (words >= FIRST_WIDE) | (words < -FIRST_WIDE)
        if array.null_count:
            is_null = array.is_null().to_numpy(zero_copy_only=False)
            words, is_large = np.where(is_null, NULL, words), is_large & ~is_null
        if is_large.any():
            places = is_large.nonzero()[0]
            words = words.copy()
            words[places] = super().encode(array.take(pa.array(places))) + FIRST_WIDE
        return words

    def decode(self, words: Ints) -> pa.Array:
        """Return the decimals of words."""
        is_large = words >= FIRST_WIDE
        if is_large.any():
            values = super().decode(words[is_large] - FIRST_WIDE)
            small = self.decode(words[~is_large])
            # For each row, `order` is the place of its value in the large values followed by the small ones.
            order = np.empty(len(words), np.int64)
            order[np.concatenate((is_large.nonzero()[0], (~is_large).nonzero()[0]))] = np.arange(len(words))
            return pa.concat_arrays([values, small]).take(pa.array(order))
        is_null = words == NULL
        return from_unscaled(words, self.kind, is_null if is_null.any() else None)

    def get_value(self, number: int) -> Any:
        """Return the decimal of a word."""
        if number >= FIRST_WIDE:
            return super().get_value(number - FIRST_WIDE)
        return _EXACT.scaleb(_EXACT.create_decimal(number), -self.kind.scale)

    def pin(self, number: int) -> None:
        """Keep an interned value for ever."""
        if number >= FIRST_WIDE:
            super().pin(number - FIRST_WIDE)

    def retain(self, live: Ints) -> None:
        """Forget interned values, except those whose words are in use."""
        super().retain(live[live >= FIRST_WIDE] - FIRST_WIDE)


def _without_moments(kind: pa.DataType) -> pa.DataType:
    """Return a type with integers in place of moments, inside nested types, too: Python lacks some of Arrow's."""
    if pat.is_list(kind):
        return pa.list_(_replace_moments(kind.value_field))
    if pat.is_large_list(kind):
        return pa.large_list(_replace_moments(kind.value_field))
    if pat.is_fixed_size_list(kind):
        return pa.list_(_replace_moments(kind.value_field), kind.list_size)
    if pat.is_struct(kind):
        return pa.struct([_replace_moments(kind.field(at)) for at in range(kind.num_fields)])
    if pat.is_map(kind):
        return pa.map_(
            _replace_moments(kind.key_field), _replace_moments(kind.item_field), keys_sorted=kind.keys_sorted
        )
    if pat.is_date32(kind):
        return pa.int32()
    is_moment = pat.is_date64(kind) or pat.is_time64(kind) or pat.is_timestamp(kind) or pat.is_duration(kind)
    return pa.int64() if is_moment else kind


def _replace_moments(field: pa.Field) -> pa.Field:
    """Return a field with integers in place of moments."""
    return field.with_type(_without_moments(field.type))


def _to_hashable(value: Any) -> Any:
    """Return a nested value in a form that can be hashed, and that equals itself even with NaN."""
    if isinstance(value, list | tuple):
        return tuple(map(_to_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _to_hashable(item)) for key, item in value.items())
    return "NaN" if isinstance(value, float) and value != value else value


class Domain:
    """The meaning of the words of one dataflow. Dataflows that share arrangements share it."""

    def __init__(self) -> None:
        self.interners: dict[pa.DataType, Interner] = {}

    def get_interner(self, kind: pa.DataType) -> Interner:
        """Return the interner of a type."""
        kind_interner = self.interners.get(kind)
        if kind_interner is None:
            is_wide = pat.is_decimal128(kind)
            create = TextInterner if is_text(kind) else WideDecimals if is_wide else Interner
            kind_interner = self.interners[kind] = create(kind)
        return kind_interner

    def encode(self, column: pa.Array | pa.ChunkedArray) -> Ints:
        """Return the words of a column."""
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if isinstance(array, pa.ChunkedArray):  # It has no chunks, or more bytes than one buffer holds.
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        if is_interned(array.type):
            return self.get_interner(array.type).encode(array)
        if _is_floating(array.type):
            return _encode_floats(array)
        if is_narrow(array.type):
            words = to_unscaled(array)
            return np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, words) if array.null_count else words
        words = _encode_integers(array)
        if not array.null_count and len(words) and words.min() == NULL:
            raise InvalidUsage(
                f"the value -2**63 of a column of {array.type} cannot pass through a dataflow, where that number "
                "stands for NULL. Filter it out of the source, or replace it there."
            )
        return words

    def encode_constant(self, value: pa.Scalar) -> int:
        """Return a constant's word, which is never forgotten."""
        word = int(self.encode(pa.repeat(value, 1))[0])
        if is_interned(value.type):
            self.get_interner(value.type).pin(word)
        return word

    def encode_decimals(self, values: Sequence[int | None], kind: pa.DataType) -> Ints:
        """Return the words of decimals, from integers of their last digit."""
        is_small = all(value is None or -FIRST_WIDE <= value < FIRST_WIDE for value in values)
        if is_small and pat.is_decimal128(kind):
            return np.array([NULL if value is None else value for value in values], np.int64)
        digits = [None if value is None else _EXACT.create_decimal(value) for value in values]
        scaled = [None if value is None else _EXACT.scaleb(value, -kind.scale) for value in digits]
        return self.encode(pa.array(scaled, kind))

    def decode(self, words: Ints, kind: pa.DataType) -> pa.Array:
        """Return the values of words, of a type."""
        if is_interned(kind):
            return self.get_interner(kind).decode(words)
        mask = None
        if len(words) and words.min() == NULL:
            mask = words == NULL
            words = np.where(mask, 0, words)
        if is_narrow(kind):
            return from_unscaled(words, kind, mask)
        if _is_floating(kind):
            # The inverse of `_encode_floats`: flipping the bits of negative words twice restores the bits.
            values = (words ^ ((words >> 63) & _MAGNITUDE)).view(np.float64)
            return pa.array(values, mask=mask).cast(kind)
        array = pa.array(words, mask=mask)
        if kind == array.type:
            return array
        if pat.is_boolean(kind) or pat.is_integer(kind):
            return array.cast(kind)
        return array.cast(pa.int32()).view(kind) if kind.bit_width == 32 else array.view(kind)


def _encode_integers(array: pa.Array) -> Ints:
    """Return integers, booleans or moments as words: the numbers themselves."""
    kind = array.type
    if not _is_integer(kind):
        if pat.is_boolean(kind):
            array = array.cast(pa.int8())
        else:
            array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    if array.null_count:
        wide = array.cast(pa.int64())
        words: Ints = wide.fill_null(0).to_numpy()
        if len(words) and words.min() == NULL:
            raise InvalidUsage(
                f"the value -2**63 of a column of {kind} cannot pass through a dataflow: it is NULL there"
            )
        return np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, words)
    values = array.to_numpy(zero_copy_only=False)
    return np.asarray(values, np.int64)


def _encode_floats(array: pa.Array) -> Ints:
    """Return floats as words that sort like the floats."""
    values = (array.fill_null(0.0) if array.null_count else array).to_numpy(zero_copy_only=False)
    bits = (values.astype(np.float64) + 0.0).view(np.int64)  # Adding 0.0 makes -0.0 the same as 0.0.
    is_nan = np.isnan(values)
    if is_nan.any():
        bits = np.where(is_nan, _NAN, bits)
    # Bits of positive floats grow with the value. Those of negative ones shrink, so all but the sign are flipped.
    words = bits ^ ((bits >> 63) & _MAGNITUDE)
    if array.null_count:
        words = np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, words)
    return words


def compute_ranks(domain: Domain, words: Ints, kind: pa.DataType) -> Ints:
    """Return ranks in the order of the words' values; NULL ranks last.

    Nested values are in the order of `persist.codecs.order.ordering`, as the rows of collections.
    """
    if is_ordered(kind) and (not len(words) or words.max() < _MAGNITUDE):
        return np.where(words == NULL, _MAGNITUDE, words)
    if pat.is_decimal128(kind) and (not len(words) or words.max() < FIRST_WIDE):
        return np.where(words == NULL, _MAGNITUDE, words)
    distinct, at = np.unique(words, return_inverse=True)
    if is_ordered(kind):  # NULL is the least word, and the greatest rank.
        return np.where(words == NULL, len(distinct), at)
    if pat.is_nested(kind):
        table = make_canonical(pa.table({"values": domain.decode(distinct, kind)}))
        return get_int64_values(make_order_keys(table, ["values"])[0]).take(at)
    order = pc.array_sort_indices(domain.decode(distinct, kind), null_placement="at_end").to_numpy()
    places = np.empty(len(distinct), np.int64)
    places[order] = np.arange(len(distinct))
    return places.take(at)


def rank_in_direction(domain: Domain, words: Ints, kind: pa.DataType, descending: bool, nulls_first: bool) -> Ints:
    """Return ranks of words in ascending or descending order of values."""
    places = compute_ranks(domain, words, kind)
    if descending:
        places = ~places
    if not len(words) or words.min() != NULL:
        return places
    return np.where(words == NULL, NULL if nulls_first else 2**63 - 1, places)
