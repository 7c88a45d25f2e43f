"""Every claim of the founding articles names what shows it, and that is there."""

import ast
import re

from tests.support.paths import DOCS, ROOT

ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)


def names_in(path: str) -> set[str]:
    """Return the tests of a module, by what follows `::` in their names."""
    return {
        name
        for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        for name in (
            [node.name]
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            else [each.id for each in node.targets if isinstance(each, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
    }


def test_whatever_shows_a_claim_of_an_article_is_there() -> None:
    rows = ROW.findall((DOCS / "inside" / "origins.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 65
    for number, _, shown_by in rows:
        named = re.fullmatch(r"`([\w/]+\.py)(?:::(\w+))?`", shown_by)
        assert named is not None, f"claim {number} does not name what shows it"
        path, test = named.groups()
        assert (ROOT / path).is_file(), f"claim {number}: there is no {path}"
        assert (test is not None) == path.startswith("tests/"), f"claim {number} names no test of {path}"
        assert test is None or test in names_in(path), f"claim {number}: there is no {test} in {path}"
