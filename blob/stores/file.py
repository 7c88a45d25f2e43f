"""A store in a folder of a local (or POSIX-like) file system.

A value is a file; a key's segments are folders. How a value becomes visible:

    create: temporary file -> write -> fsync -> link to the name, which fails if it exists
            -> fsync of the folder -> unlink the temporary
    set:    temporary file -> write -> fsync -> link to a second temporary -> rename that over the name
            -> fsync of the folder -> unlink the temporary

A reader therefore sees all of a value or none, and a call that returned survives a power cut. `rename` would
not be exclusive, and `O_EXCL` in place would leave torn files behind a killed process. A new folder is
synced in its parent.

A value is visible a moment before its folder is synced, and its writer may die in that moment. Therefore every reader
of a value, by `get` or by a `create` that finds the key taken, syncs the folder first. It skips this if this object has
synced the folder since the file was last changed, or if the file has only one name: the temporary name is removed after
the sync. (This relies on the file system's count of names.) So a power cut never undoes a seal that was read, and
readers of a busy log need not sync its folder for every record.

A temporary file is called `.tmp-<uuid>` and is never listed. It is in the root folder, so that the first write of a
later client finds those of killed processes by reading one folder. It removes them once they are an hour old.

By default, folders have mode 0700 and files 0600: only the owner may be allowed to read a location. Existing files and
folders keep their modes. Symbolic links below the root are not followed. Folders that become empty stay.

Only plain files are values. Anything else at a key's path, such as a FIFO, a device, a symbolic link or a folder, is
opened without blocking, and never read. Readers treat it as damage, because no value can be created there. A file
larger than `VALUE_BYTES_MAX` is refused before any of it is read.
"""

import bisect
import errno
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_IFLNK, S_IMODE, S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISLNK, S_ISREG, S_ISSOCK

from persist.blob.errors import (
    FULL,
    CorruptBlob,
    Indeterminate,
    InvalidUsage,
    PersistError,
    StoreFull,
    StoreMisconfigured,
    Unavailable,
)
from persist.blob.protocol import (
    TEMPORARY_AGE_MAX_S,
    TEMPORARY_PREFIX,
    BlobEntry,
    check_bytes,
    check_key,
    check_range,
    is_key,
)

FILE_MODE = 0o600
FOLDER_MODE = 0o700
VALUE_BYTES_MAX = 16 << 30  # Far more than a part ever has. Readers who know better ask for less.
READ_BYTES_MAX = 1 << 30  # The limit of one system call, which returns at most 2 GiB on Linux.
CLOCK_TICK_NS = 50_000_000  # Times of files come from a clock that moves in ticks, of 10 ms at most on Linux.


class FileBlob:
    """Values as files under a folder, which the first write makes.

    A write costs the fsync of a file and of a folder, about 5 ms.

    Args:
        path: the folder.
        fsync: False trades durability for speed; only for tests.
        file_mode, folder_mode: rights of new files and folders, for any umask; the owner's rights must be complete.
            With 0o660 and 0o2770, a group shares a location. Text has octal digits: "0640".
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = True,
        file_mode: int | str = FILE_MODE,
        folder_mode: int | str = FOLDER_MODE,
    ) -> None:
        self._file_mode = _parse_mode("file_mode", file_mode, FILE_MODE, 0o666)
        self._folder_mode = _parse_mode("folder_mode", folder_mode, FOLDER_MODE, 0o2777)
        self._root = str(Path(path).expanduser().absolute())
        self._fsync = fsync
        self._lock = threading.Lock()
        self._swept = False
        self._durable_folders: set[str] = set()  # As far as this object has seen to it.
        self._synced_ns: dict[str, int] = {}  # By folder: what changed in it before that time is durable.
        self._check_root()

    def __repr__(self) -> str:
        return f"FileBlob({self._root!r})"

    @property
    def url(self) -> str:
        """The absolute path of the folder."""
        return self._root

    def get(self, key: str, range: tuple[int, int] | None = None, *, bytes_max: int = VALUE_BYTES_MAX) -> bytes | None:
        """Return the value at key or its bytes `[start, end)`; None when there is none.

        A larger value than bytes_max raises CorruptBlob, unless only a range is read.
        """
        path = self._make_path(key)
        if range is not None:
            check_range(range)
        try:
            # Do not wait: opening a FIFO without a writer would never return.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                stat = os.fstat(descriptor)
                if S_ISDIR(stat.st_mode):
                    raise CorruptBlob(key, f"{path} is a folder and no plain file: move it away")
                if not S_ISREG(stat.st_mode):
                    raise _make_special_file_error(key, path, stat.st_mode)
                self._sync_file_folder(path, stat)
                if range is None:
                    check_bytes(key, stat.st_size, bytes_max)
                    range = (0, stat.st_size)
                return _read_range(descriptor, range[0], min(range[1], stat.st_size))
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            self._check_root()
            return None
        except OSError as error:
            if error.errno == errno.ENXIO:  # A socket cannot even be opened.
                raise _make_special_file_error(key, path, os.lstat(path).st_mode) from None
            raise self._map_os_error("read", path, error) from error

    def get_at_most(self, key: str, bytes_max: int) -> bytes | None:
        """Return the value at key; raise CorruptBlob, without reading it, if it has more than bytes_max bytes."""
        return FileBlob.get(self, key, bytes_max=min(bytes_max, VALUE_BYTES_MAX))

    def set(self, key: str, value: bytes) -> None:
        """Store value at key, replacing what was there."""
        self._write_file(key, value, _replace_file)

    def create(self, key: str, value: bytes) -> bool:
        """Store value at key if there is none; return whether this call stored it."""
        path = self._make_path(key)
        if not os.path.isfile(path) and self._write_file(key, value, _link_file):
            return True
        self._sync_existing(path)
        return False

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        """Yield entries whose key starts with prefix, in key order; a folder is read when reached."""
        base = prefix.rpartition("/")[0]
        if base and not is_key(base):
            return  # No key can start so, and '..' must not be followed.
        top = self._make_folder_path(f"{base}/") if base else self._root
        try:
            yield from self._walk_folder(f"{base}/" if base else "", prefix, start_after or "")
        except NotADirectoryError:
            self._check_root()
        except OSError as error:
            raise self._map_os_error("list", top, error) from error

    def delete(self, key: str) -> None:
        """Remove key; a missing key is not an error."""
        for error in self.delete_page([key]).values():
            raise error

    def delete_page(self, keys: Sequence[str]) -> Mapping[str, PersistError]:
        """Remove keys with one fsync for each of their folders; return the keys that may remain, and why."""
        failed: dict[str, PersistError] = {}
        removed: dict[str, list[str]] = {}
        for key in keys:
            path = self._make_path(key)
            try:
                os.unlink(path)
                removed.setdefault(os.path.dirname(path), []).append(key)
            except (FileNotFoundError, IsADirectoryError):
                pass
            except NotADirectoryError:
                self._check_root()
            except OSError as error:
                failed[key] = self._map_os_error("delete", path, error)
        for same_folder in removed.values():
            try:
                self._sync_change(self._make_path(same_folder[0]))
            except Indeterminate as error:
                failed.update(dict.fromkeys(same_folder, error))
        return failed

    def close(self) -> None:
        """Do nothing: no file stays open between calls."""

    # Writing.

    def _write_file(self, key: str, value: bytes, publish: Callable[[str, str], None]) -> bool:
        """Write a file; `publish` gives it its name. Return False if an older file stays."""
        path = self._make_path(key)
        temporary = os.path.join(self._root, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        may_be_unsynced = False
        try:
            self._make_folder(os.path.dirname(path))
            self._write_temporary(temporary, value)
            # Before anything can be seen: in a process that may open no more files, this is what fails.
            with _open_folder(os.path.dirname(path)) as folder:
                may_be_unsynced = True
                try:
                    publish(temporary, path)
                except (OSError, _NoLinks):
                    may_be_unsynced = False
                    raise
                self._sync_change(path, folder)
                may_be_unsynced = False
            return True
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            if publish is _link_file and os.path.isfile(path):
                return False
            self._check_root()
            raise self._make_occupied_error(key, path) from None
        except _NoLinks as error:
            raise StoreMisconfigured(
                f"cannot write {path} in folder {self._root}: {error.strerror}. A folder of values needs a file system "
                "with hard links, because an atomic create uses them: choose another folder, or an object store."
            ) from error.__cause__
        except OSError as error:
            raise self._map_os_error("write", path, error) from error
        finally:
            if not may_be_unsynced:  # Or else it stays for readers to see that the folder must be synced.
                with suppress(OSError):
                    os.unlink(temporary)

    def _write_temporary(self, temporary: str, value: bytes) -> None:
        """Write a file under a temporary name, durably."""
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            if S_IMODE(os.fstat(descriptor).st_mode) != self._file_mode:
                os.fchmod(descriptor, self._file_mode)  # The umask may have removed the owner's rights.
            view = memoryview(value)
            while view:
                view = view[file.write(view) :]  # A raw write may take less than all.
            if self._fsync:
                os.fsync(descriptor)

    def _make_folder(self, folder: str) -> None:
        """Make a folder and its parents durable, before files in it count."""
        if folder in self._durable_folders and os.path.isdir(folder):
            return
        with self._lock:
            _make_folders(
                self._root,
                folder,
                mode=self._folder_mode,
                sync=self._fsync,
                above=self._root not in self._durable_folders,
            )
            self._durable_folders |= {self._root, folder}
            if not self._swept:
                self._swept = True
                _remove_old_temporaries(self._root)

    def _sync_change(self, path: str, folder: int | None = None) -> None:
        """Sync the folder of a changed path; raise Indeterminate if that fails.

        `folder`: the descriptor of path's folder, if it is open.
        """
        if not self._fsync:
            return
        try:
            self._sync_and_note(os.path.dirname(path), folder)
        except OSError as error:
            raise Indeterminate(
                f"{path} was changed, and may not survive a power cut: fsync of its folder failed "
                f"({error.strerror}). Read it back before trying again."
            ) from error

    def _sync_and_note(self, folder: str, descriptor: int | None = None) -> None:
        """Sync a folder, and note the time, to skip later syncs."""
        begun_ns = time.time_ns()
        if descriptor is None:
            _sync_folder(folder)
        else:
            os.fsync(descriptor)
        self._synced_ns[folder] = begun_ns

    def _sync_existing(self, path: str) -> None:
        """Make durable a file that `create` found, before reporting it."""
        try:
            self._sync_file_folder(path, os.stat(path))
        except FileNotFoundError:
            return  # Deleted since.
        except OSError as error:
            raise self._map_os_error("read", path, error) from error

    def _sync_file_folder(self, path: str, stat: os.stat_result) -> None:
        """Sync a file's folder: its writer may have died before that.

        File times and ours come from one clock. Only one case is not noticed: the clock is set back by more than a tick
        at the moment in which a process dies before a power cut.
        """
        folder = os.path.dirname(path)
        if not self._fsync or stat.st_nlink == 1:
            return
        if stat.st_ctime_ns + CLOCK_TICK_NS < self._synced_ns.get(folder, 0):
            return
        try:
            self._sync_and_note(folder)
        except OSError as error:
            # These mean that this process may not sync, or that the file system cannot; then it cannot write here
            # either, or nothing is durable anyway.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.EOPNOTSUPP):
                raise

    # Listing.

    def _walk_folder(self, folder: str, prefix: str, after: str) -> Iterator[BlobEntry]:
        """Yield the entries below a folder that match, in key order.

        Text sorts by code point, which is the order of its UTF-8 bytes. A folder sorts as its name and a
        slash, as its keys do: 'a-b' comes before 'a/b', though 'a' comes before 'a-b'.
        """
        keys = self._list_folder(folder)
        first = bisect.bisect_left(keys, max(prefix, after))
        if after > prefix and first and keys[first - 1].endswith("/") and after.startswith(keys[first - 1]):
            first -= 1  # The folder that after is in.
        for key in itertools.islice(keys, first, None):
            if not key.startswith(prefix):
                return  # Sorted, so no later one does.
            is_folder = key.endswith("/")
            # Here, because of a long folder few names are reached.
            if (key == after and not is_folder) or not is_key(key.removesuffix("/")):
                continue
            if is_folder:
                yield from self._walk_folder(key, prefix, after)
            elif (entry := self._make_entry(key)) is not None:
                yield entry

    def _list_folder(self, folder: str) -> Sequence[str]:
        """Return the names in a folder as keys, in order, including invalid keys."""
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                keys = [
                    f"{folder}{entry.name}/" if entry.is_dir(follow_symlinks=False) else folder + entry.name
                    for entry in entries
                ]
        except FileNotFoundError:
            return []
        keys.sort()
        return keys

    def _make_entry(self, key: str) -> BlobEntry | None:
        """Return the entry of a key; None if it is no file."""
        try:
            stat = os.lstat(os.path.join(self._root, key))
        except FileNotFoundError:
            return None  # Deleted since its folder was read.
        return BlobEntry(key, stat.st_size, stat.st_mtime) if S_ISREG(stat.st_mode) else None

    # Paths and errors.

    def _make_path(self, key: str) -> str:
        """Return the path of a key's file; raises InvalidUsage for an invalid key."""
        path = os.path.join(self._make_folder_path(check_key(key)), key.rpartition("/")[2])
        if os.path.islink(path):
            raise _make_special_file_error(key, path, S_IFLNK)
        return path

    def _make_folder_path(self, key: str) -> str:
        """Return the path of the folder that key is in."""
        path = self._root
        for segment in key.split("/")[:-1]:
            path = os.path.join(path, segment)
            if os.path.islink(path):
                raise InvalidUsage(
                    f"blob key {key!r} is not allowed: {path} is a symbolic link, and those are not followed "
                    "below the root of a location. Put a real folder in its place."
                )
        return path

    def _check_root(self) -> None:
        """Raise StoreMisconfigured if the root, or a folder above it, is a file."""
        if obstacle := _find_first_non_folder(self._root):
            raise StoreMisconfigured(
                f"{self._root} cannot be a location: {obstacle} is a file. Name a folder, or one to be made."
            )

    def _make_occupied_error(self, key: str, path: str) -> PersistError:
        """Return the error for a path that a folder or value occupies."""
        with suppress(OSError):
            if _name_special_kind(mode := os.lstat(path).st_mode):
                return _make_special_file_error(key, path, mode)
        obstacle = os.path.relpath(_find_first_non_folder(path) or path, self._root)
        kind = "a folder" if os.path.isdir(path) else "a value"
        return InvalidUsage(
            f"blob key {key!r} cannot be stored in folder {self._root}: {obstacle!r} is {kind} there, and a "
            "folder cannot hold both a value 'a' and a value 'a/b'. Use another key."
        )

    def _map_os_error(self, action: str, path: str, error: OSError) -> PersistError:
        """Return the error to raise for a failed system call."""
        tried = f"cannot {action} {path} in folder {self._root}: {error.strerror}"
        if error.errno == errno.EROFS:
            return StoreMisconfigured(f"{tried}. The file system is read-only: choose another folder.")
        if error.errno in (errno.EACCES, errno.EPERM):
            return StoreMisconfigured(
                f"{tried}. Give this user the right to {action} there (and to make hard links), or choose "
                "another folder."
            )
        if error.errno == errno.ELOOP:
            return InvalidUsage(f"{tried}. Symbolic links below the root of a location are not followed.")
        if error.errno in FULL:
            return StoreFull(f"{tried}. That object is unchanged. {FULL[error.errno]}, then try again.")
        return Unavailable(f"{tried}. That object is unchanged; try again when the disk is well.")


def _make_folders(root: str, folder: str, *, mode: int, sync: bool, above: bool) -> None:
    """Make a folder and its parents, each durable in its own parent.

    An existing folder may come from a process that was killed before its fsync, or has not reached it yet. So all are
    synced, whoever created them; folders above the root only if requested. If we have no right to sync one of these, we
    have not made it either.
    """
    chain = _list_parents(folder)[1:]
    missing = [path for path in chain if not os.path.isdir(path)]
    for path in missing:
        try:
            os.mkdir(path, FOLDER_MODE)
            if S_IMODE(os.stat(path).st_mode) != mode:
                os.chmod(path, mode)  # The umask may have removed the owner's rights.
        except FileExistsError:
            if not os.path.isdir(path):
                raise  # Otherwise another process was faster.
    for path in chain if sync else ():
        if path in missing or len(path) > len(root):
            _sync_folder(os.path.dirname(path))
        elif above:
            with suppress(OSError):
                _sync_folder(os.path.dirname(path))


class _NoLinks(Exception):
    """The file system cannot make another hard link; nothing was published."""

    def __init__(self, strerror: str | None) -> None:
        super().__init__(strerror)
        self.strerror = strerror


def _link_file(source: str, target: str) -> None:
    """Give a file a second name; raise FileExistsError if it is taken."""
    try:
        os.link(source, target)
    except OSError as error:
        # Linux returns EPERM if links are not supported; missing rights are EACCES.
        if error.errno in (errno.ENOSYS, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EXDEV):
            raise _NoLinks(error.strerror) from error
        raise


def _replace_file(temporary: str, path: str) -> None:
    """Give a temporary file a second name, replacing the file there."""
    second = f"{temporary}-2"
    _link_file(temporary, second)
    try:
        os.rename(second, path)
    except OSError:
        with suppress(OSError):
            os.unlink(second)
        raise


def _remove_old_temporaries(root: str) -> None:
    """Delete temporary files that dead writers have left."""
    oldest_s = time.time() - TEMPORARY_AGE_MAX_S
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY_PREFIX):
                with suppress(FileNotFoundError):  # Another process may sweep at the same time.
                    stat = entry.stat(follow_symlinks=False)
                    if stat.st_mtime < oldest_s:
                        if stat.st_nlink > 1:
                            os.sync()  # Its second name shows that the folder of the first may not be durable.
                        os.unlink(entry.path)


def _parse_mode(name: str, value: int | str, least: int, most: int) -> int:
    """Return a file mode from an option; raise InvalidUsage if it is invalid."""
    try:
        mode = int(value, 8) if isinstance(value, str) else value
    except ValueError:
        raise InvalidUsage(f'{name}={value!r} is not allowed: give octal digits, such as "0640"') from None
    if mode & least != least or mode & ~most:
        raise InvalidUsage(f"{name}={mode:#o} is not allowed: give at least {least:#o} and at most {most:#o}")
    return mode


def _list_parents(path: str) -> list[str]:
    """Return path and the folders above it, the outermost first."""
    return [str(p) for p in reversed((Path(path), *Path(path).parents))]


def _find_first_non_folder(path: str) -> str:
    """Return the outermost part of a path that is a file; or ''."""
    return next((p for p in _list_parents(path) if os.path.exists(p) and not os.path.isdir(p)), "")


@contextmanager
def _open_folder(folder: str) -> Iterator[int]:
    """Open a folder for fsync; yield its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_folder(folder: str) -> None:
    """Make a folder's entries durable."""
    with _open_folder(folder) as descriptor:
        os.fsync(descriptor)


def _read_range(descriptor: int, start: int, end: int) -> bytes:
    """Return the bytes `[start, end)` of a file; fewer only if the file ends before."""
    pieces: list[bytes] = []
    while start < end and (piece := os.pread(descriptor, min(end - start, READ_BYTES_MAX), start)):
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _name_special_kind(mode: int) -> str | None:
    """Return the kind of a special file, such as a FIFO, from its mode; None for files and folders."""
    tests = (
        (S_ISFIFO, "a FIFO"),
        (S_ISSOCK, "a socket"),
        (S_ISCHR, "a device"),
        (S_ISBLK, "a device"),
        (S_ISLNK, "a symbolic link"),
    )
    return next((kind for is_kind, kind in tests if is_kind(mode)), None)


def _make_special_file_error(key: str, path: str, mode: int) -> CorruptBlob:
    """Return the error for a FIFO, device or the like."""
    return CorruptBlob(key, f"{path} is {_name_special_kind(mode) or 'a special file'} and no plain file: remove it")
