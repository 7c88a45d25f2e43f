"""Those who judge the library share no code with it."""

import ast
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TESTS = ROOT / "tests"
JUDGES = [
    TESTS / "support" / "model.py",
    *(TESTS / "proofs" / "simulator" / f"{name}.py" for name in ("chain", "history", "physical", "versions")),
    *(
        TESTS / "proofs" / "simulator" / f"{name}.py"
        for name in ("effects", "expectations", "judge", "judgement", "replay")
    ),
]


@pytest.mark.parametrize("judge", JUDGES, ids=lambda path: str(path.relative_to(TESTS)))
def test_what_judges_imports_nothing_of_what_is_judged(judge: Path) -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(judge.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    assert names
    assert not {name for name in names if name.split(".")[0] in ("persist", "pyarrow", "numpy")}
