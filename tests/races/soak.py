"""The races of `tests.races.test_races` for as long as one likes.

    python -m tests.races.soak [--processes N] [--seconds S] [--seed N] [--store folder|s3|both] [--keep FOLDER]

On each store it races shared writers, shared writers that read, and exclusive writers that are stopped now and then;
each for its share of the seconds. It prints what each race came to and returns 1 if a history was not linearizable.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.races import scenario
from tests.races.scenario import Outcome, exclusive_writers
from tests.servers.fixtures import make_bucket, options_of, running_moto

ROUND_S = 15.0  # A history of more than this takes longer to judge than to make.
KINDS = ("shared", "holds", "exclusive")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this soak."""
    parser.add_argument("--processes", type=int, default=8, help="that write; two more read")
    parser.add_argument("--seconds", type=float, default=60.0, help="of racing, in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=["folder", "s3", "both"], default="both")
    parser.add_argument("--keep", type=Path, help="where to keep the histories; nowhere by default")


def run(arguments: argparse.Namespace) -> int:
    """Race and judge; return 0 if all is well."""
    stores = ["folder", "s3"] if arguments.store == "both" else [arguments.store]
    per_kind_s = arguments.seconds / len(stores) / len(KINDS)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="persist-races-") as name:
        folder = arguments.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for store in stores:
            with _locations(store) as locations:
                for kind in KINDS:
                    failed += _race(store, kind, per_kind_s, locations, folder, arguments)
    print(f"{failed} races went wrong" if failed else "all races were linearizable")
    return 1 if failed else 0


def _race(
    store: str,
    kind: str,
    seconds: float,
    locations: Iterator[tuple[str, dict[str, Any]]],
    folder: Path,
    arguments: argparse.Namespace,
) -> int:
    rounds = max(1, round(seconds / ROUND_S))
    failed = 0
    for round_ in range(rounds):
        seed = arguments.seed + round_
        history = folder / f"{store}-{kind}-{seed}"
        outcome = _outcome(kind, arguments.processes, seconds / rounds, seed, next(locations), history)
        print(f"{store}, {kind}, seed {seed}: {outcome}", flush=True)
        for violation in outcome.report.violations[:20]:
            print(f"  VIOLATION: {violation}", flush=True)
        failed += bool(outcome.report.violations)
    return failed


def _outcome(
    kind: str, processes: int, seconds: float, seed: int, location: tuple[str, dict[str, Any]], history: Path
) -> Outcome:
    if kind == "exclusive":
        writers, troubles = exclusive_writers(processes, seconds, seed)
        return scenario.run(*location, history, writers=writers, seconds=seconds, seed=seed, troubles=troubles)
    writers = ["shared"] * processes
    return scenario.run(
        *location, history, writers=writers, seconds=seconds, seed=seed, lost_answers=0.05, holds=kind == "holds"
    )


@contextmanager
def _locations(store: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """Give new locations of a store, one after the other."""
    if store == "folder":
        with tempfile.TemporaryDirectory(prefix="persist-races-") as name:
            yield ((f"{name}/{number}", {}) for number in range(2**31))
        return
    with running_moto() as url:
        options = options_of(url)
        yield ((f"s3://{make_bucket(options)}/races", options) for _ in range(2**31))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    raise SystemExit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
