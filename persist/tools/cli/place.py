"""The location of a command, and the ways to open it."""

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import persist
from persist.tools.cli.text import print_json, print_text

FAR = ("://",)  # A location with this in it is a URL, not a folder.
# The folders that a client may have left if it died before its first record.
OWN = frozenset(("checkpoint", "directory", "gc", "list", "log", "lost", "part", "state"))


@dataclass(frozen=True)
class Place:
    """The location of a command and its options: `given` as NAME=VALUE, `file` with more of them."""

    location: str
    given: tuple[str, ...] = ()
    file: str | None = None
    as_json: bool = False
    store_timeout_s: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The storage options, from the command, the file and the environment."""
        return merge_storage_options(self.location, self.given, self.file)

    def settings(self, memory_budget: int | None = None) -> "persist.Settings":
        """Return a client's settings for a command, without background work."""
        more: dict[str, Any] = {} if memory_budget is None else {"memory_budget": memory_budget}
        if self.store_timeout_s is not None:
            more["retry_s"] = self.store_timeout_s
        return persist.Settings(background=False, **more)

    @contextmanager
    def open_reader(self, *, seqno: int | None = None, memory_budget: int | None = None) -> Iterator["persist.Client"]:
        """Open the location to read. Nothing is written."""
        settings = self.settings(memory_budget)
        with persist.open(
            self.location, mode="read", storage_options=self.options, seqno=seqno, settings=settings
        ) as client:
            if client.seqno < 0:
                raise self.make_empty_error(client.url)
            yield client

    @contextmanager
    def open_writer(
        self, *, may_be_new: bool = False, memory_budget: int | None = None, background: bool = False
    ) -> Iterator["persist.Client"]:
        """Open the location to write, by default without background work."""
        settings = replace(self.settings(memory_budget), background=background)
        with persist.open(self.location, storage_options=self.options, settings=settings) as client:
            if client.seqno < 0 and not may_be_new:
                raise self.make_empty_error(client.url)
            if client.seqno < 0 and (foreign := self.find_foreign_file()) is not None:
                raise persist.InvalidUsage(
                    f"{client.url} holds something else, such as {foreign!r}, and no log of persist. A location "
                    "needs a folder of its own: name one that is empty or not there yet, such as "
                    f"{self.location.rstrip('/')}/data"
                )
            yield client

    def find_foreign_file(self) -> str | None:
        """Return a file in the location's folder that this library did not write, or None."""
        if any(mark in self.location for mark in FAR):
            return None
        with suppress(OSError), os.scandir(os.path.expanduser(self.location)) as entries:
            return min((entry.name for entry in entries if entry.name not in OWN), default=None)
        return None

    def make_empty_error(self, url: str) -> "persist.InvalidUsage":
        """Return the error for an empty location; it names other files there."""
        problem = f"nothing is stored at {url}. Check the address, or make a collection with persist create, or by "
        problem += "persist write --key"
        if (foreign := self.find_foreign_file()) is not None:
            problem = (
                f"nothing is stored at {url}: the folder holds something else, such as {foreign!r}. Check the path"
            )
        elif self.has_parts():
            problem = (
                f"{url} has data files, and no log of persist. Restore the log from a copy. If a backup, a copy or a "
                "restore to here was interrupted, give that command again, and it goes on"
            )
        return persist.InvalidUsage(problem)

    def has_parts(self) -> bool:
        """Return whether data files are stored there."""
        from persist.core.log.keys import PARTS

        with persist.open(self.location, mode="read", storage_options=self.options, settings=self.settings()) as client:
            return any(True for _ in client.engine.blob.list(PARTS))


def is_folder(location: str) -> bool:
    """Return whether a location is a local folder."""
    return "://" not in location or location.lower().startswith("file://")


def report_done(at: Place, result: dict[str, Any], line: str) -> None:
    """Print a finished action: JSON with --json, else a line."""
    if at.as_json:
        print_json(result)
    else:
        print_text(line)


VARIABLE = "PERSIST_STORAGE_OPTIONS"
FOLDER_OPTIONS = ("file_mode", "folder_mode", "fsync")
FILE_BYTES_MAX = 1 << 20


def merge_storage_options(location: str, option_texts: Sequence[str] = (), file: str | None = None) -> dict[str, Any]:
    """Merge the options of the command, a file and the environment.

    Options of the environment are meant for a store. A folder ignores the options of a store.
    """
    options = _parse_json(os.environ.get(VARIABLE) or "{}", f"the environment variable {VARIABLE}")
    if is_folder(location):
        options = {name: value for name, value in options.items() if name in FOLDER_OPTIONS}
    if file is not None:
        options |= _parse_json(_read_private_file(file), f"the file {file}")
    return {**options, **dict(map(_parse_option, option_texts))}


def _read_private_file(path: str) -> str:
    """Return the text of a small file that only its owner may read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
                raise persist.InvalidUsage(f"{path} is not a plain file of at most {FILE_BYTES_MAX:,} bytes")
            if status.st_mode & 0o077:
                raise persist.InvalidUsage(f"{path} may be read or changed by others than its owner: chmod 600 {path}")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise persist.InvalidUsage(f"the storage options in {path} cannot be read: {reason}") from None


def _parse_json(text: str, where: str) -> dict[str, Any]:
    """Return the storage options in a JSON object."""
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, Mapping):
        raise persist.InvalidUsage(
            f'{where} does not hold a JSON object of storage options, such as {{"region": "eu-west-1"}}'
        )
    return dict(options)


def _parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise persist.InvalidUsage("a --storage-option is not of the form NAME=VALUE, such as region=eu-west-1")
    return name, value
