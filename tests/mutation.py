"""Makes mutants with cosmic-ray, one after the other, and tells which the fast tests of a room let live.

It changes the files below the working folder, which must be a copy: `scripts/mutants` makes one. Of the places at which
something can be changed, a seed chooses an order, and for each place one change, so that what takes many forms (a
comparison) counts no more than what takes one. It goes on until the time that it may take is used up.

A mutant that makes tests take longer than `HANGS_S` is counted by itself, because a busy machine does so, too. One that
cannot change what a program does counts as a survivor, because only a person can tell them apart.
"""

import argparse
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.testing import run_tests
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

HANGS_S = 600.0
# Annotations are full of `|`, and a module in which one is broken cannot be imported: that would be no test of tests.
LEFT_OUT = ("core/ReplaceBinaryOperator_BitOr_",)
STATE = ["tests/state/test_queries.py", "tests/state/test_tokens.py", "tests/hold", "tests/write/test_writers.py"]
TESTS = {
    "persist/state/collection_rules.py": STATE,
    "persist/state/contents.py": ["tests/compact/test_compaction_trouble.py", *STATE],
    "persist/state/draft.py": STATE,
    "persist/state/location.py": ["tests/upkeep/test_garbage.py", *STATE],
    "persist/state/remembered.py": STATE,
    "persist/state/state.py": STATE,
    "persist/hold/leases.py": ["tests/hold"],
    "persist/compact/compactor.py": ["tests/compact/test_compaction_trouble.py", "tests/compact/test_compaction.py"],
    "persist/read/scanning/scan.py": ["tests/read/test_scan.py", "tests/read/test_snapshot.py"],
    "persist/read/lookups/lookup.py": ["tests/read/test_lookup.py"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="which mutants, in which order")
    parser.add_argument("--cpu-minutes", type=float, default=15.0, help="begin no more after this much processor time")
    parser.add_argument("--minutes", type=float, default=60.0, help="and after this much time")
    parser.add_argument("--only", default="", help="part of a path: mutate what has it only")
    parser.add_argument("--python", default=sys.executable, help="what runs the tests")
    asked = parser.parse_args()
    modules = [path for path in TESTS if asked.only in path]
    if not modules:
        parser.error(f"--only={asked.only} is part of none of {', '.join(TESTS)}")
    ends_s, outcomes = time.monotonic() + asked.minutes * 60, Counter[str]()
    chosen = _chosen(modules, random.Random(asked.seed))
    passed: set[str] = set()
    for number, mutation in enumerate(chosen, 1):
        if _cpu_s() >= asked.cpu_minutes * 60 or time.monotonic() >= ends_s:
            break
        tests = " ".join(TESTS[str(mutation.module_path)])
        command = f"{asked.python} -m pytest -x -q --tb=no -p no:cacheprovider {tests}"
        if command not in passed:
            _check_passes(command)
            passed.add(command)
        outcome, shown = _outcome(mutation, command)
        outcomes[outcome] += 1
        place = f"{mutation.module_path}:{mutation.start_pos[0]} {mutation.operator_name}"
        print(f"{number} of {len(chosen)}: {outcome} {place}\n{shown}", flush=True)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    print(f"--seed {asked.seed}: {counts or 'none'} of {len(chosen)}; {_cpu_s():.0f} s of processor time")


def _check_passes(command: str) -> None:
    """Make sure that tests pass without a mutant, because all would seem killed if they did not."""
    outcome, output = run_tests(command, HANGS_S)
    if outcome != TestOutcome.SURVIVED:
        sys.exit(f"without any mutant, this fails or takes more than {HANGS_S:.0f} s: {command}\n{output}")


def _outcome(mutation: MutationSpec, command: str) -> tuple[str, str]:
    """Try a mutant; return what became of it, and what to show of it: a mutant that lives, or what went wrong."""
    result = mutate_and_test([mutation], command, HANGS_S)
    if result.test_outcome == TestOutcome.KILLED:
        if result.output == "timeout":
            return "timed out", result.diff or ""
        if "FAILED" not in (result.output or ""):
            _check_passes(command)  # Nothing ran: because of the mutant, or because tests cannot run any more.
        return "killed", ""
    if result.test_outcome == TestOutcome.SURVIVED:
        return "survived", result.diff or ""
    return "not tested", result.output or ""


def _chosen(modules: list[str], rng: random.Random) -> list[MutationSpec]:
    """Return one mutation for each place, in the order in which they are tried."""
    places: dict[tuple[str, tuple[int, int]], list[MutationSpec]] = {}
    for mutation in _mutations(modules):
        places.setdefault((str(mutation.module_path), mutation.start_pos), []).append(mutation)
    chosen = [rng.choice(places[place]) for place in sorted(places)]
    rng.shuffle(chosen)
    return chosen


def _mutations(modules: list[str]) -> Iterator[MutationSpec]:
    with use_db(":memory:", WorkDB.Mode.create) as found:
        init(map(Path, modules), found, {})
        mutations = [mutation for item in found.work_items for mutation in item.mutations]
    mutations.sort(key=lambda each: (each.operator_name, str(each.module_path), each.occurrence))
    yield from (each for each in mutations if not each.operator_name.startswith(LEFT_OUT))


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    main()
