"""How upserts of 1,000 events grow with the keys of the collection: `python -m benchmarks.upserts_growth`.

    [--keys N …] [--rounds N] [--plot FILE]

In an open client and as a client's first, with and without `cache_folder`; half of the events have keys that are there,
spread evenly. CPU milliseconds of this process, all threads, the median of the rounds. Prints a table and draws it.
"""

import argparse
from pathlib import Path
from statistics import median

import persist
from benchmarks.step_growth import Costs, draw, table
from benchmarks.upserts import _batches
from benchmarks.upserts_cpu import Ours, cpu_s, folder

KEYS, EVENTS = (100_000, 1_000_000, 10_000_000), 1000


def costs(keys: int, rounds: int) -> Costs:
    """Return what upserts cost in a collection of so many keys."""
    found: Costs = {}
    with folder() as place:
        for name, cache in (("", None), (", cache_folder", place / "cache")):
            settings = persist.Settings(background=False, cache_folder=cache)
            made = place / f"rows{name}"
            with persist.open(str(made), settings=settings) as client:
                ours, batches = Ours(client, keys), _batches(keys, EVENTS)
                ours.upsert(next(batches))
                taken = [cpu_s(lambda: ours.upsert(next(batches))) for _ in range(rounds)]  # noqa: B023
            found[f"open client{name}"] = median(taken) * 1e3
            taken = []
            for _ in range(rounds):
                batch = next(batches)
                taken.append(cpu_s(lambda: _first(made, settings, batch, ours.upper)))  # noqa: B023
                ours.upper += 1
            found[f"first of a client{name}"] = median(taken) * 1e3
    return found


def _first(place: Path, settings: persist.Settings, batch: object, upper: int) -> None:
    with persist.open(str(place), settings=settings) as client:
        client.load("rows").upsert(batch, time=upper, seal=upper + 1).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="*", default=list(KEYS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plot", type=Path, default=Path("docs/inside/performance-upserts.svg"))
    given = parser.parse_args()
    curve = {"keys": {count: costs(count, given.rounds) for count in given.keys}}
    print(table(curve))
    draw(curve, given.plot)


if __name__ == "__main__":
    main()
