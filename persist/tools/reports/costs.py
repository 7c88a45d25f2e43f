"""The cost of a location: recent requests, stored bytes, and the monthly price of both.

This client counts its own requests (`Client.metrics`), not those of other processes. One listing has the size and the
age of each object that is there. Each object took a PUT of some client. So PUTs are at least as many as the objects of
the last hours.

A large object is one request here; a client sends it in parts of some MiB.
"""

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import persist

GIB = 2**30
MONTH_DAYS = 30
HOUR_S = 3600
# The first part of a key, and the word for people.
KINDS = {
    "log": "records",
    "checkpoint": "checkpoints",
    "directory": "checkpoints",
    "state": "states",
    "list": "part lists",
    "part": "parts",
}
OTHER = "others"
KIND_OF = {"create": "PUT", "set": "PUT", "get": "GET", "list": "LIST", "delete": "DELETE"}


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in dollars; the defaults are the list prices of S3 Standard in us-east-1, for clients in that region.

    `read_gib`: of each GiB that GETs return, such as the price of traffic out of the region.
    """

    puts_1000: float = 0.005
    gets_1000: float = 0.0004
    lists_1000: float = 0.005
    deletes_1000: float = 0.0
    read_gib: float = 0.0
    stored_gib_month: float = 0.023

    @classmethod
    def from_file(cls, path: str) -> "Prices":
        """Load prices from a JSON file. Missing ones are the defaults."""
        try:
            prices = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise persist.InvalidUsage(f"{path}: {error}") from error
        names = [field.name for field in fields(cls)]
        if not isinstance(prices, dict) or not {*prices} <= {*names}:
            raise persist.InvalidUsage(f"{path} holds no prices: give a JSON object of some of {', '.join(names)}")
        for name, price in prices.items():
            if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
                raise persist.InvalidUsage(f"{path}: {name}={price!r:.50} is not a price: give a number of dollars")
        return cls(**prices)


LIST_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one kind of requests or of objects.

    Attributes:
        requests, request_bytes: that were counted, and the bytes that went over the network with them.
        objects, bytes: that are there.
        dollars: of a month, if it goes on like this.
    """

    kind: str
    requests: int
    request_bytes: int
    objects: int
    bytes: int
    dollars: float

    def as_json(self) -> dict[str, Any]:
        """Return the cost for programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of all requests and objects.

    Attributes:
        since_s: from when on requests count, a full hour in seconds since 1970.
        kinds: one for each kind of requests, one for each kind of objects, and the sum.
        sent: how many requests this client has sent since it was opened.
        made: how many objects were made since then and are there: so there were at least as many PUTs.
    """

    since_s: int
    kinds: tuple[Cost, ...]
    sent: int
    made: int


def estimate_costs(client: "persist.Client", prices: Prices = LIST_PRICES, *, hours: int = 24) -> Costs:
    """Return the cost of a location. Cost: a LIST of everything.

    `hours`: how far back new objects count as PUTs, by this machine's clock; rounded up to full hours.
    """
    now_s = client.engine.clock.wall_ms() / 1000
    since_s = (int(now_s // HOUR_S) - hours) * HOUR_S
    months = MONTH_DAYS * 24 * HOUR_S / (now_s - since_s)
    stored: dict[str, Counter[str]] = {kind: Counter() for kind in dict.fromkeys([*KINDS.values(), OTHER])}
    new_objects = Counter[str]()
    for entry in client.engine.blob.list(""):
        stored[KINDS.get(entry.key.partition("/")[0], OTHER)].update(objects=1, bytes=entry.bytes)
        if entry.modified_s >= since_s:
            new_objects.update(requests=1, bytes=entry.bytes)
    sent = {kind: Counter[str]() for kind in KIND_OF.values()}
    for operation, count in client.metrics().store.items():
        sent[KIND_OF[operation]].update(requests=count.requests, bytes=count.bytes)
    counted = {**sent, "PUT": sent["PUT"] | new_objects}  # The greater of two.
    costs = [_make_request_cost(kind, count, prices, months) for kind, count in counted.items()]
    costs += [
        Cost(kind, 0, 0, amounts["objects"], amounts["bytes"], amounts["bytes"] / GIB * prices.stored_gib_month)
        for kind, amounts in stored.items()
        if amounts
    ]
    sums = {name: sum(getattr(cost, name) for cost in costs) for name in Cost.__slots__ if name != "kind"}
    total = sum(count["requests"] for count in sent.values())
    return Costs(since_s, (*costs, Cost("all", **sums)), total, new_objects["requests"])


def _make_request_cost(kind: str, count: Counter[str], prices: Prices, months: float) -> Cost:
    of_1000 = {
        "PUT": prices.puts_1000, "GET": prices.gets_1000, "LIST": prices.lists_1000, "DELETE": prices.deletes_1000
    }  # fmt: skip
    dollars = count["requests"] / 1000 * of_1000[kind]
    if kind == "GET":
        dollars += count["bytes"] / GIB * prices.read_gib
    return Cost(kind, count["requests"], count["bytes"], 0, 0, dollars * months)
