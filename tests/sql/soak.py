"""Random queries against DuckDB for as long as you like: `scripts/soak sql`.

Each query is kept up to date as a dataflow through five refreshes, and compared with DuckDB's answer after each one.
One that differs is made smaller, and printed with the changes that it fails on: it belongs into `queries.sql`.
"""

import argparse
import random
import time

from persist.errors import InvalidUsage
from tests.sql.grammar import Grammar
from tests.sql.oracle import Changes, changes, check
from tests.sql.shrinking import shrunk, shrunk_changes

REFRESHES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what a run can be told."""
    parser.add_argument("--queries", type=int, default=20_000, help="how many queries are drawn")
    parser.add_argument("--seed", type=int, help="of the first query; the others follow it")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")


def run(args: argparse.Namespace) -> int:
    """Compare queries; return 1 if one differs."""
    first = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    print(f"queries from seed {first} on, {REFRESHES} refreshes each", flush=True)
    ends_s = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    compared = failed = drawn = 0
    for seed in range(first, first + args.queries):
        if ends_s is not None and time.monotonic() > ends_s:
            break
        drawn += 1
        found = outcome(Grammar(seed).query(), changes(seed, steps=REFRESHES, size=4))
        compared += found is not None
        if found:
            failed += 1
            print(f"-- seed {seed}: {found[:300]}\n{smallest(seed)}", flush=True)
        if drawn % 500 == 0:
            print(f"{drawn} queries: {compared} compared, {failed} failed", flush=True)
    print(f"{drawn} queries: {compared} compared, {failed} failed, {drawn - compared} refused")
    return int(failed > 0)


def outcome(sql: str, steps: list[Changes]) -> str | None:
    """Return how a query fails, nothing if it does not, and None if it is none: some are refused, by DuckDB or here."""
    try:
        check(sql, steps)
    except InvalidUsage as error:
        return f"{type(error).__name__} {error}" if "failed" in str(error) else None
    except Exception as error:
        # DuckDB raises where its own order of evaluation meets an overflow.
        return None if "duckdb" in type(error).__module__ else f"{type(error).__name__} {error}"
    return ""


def smallest(seed: int) -> str:
    """Return the query of a seed and its changes, as small as they fail in the same way."""
    sql, steps = Grammar(seed).query(), changes(seed, steps=REFRESHES, size=4)
    kind = (outcome(sql, steps) or "").split()[0]

    def fails(text: str, given: list[Changes]) -> bool:
        return (outcome(text, given) or "").startswith(kind)

    sql = shrunk(sql, lambda text: fails(text, steps))
    steps = shrunk_changes(steps, lambda given: fails(sql, given))
    return f"{sql};\n-- {[{name: rows for name, rows in each.items() if rows} for each in steps]}"
