"""The rooms of the house, the ladder on which they stand, and every import between modules of ours.

An import counts wherever it stands: at the top of a module, in a function, for type checkers only, and as the name of a
module in a string, by which `import_module` or a lazy `__getattr__` would load it.
"""

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parent.parent
FOLDERS = {"blob": "persist.blob", "codecs": "persist.codecs", "persist": "persist"}
# From the lowest to the highest. Rooms that stand side by side do not import each other.
LADDER: list[tuple[str, ...]] = [
    ("blob",), ("codecs",), ("log",), ("words",), ("expression",), ("state",), ("upsert",), ("replica",), ("write",),
    ("hold",), ("read",), ("compact",), ("upkeep",), ("engine", "fsck"), ("notify", "backup"), ("index",),
    ("source", "sink", "query", "publish"), ("dataflow",),
    ("sql",), ("erase",), ("spark", "face"), ("ingest",), ("egress",), ("public",), ("facts",), ("web",), ("cli",),
]  # fmt: skip
# Four rooms have no folder of their own: their modules are at the root of the package.
AT_ROOT = {
    "words": (
        "antichain", "closing", "errors", "late_names", "metrics", "names", "settings", "shown", "timeline", "version",
        "work",
    ),
    "face": ("client", "collection", "creating", "follow", "lineage", "multi_write", "together", "view"),
    "public": ("public",),
    "cli": ("__main__",),
}  # fmt: skip
# Modules that a door exports as a namespace: `from persist.core.log import kinds`.
NAMESPACES = {"persist.core.log.kinds", "persist.blob.wire"}
# Strings that name no module, though they look as if they did, with the module that has them.
NO_MODULES = {
    ("persist.tools.cli.exposition", "persist.collection"): "an attribute of spans",
    ("persist.compute.dataflow.plan.origin", "persist.dataflow"): "a property of collections",
    ("persist.services.publish.delta", "persist.collection"): "a property of tables",
    ("persist.services.publish.iceberg_files", "persist.collection"): "a property of tables",
}
_ROOM_OF = {name: room for room, names in AT_ROOT.items() for name in names}
_NAME = re.compile(r"(persist(?:\.\w+)+)(?::\w+)?")
Kind = Literal["top", "late", "typing", "string"]


@dataclass(frozen=True)
class Import:
    """One module imports another one of ours.

    Attributes:
        kind: "top" of the module, "late" in a function, "typing" for type checkers, or named in a "string".
        name: what it takes from that module; nothing if it takes the module.
    """

    module: str
    target: str
    kind: Kind
    line: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target} ({self.kind})"


@dataclass
class Module:
    """What the rules ask about one module.

    Attributes:
        foreign: what it imports that is none of ours, with the line.
        unnamed: lines that import what is not named there.
        privates: names that may be privates of something other than the module itself, with the line.
        defined: names that it gives to functions, classes, variables, fields and attributes of self.
    """

    name: str
    path: Path
    imports: list[Import] = field(default_factory=list)
    foreign: list[tuple[int, str]] = field(default_factory=list)
    unnamed: list[int] = field(default_factory=list)
    privates: list[tuple[int, str]] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)


def room_of(module: str) -> str:
    """Return the room of a module; the package itself is of what is public."""
    first = module.split(".")[1] if "." in module else "public"
    return _ROOM_OF.get(first, first)


def rank(room: str) -> int:
    """Return how high a room stands."""
    return next(at for at, rooms in enumerate(LADDER) if room in rooms)


def is_upward(found: Import) -> bool:
    """Return whether an import goes up the ladder, or to a room that stands beside."""
    here, there = room_of(found.module), room_of(found.target)
    return here != there and rank(there) >= rank(here)


def is_past_a_door(found: Import) -> bool:
    """Return whether an import reaches into another room, and not for what that room exports."""
    is_inside = found.target.count(".") > 1 and found.target not in NAMESPACES
    return room_of(found.module) != room_of(found.target) and is_inside


@cache
def modules() -> dict[str, Module]:
    """Return all modules of ours by name, read once."""
    found = {}
    for top in FOLDERS:
        for path in sorted((ROOT / top).rglob("*.py")):
            folder, *rest = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join([FOLDERS[folder], *rest]).removesuffix(".__init__")
            found[name] = Module(name, path)
    for module in found.values():
        _Reader(module, found.keys()).read()
    return found


def all_imports() -> Iterator[Import]:
    for module in modules().values():
        yield from module.imports


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return a circle of a graph; nothing if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def module_graph() -> dict[str, set[str]]:
    return {name: {each.target for each in module.imports} for name, module in modules().items()}


def room_graph() -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {room: set() for rooms in LADDER for room in rooms}
    for each in all_imports():
        graph[room_of(each.module)].add(room_of(each.target))
    return {room: below - {room} for room, below in graph.items()}


def folder_graph(room: str) -> dict[str, set[str]]:
    """Return which folders inside a room import which; a module beside them counts as one."""
    graph: dict[str, set[str]] = {}
    for each in all_imports():
        if room_of(each.module) == room_of(each.target) == room:
            here, there = (".".join(name.split(".")[:3]) for name in (each.module, each.target))
            graph.setdefault(here, set()).update({there} - {here, f"persist.{room}"})
    return graph


class _Reader:
    """Reads one module."""

    def __init__(self, module: Module, known: Collection[str]) -> None:
        self._module = module
        self._known = known

    def read(self) -> None:
        self._visit(ast.parse(self._module.path.read_text(encoding="utf-8")), "top")

    def _visit(self, node: ast.AST, kind: Kind) -> None:
        match node:
            case ast.Import(names):
                for alias in names:
                    self._imported(alias.name, kind, node.lineno)
            case ast.ImportFrom(module, names, level):
                base = self._relative(level, module)
                for alias in names:
                    self._imported(f"{base}.{alias.name}", kind, node.lineno)
                    if is_private(alias.name):
                        self._module.privates.append((node.lineno, alias.name))
            case ast.Constant(str(text)) if (named := _NAME.fullmatch(text)) and (
                self._module.name,
                text,
            ) not in NO_MODULES:
                self._imported(named[1], "string", node.lineno)
            case ast.JoinedStr([ast.Constant(str(text)), *_]) if text.startswith("persist.") and text[-1] == ".":
                if (self._module.name, text[:-1]) not in NO_MODULES:
                    self._imported(text[:-1], "string", node.lineno)
                return  # Its first part is no name by itself.
            case ast.Call(function, [name, *_]) if _is_import(function):
                is_known = isinstance(name, ast.Constant) or (
                    isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant)
                )
                if not is_known:
                    self._module.unnamed.append(node.lineno)
                elif isinstance(name, ast.Constant):
                    self._imported(str(name.value), "late", node.lineno)
            case ast.If(test) if "TYPE_CHECKING" in ast.dump(test) and not isinstance(test, ast.UnaryOp):
                for each in node.body:
                    self._visit(each, "typing")
                for each in node.orelse:
                    self._visit(each, kind)
                return
        self._names(node)
        inner: Kind = "late" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else kind
        for child in ast.iter_child_nodes(node):
            if not _is_docstring(node, child):
                self._visit(child, inner if kind != "typing" else kind)

    def _imported(self, name: str, kind: Kind, line: int) -> None:
        """Take note of an import of the longest part of a name that is a module."""
        target = name
        while target and target not in self._known:
            target = target.rpartition(".")[0]
        if not target:
            self._module.foreign.append((line, name))
        elif target != self._module.name and not (kind == "string" and target == "persist"):
            taken = name.removeprefix(target).lstrip(".")
            self._module.imports.append(Import(self._module.name, target, kind, line, taken))

    def _relative(self, level: int, module: str | None) -> str:
        if not level:
            return module or ""
        here = self._module.name.split(".")
        package = here if self._module.path.name == "__init__.py" else here[:-1]
        return ".".join([*package[: len(package) - level + 1], *([module] if module else [])])

    def _names(self, node: ast.AST) -> None:
        module = self._module
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
                module.defined.add(name)
            case ast.Attribute(value, name, context):
                if not _is_own(value) and is_private(name):
                    module.privates.append((node.lineno, name))
                elif _is_own(value) and isinstance(context, ast.Store):
                    module.defined.add(name)
            case ast.Call(ast.Name("getattr" | "setattr" | "hasattr"), [_, ast.Constant(str(name)), *_]):
                if is_private(name):
                    module.privates.append((node.lineno, name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _is_import(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _is_docstring(parent: ast.AST, child: ast.AST) -> bool:
    holds_docstring = isinstance(parent, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return holds_docstring and isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
