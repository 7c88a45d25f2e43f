"""Crashes in any number: `python -m tests.crash.soak --crashes 500 --seed 1 --store both`.

Prints what happened, and the seed; ends with 1 if a promise was broken.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from tests.crash.checker import Violation
from tests.crash.kills import Tally, kill_often
from tests.crash.nursery import Nursery, nursery
from tests.crash.power_cuts import Cuts, new_folders, record_calls, record_story, record_two_lives
from tests.crash.steps import kill_at_each, steps_of, story
from tests.servers.fixtures import make_bucket, options_of, running_moto

KILLS_OF_A_LOCATION = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `run` takes."""
    parser.add_argument("--crashes", type=int, default=500, help="kills at random moments, in all (default: 500)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: 1)")
    parser.add_argument("--store", choices=("folder", "s3", "both"), default="both", help="where (default: both)")


def run(args: argparse.Namespace) -> int:
    """Kill, cut, and print what happened; return 1 if a promise was broken."""
    stores = ("folder", "s3") if args.store == "both" else (args.store,)
    started_s = time.monotonic()
    try:
        with nursery() as children:
            for store in stores:
                _soak(children, store, args.crashes // len(stores), args.seed)
        if "folder" in stores:
            _cut_power(args.seed)
    except Violation as error:
        print(f"VIOLATION with --seed {args.seed}: {error}")
        return 1
    print(f"clean with --seed {args.seed}, {time.monotonic() - started_s:.0f} s")
    return 0


def _soak(children: Nursery, store: str, crashes: int, seed: int) -> None:
    with _places(store) as (new_location, options):
        tally = Tally()
        for done in range(0, crashes, KILLS_OF_A_LOCATION):
            kill_often(
                children,
                new_location(),
                options,
                crashes=min(KILLS_OF_A_LOCATION, crashes - done),
                seed=seed + done,
                ages=store == "folder",
                tally=tally,
            )
            print(f"{store}, kills at random moments so far: {tally}", flush=True)
        steps = steps_of(children, new_location(), options)
        print(f"{store}, kills at each of {len(steps)} steps: {kill_at_each(children, new_location, options, steps)}")
        again = kill_at_each(children, new_location, options, steps, retry=True)
        print(f"{store}, the same, and what was in flight made again: {again}", flush=True)


def _cut_power(seed: int) -> None:
    with tempfile.TemporaryDirectory() as top:
        folders, cuts = new_folders(top), Cuts(seed)
        alone = record_calls(next(folders))
        cuts.check_calls(alone.events, 1000)
        for moment in sorted(set(alone.calls)):
            for is_older in (False, True):
                recording, killed_at = record_two_lives(next(folders), moment, is_older=is_older)
                cuts.check_calls(recording.events, 64, since=killed_at)
        print(f"power cuts of a folder: {cuts.states} states at {cuts.points} points", flush=True)
        cuts = Cuts(seed)
        cuts.check_story(record_story(next(folders), story()).events, 32)
        print(f"power cuts of a client: {cuts.states} states at {cuts.points} points", flush=True)


@contextmanager
def _places(store: str) -> Iterator[tuple[Callable[[], str], dict[str, Any]]]:
    """Yield a function that names new locations, and their options."""
    numbers = count()
    if store == "folder":
        with tempfile.TemporaryDirectory() as top:
            yield lambda: os.path.join(top, str(next(numbers))), {}
        return
    with running_moto() as url:
        options = options_of(url)
        bucket = make_bucket(options)
        yield lambda: f"s3://{bucket}/{next(numbers)}", options


def main() -> int:
    """Run by itself."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.soak", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
