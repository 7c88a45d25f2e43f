"""The log is one chain: each record names the commit of the one before it, and follows it without a gap."""

from typing import Any


class Broken(AssertionError):
    """A record does not follow the one before it; the message says how."""


def follows(known: dict[int, str], seqno: int, commit: str, previous: str | None) -> None:
    """Take a record into the commits that are known, by their seqnos; raise Broken if it does not go on from them."""
    if seqno in known or previous != known.get(seqno - 1) or (seqno and seqno - 1 not in known):
        raise Broken(f"{commit} at {seqno} follows {previous}, and the log is {known.get(seqno - 1)} before it")
    known[seqno] = commit


class Chain:
    """The records of a log, as they come."""

    def __init__(self) -> None:
        self._commits: dict[int, str] = {}
        self._floor = 0

    def add(self, record: dict[str, Any]) -> bool:
        """Take in a record that has just been created; return whether it is part of the log. Raises Broken."""
        seqno = record["seqno"]
        for mutation in record["mutations"]:
            if mutation["kind"] == "truncate":
                self._floor = max(self._floor, mutation["floor"])
        if seqno < self._floor and seqno in self._commits:
            return False  # It was truncated before: whoever created this finds that out, and nobody reads it.
        follows(self._commits, seqno, record["commit"], record["previous"])
        return True
