"""The text of an error: it stays short enough to read, however much its values hold."""

from persist.blob.errors import InvalidUsage, PersistError
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
    assert "'view19', and 2,980 more read it" in str(CollectionNeeded("c", many))
