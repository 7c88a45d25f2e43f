"""Racers for `create`: each tries the same keys, with a value that tells whose it is.

As a program (`python -m tests.blob.race`), it is one racer in a process of its own: it reads the place,
then its number and its keys, as lines of JSON, says that it is ready, waits for another line, races, and
prints what it won.
"""

import json
import sys
from collections.abc import Callable, Iterable

from persist.blob.protocol import Blob
from tests.blob.places import open_json

LINES = 500


def candidate(racer: int, key: str) -> bytes:
    """Return a racer's value for a key, several disk pages long, so that no part passes for it."""
    return f"{racer:02d} {key}\n".encode() * LINES


def is_candidate(key: str, value: bytes) -> bool:
    """Tell whether value is all of some racer's value for key."""
    return value[:2].isdigit() and value == candidate(int(value[:2]), key)


def race(blob: Blob, racer: int, keys: Iterable[str], before_each: Callable[[], object] = lambda: None) -> list[str]:
    """Try to create each key; return those that this racer won."""
    won = []
    for key in keys:
        before_each()
        if blob.create(key, candidate(racer, key)):
            won.append(key)
    return won


def main() -> None:
    """Be one racer."""
    blob = open_json(sys.stdin.readline())
    racer, keys = json.loads(sys.stdin.readline())
    blob.get("warm-up")
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(race(blob, racer, keys)), flush=True)
    blob.close()


if __name__ == "__main__":
    main()
