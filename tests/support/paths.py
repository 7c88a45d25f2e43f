"""Folders of the checkout that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GOLDEN = ROOT / "tests" / "rules" / "golden"
# Modules of tests that take long, waiting included, and how many seconds each took.
LONGEST = ROOT / "tests" / "support" / "longest.txt"
# Tests that CI runs, and `scripts/test` does not: `tests.support.ci_only` chooses them.
CI_ONLY = ROOT / "tests" / "support" / "ci_only.txt"
