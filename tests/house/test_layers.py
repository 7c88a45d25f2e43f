"""What `lint-imports` does not check: doors, modules named in strings, private names, and the length of modules.

The contracts in `pyproject.toml` say which floor and which room may import which.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import DOCS, ROOT

FLOORS = ["blob", "codecs", "core", "engine", "compute", "services", "api", "connect", "tools"]
EXPORTS_MAX = 25
# Every error is exported in one place, so that each has one public name.
LARGE_DOORS = {"persist.core.errors"}
# Private names of other libraries, with the module that may use them and why.
FOREIGN_PRIVATES = {
    ("persist.blob.stores.fsspec", "_strip_protocol"): "fsspec has no other name for the path of a URL",
    ("persist.blob.stores.fsspec", "_get_kwargs_from_urls"): "the same for the options in a URL",
    ("persist.blob.stores.fsspec", "_pipe_file"): "its signature alone shows whether that release can create",
    ("persist.core.expression.documents", "_call"): "as Arrow documents calls of functions that it was given",
    ("persist.services.publish.iceberg", "_supported_endpoints"): "the requests that pyiceberg's REST catalog takes",
    ("persist.services.publish.catalog", "_InclusiveMetricsEvaluator"): "pyiceberg's pruning has no other name",
    ("persist.services.publish.iceberg", "_session"): "its connection, with its credentials",
    ("persist.codecs.types.values", "_replace"): "a public method of named tuples",
    ("persist.codecs.updates.tuples", "_fields"): "the public field names of named tuples",
    ("persist.codecs.updates.tuples", "_make"): "a public method of named tuples",
    ("persist.services.serve.flight_calls", "_rpc_event"): "gRPC has no other way to end a blocked call with a status",
    ("persist.connect.spark.data_source.source", "_getframe"): "PySpark does not say whether filters are pushed",
    ("persist.connect.spark.data_source.pruning", "_jdf"): "PySpark has no other way to a plan",
    ("persist.connect.spark.write_functions.conditions", "_jdf"): "the same",
    ("persist.connect.spark.write_functions.conditions", "_jvm"): "the same for the mark of a cast in the condition",
    (
        "persist.connect.spark.read_functions.store",
        "_jsparkSession",
    ): "PySpark has no other way to the JVM's file systems",
    ("persist.connect.spark.read_functions.store", "_jvm"): "the same",
    ("persist.connect.spark.read_functions.deferred", "_jdf"): "the plan that takes the place of a table",
    (
        "persist.connect.spark.read_functions.deferred",
        "_active_spark_context",
    ): "a call of the JVM comes without a context",
    (
        "persist.connect.spark.read_functions.deferred",
        "_gateway",
    ): "PySpark has no other way to be called by the JVM",
    ("persist.connect.spark.read_functions.deferred", "_jsparkSession"): "the session of the jar's table",
    ("persist.connect.spark.catalog", "_options"): "a builder does not show what it was given",
    ("persist.connect.spark.catalog", "_gateway"): "PySpark has no other way to be called by the JVM",
}


@cache
def sources() -> dict[str, tuple[Path, ast.Module]]:
    """Return the path and the syntax tree of each module of ours."""
    found = {}
    for folder, package in (("blob", "persist.blob"), ("codecs", "persist.codecs"), ("persist", "persist")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts]).removesuffix(".__init__")
            found[name] = (path, ast.parse(path.read_text(encoding="utf-8")))
    return found


@cache
def nodes(module: str) -> list[ast.AST]:
    """Return all that a module consists of."""
    return [*ast.walk(sources()[module][1])]


def doors() -> list[str]:
    """Return the folders whose `__init__` exports names of their own modules."""
    folders = [name for name, (path, _) in sources().items() if path.name == "__init__.py" and name.count(".") > 1]
    return [name for name in folders if imported_names(name)]


def imported_names(door: str) -> set[str]:
    """Return the names that a door imports from its own modules."""
    imports = [node for node in nodes(door) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports if f"{node.module}.".startswith(f"{door}.") for alias in node.names}


def exported_names(door: str) -> set[str]:
    """Return all names that a door has: those of its own modules, of rooms below, and its own."""
    imports = [node for node in nodes(door) if isinstance(node, ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    stored = {node.id for node in nodes(door) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    tree = sources()[door][1]
    lists = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)]
    listed = {str(item.value) for items in lists for item in items.elts if isinstance(item, ast.Constant)}
    defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return imported | stored | listed | defined


@cache
def imports() -> list[tuple[str, ast.ImportFrom]]:
    """Return all imports of names, each with the module that has it."""
    walked = ((module, node) for module in sources() for node in nodes(module))
    return [(module, node) for module, node in walked if isinstance(node, ast.ImportFrom)]


def test_imports_point_down() -> None:
    # In a process of its own: it disables all loggers that there are.
    lint = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", lint], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_modules_named_in_strings_are_on_the_same_floor_or_below() -> None:
    rank = {name: place for place, name in enumerate(FLOORS)}
    upward = [
        f"{module}:{node.lineno} names {node.value}"
        for module in sources()
        for node in nodes(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in sources()
        if node.value.count(".") > 1 and rank[node.value.split(".")[1]] > rank.get(module.split(".")[1], len(FLOORS))
    ]
    assert not upward


def test_a_room_is_entered_by_its_door() -> None:
    past = [
        f"{module}:{node.lineno} imports from {node.module}"
        for door in doors()
        for module, node in imports()
        if f"{node.module}.".startswith(f"{door}.") and not f"{module}.".startswith(f"{door}.")
        if node.module != door or not {alias.name for alias in node.names} <= exported_names(door) | {"*", "__all__"}
    ]
    assert not past


@pytest.mark.parametrize("door", doors())
def test_a_door_exports_few_names_and_only_used_ones(door: str) -> None:
    exported = imported_names(door)
    assert len(exported) <= EXPORTS_MAX or door in LARGE_DOORS
    used = {alias.name for _, node in imports() if node.module == door for alias in node.names}
    used |= {node.id for node in nodes(door) if isinstance(node, ast.Name)}
    assert exported <= used | public_names() or door in LARGE_DOORS


def public_names() -> set[str]:
    """Return the names at the root and those that the reference documents."""
    stub = (ROOT / "persist" / "__init__.pyi").read_text(encoding="utf-8")
    pages = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    return {*re.findall(r" as (\w+)", stub), *re.findall(r"^::: persist[\w.]*\.(\w+)$", pages, re.MULTILINE)}


def test_a_module_keeps_out_of_the_private_names_of_others() -> None:
    used = [
        f"{module}:{line} uses {name}"
        for module in sources()
        for line, name in foreign_private_names(module)
        if (module, name) not in FOREIGN_PRIVATES
    ]
    assert not used


def foreign_private_names(module: str) -> list[tuple[int, str]]:
    """Return private names that a module uses and does not define, with their lines."""
    used: list[tuple[int, str]] = []
    defined: set[str] = set()
    for node in nodes(module):
        match node:
            case ast.ImportFrom(names=names):
                used += [(node.lineno, alias.name) for alias in names]
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
                defined.add(name)
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                defined.add(name)
            case ast.Attribute(ast.Name("self" | "cls")):
                pass
            case ast.Attribute(_, name):
                used.append((node.lineno, name))
            case ast.Call(ast.Name("getattr" | "setattr" | "hasattr"), [_, ast.Constant(str(name)), *_]):
                used.append((node.lineno, name))
    return [(line, name) for line, name in used if name[0] == "_" != name[1:2] and name not in defined]


def test_no_module_has_more_than_600_lines() -> None:
    assert [name for name, (path, _) in sources().items() if path.read_text().count("\n") > 600] == []
