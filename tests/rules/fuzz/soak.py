"""The fuzz tests of `tests.rules.fuzz` with more cases: `python -m tests.rules.fuzz.soak [--times N] [--seed N]`.

Cases are drawn from consecutive seeds.
"""

import argparse
import os
import subprocess
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this soak."""
    parser.add_argument("--times", type=int, default=20, help="the number of cases in CI")
    parser.add_argument("--seed", type=int, default=10_000)


def run(arguments: argparse.Namespace) -> int:
    """Try the cases; return 0 if none did harm."""
    return pytest_with("tests/rules/fuzz", PERSIST_FUZZ=arguments.times, PERSIST_FUZZ_SEED=arguments.seed)


def pytest_with(folder: str, **sizes: int) -> int:
    """Run the tests in a folder, without a timeout, with sizes in the environment; return the exit code."""
    command = [sys.executable, "-m", "pytest", folder, "-q", "-o", "timeout=0"]
    return subprocess.run(command, env={**os.environ, **{name: str(n) for name, n in sizes.items()}}).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    raise SystemExit(run(parser.parse_args()))
