"""Runs the console blocks of a page as they stand there, and compares what they print.

A block is marked `console`. A line that begins with `$ ` is a command: `persist …`, perhaps with `< FILE`, or
`cat FILE` of a file that the test has made. The lines after it are what it prints, standard error included. `…` stands
for anything, and alone on a line for any number of lines. Runs of blanks count as one.
"""

import re
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from persist.tools.cli.main import main

Run = Callable[..., str]  # The fixture of `tests/tools/cli/conftest.py`.
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def commands_of(page: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a page, each with the lines that it should print."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(page):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


def run_page(path: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run the commands of a page in the present folder; return how many there were."""
    commands = commands_of(path.read_text(encoding="utf-8"))
    for command, expected in commands:
        program, *arguments = shlex.split(command)
        if program == "cat":
            printed = Path(arguments[0]).read_text()
        else:
            assert program == "persist", command
            with ExitStack() as stack:
                if "<" in arguments:
                    *arguments, _, name = arguments
                    patched = stack.enter_context(pytest.MonkeyPatch.context())
                    patched.setattr(sys, "stdin", stack.enter_context(open(name, encoding="utf-8")))
                main(arguments)
            out, err = capsys.readouterr()
            # A client that another test left open may log that its folder is gone.
            errors = (line for line in err.splitlines(keepends=True) if "upkeep of the location failed" not in line)
            printed = out + "".join(errors)
        assert matches(expected, printed.splitlines()), f"$ {command}\n{printed}\ninstead of\n" + "\n".join(expected)
    return len(commands)


def matches(expected: list[str], printed: list[str]) -> bool:
    """Return whether lines are those expected."""
    pattern = "".join(r"(?:.*\n)*?" if line == "…" else _line(line) for line in expected)
    return re.fullmatch(pattern, "".join(f"{' '.join(line.split())}\n" for line in printed)) is not None


def _line(line: str) -> str:
    return ".*".join(re.escape(piece) for piece in " ".join(line.split()).split("…")) + r"\n"
