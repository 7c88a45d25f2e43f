"""No room gets worse in what `scripts/plain` counts, and user pages stay short."""

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT

COMMAND = "scripts/plain --store"
PAGE_WORDS_MAX = 2_550
WORDS_MAX = 40_000  # And 2,500 for a page.


def counter() -> ModuleType:
    """Load the program."""
    loader = SourceFileLoader("plain", str(ROOT / "scripts" / "plain"))
    spec = importlib.util.spec_from_loader("plain", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.costly("it reads every module and page")
def test_no_room_has_more_matches_or_names_than_are_stored() -> None:
    plain = counter()
    stored = json.loads(plain.STORED.read_text(encoding="utf-8"))
    figures = plain.count()
    assert stored.keys() == figures.keys(), f"a room came or went: {COMMAND}"
    worse = [
        f"{room}: {at[kind]} {kind}, and {most} are stored. See `scripts/plain {room}`"
        for room, at in figures.items()
        for kind, most in zip(("matches", "names"), stored[room], strict=True)
        if at[kind] > most + plain.ALLOWANCE
    ]
    assert not worse, "\n".join(worse)


def test_user_pages_are_short() -> None:
    folders = ("learn", "use", "run", "reference")
    pages = [ROOT / "README.md", ROOT / "docs" / "index.md"]
    pages += [page for folder in folders for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
    words = {page.relative_to(ROOT).as_posix(): len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert {page: count for page, count in words.items() if count > PAGE_WORDS_MAX} == {}
    assert sum(words.values()) <= WORDS_MAX


def test_the_counter_finds_sentences_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = counter()
    monkeypatch.setattr(plain, "ROOT", tmp_path)
    module = tmp_path / "module.py"
    module.write_text('"""What it holds is told."""\n\n\ndef given(parts):\n    kept = parts\n    return kept\n')
    kinds = [kind for kind, _ in plain.matches([module])]
    assert kinds == ["sentences", "matches", "names", "names"]
    page = tmp_path / "page.md"
    page.write_text("# What a title\n\nA plain sentence here.\n\n```python\nwhat = 'told'\n```\n\n- Who reads this?\n")
    assert [kind for kind, _ in plain.matches([page])] == ["sentences", "sentences"]
