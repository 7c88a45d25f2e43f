"""Chooses the tests that CI runs and `scripts/test` leaves out: dear ones that run no line of their own.

`scripts/test` should take four minutes on a laptop. A tenth of the cases of the first tier take two thirds of its
processor time, and most of them run only lines of the product that cheaper tests run, too. `ci_only.txt` names these:
a case, or a test with all its cases, in each line. `tests.support.tiers` reads it.

    pip install coverage
    pytest -p tests.support.ci_only --lines-to LINES --costs-to COSTS --thorough 0.001 tests
    python -m tests.support.ci_only --costs COSTS … --lines LINES …

The second command notes the costs and the lines of each test; several processes may share the work by `--queue`. The
third one writes `ci_only.txt`. It keeps all cheap tests, and then takes the dear test with the most new lines for its
cost, until none has `WORTH` new lines for each second. Lines that run in the workers of Spark are not seen. So Spark's
modules keep their cheap tests, and each of them its cheapest test if that is not too dear. Tests that are named after a
rule stay, and so do the proofs, models, and tests whether values are lost or doubled.
"""

import argparse
import ast
import heapq
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.paths import CI_ONLY, ROOT

CHEAP_S = 0.05
CHEAP_SPARK_S, DEAR_SPARK_S = 0.5, 3.0
WORTH = 20.0  # New lines for each second of processor time.
# Parts of the names of tests that stay: of rules, proofs and models, and of values that may be lost or doubled.
ALWAYS = (
    *("::test_rule_", "tests/proofs/", "tests/rules/test_rule_list.py", "_model", "nothing_is_lost", "lose_nothing"),
    *("loses_a_", "nothing_back", "it_twice", "nothing_twice", "does_not_hide", "not_taken_for", "keeps_its_parts"),
    *("leaves_all_or_nothing", "not_deleted", "truncated_slot", "happens_once", "happen_once", "are_one_write"),
    *("not_acknowledged", "no_part_with_a", "name_is_kept", "tokens_survive", "tombstone_stays"),
    *("whatever_was_compacted", "block_fails_if", "second_of_two_blocks", "others_come_before", "came_meanwhile"),
    *("fails_changes_nothing", "close_finishes", "that_nobody_looked_at", "that_create_at_once"),
)

Line = tuple[str, int]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines-to", metavar="FILE", help="write the lines of the product that each test runs")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("lines_to"):
        config.pluginmanager.register(Lines(config.getoption("lines_to")), "lines")


class Lines:
    """The plugin that notes the lines of each test, in a data file of coverage."""

    def __init__(self, written_to: str) -> None:
        from coverage import Coverage  # type: ignore[import-not-found,unused-ignore]

        rooms = [f"{ROOT}/{room}/*" for room in ("persist", "codecs", "blob")]
        self.coverage = Coverage(data_file=written_to, include=rooms, config_file=False)
        self.process = os.getpid()
        self.coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(item.nodeid)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        if os.getpid() == self.process:  # A fork of a test may end here, too.
            self.coverage.stop()
            self.coverage.save()


def choose(costs_s: Mapping[str, float], lines: Mapping[str, set[Line]]) -> set[str]:
    """Return the tests that only CI runs."""
    dear = {test for test, cost_s in costs_s.items() if cost_s > CHEAP_S and not is_kept(test)}
    covered: set[Line] = set().union(*(of_test for test, of_test in lines.items() if test not in dear))

    def estimate_worth(test: str) -> float:
        return len(lines.get(test, set()) - covered) / costs_s[test]

    candidates = [(-estimate_worth(test), test) for test in dear]  # What a test is worth falls while others are taken.
    heapq.heapify(candidates)
    while candidates and -candidates[0][0] >= WORTH:
        worth = estimate_worth(candidates[0][1])
        if worth >= WORTH and (len(candidates) == 1 or -worth <= min(candidates[1:3])[0]):
            _, test = heapq.heappop(candidates)
            dear.remove(test)
            covered |= lines[test]
        else:
            heapq.heapreplace(candidates, (-worth, candidates[0][1]))
    return dear


def choose_of_spark(costs_s: Mapping[str, float]) -> set[str]:
    """Return the tests of Spark that only CI runs."""
    cheapest = {min(tests, key=costs_s.__getitem__) for tests in group_by_module(costs_s).values()}
    limits_s = {test: DEAR_SPARK_S if test in cheapest else CHEAP_SPARK_S for test in costs_s}
    return {test for test, cost_s in costs_s.items() if cost_s > limits_s[test] and not is_kept(test)}


def is_kept(test: str) -> bool:
    """Return whether `scripts/test` runs a test whatever it costs."""
    return any(part in test for part in ALWAYS)


def group_by_module(tests: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        groups[test.partition("::")[0]].append(test)
    return groups


def shorten(chosen: set[str], tests: Iterable[str]) -> list[str]:
    """Return names for the chosen tests: one for a test with cases, if all of them are chosen."""
    kept = {test.partition("[")[0] for test in tests if test not in chosen}
    functions = {test: test.partition("[")[0] for test in chosen}
    return sorted({test if function in kept else function for test, function in functions.items()})


def read_lines(files: Iterable[Path]) -> dict[str, set[Line]]:
    from coverage import CoverageData  # type: ignore[import-not-found,unused-ignore]

    lines: dict[str, set[Line]] = defaultdict(set)
    for file in files:
        data = CoverageData(str(file))
        data.read()
        for source in data.measured_files():
            inside = lines_of_functions(Path(source).read_text())
            for number, tests in data.contexts_by_lineno(source).items():
                for test in filter(None, tests if number in inside else ()):
                    lines[test].add((source, number))
    return lines


def lines_of_functions(text: str) -> set[int]:
    """Return the lines within functions. The others run when a module is loaded, by whichever test is first."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return {number for node in functions for number in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Choose the tests that only CI runs.")
    parser.add_argument("--costs", nargs="+", type=Path, required=True, help="what pytest --costs-to wrote")
    parser.add_argument("--lines", nargs="+", type=Path, required=True, help="what pytest --lines-to wrote")
    arguments = parser.parse_args()
    costs_s: dict[str, float] = {}
    for path in arguments.costs:
        costs_s |= json.loads(path.read_text())["tests"]
    of_spark = {test: cost_s for test, cost_s in costs_s.items() if "/spark/" in test}
    others = {test: cost_s for test, cost_s in costs_s.items() if test not in of_spark}
    chosen = choose(others, read_lines(arguments.lines)) | choose_of_spark(of_spark)
    CI_ONLY.write_text("\n".join(shorten(chosen, costs_s)) + "\n")
    rest_s = sum(cost_s for test, cost_s in costs_s.items() if test not in chosen)
    print(f"{len(chosen)} of {len(costs_s)} tests are for CI only; the others take {rest_s:.0f} s")


if __name__ == "__main__":
    main()
