"""Sentences and paragraphs of the documents are short enough to be followed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.docs.test_pages import PROSE, name_of

SENTENCE_WORDS_MAX = 40
PARAGRAPH_WORDS_MAX = 120
CODE = re.compile(r"^```(?s:.*?)^```|^    .*", re.MULTILINE)
# A full stop and what closes with it, before a space and the beginning of another sentence.
END = re.compile(r"(?<=[.!?])[)*\"”]*\s+(?=[\"“(*\[`_]*[A-Z0-9`])")
WORD = re.compile(r"\w")


def paragraphs(text: str) -> Iterator[str]:
    """Yield each paragraph, item, heading and cell of a table. Quoted code is one word, and a link is its text."""
    text = CODE.sub("\n", text)
    text = re.sub(r"`[^`]*`", "Code", re.sub(r"\]\([^)]*\)", "]", text))
    text = re.sub(r"Code(?:,\s+Code)+", "Code", text)  # A list of names is not a sentence.
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=\s*[#|])", text):
        yield from block.split(" | ") if block.lstrip().startswith("|") else [block]


def words(text: str) -> int:
    return sum(1 for word in text.split() if WORD.search(word))


def sentences(paragraph: str) -> list[str]:
    return END.split(" ".join(paragraph.split()))


@pytest.mark.parametrize("path", PROSE, ids=name_of)
def test_no_sentence_and_no_paragraph_is_too_long(path: Path) -> None:
    too_long = [
        f"{words(text)} words: {' '.join(text.split())}"
        for paragraph in paragraphs(path.read_text(encoding="utf-8"))
        for limit, texts in ((PARAGRAPH_WORDS_MAX, [paragraph]), (SENTENCE_WORDS_MAX, sentences(paragraph)))
        for text in texts
        if words(text) > limit
    ]
    assert not too_long, "\n\n".join(too_long)


def test_long_sentences_and_paragraphs_are_found() -> None:
    sentence = "One " + "word " * 38 + "ends."
    assert [words(s) for s in sentences(f"{sentence} And a [link](a%20b.md).")] == [40, 3]
    text = "- an item\n- another\n\n```python\nnot = prose\n```\n\n| a cell | of a table |\n"
    assert [words(p) for p in paragraphs(text) if p.strip()] == [2, 1, 2, 3]
