"""The text of an error: it stays short enough to read, however much its values hold."""

import errno

from persist.blob.errors import MESSAGE_CHARS_MAX, InvalidUsage, PersistError, find_exceeded_limit, redact
from persist.core.errors.usage import CollectionNeeded


def test_a_text_that_is_too_long_loses_its_middle_and_keeps_its_remedy() -> None:
    parts = [f"part {n:032}" for n in range(100_000)]
    error = InvalidUsage(f"the step {parts} is refused, because of this").with_remedy("Use {compact:call}.")
    text = str(error)
    assert len(text) < 10_200
    assert text.startswith("the step ['part 00")
    assert text.endswith("is refused, because of this Use compact().")
    assert "characters are left out" in text
    assert str(PersistError("short")) == "short"


def test_a_list_of_names_shows_the_first_ones_and_how_many_more() -> None:
    few, many = ["a", "b"], [f"view{n}" for n in range(3_000)]
    assert "the views 'a', 'b' read it" in str(CollectionNeeded("c", few))
    assert "'view19' read it" in str(CollectionNeeded("c", many[:20]))
    assert "'view19', and 1 more read it" in str(CollectionNeeded("c", many[:21]))
    assert "'view19', and 2,980 more read it" in str(CollectionNeeded("c", many))


def test_only_the_middle_of_what_is_too_long_is_left_out() -> None:
    assert str(PersistError("x" * MESSAGE_CHARS_MAX)) == "x" * MESSAGE_CHARS_MAX
    text = "a" * 7500 + "b" * 1001 + "c" * 2500
    assert str(PersistError(text)) == f"{'a' * 7500} … (1,001 characters are left out) … {'c' * 2500}"


def test_secrets_are_replaced_the_longest_first_unless_they_are_very_short() -> None:
    assert redact("abc abcd abcdef b", ["abc", "abcd", "abcdef", "b"]) == "abc *** *** b"


def test_a_limit_of_the_system_is_found_behind_an_error() -> None:
    full, other = OSError(errno.ENOSPC, "full"), ValueError()
    behind, beside = PersistError(), PersistError()
    behind.__cause__, beside.__context__ = full, full
    other.__cause__ = beside
    expected = "No space left on device. Free some space (gc deletes unneeded objects)"
    assert [find_exceeded_limit(error) for error in (full, behind, beside, other)] == [expected] * 4
    assert [find_exceeded_limit(error) for error in (None, OSError(errno.EIO, "x"), PersistError())] == [None] * 3
