"""Tiers of tests: what `scripts/test` runs, what CI adds, and what only `scripts/test --all` runs.

The first tier has a test of each behaviour and is the same every day. `scripts/test` runs it without the tests that
`ci_only.txt` names, which are dear and run no line of their own (`tests.support.ci_only` chooses them). CI runs all.

A test that shows more cases of a behaviour, and takes seconds for it, is of the second tier. It says so itself, or its
module does by a `pytestmark`:

    @pytest.mark.thorough                     # the whole test
    @pytest.mark.thorough(except_every=7)     # all of its cases but the 1st, 8th, 15th …

`pytest --thorough 0` runs what `scripts/test` runs. With a greater SHARE it runs the whole first tier, and this share
of the second. The test's name and the seed `PERSIST_TEST_SEED` decide whether it is in the share, so a share is the
same on each machine and every day, and a larger share holds a smaller one. CI takes the commit as the seed: each commit
runs another tenth, so no failure hides for ever. Only the whole, which is share 1, holds tests of the second tier that
are marked as `costly`. Pytest without this option runs everything that it is given. Unless everything is run,
Hypothesis makes a tenth of the examples that a property asks for by `examples(n)`, and makes the same ones each time.
"""

import hashlib
import os
import re
from collections import Counter
from functools import cache

import pytest
from hypothesis import HealthCheck, settings

from tests.support.paths import CI_ONLY

IS_THOROUGH = pytest.StashKey[bool]()  # Of a test: whether it is of the second tier.
SEED = os.environ.get("PERSIST_TEST_SEED", "")
THOROUGH, QUICK = 100, 10  # Examples of a property that does not say how many it wants.

# How fast examples are made says something about the machine, not about the code.
_ALWAYS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", _ALWAYS, max_examples=THOROUGH)
settings.register_profile("quick", _ALWAYS, max_examples=QUICK, derandomize=True, database=None)
settings.load_profile("thorough")


def examples(thorough: int, *, quick: int = 0) -> int:
    """Return how many examples to make: `thorough`, or `quick` of them (by default a tenth) in the first tier."""
    is_quick = settings().max_examples == QUICK
    return quick if quick and is_quick else max(1, thorough * settings().max_examples // THOROUGH)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        type=float,
        metavar="SHARE",
        default=1.0,
        help="the share of the second tier to run, from 0 to 1, the default; 0 leaves out what only CI runs, too",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough(except_every=n): only --all runs it, or all but every n-th case")
    config.addinivalue_line("markers", "outside: needs what scripts/setup does not install; scripts/outside runs it")
    share = config.getoption("thorough")
    if not 0 <= share <= 1:
        raise pytest.UsageError(f"--thorough {share:g}: the share must be from 0 to 1")
    if share < 1:
        settings.load_profile("quick")


def pytest_report_header(config: pytest.Config) -> str:
    share = config.getoption("thorough")
    seed = f", PERSIST_TEST_SEED={SEED}" if SEED else ""
    if share == 0:
        return "tier: the first, without what only CI runs (--thorough 0.05)"
    return "tier: everything" if share == 1 else f"tier: the first, and {share:.0%} of the second{seed}"


@cache
def read_ci_only() -> frozenset[str]:
    """Return the cases and tests that only CI runs."""
    return frozenset(CI_ONLY.read_text().splitlines())


def is_left_to_ci(config: pytest.Config, name: str) -> bool:
    """Return whether only CI runs a test, and this run is not CI's."""
    return config.getoption("thorough", 1) == 0 and not read_ci_only().isdisjoint((name.partition("[")[0], name))


def is_module_left_to_ci(config: pytest.Config, module: str) -> bool:
    """Return whether only CI runs each test that a module has today."""
    functions = re.findall(r"^def (test_\w+)\(", (config.rootpath / module).read_text(), re.MULTILINE)
    return bool(functions) and all(is_left_to_ci(config, f"{module}::{function}") for function in functions)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Make no cases of a function of which no case runs: thousands of cases would cost seconds."""
    if collector.config.getoption("thorough", 1) != 0 or not name.startswith("test_"):
        return None
    marks = [mark for mark in getattr(obj, "pytestmark", ()) if mark.name == "thorough"]
    is_whole = any("except_every" not in mark.kwargs for mark in marks)
    return [] if is_whole or is_left_to_ci(collector.config, f"{collector.nodeid}::{name}") else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share = config.getoption("thorough")
    seen: Counter[str] = Counter()  # Cases of each function.
    left_out = {item for item in items if is_left_to_ci(config, item.nodeid)}
    for item in items:
        if marks := list(item.iter_markers("thorough")):
            function = item.nodeid.partition("[")[0]
            item.stash[IS_THOROUGH] = _is_marked(marks, seen[function])
            seen[function] += 1
            is_too_costly = share < 1 and item.get_closest_marker("costly") is not None
            if item.stash[IS_THOROUGH] and (is_too_costly or not is_in(share, item.nodeid)):
                left_out.add(item)
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def _is_marked(marks: list[pytest.Mark], case: int) -> bool:
    """Return whether a case of a function is of the second tier."""
    return any("except_every" not in mark.kwargs or case % mark.kwargs["except_every"] for mark in marks)


def is_in(share: float, name: str) -> bool:
    """Return whether the test of that name is in a share of all tests."""
    return int.from_bytes(hashlib.sha256(f"{SEED}{name}".encode()).digest()[:8]) < share * 2**64
