"""What a location costs: what is stored, and the requests that stored it, as far as its objects tell.

One listing of the location has the size and the age of each object. So the requests that made objects lately are
counted by kind, and so is what all objects take. If an object was made and deleted in the same hours, the listing does
not have it: the counts of parts, states and checkpoints are the least that there can have been. Records stay for days,
so their count is exact. Reads leave no trace in a store: its own metrics have them, and so does each process as
`persist_store_requests_total` (`persist serve --metrics`).

A large object is one request here; a client sends it in parts of some MiB.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import persist

GIB = 2**30
MONTH_DAYS = 30
# The first part of a key, and what people call what lies there.
KINDS = {
    "log": "records",
    "checkpoint": "checkpoints",
    "directory": "checkpoints",
    "state": "states",
    "list": "part lists",
    "part": "parts",
}
OTHER = "others"


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars; the defaults are the list prices of S3 Standard in us-east-1."""

    puts_1000: float = 0.005
    gets_1000: float = 0.0004
    lists_1000: float = 0.005
    stored_gib_month: float = 0.023

    @classmethod
    def of_file(cls, path: str) -> "Prices":
        """Return the prices that a JSON object in a file has; those that it leaves out are the defaults.

        Raises:
            InvalidUsage: it holds something else.
        """
        try:
            given = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise persist.InvalidUsage(f"{path}: {error}") from error
        known = [field.name for field in fields(cls)]
        if not isinstance(given, dict) or not {*given} <= {*known}:
            raise persist.InvalidUsage(f"{path} holds no prices: give a JSON object of some of {', '.join(known)}")
        for name, price in given.items():
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
                raise persist.InvalidUsage(f"{path}: {name}={price!r:.50} is no price: give a number of dollars")
        return cls(**given)


LIST_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class Cost:
    """What one kind of objects costs.

    Attributes:
        puts, put_bytes: of the objects that were made lately and are there.
        objects, bytes: all that are there.
        dollars: of a month, if it goes on like this: of the requests and of what is stored.
    """

    kind: str
    puts: int
    put_bytes: int
    objects: int
    bytes: int
    dollars: float

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return asdict(self)


def cost_of(client: "persist.Client", prices: Prices = LIST_PRICES, *, hours: float = 24.0) -> list[Cost]:
    """Return what each kind of objects costs, and the sum of all. Cost: a LIST of everything.

    Args:
        hours: how far back requests are counted, by this machine's clock.
    """
    after_s = time.time() - hours * 3600
    sums: dict[str, Counter[str]] = {kind: Counter() for kind in dict.fromkeys([*KINDS.values(), OTHER])}
    for entry in client.engine.blob.list(""):
        known = sums[KINDS.get(entry.key.partition("/")[0], OTHER)]
        known.update(objects=1, bytes=entry.bytes)
        if entry.modified_s >= after_s:
            known.update(puts=1, put_bytes=entry.bytes)
    found = [_cost(kind, known, prices, hours) for kind, known in sums.items() if known]
    return [*found, _total(found)]


def _cost(kind: str, known: Mapping[str, int], prices: Prices, hours: float) -> Cost:
    months = MONTH_DAYS * 24 / hours
    puts, stored = known.get("puts", 0), known.get("bytes", 0)
    dollars = puts / 1000 * prices.puts_1000 * months + stored / GIB * prices.stored_gib_month
    return Cost(kind, puts, known.get("put_bytes", 0), known.get("objects", 0), stored, dollars)


def _total(found: list[Cost]) -> Cost:
    def summed(name: str) -> Iterator[Any]:
        return (getattr(each, name) for each in found)

    counts = {name: sum(summed(name)) for name in ("puts", "put_bytes", "objects", "bytes")}
    return Cost("all", **counts, dollars=sum(summed("dollars")))
