"""The rules and the map of modules in docs/inside: what they name exists, and each rule has a test of its name."""

import re
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT

HEADING = re.compile(r"^## Rule (\d+): ", re.MULTILINE)
CITATION = re.compile(r"\brules? (\d+)((?:,? (?:and|to|or) \d+|, \d+)*)", re.IGNORECASE)
KEPT_FREE = range(0)  # Numbers of rules about what is not built yet.
# A decorator that leaves no case of a test in the first tier does not count.
NAMED_TEST = re.compile(r"(@pytest\.mark\.thorough\n(?:@.*\n)*)?def test_rule_(\d+)_")
# Spans, keys of metadata, and what Python adds, which look like modules.
NOT_MODULES = {
    *(f"persist.{span}" for span in ("action", "check", "collect", "commit", "refresh")),
    *(
        f"persist.{key}"
        for key in ("as_of", "collections", "derived_from", "digest", "groups", "seqno", "table", "values")
    ),
    "persist.unavailable.NAME",
    "persist.__version__",
    "persist.upsert",  # Its name before it was `persist.events`.
    "persist.shop.orders",  # A table in Spark SQL.
}
DOCUMENTS = re.compile(r"\b(?:DESIGN|FINDINGS|STYLE|DEVELOPERS)\b")


def rules() -> list[int]:
    return [int(n) for n in HEADING.findall((ROOT / "docs" / "inside" / "rules.md").read_text(encoding="utf-8"))]


@cache
def sources(*suffixes: str) -> list[Path]:
    """Return our files: code, tests and documents, but none of what is installed or generated."""
    folders = ["persist", "codecs", "blob", "tests", "docs", "examples", "benchmarks", "pyspark_persist", "scripts"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    here = Path(__file__)
    return [path for path in [*found, *ROOT.glob("*.md")] if path != here and "golden/format" not in str(path)]


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def cited(text: str) -> set[int]:
    return {int(n) for match in CITATION.finditer(text) for n in re.findall(r"\d+", match.group())}


def test_rules_are_numbered_without_gaps() -> None:
    assert rules() == [n for n in range(1, max(rules()) + 1) if n in rules() or n not in KEPT_FREE]


def test_every_rule_that_is_cited_stands_in_the_list() -> None:
    known = set(rules())
    strangers = {
        str(path.relative_to(ROOT)): sorted(missing)
        for path in sources(".py", ".md")
        if (missing := cited(read(path)) - known)
    }
    assert not strangers


def test_every_rule_has_a_test_of_its_name_in_the_first_tier() -> None:
    found = [match for path in sources(".py") for match in NAMED_TEST.findall(read(path))]
    named = {int(rule) for only_thorough, rule in found if not only_thorough}
    assert set(rules()) - named == set()
    assert named - set(rules()) == set()


def test_nothing_cites_a_document_outside_the_repository() -> None:
    citing = [str(p.relative_to(ROOT)) for p in sources(".py", ".md", ".toml") if DOCUMENTS.search(read(p))]
    assert not citing


def is_there(dotted: str) -> bool:
    """Whether a dotted name is a module of ours, or stands in the module that it begins with."""
    parts = dotted.split(".")[1:]
    base = ROOT if parts[0] in ("blob", "codecs") else ROOT / "persist"
    for end in range(len(parts), -1, -1):
        path = base.joinpath(*parts[:end])
        files = [path / "__init__.pyi"] if end == 0 else [path.with_suffix(".py"), path / "__init__.py"]
        text = "".join(file.read_text(encoding="utf-8") for file in files if file.exists())
        if text:
            if end == len(parts) or re.search(rf"\b{parts[end]}\b", text):
                return True
            starred = re.findall(r"^from (persist\.[\w.]+) import \*", text, re.MULTILINE)
            return any(is_there(".".join([module, *parts[end:]])) for module in starred)
    return False


def test_modules_that_are_named_exist() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {dotted}"
        for path in sources(".py", ".md")
        for dotted in re.findall(r"`(persist(?:\.[A-Za-z_0-9]+)+)", path.read_text(encoding="utf-8"))
        if dotted not in NOT_MODULES and not is_there(dotted)
    }
    assert not missing


def test_files_that_are_named_exist() -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(".py", ".md")
        for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", path.read_text(encoding="utf-8"))
        if not any((ROOT / top / name).exists() for top in ("", "persist"))
    }
    assert not missing
