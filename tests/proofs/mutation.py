"""Breaks one place of a room at a time, and tells which breakages the room's own fast tests do not notice.

`scripts/mutants` runs it. A room is loaded once, with the first tier of its tests. One run of these tests, in a child,
notes which lines each test runs. Then a child is forked for each mutant: it compiles the changed module, puts the new
code into the functions that exist, and runs the tests that reach the line, the cheap ones first, until one fails.
Nothing is written, so a run disturbs neither the checkout nor other runs.

A place is a part of a function that can be changed (`_alternatives` lists how). A seed chooses the places, and for each
place one change. What cannot change a promise is not drawn: annotations, docstrings, decorators, `__repr__`, assertions
(they guard against our own bugs) and the text of errors. Constants of modules and default values are not drawn either,
because only code of functions can be replaced in a living process; nor is how much of a value a text shows (`!r`),
nor what a test's own child processes run.

A change after which the program does the same is named in `equivalent_mutants.txt` with its reason, and then counts by
itself. Other survivors are printed with the lines as they were and as they became.
"""

import argparse
import ast
import contextlib
import gc
import hashlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper, cache
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn

import pytest

from tests.support.paths import ROOT

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
# What judges a room: the first tier of these. What is slow, or runs in processes of its own, need not be loaded.
ROOMS = {
    "core/state_rules": [
        "tests/core/state_rules",
        "tests/engine/hold",
        "tests/engine/write/test_writers.py",
        "tests/rules/test_rules.py",
        "tests/engine/test_telling.py",
    ]
    + [f"tests/engine/test_evolve{what}.py" for what in ("", "_keyed", "_narrower")],
    "core/log": ["tests/core/log"],
    "engine/compact": [
        "tests/engine/compact",
        *(f"tests/{what}.py" for what in ("services/erase/test_erase", "engine/test_single", "core/test_work")),
    ],
    "compute/index": ["tests/compute/index", "tests/services/erase/test_erase.py"],
    # What a command does beyond printing is tested where it is done.
    "tools/cli": [
        "tests/tools/cli",
        "tests/api/test_time_words.py::test_a_command_writes_at_the_time_of_a_word",
        "tests/connect/egress/test_files.py::test_the_command_writes_files",
        "tests/connect/ingest/test_files.py::test_the_command_takes_in_what_is_new_and_says_so",
        "tests/engine/test_meant_times.py::test_the_command_line_takes_now_and_asks_for_times_far_ahead",
        "tests/house/test_packaging.py::test_the_version_is_said_in_one_place",
        "tests/rules/test_failures.py::test_a_failure_of_a_view_is_told_when_its_process_is_gone_and_taken_back_by_success",
        "tests/rules/test_failures.py::test_a_sink_that_fails_says_so_until_it_sends_again",
        "tests/rules/test_versions.py::test_the_command_says_what_an_upgrade_changes_and_does_it_once",
        "tests/services/fsck/test_set_aside.py::test_the_command_line_sets_aside",
        "tests/services/publish/test_catalog.py::test_the_command_line_serves_a_catalog_with_properties",
        "tests/services/publish/test_keeping.py::test_publish_and_unpublish_on_the_command_line",
        "tests/tools/web/test_answers.py::test_a_port_in_use_is_one_line_that_says_what_to_do",
    ],
    "engine/follow": [
        "tests/engine/follow",
        "tests/engine/write/test_look_back.py",
        "tests/api/test_follow.py",
        "tests/rules/test_hostile.py::test_a_checkpoint_that_no_writer_would_make_is_refused",
        "tests/rules/test_hostile.py::test_a_state_object_that_no_writer_would_make_is_refused",
    ],
    "engine/write": [
        "tests/engine/write",
        "tests/services/serve/test_commit_through.py",
        "tests/core/test_errors_written.py",
        *(f"--ignore=tests/engine/write/test_{slow}.py" for slow in ("unclosed", "wide_schemas", "bad_days")),
    ],
    "engine/hold": ["tests/engine/hold"],
    "services/backup": ["tests/services/backup", "tests/tools/cli/test_copying.py"],
    "services/serve": ["tests/services/serve"],
    "services/erase": [
        "tests/services/erase",
        "tests/tools/cli/test_erasing.py",
        "tests/engine/test_document_values.py::test_what_is_erased_is_gone_from_values_too",
        "tests/engine/test_document_values.py::test_a_search_for_erased_texts_looks_into_values",
    ],
    "services/publish": ["tests/services/publish", "tests/services/erase/test_iceberg.py"],
    "services/fsck": [
        "tests/services/fsck",
        "tests/engine/write/test_archived_tokens.py",
        "tests/engine/compact/test_compaction.py::test_fsck_finds_a_keyframe_that_does_not_say_what_the_history_says",
    ],
    "blob": [
        "tests/blob",
        "tests/services/serve/test_served_store.py",
        *(f"tests/core/test_{what}.py" for what in ("errors_written", "remedies", "settings")),
        "tests/engine/upkeep/test_policies.py::test_a_policy_that_cannot_work_is_refused",
    ],
    # Columns evolve, parts are stamped and rows are mapped where collections are.
    "codecs": ["tests/codecs", "tests/core/state_rules/test_refusals.py"]
    + [f"tests/engine/test_evolve{what}.py" for what in ("", "_narrower", "_nested", "_surfaces")]
    + [f"tests/engine/read/test_{what}.py" for what in ("aggregate", "spilled_rows")]
    + ["tests/engine/write/test_commit_times.py", "tests/compute/index/test_index.py"]
    + ["tests/connect/ingest/test_fields_inside.py", "tests/compute/sql/test_documents.py"]
    # Rows of all forms are given to clients, and stored parts are verified by fsck.
    + [f"tests/api/test_{what}.py" for what in ("client_write", "object_columns", "plain_rows")]
    + [f"tests/core/test_{what}.py" for what in ("moments", "records", "table")]
    + [f"tests/engine/test_{what}.py" for what in ("document_values", "not_null", "odd_inputs")]
    + ["tests/engine/test_updates.py::test_an_update_changes_the_columns_that_rows_have"]
    + ["tests/services/fsck/test_fsck.py::test_golden_locations_are_clean", "tests/rules/fuzz/test_codecs.py"],
    "engine/upkeep": ["tests/engine/upkeep"],
    "core/keyed": ["tests/core/keyed", "tests/engine/test_updates.py"],
    "connect/envelopes": ["tests/connect/envelopes"],
    # `persist write` and `persist read` have the same formats of files; failures are recorded alike everywhere.
    "connect/ingest": [
        "tests/connect/ingest",
        "tests/rules/test_failures.py",
        "tests/tools/cli/test_loading.py",
        "tests/tools/cli/test_naming.py::test_events_of_a_keyed_collection_come_from_a_file",
    ],
    "connect/egress": ["tests/connect/egress", "tests/rules/test_failures.py", "tests/tools/cli/test_reading.py"],
    "engine/read": [
        "tests/engine/read",
        *(f"tests/core/keyed/test_{what}.py" for what in ("keyed", "order", "purging", "upserts", "way_back")),
        *(f"tests/api/test_{what}.py" for what in ("as_of_join", "together", "small_library")),
        *(f"tests/core/test_{what}.py" for what in ("shown", "table")),
        *(f"tests/engine/test_{what}.py" for what in ("evolve_narrower", "replacing")),
        "tests/connect/test_exchange.py",
        "tests/house/test_home.py",
    ],
    # Windows, kept groups, and steps of queries are reached by queries only.
    "compute/dataflow": ["tests/compute/dataflow"]
    + [
        f"tests/compute/sql/test_{what}.py"
        for what in (
            *("ranked_windows", "groups", "two_ways", "cold_steps", "limits"),
            *("first_build", "redefine", "time_windows", "views"),
        )
    ],
    "compute/sql": [
        "tests/compute/sql",
        "tests/tools/cli/test_apply.py",
        "tests/core/expression/test_term.py",
        "tests/api/test_lineage.py",
        "tests/api/test_together.py",
        "tests/services/erase/test_erase.py::test_views_begin_anew_with_the_same_definition_and_history",
        "tests/services/erase/test_erase.py::test_open_handles_of_views_go_on_after_an_erasure",
        "tests/services/erase/test_erase.py::test_a_view_with_a_tag_refuses_and_is_named",
        "tests/services/erase/test_erase.py::test_indexes_and_published_tables_are_made_anew",
    ],
}
TEST_S = 2.0  # Tests that take longer judge nothing: they are not fast tests.
# A test hangs if it waits, or uses the processor, this many times as long as without a mutant, and so much longer. What
# it loses to other programs of the machine counts as neither.
SLOWER, PATIENCE_S, PATIENCE_CPU_S = 10.0, 10.0, 4.0
LOOK_S = 0.5
SURVIVED, KILLED, HUNG = 0, 1, 3  # How a child ends.

COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
OPERATORS: dict[type[ast.operator], list[type[ast.operator]]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add, ast.Mod],
    ast.Mult: [ast.FloorDiv, ast.Add],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult, ast.Mod],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.LShift: [ast.RShift],
    ast.RShift: [ast.LShift],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd, ast.BitXor],
    ast.BitXor: [ast.BitOr],
}
NEVER_RAISED = "UnicodeTranslateError"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one place, and the lines that a test must run to reach it."""

    module: str
    function: str
    place: int  # The number of its node in its module, in the order of `_drawn`.
    form: int  # Which of its alternatives.
    lines: range
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.module} {self.function}: {self.before} -> {self.after}"


@dataclass(slots=True)
class Reach:
    """What a test runs and takes without a mutant."""

    cost_s: float = 0.0
    duration_s: float = 0.0
    lines: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    passed: bool = True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="which places, and which change of each")
    parser.add_argument("--places", type=int, default=45, help="how many of each room")
    parser.add_argument("--room", action="append", choices=ROOMS, help="only this room; several times for several")
    parser.add_argument("--only", default="", help="a part of the names of the mutants that are tried")
    parser.add_argument("--again", type=Path, help="try only those that an earlier run, in this file, let live")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="processor time that the tests of one mutant may take"
    )
    asked = parser.parse_args()
    rooms = asked.room or list(ROOMS)
    if len(rooms) == 1:
        options = [
            "-q",
            "-s",
            "--no-header",
            "--no-summary",
            "-p",
            "no:cacheprovider",
            "--thorough",
            "0.001",  # What only CI runs judges, too.
            "--costs",
            "0",
        ]
        status = pytest.main([*options, "-m", "not spark", *ROOMS[rooms[0]]], plugins=[Judge(rooms[0], asked)])
        sys.exit(int(status != pytest.ExitCode.OK))
    passed_on = [f"--{name}={getattr(asked, name)}" for name in ("seed", "places", "only", "seconds")]
    passed_on += [] if asked.again is None else [f"--again={asked.again}"]
    statuses = [
        subprocess.run(
            [sys.executable, "-m", "tests.proofs.mutation", f"--room={room}", *passed_on], cwd=ROOT
        ).returncode
        for room in rooms
    ]
    sys.exit(max(statuses))


class Judge:
    """The plugin that runs the tests for each mutant instead of once."""

    def __init__(self, room: str, asked: argparse.Namespace) -> None:
        self.room = room
        self.asked = asked
        self.failed = False  # In a child: whether a test has failed.
        # The room's own. They are emptied before each test: what another test or an import has left in them would hide
        # the lines that a test depends on.
        self.caches: list[_lru_cache_wrapper[Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        started_s = time.monotonic()
        session.config.pluginmanager.unregister(name="costs")
        paths = sorted((ROOT / "persist" / self.room).rglob("*.py"))
        mutants = drawn(paths, self.asked.places, self.asked.seed)
        for path in paths:  # A mutant changes functions that exist: modules that a call imports are loaded before.
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        gc.collect()
        self.caches = [
            one
            for one in gc.get_objects()
            if isinstance(one, _lru_cache_wrapper) and one.__wrapped__.__code__.co_filename in {*map(str, paths)}
        ]
        gc.freeze()
        reached = self._reached(session, {str(path) for path in paths})
        for item in session.items:
            if not reached[item.nodeid].passed:
                print(f"fails without a mutant, so it judges none: {item.nodeid}", flush=True)
        outcomes, equivalent = Counter[str](), _named_as_equivalent()
        mutants = [mutant for mutant in mutants if self.asked.only in mutant.name]
        if self.asked.again is not None:
            living = {line.strip() for line in self.asked.again.read_text().splitlines()}
            mutants = [mutant for mutant in mutants if mutant.name in living]
        for number, mutant in enumerate(mutants, 1):
            outcome = "equivalent" if mutant.name in equivalent else self._outcome(session, mutant, reached)
            outcomes[outcome.partition(" ")[0]] += 1
            if outcome not in ("killed", "equivalent"):
                where = f"{mutant.module}:{mutant.lines.start}"
                print(f"{number} of {len(mutants)}: {outcome} at {where}\n  {mutant.name}", flush=True)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        used_s = sum(usage.ru_utime + usage.ru_stime for usage in used)
        took_s = time.monotonic() - started_s
        head = f"{self.room}, --seed {self.asked.seed} --places {self.asked.places}"
        print(f"{head}: {counts or 'none'}; {used_s:.0f} s of processor time in {took_s:.0f} s", flush=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def _clear_caches(self) -> None:
        for one in self.caches:
            one.cache_clear()

    def _reached(self, session: pytest.Session, paths: set[str]) -> dict[str, Reach]:
        """Run all tests in a child, and return what each of them runs and takes."""
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            _become_quiet()
            with open(sending, "wb") as pipe:
                pickle.dump(self._traced(session, paths), pipe)
            os._exit(0)
        os.close(sending)
        with open(receiving, "rb") as pipe:
            content = pipe.read()
        os.waitpid(child, 0)
        return pickle.loads(content)  # type: ignore[no-any-return]

    def _traced(self, session: pytest.Session, paths: set[str]) -> dict[str, Reach]:
        reaches: dict[str, Reach] = {}
        present = Reach()

        def in_function(frame: FrameType, event: str, argument: object) -> Any:
            present.lines[frame.f_code.co_filename].add(frame.f_lineno)
            return in_function

        def at_call(frame: FrameType, event: str, argument: object) -> Any:
            return in_function(frame, event, argument) if frame.f_code.co_filename in paths else None

        threading.settrace(at_call)
        for item, following in _with_following(session.items):
            present = reaches[item.nodeid] = Reach()
            self._clear_caches()
            self.failed = False
            began_s, cost_s = time.monotonic(), _used_s()
            sys.settrace(at_call)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            present.duration_s, present.cost_s = time.monotonic() - began_s, _used_s() - cost_s
            present.passed = not self.failed
        threading.settrace(None)
        for reach in reaches.values():
            reach.lines = {os.path.relpath(path, ROOT): lines for path, lines in list(reach.lines.items())}
        return reaches

    def _outcome(self, session: pytest.Session, mutant: Mutant, reached: dict[str, Reach]) -> str:
        fit = [item for item in session.items if (reach := reached[item.nodeid]).passed and reach.cost_s <= TEST_S]
        lines = {item: reached[item.nodeid].lines.get(mutant.module, set()) for item in fit}
        # Threads that Python did not start, such as those of Arrow, are not traced: then tests of the module judge.
        tests = [item for item in fit if not lines[item].isdisjoint(mutant.lines)] or [*filter(lines.get, fit)]
        if not tests:
            return "unreached by any test"
        tests.sort(key=lambda item: reached[item.nodeid].cost_s)
        child = os.fork()
        if child == 0:
            self._judge(mutant, tests, reached)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # What the tests had started.
        if not os.WIFEXITED(status):
            return "killed"  # The mutant brought the process down.
        code = os.WEXITSTATUS(status)
        return {SURVIVED: f"survived {len(tests)} tests", KILLED: "killed", HUNG: "hung"}.get(code, "killed")

    def _judge(self, mutant: Mutant, tests: Sequence[pytest.Item], reached: dict[str, Reach]) -> NoReturn:
        """Be the child of one mutant."""
        os.setsid()
        _become_quiet()
        apply(mutant)
        began_s = _used_s()
        watch = threading.Event()
        left_s, until_used_s = PATIENCE_S, began_s + PATIENCE_CPU_S

        def end_when_late() -> None:
            nonlocal left_s
            while not watch.wait(LOOK_S):
                left_s -= LOOK_S * _is_waiting()
                if left_s < 0 or _used_s() > until_used_s:
                    os._exit(HUNG)

        threading.Thread(target=end_when_late, daemon=True).start()
        for item, following in _with_following(tests):
            reach = reached[item.nodeid]
            left_s = PATIENCE_S + SLOWER * reach.duration_s
            until_used_s = _used_s() + PATIENCE_CPU_S + SLOWER * reach.cost_s
            self._clear_caches()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                os._exit(KILLED)
            if _used_s() - began_s > self.asked.seconds:
                break
        os._exit(SURVIVED)


def _with_following(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    yield from zip(items, [*items[1:], None], strict=True)


def _become_quiet() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)


def _used_s() -> float:
    return sum(os.times()[:4])


def _is_waiting() -> bool:
    """Return whether all threads of this process and its children wait, but the one that asks."""
    processes = [os.getpid()]
    for process in processes:
        for thread in Path(f"/proc/{process}/task").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # It has ended.
                state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                if state in "RD" and thread.name != str(threading.get_native_id()):
                    return False
                processes += map(int, (thread / "children").read_text().split())
    return True


def _named_as_equivalent() -> set[str]:
    lines = EQUIVALENT.read_text().splitlines()
    return {line for line in lines if line and not line.startswith(("#", " "))}


# ---- Drawing


def drawn(paths: Sequence[Path], count: int, seed: int) -> list[Mutant]:
    """Return one mutant for each of `count` places of these modules.

    A place's number in the order comes from its own text, so a change elsewhere leaves the others where they are.
    """
    ordered: list[tuple[bytes, Mutant]] = []
    for path in paths:
        module, seen = os.path.relpath(path, ROOT), Counter[str]()
        for place, (node, function, lines) in enumerate(_drawn(ast.parse(_source(path)))):
            before, forms = _shown(node), _alternatives(node)
            name = f"{seed} {module} {function} {before}"
            seen[name] += 1
            digest = hashlib.sha256(f"{name} {seen[name]}".encode()).digest()
            form = digest[-1] % len(forms)
            mutant = Mutant(module, function, place, form, lines, before, _shown(forms[form]))
            ordered.append((digest, mutant))
    ordered.sort(key=lambda one: one[0])
    return [mutant for _, mutant in ordered[:count]]


def _shown(node: ast.AST) -> str:
    """Return a node as one line: of a statement with a body, the head alone."""
    match node:
        case ast.ExceptHandler(type=kind):
            return f"except {ast.unparse(kind) if kind else ''}"
        case ast.For(target=target, iter=iterable):
            return f"for {ast.unparse(target)} in {ast.unparse(iterable)}"
        case ast.If(test=test):
            return f"if {ast.unparse(test)}"
        case ast.While(test=test):
            return f"while {ast.unparse(test)}"
        case ast.comprehension():
            conditions = "".join(f" if {ast.unparse(condition)}" for condition in node.ifs)
            return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}{conditions}"
    return " ".join(ast.unparse(node).split())


def _drawn(tree: ast.Module) -> Iterator[tuple[ast.AST, str, range]]:
    """Yield each node of a function that can be changed, with the function's name and the lines of its statement."""

    def visit(node: ast.AST, function: str, lines: range) -> Iterator[tuple[ast.AST, str, range]]:
        name, is_inside = function, bool(function)
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                yield from visit(statement, f"{function}{node.name}.", lines)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name != "__repr__":
                for statement in node.body:
                    yield from visit(statement, f"{function.rstrip('.')}.{node.name}".lstrip("."), range(0))
            return
        if isinstance(node, ast.Assert):
            return
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            lines = _head(node)
        if is_inside and not function.endswith(".") and _alternatives(node):
            yield node, name, lines
        for part in ast.iter_child_nodes(node):
            if _may_matter(node, part):
                yield from visit(part, function, lines)

    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from visit(statement, "", range(0))


def _head(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> range:
    """Return the lines of a statement, without those of the statements in it."""
    first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    body: list[ast.stmt] = getattr(node, "body", [])
    end = body[0].lineno if body else getattr(node, "end_lineno", first) + 1
    return range(first, max(end, first + 1))


def _may_matter(node: ast.AST, part: ast.AST) -> bool:
    """Return whether a change of a part of a node could matter."""
    if isinstance(node, ast.AnnAssign) and part is node.annotation:
        return False
    if isinstance(part, ast.arguments):  # Of a lambda.
        return False
    if isinstance(node, ast.FormattedValue) and node.conversion == ord("r"):  # What a text shows of a value.
        return False
    if isinstance(node, ast.keyword) and node.arg == "strict":  # Of zip: it guards against our own bugs.
        return False
    is_error = isinstance(node, ast.Raise) or (
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].endswith(("Error", "InvalidUsage"))
    )
    return not (is_error and isinstance(part, ast.JoinedStr))


def _alternatives(node: ast.AST) -> list[ast.AST]:
    """Return what may stand in the place of a node."""
    match node:
        case ast.Compare(left, operators, right):
            return [
                ast.Compare(left, [*operators[:number], other(), *operators[number + 1 :]], right)
                for number, operator in enumerate(operators)
                for other in COMPARISONS[type(operator)]
            ]
        case ast.BoolOp(operator, values):
            return [ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)]
        case ast.UnaryOp(_, operand):
            return [operand]
        case ast.BinOp(left, operator, right) if not _is_text(left) and not _is_text(right):
            return [ast.BinOp(left, other(), right) for other in OPERATORS.get(type(operator), [])]
        case ast.AugAssign(target, operator, value) if not _is_text(value):
            return [ast.AugAssign(target, other(), value) for other in OPERATORS.get(type(operator), [])]
        case ast.Constant(bool(value)):
            return [ast.Constant(not value)]
        case ast.Constant(int(value)):
            return [ast.Constant(value + 1), ast.Constant(value - 1)]
        case ast.IfExp(ast.UnaryOp(ast.Not())) | ast.If(ast.UnaryOp(ast.Not())) | ast.While(ast.UnaryOp(ast.Not())):
            return []  # Its `not` is a place.
        case ast.IfExp(test, body, orelse):
            return [ast.IfExp(_negated(test), body, orelse)]
        case ast.If(test, body, orelse):
            return [ast.If(_negated(test), body, orelse)]
        case ast.While(test, body, orelse) if not isinstance(test, ast.Constant):
            return [ast.While(_negated(test), body, orelse)]
        case ast.For(target, _, body, orelse):
            return [ast.For(target, ast.Tuple([], ast.Load()), body, orelse)]
        case ast.comprehension(target, iterable, [*conditions, condition], is_async):
            return [ast.comprehension(target, iterable, [*conditions, _negated(condition)], is_async)]
        case ast.ExceptHandler(kind, name, body) if kind is not None:
            return [ast.ExceptHandler(ast.Name(NEVER_RAISED, ast.Load()), name, body)]
        case ast.Break():
            return [ast.Continue()]
        case ast.Continue():
            return [ast.Break()]
    return []


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


@cache
def _source(path: Path) -> bytes:
    """Return a module as it was when the room was loaded, whoever edits it meanwhile."""
    return path.read_bytes()


# ---- Applying


def apply(mutant: Mutant) -> None:
    """Put a mutant's code into the functions that live in this process."""
    path = ROOT / mutant.module
    tree = ast.parse(_source(path))
    changed = next(node for place, (node, _, _) in enumerate(_drawn(tree)) if place == mutant.place)
    other = ast.copy_location(_alternatives(changed)[mutant.form], changed)

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return other if node is changed else self.generic_visit(node)

    Put().visit(tree)
    codes = dict(_codes(compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)))
    gc.unfreeze()
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == str(path):
            old = function.__code__
            new = codes.get((old.co_qualname, old.co_firstlineno))
            if new is not None and new != old and new.co_freevars == old.co_freevars:
                function.__code__ = new


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _codes(constant)


if __name__ == "__main__":
    main()
