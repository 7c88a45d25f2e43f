"""Random queries against DuckDB for as long as you like: `scripts/soak sql`.

Each query is kept up to date as a dataflow through five refreshes, and compared with DuckDB's answer after each one.
With `--in-turns` it is a view in a location, refreshed by steps and by handles with state in random turns. One that
differs is made smaller, and printed with the changes that it fails on: it belongs into `queries.sql`.
"""

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from persist.errors import InvalidUsage
from tests.compute.sql.grammar import Grammar
from tests.compute.sql.oracle import Changes, changes, check
from tests.compute.sql.shrinking import shrunk, shrunk_changes
from tests.compute.sql.two_ways import check_in_turns

REFRESHES = 5
TIMES_IN_TURNS = 7  # Three of ten refreshes take in several times, so five refreshes need seven times.

Check: TypeAlias = Callable[[int, str, list[Changes]], list[str]]
"""What raises where a query of a seed is not answered right; it returns who refreshed it, once for each refresh."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what a run can be told."""
    parser.add_argument("--queries", type=int, default=20_000, help="how many queries are drawn")
    parser.add_argument("--seed", type=int, help="of the first query; the others follow it")
    parser.add_argument("--in-turns", action="store_true", help="refresh views by steps and with state in turns")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")


def run(args: argparse.Namespace) -> int:
    """Compare queries; return 1 if one differs."""
    first = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    check, times = (in_turns, TIMES_IN_TURNS) if args.in_turns else (as_dataflow, REFRESHES)
    print(f"queries from seed {first} on", flush=True)
    ends_s = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    failed = drawn = refused = 0
    refreshes = Counter[str]()
    for seed in range(first, first + args.queries):
        if ends_s is not None and time.monotonic() > ends_s:
            break
        drawn += 1
        told, ways = outcome(check, seed, Grammar(seed).query(), changes(seed, steps=times, size=4))
        refused += told is None
        refreshes.update(ways)
        if told:
            failed += 1
            print(f"-- seed {seed}: {told[:300]}\n{smallest(check, seed, times)}", flush=True)
        if drawn % 500 == 0:
            print(tally(drawn, failed, refused, refreshes), flush=True)
    print(tally(drawn, failed, refused, refreshes))
    return int(failed > 0)


def tally(drawn: int, failed: int, refused: int, refreshes: Counter[str]) -> str:
    """Return what has been done so far, in words."""
    ways = ", ".join(f"{count} refreshes by {way}" for way, count in sorted(refreshes.items()))
    return f"{drawn} queries: {drawn - refused} compared ({ways}), {failed} failed, {refused} refused"


def as_dataflow(_: int, sql: str, steps: list[Changes]) -> list[str]:
    """Check a query as a dataflow without a store."""
    check(sql, steps)
    return ["state"] * len(steps)


def in_turns(seed: int, sql: str, steps: list[Changes]) -> list[str]:
    """Check a query as a view that steps and open handles refresh."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of what grows without bounds.
        return check_in_turns(sql, steps, seed)


def outcome(check: Check, seed: int, sql: str, steps: list[Changes]) -> tuple[str | None, list[str]]:
    """Return how a query fails, nothing if it does not, and None if it is none: some are refused, by DuckDB or here."""
    try:
        return "", check(seed, sql, steps)
    except InvalidUsage as error:
        return (f"{type(error).__name__} {error}" if "failed" in str(error) else None), []
    except Exception as error:
        # DuckDB raises where its own order of evaluation meets an overflow.
        return (None if "duckdb" in type(error).__module__ else f"{type(error).__name__} {error}"), []


def smallest(check: Check, seed: int, times: int) -> str:
    """Return the query of a seed and its changes, as small as they fail in the same way."""
    sql, steps = Grammar(seed).query(), changes(seed, steps=times, size=4)
    kind = (outcome(check, seed, sql, steps)[0] or "").split()[:1]

    def fails(text: str, given: list[Changes]) -> bool:
        return (outcome(check, seed, text, given)[0] or "").split()[:1] == kind

    if not kind:
        return f"{sql};\n-- It did not fail again."
    sql = shrunk(sql, lambda text: fails(text, steps))
    steps = shrunk_changes(steps, lambda given: fails(sql, given))
    return f"{sql};\n-- {[{name: rows for name, rows in each.items() if rows} for each in steps]}"
