"""A store in a folder of a local (or POSIX-like) file system.

A value is a file; a key's segments are folders. How a value becomes visible:

    create: temporary file -> write -> fsync -> link to the name, which fails if it exists -> unlink the temporary
            -> fsync of the folder
    set:    temporary file -> write -> fsync -> rename over the name -> fsync of the folder

A reader therefore sees all of a value or none, and a call that returned survives a power cut. `rename` would not be
exclusive, and `O_EXCL` in place would leave torn files behind a killed process. New folders are synced in their
parent. A temporary file is called `.tmp-<uuid>`, is never listed, and is removed by a later writer once it is an hour old.

Folders are made with mode 0700 and files with 0600: a location may hold what only its owner should read.
"""

import errno
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from persist.blob.errors import Indeterminate, InvalidUsage, PersistError, Unavailable
from persist.blob.protocol import TEMPORARY_PREFIX, BlobEntry, check_key

TEMPORARY_AGE_MAX_S = 3600.0

T = TypeVar("T")


class FileBlob:
    """Values as files under a folder, which the first write makes.

    Args:
        path: the folder.
        fsync: False gives up durability for speed; only for tests.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = True) -> None:
        self._root = Path(path).expanduser().absolute()
        self._fsync = fsync
        self._swept = False
        self._known_folders: set[Path] = set()
        self._lock = threading.Lock()
        if self._root.exists() and not self._root.is_dir():
            raise InvalidUsage(f"{self._root} is a file, and a location is a folder. Name a folder, or one to be made.")

    @property
    def url(self) -> str:
        return str(self._root)

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        path = self._path(key)

        def read() -> bytes | None:
            try:
                with open(path, "rb") as file:
                    if range is None:
                        return file.read()
                    file.seek(range[0])
                    return file.read(max(0, range[1] - range[0]))
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

        return self._reporting("read", key, read)

    def set(self, key: str, value: bytes) -> None:
        self._write(key, value, self._replace)

    def create(self, key: str, value: bytes) -> bool:
        path = self._path(key)
        if path.exists():
            return False
        return self._write(key, value, self._link)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        after = None if start_after is None else start_after.encode()
        yield from self._walk(self._root, "", prefix.encode(), after)

    def delete(self, key: str) -> None:
        path = self._path(key)

        def remove() -> None:
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                return
            self._sync_folder(path.parent)

        self._reporting("delete", key, remove)

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*check_key(key).split("/"))

    def _write(self, key: str, value: bytes, publish: Callable[[Path, Path], bool]) -> bool:
        path = self._path(key)

        def write() -> bool:
            self._sweep_once()
            self._make_folder(path.parent)
            temporary = path.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
            try:
                self._write_file(temporary, value)
                won = publish(temporary, path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            try:
                self._sync_folder(path.parent)
            except OSError as error:
                raise Indeterminate(f"{path} was written, and may not survive a crash: {error}") from error
            return won

        return self._reporting("write", key, write)

    def _write_file(self, path: Path, value: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(value)
            while view:
                view = view[file.write(view) :]
            if self._fsync:
                os.fsync(descriptor)

    @staticmethod
    def _link(temporary: Path, path: Path) -> bool:
        try:
            os.link(temporary, path)
            return True
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)

    @staticmethod
    def _replace(temporary: Path, path: Path) -> bool:
        os.replace(temporary, path)
        return True

    def _make_folder(self, folder: Path) -> None:
        if folder in self._known_folders and folder.is_dir():
            return
        missing = [folder, *folder.parents]
        for new in reversed([f for f in missing if not f.is_dir()]):
            try:
                os.mkdir(new, 0o700)
            except FileExistsError:
                if not new.is_dir():
                    raise
            # Another process may have made it and not synced it yet, so who needs it syncs it.
            self._sync_folder(new.parent)
        self._known_folders.add(folder)

    def _sync_folder(self, folder: Path) -> None:
        if not self._fsync:
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _sweep_once(self) -> None:
        """Remove temporary files that a killed process left, at this client's first write."""
        with self._lock:
            if self._swept:
                return
            self._swept = True
        oldest_s = time.time() - TEMPORARY_AGE_MAX_S
        for folder, _, names in os.walk(self._root):
            for name in names:
                if name.startswith(TEMPORARY_PREFIX):
                    left = Path(folder, name)
                    try:
                        if left.stat().st_mtime < oldest_s:
                            left.unlink()
                    except FileNotFoundError:
                        continue

    def _walk(self, folder: Path, above: str, prefix: bytes, after: bytes | None) -> Iterator[BlobEntry]:
        """Yield entries in the order of their keys' bytes; folders that cannot hold any are not entered."""
        try:
            with os.scandir(folder) as found:
                entries = [(above + e.name + "/" * e.is_dir(), e) for e in found if _is_visible(e)]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._unavailable("list", above, error) from error
        # A folder sorts as its name and a slash: "a-b" comes before "a/b", though "a" comes before "a-b".
        for key, entry in sorted(entries, key=lambda pair: pair[0].encode()):
            name = key.encode()
            if key.endswith("/"):
                inside = name.startswith(prefix) or prefix.startswith(name)
                if inside and (after is None or after < name or after.startswith(name)):
                    yield from self._walk(Path(entry.path), key, prefix, after)
            elif name.startswith(prefix) and (after is None or name > after):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue
                yield BlobEntry(key, stat.st_size, stat.st_mtime)

    def _reporting(self, action: str, key: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except PersistError:
            raise
        except OSError as error:
            raise self._unavailable(action, key, error) from error

    def _unavailable(self, action: str, key: str, error: OSError) -> PersistError:
        tried = f"cannot {action} {key!r} in folder {self._root}: {error.strerror}"
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return InvalidUsage(f"{tried}. Give this user the right to {action} there, or choose another folder.")
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY):
            return InvalidUsage(f"{tried}. A folder cannot hold both a key and keys below it; choose another folder.")
        return Unavailable(f"{tried}. Nothing was changed; try again when the disk is well.")

    def __repr__(self) -> str:
        return f"FileBlob({self.url!r})"


def _is_visible(entry: "os.DirEntry[Any]") -> bool:
    return not entry.name.startswith(TEMPORARY_PREFIX)
