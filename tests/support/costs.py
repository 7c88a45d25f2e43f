"""What tests cost in seconds of processor time, which other work on the machine changes less than it changes durations.

The end of pytest's output names the costliest modules (`--costs N` says how many), and `--costs-to FILE` writes what
each test cost. It also names each test of the first tier that takes more than three seconds and does not say why:

    @pytest.mark.costly("starts three processes, and each imports Arrow")

No test fails because the machine is slow. Tests that need Java are left out: the virtual machine compiles and cleans up
at moments of its own. The cost of a test is what pytest and its children used while the test was set up and run.
A fixture that several tests share counts for the module alone. What a grandchild used is missed if its own parent
never waited for it, as with some workers of Spark.

`python -m tests.support.costs FILE …` prints the costliest modules of several runs together. With `--longest`, it also
writes `tests/support/longest.txt`, by which the longest modules begin first.
"""

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.paths import LONGEST
from tests.support.tiers import IS_THOROUGH

LIMIT_S = 3.0
LONG_S = 5.0  # Modules that take less may begin in any order.
SHOWN = 10


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", type=int, metavar="N", default=SHOWN, help="name the N modules that took the most processor time"
    )
    parser.addoption("--costs-to", type=Path, metavar="FILE", help="write the processor time of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"costly(reason): takes more than {LIMIT_S:g} s of processor time, and says why")
    config.pluginmanager.register(Costs(config.getoption("costs"), config.getoption("costs_to")), "costs")


def used_s() -> float:
    """Return the processor time that this process and all that descend from it have used so far."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # There is none: to look for them at each thread would cost more than many a test.
        return sum(os.times()[:4])
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return sum(os.times()[:4]) + tick_s * sum(_ticks(pid) for pid in _descendants(os.getpid()))


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes that descend from one and run. There are none where the system does not list them."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # The process has ended.
        return
    for thread in threads:
        for child in _read(f"/proc/{pid}/task/{thread}/children").split():
            yield int(child)
            yield from _descendants(int(child))


def _ticks(pid: int) -> int:
    """Return what a process and its children that ended have used, in ticks of the clock; 0 if it has ended itself."""
    stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, stat[11:15]))


def _read(path: str) -> str:
    """Return what stands in a file of /proc; nothing if that has gone."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


class Costs:
    """The plugin: what was used, by test and by module."""

    def __init__(self, shown: int, written_to: Path | None) -> None:
        self.shown = shown
        self.written_to = written_to
        self.tests: dict[str, float] = defaultdict(float)
        self.dear: dict[str, float] = {}  # Tests above the limit that give no reason.
        self.modules: dict[str, float] = defaultdict(float)
        self.times: dict[str, float] = defaultdict(float)  # How long each module took, waiting included.
        self.began_s = 0.0
        self.shared_s = 0.0  # Of the present test: fixtures that other tests use, too.
        self.is_in_shared = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.began_s, self.shared_s = used_s(), 0.0
        module, at_s = item.nodeid.partition("::")[0], time.monotonic()
        try:
            return (yield)
        finally:
            self.modules[module] += max(0.0, used_s() - self.began_s)
            self.times[module] += time.monotonic() - at_s

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        if fixturedef.scope == "function" or self.is_in_shared:
            return (yield)
        self.is_in_shared, before_s = True, used_s()
        try:
            return (yield)
        finally:
            self.shared_s += used_s() - before_s
            self.is_in_shared = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call":
            cost_s = max(0.0, used_s() - self.began_s - self.shared_s)
            self.tests[item.nodeid] += cost_s
            is_allowed = item.stash.get(IS_THOROUGH, False) or any(map(item.get_closest_marker, ("costly", "spark")))
            if cost_s > LIMIT_S and report.passed and not is_allowed:
                self.dear[item.nodeid] = cost_s
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in lines_about(used_s(), self.modules, self.dear, self.shown if self.modules else 0):
            terminalreporter.line(line)

    def pytest_sessionfinish(self) -> None:
        if self.written_to is not None:
            costs = {"modules": self.modules, "times": self.times, "tests": self.tests, "dear": self.dear}
            self.written_to.write_text(json.dumps({"sum": used_s(), **costs}))


def lines_about(sum_s: float, modules: Mapping[str, float], dear: Mapping[str, float], shown: int) -> list[str]:
    """Return lines with the cost of all, the costliest modules, and the tests that should cost less."""
    if not shown:
        return []
    costliest = sorted(modules.items(), key=lambda module: -module[1])[:shown]
    head = f"{sum_s:.1f} s of processor time; the costliest modules:"
    lines = [head, *(f"{cost_s:7.1f} s  {name}" for name, cost_s in costliest)]
    if dear:
        lines.append(f"Make these tests cheaper, or mark them as costly: they take more than {LIMIT_S:g} s.")
        lines += [f"{cost_s:7.1f} s  {name}" for name, cost_s in sorted(dear.items(), key=lambda test: -test[1])]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the costliest modules of several runs together.")
    parser.add_argument("--longest", action="store_true", help=f"write {LONGEST.name}, too")
    parser.add_argument("files", nargs="+", type=Path, help="what --costs-to wrote")
    arguments = parser.parse_args()
    runs = [json.loads(path.read_text()) for path in arguments.files]
    modules = _sums(run["modules"] for run in runs)
    dear = {name: cost_s for run in runs for name, cost_s in run["dear"].items()}
    print(*lines_about(sum(run["sum"] for run in runs), modules, dear, SHOWN), sep="\n")
    if arguments.longest:
        times = sorted(_sums(run["times"] for run in runs).items(), key=lambda module: -module[1])
        LONGEST.write_text("".join(f"{time_s:.0f} {name}\n" for name, time_s in times if time_s >= LONG_S))


def _sums(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, number in part.items():
            sums[name] += number
    return sums


if __name__ == "__main__":
    main()
