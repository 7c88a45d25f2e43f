"""What tests cost in seconds of processor time, which other work on the machine changes less than it changes durations.

`pytest --costs 20 …` prints the twenty costliest functions and modules, and the programs that were run. The sum is that
of pytest and of all that descends from it. Spark's workers leave no account when they end, since their parent waits for
none of them: so all processes are looked at several times a second, and what one used after the last look is missed.
Only where there is a /proc.
"""

import os
import threading
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LOOK_S = 0.2
NAME_CHARS = 100  # Of a program with its arguments.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", type=int, metavar="N", help="print the N functions and modules that took the most processor time"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("costs") is not None:
        config.pluginmanager.register(Costs(config.getoption("costs")), "costs")


@dataclass
class Process:
    """One process that was seen."""

    used_s: float = 0.0
    program: str = ""


@dataclass
class Family:
    """This process and all that descend from it, those that have ended included."""

    members: dict[tuple[int, str], Process] = field(default_factory=dict)  # By id and start, since ids come again.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def used_s(self) -> float:
        """Look at all processes; return the processor time that the family has used so far."""
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        with self.lock:
            seen = {int(path.name): _stat(path) for path in Path("/proc").glob("[0-9]*")}
            ours, added = {os.getpid()}, 1
            while added:
                before = len(ours)
                ours |= {pid for pid, stat in seen.items() if stat and int(stat[1]) in ours}
                added = len(ours) - before
            for pid in ours:
                if stat := seen.get(pid):
                    process = self.members.setdefault((pid, stat[19]), Process())
                    process.used_s = (int(stat[11]) + int(stat[12])) * tick_s
                    process.program = _program(pid) or process.program
            return sum(process.used_s for process in self.members.values())


def _stat(path: Path) -> list[str]:
    """Return what /proc says of a process, from its state on; nothing if it has ended."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _program(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join([os.path.basename(words[0]), *words[1:]]).replace("\n", " ").strip()


class Costs:
    """The plugin, where it is asked for."""

    def __init__(self, shown: int) -> None:
        self.shown = shown
        self.family = Family()
        self.ended = threading.Event()
        self.functions: Counter[str] = Counter()
        self.modules: Counter[str] = Counter()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self.ended.wait(LOOK_S):
            self.family.used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = self.family.used_s()
        try:
            return (yield)
        finally:
            used_ms = round(1000 * (self.family.used_s() - before))
            self.functions[item.nodeid.partition("[")[0]] += used_ms
            self.modules[item.nodeid.partition("::")[0]] += used_ms

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        sum_s = self.family.used_s()
        self.ended.set()
        programs: Counter[str] = Counter()
        for process in self.family.members.values():
            programs[process.program[:NAME_CHARS]] += round(1000 * process.used_s)
        terminalreporter.section(f"{sum_s:.1f} s of processor time")
        for title, costs in (("function", self.functions), ("module", self.modules), ("program", programs)):
            for name, used_ms in costs.most_common(self.shown):
                terminalreporter.line(f"{used_ms / 1000:7.1f} s  {title} {name}")
