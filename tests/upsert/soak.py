"""Campaigns against keyed collections for as long as one likes: `scripts/soak upsert --campaigns 200 --seed 1`."""

import argparse
import logging
from collections import Counter

from tests.upsert.faults.campaign import CLEAR, SHOWERS, Campaign

SHOWN_MAX = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this soak."""
    parser.add_argument("--campaigns", type=int, default=40, help="how many, each with a seed of its own")
    parser.add_argument("--steps", type=int, default=80, help="that each of three clients takes")
    parser.add_argument("--seed", type=int, default=1, help="of the first campaign")


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if nobody was told anything wrong."""
    logging.getLogger("persist").setLevel(logging.ERROR)  # Checkpoints that fail are what storage is down for.
    total: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.campaigns):
        weather, deaths = (CLEAR, 0.0) if seed % 2 else (SHOWERS, 0.05)
        outcome = Campaign(seed, weather, deaths, at_once=seed % 3 > 0).run(arguments.steps)
        total += outcome.counts
        if outcome.wrong:
            print(f"campaign {seed}:", *outcome.wrong[:SHOWN_MAX], sep="\n  ")
            return 1
    print(f"{arguments.campaigns} campaigns were right: {dict(total)}")
    return 0
