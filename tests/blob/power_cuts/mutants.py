"""Wrong ways to write files, to show that the model of `tests.blob.power_cuts.disk` finds them.

`fsync_calls` reads the source of `persist.blob.stores.file` and returns every call in it that leads to an fsync,
directly or through other functions there. Each is a mutant: the same code without that call.
"""

import ast
import inspect
import os
import uuid
from dataclasses import dataclass

from persist.blob.stores import file
from persist.blob.stores.file import FileBlob
from tests.blob.power_cuts.recorder import Stack


@dataclass(frozen=True, slots=True)
class FsyncCall:
    """One place in the source where an fsync comes from.

    Attributes:
        function: the one that makes the call.
        callee: what it calls.
        first, last: the lines of the call.
    """

    function: str
    callee: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.function}-{self.callee}-{self.first}"

    def skips(self, lines: Stack) -> bool:
        """Tell whether an fsync that was called through these lines comes from this call."""
        return any(self.first <= line <= self.last for line in lines)


def fsync_calls() -> list[FsyncCall]:
    """Return all of them, in the order of the source."""
    tree = ast.parse(inspect.getsource(file))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    syncing = {"fsync"}
    found: list[FsyncCall] = []
    while True:
        found = [
            FsyncCall(function.name, name, call.lineno, call.end_lineno or call.lineno)
            for function in functions
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and (name := _name(call, own)) in syncing
        ]
        if (more := syncing | {call.function for call in found}) == syncing:
            return sorted(found, key=lambda call: call.first)
        syncing = more


def _name(call: ast.Call, own: set[str]) -> str:
    """Return the name of a method, of one of the module's own functions, or of `os`, that is called; '' for others."""
    if isinstance(call.func, ast.Name):
        return call.func.id if call.func.id in own else ""
    if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        return call.func.attr if call.func.value.id in ("self", "os") else ""
    return ""


class InPlace(FileBlob):
    """Creates a value under its own name, where a crash leaves half of it."""

    def create(self, key: str, value: bytes) -> bool:
        path = self._make_path(key)
        self._make_folder(os.path.dirname(path))
        try:
            self._write_temporary(path, value)
        except FileExistsError:
            return False
        self._sync_change(path)
        return True


class LinkedTooEarly(FileBlob):
    """Publishes a value before its content is durable."""

    def create(self, key: str, value: bytes) -> bool:
        path = self._make_path(key)
        if os.path.isfile(path):
            return False
        self._make_folder(os.path.dirname(path))
        temporary = os.path.join(self._root, f".tmp-{uuid.uuid4().hex}")
        with open(temporary, "xb", buffering=0) as opened:
            opened.write(value)
            os.link(temporary, path)
            os.fsync(opened.fileno())
        os.unlink(temporary)
        self._sync_change(path)
        return True


class Overwriting(FileBlob):
    """Replaces a value by writing over it."""

    def set(self, key: str, value: bytes) -> None:
        path = self._make_path(key)
        self._make_folder(os.path.dirname(path))
        with open(path, "wb", buffering=0) as opened:
            opened.write(value)
            os.fsync(opened.fileno())
        self._sync_change(path)
