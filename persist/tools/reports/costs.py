"""Estimates the cost of a location: recent requests, stored bytes, and the monthly price of both.

This client counts its own requests (`Client.metrics`), not those of other processes. One listing has the size and the
age of each object. Each object was created by a PUT of some client, so at least as many PUTs were sent as there are new
objects.

A large object counts as one request here, though a client may send it in several parts.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

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


Price = Annotated[float, msgspec.Meta(ge=0)]


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices in dollars; the defaults are the list prices of S3 Standard in us-east-1, for clients in that region.

    `read_gib`: the price of a GiB that GETs return, such as for traffic out of the region.
    """

    puts_1000: Price = 0.005
    gets_1000: Price = 0.0004
    lists_1000: Price = 0.005
    deletes_1000: Price = 0.0
    read_gib: Price = 0.0
    stored_gib_month: Price = 0.023

    @classmethod
    def from_file(cls, path: str) -> "Prices":
        """Load prices from a JSON file. Missing ones are the defaults."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise persist.InvalidUsage(f"{path} holds no JSON object of prices: {error}") from error


LIST_PRICES = Prices()


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one kind of requests, or of stored objects, in dollars a month."""

    kind: str
    requests: int
    request_bytes: int
    objects: int
    bytes: int
    dollars: float


@dataclass(frozen=True, slots=True)
class Costs:
    """The monthly cost of a location: requests by kind, and objects.

    `since_s`: the time after which requests count; `sent`: requests of this client; `made`: new objects that still
    exist.
    """

    since_s: int
    kinds: tuple[Cost, ...]
    sent: int
    made: int


def estimate_costs(client: "persist.Client", prices: Prices = LIST_PRICES) -> Costs:
    """Return the monthly cost of a location, estimated from the new objects of a day. Cost: a LIST of everything."""
    now_s = client.engine.clock.wall_ms() / 1000
    since_s = (int(now_s // HOUR_S) - 24) * HOUR_S
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
    """Return the monthly cost of requests of a kind, at the rate of `count`."""
    of_1000 = {
        "PUT": prices.puts_1000, "GET": prices.gets_1000, "LIST": prices.lists_1000, "DELETE": prices.deletes_1000
    }  # fmt: skip
    dollars = count["requests"] / 1000 * of_1000[kind]
    if kind == "GET":
        dollars += count["bytes"] / GIB * prices.read_gib
    return Cost(kind, count["requests"], count["bytes"], 0, 0, dollars * months)
