"""Which transactions of MySQL or MariaDB have happened, and what time that is.

MySQL counts the transactions of each server: a set has `uuid:1-5:7`. MariaDB has the last number of each domain, as
`domain-server-number`, and numbers of a domain only grow. Both say the same on each server of a group, so a source may
move to another one.

The *measure* of a set is the number of its transactions, or the sum of the last numbers. Each transaction makes it
larger. Its time is the measure with it, times `STEP`. So times are the same on each server, and between two of them
there is room for moments at which nothing happened.
"""

from typing import Protocol

from persist.errors import InvalidUsage

STEP = 1 << 20


class Gtids(Protocol):
    """A set of transactions."""

    @property
    def measure(self) -> int:
        """A number that grows with each transaction."""
        ...

    def add(self, gtid: str) -> None:
        """Add the transaction that comes next; raise InvalidUsage if it is there, or later ones are."""
        ...

    def has(self, other: str) -> bool:
        """Return whether all transactions of a set are in this one."""
        ...


def gtids_of(text: str, *, is_mariadb: bool) -> Gtids:
    """Return the set that a server writes like that."""
    return _Domains(text) if is_mariadb else _Servers(text)


class _Domains:
    def __init__(self, text: str) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        for gtid in filter(None, text.replace("\n", "").split(",")):
            domain, server, number = map(int, gtid.strip().split("-"))
            self._last[domain] = (number, server)

    @property
    def measure(self) -> int:
        return sum(number for number, _ in self._last.values())

    def add(self, gtid: str) -> None:
        domain, server, number = map(int, gtid.split("-"))
        before = self._last.get(domain, (0, 0))[0]
        if number <= before:
            raise InvalidUsage(
                f"the transaction {gtid} comes after number {before} of its domain, so numbers run back: several "
                "servers write to one domain. Set gtid_strict_mode = ON, or give each its own gtid_domain_id; then "
                "copy again"
            )
        self._last[domain] = (number, server)

    def has(self, other: str) -> bool:
        return all(self._last.get(domain, (0, 0))[0] >= at[0] for domain, at in _Domains(other)._last.items())

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (number, server) in sorted(self._last.items()))


class _Servers:
    def __init__(self, text: str) -> None:
        self._intervals: dict[str, list[tuple[int, int]]] = {}
        for server in filter(None, text.replace("\n", "").split(",")):
            name, _, rest = server.strip().partition(":")
            tag = ""
            for piece in rest.split(":"):
                if not piece[0].isdigit():
                    tag = f":{piece}"
                    continue
                first, _, last = piece.partition("-")
                self._intervals.setdefault(name.lower() + tag, []).append((int(first), int(last or first)))

    @property
    def measure(self) -> int:
        return sum(last - first + 1 for each in self._intervals.values() for first, last in each)

    def add(self, gtid: str) -> None:
        server, _, number = gtid.lower().rpartition(":")
        at, intervals = int(number), self._intervals.setdefault(server, [])
        if any(first <= at <= last for first, last in intervals):
            raise InvalidUsage(f"the transaction {gtid} was taken in already: copy again")
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*intervals, (at, at)]):
            if merged and merged[-1][1] + 1 == first:
                merged[-1] = (merged[-1][0], last)
            else:
                merged.append((first, last))
        self._intervals[server] = merged

    def has(self, other: str) -> bool:
        return all(
            any(first <= low and high <= last for first, last in self._intervals.get(server, []))
            for server, wanted in _Servers(other)._intervals.items()
            for low, high in wanted
        )

    def __str__(self) -> str:
        return ",".join(
            ":".join([server, *(str(first) if first == last else f"{first}-{last}" for first, last in intervals)])
            for server, intervals in sorted(self._intervals.items())
        )
