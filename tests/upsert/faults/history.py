"""What clients asked of keyed collections and what they were answered, as plain data; one JSON line for each.

Moments are of the monotonic clock, which processes of one machine share: of two calls that do not overlap it is known
which came first. Every call that writes has a token of its own, so the log tells which of them happened, and when.
"""

import json
import os
from pathlib import Path
from typing import Any

import msgspec

# (key, value or None for a deletion, time, watermark), as `tests.upsert.model.Event` has them.
Row = tuple[int, str | None, int, int | None]


class Attempt(msgspec.Struct):
    """One answer to a call: "ok", "refused" (nothing happened), or "doubt"."""

    outcome: str
    invoked_ns: int
    returned_ns: int
    error: str = ""
    told: dict[str, int] = {}
    late: list[Row] | None = None


class Call(msgspec.Struct, tag="call"):
    """A call that adds events, or seals, or both. Tried again, it is the same call, with the same token."""

    token: str
    client: str
    collection: str
    rows: list[Row]
    seal: int | None
    collects: bool
    attempts: list[Attempt] = []

    @property
    def is_told(self) -> bool:
        """Whether its client was told that it happened."""
        return any(each.outcome == "ok" for each in self.attempts)

    @property
    def may_have_happened(self) -> bool:
        return any(each.outcome != "refused" for each in self.attempts)


class Read(msgspec.Struct, tag="read"):
    """What a client read at times before `upper`: "contents" as of `time`, or "changes" from it on."""

    client: str
    collection: str
    what: str
    time: int
    upper: int
    found: list[tuple[Any, ...]]


class Wrong(msgspec.Struct, tag="wrong"):
    """An answer that nobody may get."""

    client: str
    doing: str
    error: str


Line = Call | Read | Wrong


class Recorder:
    """Appends lines to a file, each as a whole, so that a process may be killed at any moment."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, line: Line) -> None:
        os.write(self._file, json.dumps(msgspec.to_builtins(line)).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_lines(paths: list[Path]) -> list[Line]:
    """Return what recorders wrote; of a call that was written several times the last line counts."""
    calls: dict[str, Call] = {}
    others: list[Line] = []
    for path in paths:
        for text in path.read_bytes().splitlines():
            line = msgspec.json.decode(text, type=Line)
            if isinstance(line, Call):
                calls[line.token] = line
            else:
                others.append(line)
    return [*calls.values(), *others]
