"""Calls of a few clients, from a seed."""

import random
from collections.abc import Iterator

from tests.proofs.linearizable.specification import Call

PLAIN, KEYED = ("a", "b"), ("u",)
KEYS = 2


def drawn_calls(seed: int, clients: int, calls: int) -> list[list[Call]]:
    """Return the calls of each client. Each has a number of its own, unless it repeats another by its token."""
    chance = random.Random(seed)
    tokens: list[Call] = []
    found: list[list[Call]] = [[] for _ in range(clients)]
    for marker in range(calls):
        for client in found:
            client.append(_drawn(chance, marker * clients + len(client), tokens))
    markers = iter(range(clients * calls))
    return [[*_with_markers(client, markers)] for client in found]


def _drawn(chance: random.Random, number: int, tokens: list[Call]) -> Call:
    name = chance.choice(PLAIN)
    kinds = ("write", "write", "token", "both", "late", "seal", "upper", "rows", "rows", "count", "upsert", "get")
    kind = chance.choice(kinds)
    match kind:
        case "write":
            return (kind, name, number, None)
        case "token":
            if tokens and chance.random() < 0.6:
                return chance.choice(tokens)
            tokens.append(("write", name, -1 - len(tokens), f"token {len(tokens)}"))
            return tokens[-1]
        case "both":
            return (kind, number)
        case "late":
            return (kind, name, number, chance.randrange(12))
        case "seal" | "count":
            return (kind, name, chance.randrange(12))
        case "upsert":
            value = None if chance.random() < 0.3 else number
            return (kind, KEYED[0], chance.randrange(KEYS), value)
        case "get":
            return (kind, KEYED[0], chance.randrange(KEYS))
    return (kind, name)


def _with_markers(calls: list[Call], markers: Iterator[int]) -> Iterator[Call]:
    """Give each call a number of its own where it has one; what has a token keeps its negative one."""
    for call in calls:
        match call:
            case ("both", _):
                yield ("both", next(markers))
            case ("write", name, int(marker), token) if marker >= 0:
                yield ("write", name, next(markers), token)
            case ("late", name, _, time):
                yield ("late", name, next(markers), time)
            case ("upsert", name, key, value) if value is not None:
                yield ("upsert", name, key, next(markers))
            case _:
                yield call
