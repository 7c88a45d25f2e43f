"""Where the options of a store come from: a file, the environment, or the command line, where everybody sees them.

Of one that is given twice, the command line counts, then the file, then the environment.
"""

import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

import persist

VARIABLE = "PERSIST_STORAGE_OPTIONS"
FILE_BYTES_MAX = 1 << 20


def storage_options(given: Sequence[str], file: str | None) -> dict[str, Any]:
    """Return the options that a command was given, as NAME=VALUE each and in a file, and those of the environment.

    Raises:
        InvalidUsage: the file cannot be read, others may read it, or what is in it or in the environment is not an
            object; or one of those given is not NAME=VALUE. No message shows what they hold.
    """
    options = _parsed(os.environ.get(VARIABLE) or "{}", f"the environment variable {VARIABLE}")
    if file is not None:
        options |= _parsed(_text_of(file), f"the file {file}")
    return {**options, **dict(map(_option, given))}


def _text_of(path: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_BYTES_MAX:
                raise persist.InvalidUsage(f"{path} is no plain file of at most {FILE_BYTES_MAX:,} bytes")
            if found.st_mode & 0o077:
                raise persist.InvalidUsage(f"{path} may be read or changed by others than its owner: chmod 600 {path}")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise persist.InvalidUsage(f"the storage options in {path} cannot be read: {reason}") from None


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, Mapping):
        raise persist.InvalidUsage(
            f'{where} does not hold a JSON object of storage options, such as {{"region": "eu-west-1"}}'
        )
    return dict(options)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise persist.InvalidUsage("a --storage-option is not of the form NAME=VALUE, such as region=eu-west-1")
    return name, value
