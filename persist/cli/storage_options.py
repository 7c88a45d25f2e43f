"""Where the options of a store come from: a file, the environment, or the command line, where everybody sees them.

Of one that is given twice, the command line counts, then the file, then the environment.
"""

import argparse
import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from persist.blob import InvalidUsage

VARIABLE = "PERSIST_STORAGE_OPTIONS"
FILE_BYTES_MAX = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a command take options of a store."""
    parser.add_argument(
        "--storage-option",
        action="append",
        default=[],
        type=_option,
        metavar="NAME=VALUE",
        dest="storage_options",
        help="for the store, such as endpoint_url or region; may be repeated. Secrets go elsewhere: other users see it",
    )
    parser.add_argument(
        "--storage-options-file",
        metavar="FILE",
        help=f"a JSON object of such options, readable by its owner only; {VARIABLE} may hold one, too",
    )


def storage_options(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the options that a command was given.

    Raises:
        InvalidUsage: the file cannot be read, others may read it, or what is in it or in the environment is not an
            object. No message shows what they hold.
    """
    options = _parsed(os.environ.get(VARIABLE) or "{}", f"the environment variable {VARIABLE}")
    if asked.storage_options_file is not None:
        options |= _parsed(_text_of(asked.storage_options_file), f"the file {asked.storage_options_file}")
    return {**options, **dict(asked.storage_options)}


def _text_of(path: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_BYTES_MAX:
                raise InvalidUsage(f"{path} is no plain file of at most {FILE_BYTES_MAX:,} bytes")
            if found.st_mode & 0o077:
                raise InvalidUsage(f"{path} may be read or changed by others than its owner: chmod 600 {path}")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidUsage(f"the storage options in {path} cannot be read: {reason}") from None


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, Mapping):
        raise InvalidUsage(f'{where} does not hold a JSON object of storage options, such as {{"region": "eu-west-1"}}')
    return dict(options)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    return name, value
