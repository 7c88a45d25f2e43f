"""Power cuts in any number: `scripts/soak power-cuts --seed 1`."""

import argparse
import tempfile

from tests.blob.power_cuts.cuts import Cuts, Violation, new_folders, record_calls, record_story, record_two_lives, story


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn (default: %(default)s)")
    parser.add_argument("--most", type=int, default=32, help="states of each point of a story (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Cut, and print what happened; return 1 if a promise was broken."""
    with tempfile.TemporaryDirectory() as top:
        folders, cuts = new_folders(top), Cuts(args.seed)
        try:
            alone = record_calls(next(folders))
            cuts.check_calls(alone.events, 1000)
            for moment in sorted(set(alone.calls)):
                for is_older in (False, True):
                    recording, killed_at = record_two_lives(next(folders), moment, is_older=is_older)
                    cuts.check_calls(recording.events, 64, since=killed_at)
            print(f"power cuts of a folder: {cuts.states} states at {cuts.points} points", flush=True)
            cuts = Cuts(args.seed)
            cuts.check_story(record_story(next(folders), story(args.seed)).events, args.most)
            print(f"power cuts of a client: {cuts.states} states at {cuts.points} points", flush=True)
        except Violation as error:
            print(f"VIOLATION with --seed {args.seed}: {error}")
            return 1
    return 0
