"""The log is one chain: each record names the commit of the one before it, and follows it without a gap."""

import json


class Broken(AssertionError):
    """A record does not follow the one before it; the message says how."""


class Chain:
    """The records of a log, as they come."""

    def __init__(self) -> None:
        self._commits: dict[int, str] = {}
        self._floor = 0

    def add(self, key: str, value: bytes) -> None:
        """Take in a record that has just been created; raise Broken."""
        record, known = json.loads(value), self._commits
        seqno = record["seqno"]
        for mutation in record["mutations"]:
            if mutation["kind"] == "truncate":
                self._floor = max(self._floor, mutation["floor"])
        if seqno < self._floor and seqno in known:
            return  # It was truncated before: whoever created this finds that out, and nobody reads it.
        if seqno in known or record["previous"] != known.get(seqno - 1) or (seqno and seqno - 1 not in known):
            raise Broken(f"{key} follows {record['previous']}, and the log is {known.get(seqno - 1)} before it")
        known[seqno] = record["commit"]
