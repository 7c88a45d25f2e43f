"""The simulator at any size: `scripts/soak simulator --operations 200000 --seed 1`."""

import argparse
import logging
import multiprocessing
import time
from collections.abc import Iterator
from itertools import islice

from tests.proofs.simulator.campaign import FLAT_OUT, SCHEDULERS, Episode, Report, episodes, execute, explain

BATCH = 8
PROGRESS_S = 10.0
TRIES = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operations", type=int, default=20_000, help="calls to make, at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the whole campaign (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes at work (default: %(default)s)")
    parser.add_argument("--episode", type=int, metavar="SEED", help="repeat only the episode of this seed …")
    parser.add_argument("--size", type=int, default=300, help="… with so many steps (default: %(default)s)")
    parser.add_argument("--scheduler", choices=[*SCHEDULERS], default="shuffled", help="… by this one")
    parser.add_argument("--keyed", action="store_true", help="… with keyed collections")
    parser.add_argument("--collectors", action="store_true", help="… with collectors that are stopped")
    parser.add_argument(
        "--flat-out", action="store_true", help="compaction and collection of garbage after each step, in all episodes"
    )


def run(args: argparse.Namespace) -> int:
    """Run episodes until there were enough calls, or one of them failed; return whether one did."""
    logging.getLogger("persist").setLevel(logging.ERROR)  # Checkpoints that fail are what storage is down for.
    if args.episode is not None:
        kinds = args.flat_out, args.keyed, args.collectors
        return _repeat(Episode(args.episode, args.size, args.scheduler, *kinds))
    print(f"Simulator: seed {args.seed}, {args.operations} operations")
    total, began_s, told_s, count = Report(), time.monotonic(), time.monotonic(), 0
    for report, failure in _results(episodes(args.seed, flat_out=1 if args.flat_out else FLAT_OUT), args.jobs):
        total.add(report)
        count += 1
        if failure is not None:
            print(failure)
            print(total)
            return 1
        if time.monotonic() - told_s > PROGRESS_S:
            told_s = time.monotonic()
            _tell(total, count, told_s - began_s)
        if total.operations.total() >= args.operations:
            break
    _tell(total, count, time.monotonic() - began_s)
    print(total)
    print("clean")
    return 0


def _tell(total: Report, count: int, seconds: float) -> None:
    done = total.operations.total()
    print(f"{done} operations in {count} episodes, {seconds:.0f} s, {done / seconds:.0f}/s", flush=True)


def _results(endless: Iterator[Episode], jobs: int) -> Iterator[tuple[Report, str | None]]:
    if jobs == 1:
        yield from map(_episode, endless)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=50) as pool:
        while True:
            yield from pool.imap_unordered(_episode, islice(endless, BATCH * jobs))


def _episode(episode: Episode) -> tuple[Report, str | None]:
    logging.getLogger("persist").setLevel(logging.ERROR)
    history, violations, report = execute(episode, episode.steps())
    if not violations:
        return report, None
    print(f"{episode}: {violations[0]}\nLooking for the shortest history that fails like this …", flush=True)
    return report, explain(episode, history, violations)


def _repeat(episode: Episode) -> int:
    tries = 1 if episode.scheduler == "shuffled" else TRIES
    for _ in range(tries):
        _, failure = _episode(episode)
        if failure is not None:
            print(failure)
            return 1
    print(f"{episode}: clean, {tries} times")
    return 0
