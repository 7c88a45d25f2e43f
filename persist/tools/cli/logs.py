"""Prints the library's log messages on standard error during a command: as remarks for people, or for a log collector.

`PERSIST_LOG` has a level, a format, or both: `info`, `json`, `debug,json`. Without it, warnings appear as remarks. With
it, each line begins with the moment, the level and the logger. In JSON a line is one object: `at`, `level`, `logger`,
`message`, and the values in the message as further fields, such as `what`, `name`, `seconds`, `seqno`. `--verbose` sets
the level `info` if the variable has no level. Stored text is escaped.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import persist
from persist.core.rendering import format_moment
from persist.tools.cli.text import print_remark

VARIABLE = "PERSIST_LOG"
LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}
FIELDS = "persist"  # The attribute of a record with its structured fields.


@contextmanager
def log_to_stderr(verbose: bool = False) -> Iterator[None]:
    """Print the library's log messages during this block."""
    level, form = parse_setting(os.environ.get(VARIABLE, ""), verbose)
    handler, logger = _Handler(level, form), logging.getLogger("persist")
    previous_level = logger.level
    logger.addHandler(handler)
    if level < logger.getEffectiveLevel():
        logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(previous_level)


def parse_setting(setting: str, verbose: bool) -> tuple[int, str]:
    """Return the level and the format (remark, line or json) that `PERSIST_LOG` demands."""
    level, form = None, "remark"
    for word in filter(None, (part.strip().lower() for part in setting.split(","))):
        if word in LEVELS:
            level, form = LEVELS[word], "line" if form == "remark" else form
        elif word == "json":
            form = "json"
        else:
            raise persist.InvalidUsage(
                f"{VARIABLE}={setting!r:.100}: {word!r:.50} is neither a level nor a format. "
                f"Give one of {', '.join(LEVELS)}, or json, or both: info,json"
            )
    if level is None:
        level = logging.INFO if verbose else logging.WARNING
    return level, form


class _Handler(logging.Handler):
    """Prints log records on standard error as remarks, lines or JSON."""

    def __init__(self, level: int, form: str) -> None:
        super().__init__(level)
        self._form = form

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as a remark, a line or JSON."""
        message, level = record.getMessage(), record.levelname.lower()
        if self._form == "remark":
            print_remark(f"persist: {message}")
            return
        at = format_moment(record.created, "milliseconds")
        if self._form == "line":
            print_remark(f"{at} {level} {record.name}: {message}")
            return
        fields = {"at": at, "level": level, "logger": record.name, "message": message}
        if record.exc_info and (error := record.exc_info[1]) is not None:
            fields["error"] = f"{type(error).__name__}: {error}"
        print_remark(json.dumps({**getattr(record, FIELDS, {}), **fields}, default=str))
