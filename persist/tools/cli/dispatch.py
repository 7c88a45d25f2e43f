"""Runs one command, and turns its errors into messages and exit statuses.

An error of the library, of the network or of files is one line on standard error, in the words of the command line
(`persist.tools.cli.text`). The exit status shows the kind of error (`persist.tools.cli.command`). With --json the line
is an object. A traceback means a bug in the library.
"""

import json
import re
import sys
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import Any

import typer

import persist
from persist.tools.cli import copy_commands as copying
from persist.tools.cli import data_commands as moving
from persist.tools.cli import doctor, shell, status
from persist.tools.cli import erase_command as erasing
from persist.tools.cli import inspect_commands as looking
from persist.tools.cli import name_commands as naming
from persist.tools.cli import read_commands as reading
from persist.tools.cli import upkeep_commands as upkeep
from persist.tools.cli import write_commands as writing
from persist.tools.cli.command import CONFLICT, INTERRUPTED, MISTAKE, OK, PROBLEMS, UNAVAILABLE, app
from persist.tools.cli.text import escape_text, format_error

# Typer brings a Click of its own, or uses the other one: this is the base of its errors about arguments.
_Misuse: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")

_CARET = re.compile(r"\n\s*\^\s*$")
COMMANDS = (copying, looking, status, reading, shell, writing, naming, moving, erasing, upkeep, doctor)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` excludes the program's name. Return the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in takewhile(lambda argument: argument != "--", words)
    try:
        status = _build_program().main(
            args=None if arguments is None else [*arguments], prog_name="persist", standalone_mode=False
        )
        return status if isinstance(status, int) else OK
    except _Misuse as error:
        return _report_misuse(error, as_json)
    except (typer.Abort, KeyboardInterrupt):
        return _report_failure("interrupted", INTERRUPTED, as_json)
    except persist.PersistError as error:
        return _report_failure(error, _get_exit_status(error), as_json)
    except BaseExceptionGroup as group_of:  # Several writes of one client failed.
        first = group_of.exceptions[0]
        if not isinstance(first, persist.PersistError):
            raise
        return _report_failure(first, _get_exit_status(first), as_json)
    except OSError as error:
        is_mistake = isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError)
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        return _report_failure(message, MISTAKE if is_mistake else UNAVAILABLE, as_json)


@cache
def _build_program() -> Any:
    """Return the command line program; building it takes longer than many commands."""
    return typer.main.get_command(app)


def _get_exit_status(error: "persist.PersistError") -> int:
    """Return the exit status for an error's class."""
    if isinstance(error, persist.Corruption):
        return PROBLEMS
    if isinstance(error, persist.Conflict):
        return CONFLICT
    if isinstance(error, persist.Unavailable | persist.Indeterminate):
        return UNAVAILABLE
    return MISTAKE


def _report_misuse(error: Any, as_json: bool) -> int:
    """Print the error of wrong arguments; return the exit status."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        return MISTAKE
    if context is not None and not as_json:
        print(f"{context.get_usage()}\nTry '{context.command_path} --help'.", file=sys.stderr)
    return _report_failure(error.format_message(), MISTAKE, as_json)


def _report_failure(error: "persist.PersistError | str", status: int, as_json: bool) -> int:
    """Print an error, as text or JSON; return the status."""
    has_lines = getattr(error, "has_lines", False)
    text = error if isinstance(error, str) else format_error(error)
    # On one line, the caret of a query would point at nothing.
    text = text if has_lines else " ".join(_CARET.sub("", text).split())
    # Notes: which work was done nevertheless, and how to go on.
    text = " ".join([text, *getattr(error, "__notes__", ())])
    if as_json:
        document = {"error": _get_error_name(error, status), "message": text, "status": status}
        print(json.dumps(document), file=sys.stderr)
    else:
        print(f"persist: {escape_text(text, lines=has_lines)}", file=sys.stderr)
    return status


def _get_error_name(error: "persist.PersistError | str", status: int) -> str:
    """Return the public name of an error, or of its public base class."""
    if isinstance(error, str):
        return {MISTAKE: "InvalidUsage", INTERRUPTED: "KeyboardInterrupt"}.get(status, "Unavailable")
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in persist.errors.__all__)
