"""What holds the house together: imports point down the ladder of rooms and go in no circle, and modules keep their
privates to themselves. The ladder is that of docs/design.md; the first set in LAYERS is the lowest."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"blob": "persist.blob", "codecs": "persist.codecs", "persist": "persist"}
# From the lowest to the highest. Modules named together stand side by side: they may import each other.
LAYERS: list[set[str]] = [
    {"persist.blob"},
    {"persist.codecs"},
    {
        "persist.errors",
        "persist.antichain",
        "persist.timeline",
        "persist.retention",
        "persist.shown",
        "persist.names",
        "persist.settings",
    }
    | {"persist.metrics", "persist.storage", "persist.compaction_policy", "persist.log"}
    | {"persist.work", "persist.progress_bars"},
    {"persist.state"},
    {"persist.upsert"},
    {"persist.replica"},
    {"persist.write"},
    {"persist.hold"},
    {"persist.read"},
    {"persist.compact"},
    {"persist.upkeep"},
    {"persist.fsck", "persist.engine"},
    {"persist.notify"},
    {"persist"},
    {"persist.source", "persist.sink"},
    {"persist.dataflow", "persist.spark"},
    {"persist.sql"},
    {"persist.cli", "persist.web"},
    {"persist.__main__"},
]
# Names with an underscore that are no privates of ours, each with the module that may use it and why.
FOREIGN_PRIVATES = {
    (
        "persist.blob.stores.fsspec",
        "_strip_protocol",
    ): "fsspec's way from a URL to a path, for which it has no other name",
    ("persist.blob.stores.fsspec", "_get_kwargs_from_urls"): "the same for the options that a URL holds",
    ("persist.blob.stores.fsspec", "_pipe_file"): "only its signature tells whether that release can create",
    ("persist.codecs.types.values", "_replace"): "a public method of named tuples",
    ("persist.codecs.updates.records", "_fields"): "what named tuples tell their fields by",
    ("persist.codecs.updates.records", "_make"): "a public method of named tuples",
    ("persist.spark.data_source", "_getframe"): "PySpark tells in no other way whether filters may be pushed down",
    ("persist.spark.read.native_store", "_jsparkSession"): "PySpark has no other way to the JVM's file systems",
    ("persist.spark.read.native_store", "_jvm"): "the same",
}
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
    return {name for name in all_imported(path) if name.split(".")[0] == "persist"}


def all_imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_imports_only_its_own_layer_and_those_below(path: Path) -> None:
    here = layer(module_name(path))
    upward = {name for name in imported(path) if layer(name) > here}
    assert not upward, f"{path.relative_to(ROOT)} imports upward: {sorted(upward)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_what_is_of_spark_imports_pyspark(path: Path) -> None:
    """So following and committing exactly (`persist.source`, `persist.sink`) serve any engine that runs tasks."""
    if module_name(path).startswith("persist.spark"):
        return
    found = {name for name in all_imported(path) if name.split(".")[0] in ("pyspark", "py4j")}
    assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of ours that one imports, wherever it does: for type checkers only, or in a function, too."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found.update(name if name in modules else node.module for name in names)
    return found & modules


def test_imports_go_in_no_circle() -> None:
    modules = {module_name(path) for path in SOURCES}
    graph = {module_name(path): imports_of(path, modules) for path in SOURCES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these modules import each other in a circle: {' -> '.join(reversed(error.args[1]))}")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(tree: ast.Module) -> set[str]:
    """Return the names that a module gives to functions, classes, variables, fields and attributes of self."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return found


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def privates_used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name wherever a module uses a private name of something other than itself."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if not is_own(value):
                yield node.lineno, name
            case ast.Call(func=ast.Name("getattr" | "setattr" | "hasattr"), args=[value, ast.Constant(str(name)), *_]):
                yield node.lineno, name
            case ast.ImportFrom():
                yield from ((node.lineno, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_keeps_out_of_the_privates_of_others(path: Path) -> None:
    tree, module = ast.parse(path.read_text(encoding="utf-8")), module_name(path)
    own = defined(tree)
    found = [
        f"{path.relative_to(ROOT)}:{line} uses {name}"
        for line, name in privates_used(tree)
        if is_private(name) and name not in own and (module, name) not in FOREIGN_PRIVATES
    ]
    assert not found
