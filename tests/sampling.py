"""Two tiers of tests: all of the behaviour once, with a sample of the long suites; or everything.

`scripts/test` gives the seed of a sample, which is the number of the day unless it is told another; the head of the
output says how to run the same sample again. Without a seed, pytest runs everything that it is given.

A test, or a module by its `pytestmark`, that is long because it shows the same behaviour many times says so:

    @pytest.mark.sampled(0.2)

Of a function with several cases, this share of the cases is run, one at least. The other functions of a module that
have the same share are sampled together in the same way; so are the functions of all modules that name a group:
`sampled(0.2, group="cluster")`. A test that has no others to be sampled with, in what pytest was given, is always run:
it may be the only one of its behaviour. Successive seeds run successive parts: when 1 / share seeds in a row were used,
everything was run. Hypothesis makes fewer examples in a sample, see `examples`.

`scripts/check` goes on with `--rest-s`: what the sample has left out, for as long as there is time. The modules come in
an order of that seed, so that it is not always the same ones that time is too short for.
"""

import datetime
import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings

THOROUGH, QUICK = 100, 10  # Examples of a property that does not say how many it wants.
ENDS_S = pytest.StashKey[float]()  # When no more of the rest is begun.

# How fast examples are made says something about the machine, not about the code.
for _name, _examples in (("thorough", THOROUGH), ("quick", QUICK)):
    settings.register_profile(
        _name, max_examples=_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("thorough")


def examples(thorough: int) -> int:
    """Return how many examples Hypothesis is to make where `thorough` are wanted if everything is run."""
    return max(1, thorough * settings().max_examples // THOROUGH)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample-seed",
        type=_seed,
        metavar="N|today",
        help="run a sample of the long suites, which this number chooses, instead of everything",
    )
    parser.addoption(
        "--rest-s",
        type=float,
        metavar="SECONDS",
        help="run what that sample leaves out, instead of it, and begin no more of it after so many seconds",
    )


def _seed(text: str) -> int:
    return datetime.date.today().toordinal() if text == "today" else int(text)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "sampled(share, group=None): the tests of a long suite; see tests/sampling.py")
    if config.getoption("sample_seed") is None:
        if config.getoption("rest_s") is not None:
            raise pytest.UsageError("--rest-s is about the rest of a sample: give its --sample-seed, too")
    elif config.getoption("rest_s") is None:
        settings.load_profile("quick")


def pytest_report_header(config: pytest.Config) -> str:
    seed, rest_s = config.getoption("sample_seed"), config.getoption("rest_s")
    if seed is None:
        return "sample: none, everything is run"
    if rest_s is not None:
        return f"sample: all but --sample-seed {seed}, for {rest_s:g} s"
    return f"sample: --sample-seed {seed}; --all runs everything"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("sample_seed")
    if seed is None:
        return
    left_out: set[str] = set()
    for share, names in _groups(items):
        left_out |= set(names) - set(chosen(names, share, seed))
    is_rest = config.getoption("rest_s") is not None
    unwanted = [item for item in items if (item.nodeid in left_out) != is_rest]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if (item.nodeid in left_out) == is_rest]
    if is_rest:
        items.sort(key=lambda item: _digest(f"{seed} {item.nodeid.partition('::')[0]}"))
        config.stash[ENDS_S] = time.monotonic() + config.getoption("rest_s")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash.get(ENDS_S, math.inf):
        pytest.skip("the time for the rest of the tests is over")


def _groups(items: Sequence[pytest.Item]) -> list[tuple[float, list[str]]]:
    """Return the names of the sampled tests in groups, each with the share of it that is wanted."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None:
            functions[item.nodeid.partition("[")[0]].append(item)
    groups: dict[tuple[str, float], list[str]] = defaultdict(list)
    for function, cases in functions.items():
        share, group = _asked_for(cases[0])
        name = group or (function if len(cases) > 1 else function.partition("::")[0])
        groups[name, share] += [case.nodeid for case in cases]
    return [(share, names) for (_, share), names in groups.items()]


def _asked_for(item: pytest.Item) -> tuple[float, str | None]:
    """Return the share and the group that the mark of a test names."""

    def read(share: float, group: str | None = None) -> tuple[float, str | None]:
        if not 0 < share <= 1:
            raise pytest.UsageError(f"{item.nodeid}: the share of a sample is {share}; it must be above 0, up to 1")
        return share, group

    mark = item.get_closest_marker("sampled")
    assert mark is not None
    return read(*mark.args, **mark.kwargs)


def chosen(names: Sequence[str], share: float, seed: int) -> list[str]:
    """Return a share of names; successive seeds return successive parts, until all were returned.

    It is one name at least, so that a name that stands alone is returned for every seed.
    """
    count = max(1, round(share * len(names)))
    # Neighbours are often alike, so they are not left neighbours; the order must be the same in every process.
    mixed = sorted(names, key=_digest)
    first = seed % math.ceil(len(mixed) / count) * count
    return [mixed[(first + n) % len(mixed)] for n in range(count)]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
