"""Several processes of pytest that share one list of modules, so that all of them end at about the same time.

`pytest --queue FOLDER tests` lists the modules below `tests`, and runs each one that no other process with the same
folder has taken. A process takes a module when it creates a file for it in the folder, which succeeds once. Modules
that take long come first: one that begins last would run while the other processes have nothing left to do. A module
is collected when its turn comes, so each one is loaded by one process only. Fixtures of the session live until the
process has done its last module.
"""

from collections.abc import Generator, Iterator
from itertools import chain, pairwise
from pathlib import Path

import pytest

from tests.support.paths import LONGEST


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--queue", type=Path, metavar="FOLDER", help="run modules that no other process with the same folder has taken"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("queue")
    if folder is not None:
        folder.mkdir(exist_ok=True)
        taken = _taken(folder, modules_below(config.rootpath, config.args))
        config.pluginmanager.register(Queue(config, taken), "queue")


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


class Queue:
    """The plugin: it has pytest collect one module at a time, and run its tests."""

    def __init__(self, config: pytest.Config, taken: Iterator[str]) -> None:
        self.taken = taken
        self.folders: dict[Path, pytest.Collector] = {}
        self.collected = 0
        self.is_empty = not self._take(config)

    def _take(self, config: pytest.Config) -> bool:
        """Let the next module be what pytest is to collect, and return whether there is one."""
        module = next(self.taken, None)
        config.args = [] if module is None else [str(config.rootpath / module)]
        return module is not None

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
            yield from session.items
            self.is_empty = not self._take(session.config)
            if not self.is_empty:
                session.config.hook.pytest_collection(session=session)
