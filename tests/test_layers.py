"""What holds the house together: imports point down the ladder of rooms and go in no circle, and modules keep their
privates to themselves. The ladder is that of docs/design.md; the first set in LAYERS is the lowest."""

import ast
from dataclasses import dataclass
from functools import cache
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


@dataclass(frozen=True)
class Source:
    """What the rules of this file ask about one module, with the line where it matters."""

    modules: set[str]  # Of `import a.b`: `a.b`.
    taken: set[tuple[str, str]]  # Of `from a.b import name`: `a.b` and `name`.
    privates: list[tuple[int, str]]  # Names that may be privates of something other than the module itself.
    defined: set[str]  # The names that it gives to functions, classes, variables, fields and attributes of self.

    def imports(self) -> set[str]:
        """Return all that may be a module of what it imports: of `from a.b import name`, `a.b` and `a.b.name`."""
        return self.modules | {name for module, taken in self.taken for name in (module, f"{module}.{taken}")}


@cache
def source(path: Path) -> Source:
    """Read a module, wherever in it the names stand: for type checkers only, or in a function, too."""
    found = Source(set(), set(), [], set())
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        _look(node, found)
    return found


def _look(node: ast.AST, found: Source) -> None:
    match node:
        case ast.Import(names):
            found.modules.update(alias.name for alias in names)
        case ast.ImportFrom(module, names):
            found.privates.extend((node.lineno, alias.name) for alias in names if is_private(alias.name))
            if module:
                found.taken.update((module, alias.name) for alias in names)
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
            found.defined.add(name)
        case ast.Attribute(value, name, context):
            if not is_own(value) and is_private(name):
                found.privates.append((node.lineno, name))
            elif is_own(value) and isinstance(context, ast.Store):
                found.defined.add(name)
        case ast.Call(ast.Name("getattr" | "setattr" | "hasattr"), [_, ast.Constant(str(name)), *_]):
            if is_private(name):
                found.privates.append((node.lineno, name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def imported(path: Path) -> set[str]:
    return {name for name in source(path).imports() if name.split(".")[0] == "persist"}


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
    found = {name for name in source(path).imports() if name.split(".")[0] in ("pyspark", "py4j")}
    assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of ours that one imports: `from a import b` is about `a.b` if that is a module."""
    found = source(path)
    taken = {f"{module}.{name}" if f"{module}.{name}" in modules else module for module, name in found.taken}
    return (found.modules | taken) & modules


def test_imports_go_in_no_circle() -> None:
    modules = {module_name(path) for path in SOURCES}
    graph = {module_name(path): imports_of(path, modules) for path in SOURCES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"these modules import each other in a circle: {' -> '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_keeps_out_of_the_privates_of_others(path: Path) -> None:
    names, module = source(path), module_name(path)
    found = [
        f"{path.relative_to(ROOT)}:{line} uses {name}"
        for line, name in names.privates
        if name not in names.defined and (module, name) not in FOREIGN_PRIVATES
    ]
    assert not found
