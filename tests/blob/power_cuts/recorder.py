"""The system calls that change a folder, written down as what they do to inodes.

While a `Recorder` is installed, calls in `os` (and `open` of Python) that concern paths below its top folder are
carried out and recorded, one at a time whatever thread they come from. Names and contents are recorded apart, as a
file system keeps them:

    Entry(folder, name, inode)   the name in that folder now stands for that inode; None removes it
    Data(inode, content)         the file now has that content
    Sync(inode)                  fsync of a file or of a folder returned
    Mark(what)                   the caller's own note, such as an acknowledgement

Writing itself goes through objects of Python that cannot be watched; contents are therefore read before each recorded
call. The top folder is inode 0 and is empty at the beginning. `check_complete` compares the recording with the folder,
so that a call this module does not know cannot go unnoticed.

A recorder can also act as the death of a process: from an event on, every call raises `Killed` and does nothing.
"""

import builtins
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_CHANGING_MODES = frozenset("wxa+")


class Killed(BaseException):
    """The process that would make this call is dead. Not an Exception, so that nobody handles it."""


@dataclass(frozen=True, slots=True)
class Entry:
    folder: int
    name: str
    inode: int | None


@dataclass(frozen=True, slots=True)
class Data:
    inode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Sync:
    inode: int


@dataclass(frozen=True, slots=True)
class Mark:
    what: Any


Event = Entry | Data | Sync | Mark


class Recorder:
    """Records what happens below a folder.

    Attributes:
        events: what happened.
        calls: how many events there were when each call began: the moments at which a process can be killed.

    Args:
        top: an empty folder that exists; as durable as can be.
        syncs: whether an fsync has an effect.
    """

    def __init__(self, top: str, *, syncs: bool = True) -> None:
        self.top = top
        self.events: list[Event] = []
        self.calls: list[int] = []
        self.kill_at: int | None = None
        self._syncs = syncs
        self._lock = threading.RLock()
        self._folders: dict[int, dict[str, int]] = {0: {}}
        self._contents: dict[int, bytes] = {}
        self._inodes = {os.stat(top).st_ino: 0}
        self._writing: dict[int, tuple[int, int]] = {}  # By descriptor: our inode, and the system's.
        self._count = 1
        self._real: dict[str, Callable[..., Any]] = {}

    def mark(self, what: Any) -> None:
        """Add the caller's own note."""
        with self._lock:
            self._note_contents()
            self.events.append(Mark(what))

    @contextmanager
    def installed(self) -> Iterator["Recorder"]:
        """Record until the block ends."""
        wrappers: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "fsync": self._fsync,
            "fdatasync": self._fsync,
            "mkdir": self._mkdir,
            "link": self._link,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": self._unlink,
            "remove": self._unlink,
            "rmdir": self._unlink,
        }
        self._real = {name: getattr(os, name) for name in wrappers}
        opened = builtins.open
        self._real["python open"] = opened
        for name, wrapper in wrappers.items():
            setattr(os, name, self._serially(name, wrapper))
        builtins.open = io.open = self._serially("python open", self._python_open)
        try:
            yield self
            with self._lock:
                self._note_contents()
        finally:
            builtins.open = io.open = opened
            for name in wrappers:
                setattr(os, name, self._real[name])

    def check_complete(self) -> None:
        """Raise AssertionError unless the events account for all that is in the folder now."""
        found = read_tree(self.top)
        recorded: dict[str, bytes | None] = {}

        def walk(inode: int, path: str) -> None:
            for name, child in self._folders[inode].items():
                recorded[path + name] = self._contents.get(child)
                if child in self._folders:
                    recorded[path + name] = None
                    walk(child, f"{path}{name}/")

        walk(0, "")
        assert found == recorded, f"not recorded: {sorted(found.items() ^ recorded.items())}"[:2000]

    def _serially(self, name: str, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._concerns(name, args):
                return self._real[name](*args, **kwargs)
            assert not {"dir_fd", "src_dir_fd", "dst_dir_fd"} & kwargs.keys(), f"{name} relative to a folder"
            with self._lock:
                self._note_contents()
                if self.kill_at is not None and len(self.events) >= self.kill_at:
                    raise Killed
                self.calls.append(len(self.events))
                return wrapper(self._real[name], *args, **kwargs)

        return call

    def _concerns(self, name: str, args: tuple[Any, ...]) -> bool:
        if isinstance(args[0], int):
            return "fsync" in name or "fdatasync" in name
        return os.path.abspath(os.fsdecode(args[0])).startswith(self.top + os.sep)

    # One method for each kind of call; the first argument is the real function.

    def _open(self, real: Callable[..., int], path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        known = self._find(path)
        descriptor = real(path, flags, *args, **kwargs)
        if flags & (os.O_WRONLY | os.O_RDWR):
            self._begin_writing(path, known, descriptor)
        return descriptor

    def _python_open(self, real: Callable[..., Any], path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        known = self._find(path)
        file = real(path, mode, *args, **kwargs)
        if _CHANGING_MODES & set(mode):
            self._begin_writing(path, known, file.fileno())
        return file

    def _fsync(self, real: Callable[[int], None], descriptor: int) -> None:
        # The real fsync is left out: the disk that matters here is the model's.
        inode = self._inodes.get(os.fstat(descriptor).st_ino)
        if inode is not None and self._syncs:
            self.events.append(Sync(inode))

    def _mkdir(self, real: Callable[..., None], path: Any, *args: Any, **kwargs: Any) -> None:
        real(path, *args, **kwargs)
        self._folders[self._new_inode(os.stat(path).st_ino)] = {}
        self._enter(path, self._count - 1)

    def _link(self, real: Callable[..., None], source: Any, target: Any, **kwargs: Any) -> None:
        real(source, target, **kwargs)
        self._enter(target, self._find(source))

    def _rename(self, real: Callable[..., None], source: Any, target: Any) -> None:
        real(source, target)
        self._enter(target, self._find(source))
        self._enter(source, None)

    def _unlink(self, real: Callable[..., None], path: Any) -> None:
        real(path)
        self._enter(path, None)

    # What the folder looks like to those who are alive.

    def _begin_writing(self, path: Any, known: int | None, descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        inode = self._new_inode(number) if known is None else known
        if known is None:
            self._contents[inode] = b""
            self.events.append(Data(inode, b""))
            self._enter(path, inode)
        self._writing[descriptor] = (inode, number)

    def _new_inode(self, number: int) -> int:
        inode, self._count = self._count, self._count + 1
        self._inodes[number] = inode
        return inode

    def _note_contents(self) -> None:
        """Record what has been written since the last call."""
        for descriptor, (inode, number) in list(self._writing.items()):
            path = self._path(inode)
            if path is not None:
                with self._real["python open"](path, "rb") as file:
                    content = file.read()
                if content != self._contents[inode]:
                    self._contents[inode] = content
                    self.events.append(Data(inode, content))
            try:
                is_open = os.fstat(descriptor).st_ino == number
            except OSError:
                is_open = False
            if not is_open or path is None:
                del self._writing[descriptor]

    def _enter(self, path: Any, inode: int | None) -> None:
        parent, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        folder = self._find(parent)
        assert folder is not None, path
        if inode is None:
            del self._folders[folder][name]
        else:
            self._folders[folder][name] = inode
        self.events.append(Entry(folder, name, inode))

    def _find(self, path: Any) -> int | None:
        relative = os.path.relpath(os.path.abspath(os.fsdecode(path)), self.top)
        inode: int | None = 0
        for name in [] if relative == "." else relative.split(os.sep):
            inode = self._folders.get(inode, {}).get(name) if inode is not None else None
        return inode

    def _path(self, wanted: int) -> str | None:
        def walk(inode: int, path: str) -> str | None:
            if inode == wanted:
                return path
            children = self._folders.get(inode, {}).items()
            return next((p for n, child in children if (p := walk(child, os.path.join(path, n)))), None)

        return walk(0, self.top)


def read_tree(top: str) -> dict[str, bytes | None]:
    """Return all paths below a folder: contents of files, None for folders."""
    tree: dict[str, bytes | None] = {}
    for folder, names, files in os.walk(top):
        tree.update({os.path.relpath(os.path.join(folder, name), top): None for name in names})
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                tree[os.path.relpath(file.name, top)] = file.read()
    return tree
