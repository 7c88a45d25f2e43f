"""Keys of bytes become numbers of the same order, and a table of these finds what a binary search finds."""

from typing import Any

import numpy as np
import pytest

from persist.codecs.order.places import Places
from persist.codecs.order.spelling import Spelling

ROWS = 6000


def texts(kind: str) -> Any:
    """Packed keys, in order, some of them more than once."""
    chance = np.random.default_rng(8)
    if kind == "numbered":
        found = [b"customer-%08d\0\0\0\0\0\0\0\x11" % number for number in chance.integers(0, 10**6, ROWS)]
    elif kind == "random letters":  # More of them than 62 bits hold.
        letters = chance.integers(97, 123, (ROWS, 24), dtype=np.uint8)
        found = [bytes(row) for row in letters]
        found += [row[:20] + b"zzzz" for row in found[: ROWS // 10]]
    else:
        found = [b"%06d" % number for number in range(ROWS)]
    return np.sort(np.array([*found, *found[:50]]))


@pytest.mark.parametrize("kind", ["numbered", "random letters", "every number"])
def test_each_wanted_key_that_is_there_is_found_at_its_first_place(kind: str) -> None:
    keys = texts(kind)
    places = Places.of(keys)
    assert places is not None
    strange = [key.replace(b"1", b"!").replace(b"e", b"\xff") for key in keys[::5].tolist()]
    wanted = np.unique(np.concatenate([keys[::3], np.array(strange, keys.dtype)]))
    wanted = wanted[(wanted >= keys[0]) & (wanted <= keys[-1])]
    expected = wanted[np.isin(wanted, keys)]
    assert (places.spelling is None) == (kind == "random letters")
    if places.spelling is not None:
        wanted = places.spelling.known_numbers(wanted)
        wanted = wanted[(wanted >= places.keys[0]) & (wanted <= places.keys[-1])]
    found, there = places.of_first(wanted)
    assert found.tolist() == keys.searchsorted(expected).tolist()
    assert there.tolist() == places.keys[found].tolist()


@pytest.mark.parametrize("kind", ["numbered", "random letters", "every number"])
def test_numbers_ascend_with_the_keys_that_they_stand_for(kind: str) -> None:
    keys = texts(kind)
    numbers = Spelling(keys).numbers(keys)
    assert (np.diff(numbers) >= 0).all()
    if kind == "every number":
        assert len(np.unique(numbers)) == len(np.unique(keys))


def test_keys_with_a_byte_that_was_not_seen_have_no_number() -> None:
    keys = texts("numbered")
    spelling = Spelling(keys)
    assert spelling.is_whole
    strange = keys[:3].tolist()
    given = np.array([strange[0], strange[1].replace(b"cust", b"cusT"), strange[2].replace(b"-00", b"-!0")])
    assert spelling.known_numbers(given).tolist() == spelling.numbers(keys[:1]).tolist()


@pytest.mark.parametrize("kind", ["numbered", "every number"])
def test_equal_alphabets_spell_alike_and_others_do_not(kind: str) -> None:
    keys = texts(kind)
    one, other, less = Spelling(keys), Spelling(keys[1:][keys[1:] != keys[0]]), Spelling(keys[:1])
    assert (one.alphabet == other.alphabet) == (one.numbers(keys).tolist() == other.numbers(keys).tolist())
    assert less.alphabet != one.alphabet


def test_texts_that_lie_in_heaps_have_no_table() -> None:
    heaps = [bytes([65 + at % 8, 65 + at % 7]) * 10 + b"%05d" % (at // 500) for at in range(ROWS)]
    assert Places.of(np.sort(np.array(heaps))) is None
