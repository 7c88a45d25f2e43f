"""The corruptions of `tests.rules.corruption` in a larger number: `python -m tests.rules.corruption.soak [--times N]`.

With 25 times the sample of CI, 10,000 bits of each large blob are flipped.
"""

import argparse

from tests.rules.fuzz.soak import pytest_with


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this soak."""
    parser.add_argument("--times", type=int, default=25, help="the number of changes in CI")


def run(arguments: argparse.Namespace) -> int:
    """Damage blobs; return 0 if all of it was found."""
    return pytest_with("tests/rules/corruption", PERSIST_CORRUPTIONS=arguments.times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    raise SystemExit(run(parser.parse_args()))
