"""Several processes of pytest that share one list of modules, so that all of them end at about the same time.

`pytest --queue FOLDER tests` lists the modules below `tests`, and runs each one that no other process with the same
folder has taken. A process takes a module when it creates a file for it in the folder, which succeeds once. Modules
that take long come first: one that begins last would run while the other processes have nothing left to do. A module
is collected when its turn comes, so each one is loaded by one process only. Fixtures of the session live until the
process has done its last module.

Each process writes a journal into the folder: the modules that it has ended, and what failed. So a process that a fault
in a library kills loses nothing: `python -m tests.support.queue FOLDER …` prints the tests that failed, and the modules
that no process has ended.
"""

import os
import sys
from collections.abc import Generator, Iterator
from itertools import chain, pairwise
from pathlib import Path

import pytest

from tests.support.paths import LONGEST
from tests.support.tiers import is_module_left_to_ci

MODULES = "modules"  # A file with the names of all modules.
JOURNAL = "journal-"
ENDED, FAILED = "ended", "failed"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--queue", type=Path, metavar="FOLDER", help="run modules that no other process with the same folder has taken"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("queue")
    if folder is not None:
        folder.mkdir(exist_ok=True)
        names = modules_below(config.rootpath, config.args)
        modules = [name for name in names if not is_module_left_to_ci(config, name)]
        (folder / MODULES).write_text("\n".join(modules))
        config.pluginmanager.register(Queue(config, folder, _taken(folder, modules)), "queue")


def modules_below(root: Path, arguments: list[str]) -> list[str]:
    """Return the modules of tests that are named or lie in a folder that is named, relative to the root, in order."""
    found: set[str] = set()
    for path in map(root.joinpath, arguments):
        files = path.rglob("test_*.py") if path.is_dir() else [path]
        found.update(str(file.relative_to(root)) for file in files)
    times_s = known_times_s()
    return sorted(found, key=lambda module: (-times_s.get(module, 0.0), module))


def known_times_s() -> dict[str, float]:
    """Return how long modules take that take long."""
    lines = (line.split() for line in LONGEST.read_text().splitlines())
    return {module: float(time_s) for time_s, module in lines}


def _taken(folder: Path, modules: list[str]) -> Iterator[str]:
    """Take one module after the other, without those that another process has taken."""
    for number, module in enumerate(modules):
        try:
            (folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            continue
        yield module


def names_to_repeat(folder: Path) -> list[str]:
    """Return the tests that failed, and the modules that no process has ended, such as one whose process crashed."""
    lines = [line.split(" ", 1) for path in folder.glob(f"{JOURNAL}*") for line in path.read_text().splitlines()]
    ended = {name for event, name in lines if event == ENDED}
    failed = {name for event, name in lines if event == FAILED}
    modules = (folder / MODULES).read_text().splitlines() if (folder / MODULES).exists() else []
    unended = [module for module in modules if module not in ended]
    return [*sorted(name for name in failed if name.split("::")[0] in ended), *unended]


class Queue:
    """The plugin: it has pytest collect one module at a time, and run its tests."""

    def __init__(self, config: pytest.Config, folder: Path, taken: Iterator[str]) -> None:
        self.journal = folder / f"{JOURNAL}{os.getpid()}"
        self.taken = taken
        self.folders: dict[Path, pytest.Collector] = {}
        self.collected = 0
        self.is_empty = not self._take(config)

    def _take(self, config: pytest.Config) -> bool:
        """Let the next module be what pytest is to collect, and return whether there is one."""
        self.module = next(self.taken, None)
        config.args = [] if self.module is None else [str(config.rootpath / self.module)]
        return self.module is not None

    def _note(self, event: str, name: str) -> None:
        """Add a line to the journal, which stays if the process crashes."""
        with self.journal.open("a") as journal:
            journal.write(f"{event} {name}\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._note(FAILED, report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(FAILED, report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> object:
        return True if self.is_empty else None  # What is true ends the hook, and nothing is collected.

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(self, path: Path) -> Generator[None, pytest.Collector, pytest.Collector]:
        """Give each folder one node for the whole session: the fixtures of its `conftest.py` are bound to the first."""
        return self.folders.setdefault(path, (yield))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item, following in pairwise(chain(self._items(session), [None])):
            assert item is not None
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            module = _module_of(item)
            if following is None or _module_of(following) != module:
                self._note(ENDED, module)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        session.testscollected = max(1, self.collected)  # That others have run everything is not a failure.
        return True

    def _items(self, session: pytest.Session) -> Iterator[pytest.Item]:
        """Yield the tests of one module after the other; each is collected before the last test of the one before."""
        while not self.is_empty:
            self.collected += len(session.items)
            if not session.items and self.module is not None:
                self._note(ENDED, self.module)
            yield from session.items
            self.is_empty = not self._take(session.config)
            if not self.is_empty:
                session.config.hook.pytest_collection(session=session)


def _module_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


if __name__ == "__main__":
    print(*[name for folder in sys.argv[1:] for name in names_to_repeat(Path(folder))], sep="\n")
