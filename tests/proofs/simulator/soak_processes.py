"""Real processes, killed and stopped, at any size: `scripts/soak processes --races 50 --seed 1`."""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.proofs.simulator.judge import judge
from tests.proofs.simulator.processes import Fate, Race
from tests.support.servers.fixtures import make_bucket, options_of, running_moto

SHOWN_MAX = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--races", type=int, default=10, help="how many on each store (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=6, help="at once (default: %(default)s)")
    parser.add_argument("--size", type=int, default=400, help="steps of each race (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first race (default: %(default)s)")
    parser.add_argument("--store", choices=("folder", "s3", "both"), default="both")


def run(args: argparse.Namespace) -> int:
    """Race, kill and judge; return 1 if somebody was told anything wrong."""
    for store in ("folder", "s3") if args.store == "both" else (args.store,):
        with _locations(store) as locations:
            for seed, (url, options) in zip(range(args.seed, args.seed + args.races), locations, strict=False):
                with tempfile.TemporaryDirectory() as journals:
                    race = Race(url, options, Path(journals))
                    fate = Fate(kills=args.processes, stops=args.processes // 2)
                    violations = judge(race.run(seed, args.size, args.processes, fate, is_keyed=seed % 2 == 1))
                counts: Counter[str] = race.counts
                print(f"{store}, seed {seed}: {dict(counts)}", flush=True)
                if violations:
                    print(*violations[:SHOWN_MAX], sep="\n")
                    return 1
    print("clean")
    return 0


@contextmanager
def _locations(store: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """Give new locations of a store, one after the other."""
    if store == "folder":
        with tempfile.TemporaryDirectory(prefix="persist-processes-") as name:
            yield ((f"{name}/{number}", {}) for number in count())
        return
    with running_moto() as url:
        options = options_of(url)
        yield ((f"s3://{make_bucket(options)}/races", options) for _ in count())
