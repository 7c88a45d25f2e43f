"""Imports point down the ladder of rooms in docs/design.md; the first set in LAYERS is the lowest."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"blob": "persist.blob", "codecs": "persist.codecs", "persist": "persist"}
# From the lowest to the highest. Modules named together stand side by side: they may import each other.
LAYERS: list[set[str]] = [
    {"persist.blob"},
    {"persist.codecs"},
    {"persist.errors", "persist.antichain", "persist.timeline", "persist.names", "persist.settings"}
    | {"persist.metrics", "persist.storage", "persist.compaction_policy", "persist.log"},
    {"persist.state"},
    {"persist.replica"},
    {"persist.write"},
    {"persist.hold"},
    {"persist.read"},
    {"persist.compact"},
    {"persist.upkeep"},
    {"persist.fsck"},
    {"persist"},
    {"persist.spark"},
    {"persist.cli"},
    {"persist.__main__"},
]
SOURCES = sorted(p for top in FOLDERS for p in (ROOT / top).rglob("*.py"))


def layer(module: str) -> int:
    """Return the rank of the longest layer name that is a prefix of module."""
    names = [n for rank in LAYERS for n in rank if module == n or module.startswith(n + ".")]
    longest = max(names, key=len)
    return next(i for i, rank in enumerate(LAYERS) if longest in rank)


def module_name(path: Path) -> str:
    top, *rest = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([FOLDERS[top], *rest]).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in found if name.split(".")[0] == "persist"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_its_own_layer_and_those_below(path: Path) -> None:
    here = layer(module_name(path))
    upward = {name for name in imported(path) if layer(name) > here}
    assert not upward, f"{path.relative_to(ROOT)} imports upward: {sorted(upward)}"
