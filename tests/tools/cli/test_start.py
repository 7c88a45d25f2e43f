"""The command line says at once what it can do: nothing that takes long is loaded for that."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import persist
from persist.tools.cli.command import SECTIONS, SectionedGroup, app
from persist.tools.cli.main import main
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S

HEAVY = {"pyarrow", "numpy", "msgspec", "fsspec", "boto3", "duckdb", "pandas", "starlette", "uvicorn", "click", "rich"}


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("arguments", [["--help"], ["read", "--help"], ["write"], ["frobnicate"]])
def test_help_and_mistakes_in_the_call_load_nothing_that_takes_long(arguments: list[str]) -> None:
    code = f"""if True:
        import sys
        from persist.tools.cli.main import main
        try:
            main({arguments})
        except SystemExit:
            pass
        print(*{{name.split(".")[0] for name in sys.modules}}, file=sys.stderr)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) & HEAVY == set()


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(("given", "used"), [(None, "jemalloc"), ("system", "system")])
def test_a_listing_loads_no_table_engine_and_uses_the_allocator_that_keeps_least_unless_told(
    given: str | None, used: str, tmp_path: Path
) -> None:
    with persist.open(tmp_path) as client:
        client.create_or_load("orders", key={"k": int})
    code = """if True:
        import sys
        from persist.tools.cli import entry
        sys.argv = ["persist", "ls", sys.argv[1]]
        try:
            entry()
        except SystemExit:
            import pyarrow
            print(pyarrow.default_memory_pool().backend_name, *{name.split(".")[0] for name in sys.modules})
    """
    others = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    chosen = {} if given is None else {"ARROW_DEFAULT_MEMORY_POOL": given}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=others | chosen, check=True)
    allocator, *loaded = done.stdout.splitlines()[-1].split()
    assert allocator == used or sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION")
    assert {*loaded} & {"pandas", "duckdb", "boto3", "rich", "starlette", "pyspark", "http"} == set()


@pytest.mark.skipif(
    sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"), reason="it is about glibc's heaps"
)
@pytest.mark.parametrize(("given", "most"), [(None, 2), ("5", 5)])
def test_the_threads_of_a_command_share_two_heaps_unless_told(given: str | None, most: int) -> None:
    code = """if True:
        import ctypes, sys, threading
        from persist.tools.cli import entry
        sys.argv = ["persist", "--help"]
        try:
            entry()
        except SystemExit:
            pass
        c, together = ctypes.CDLL(None), threading.Barrier(12)
        def allocate():
            for _ in range(100):
                c.malloc(1000)
            together.wait()
        threads = [threading.Thread(target=allocate) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        c.malloc_info(0, ctypes.c_void_p.in_dll(c, "stderr"))
    """
    others = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    chosen = {} if given is None else {"MALLOC_ARENA_MAX": given}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=others | chosen)
    assert done.stderr.count("<heap nr=") == most


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("module", ["typer", "persist.api.client"])
def test_ctrl_c_while_modules_are_loaded_ends_it_without_a_traceback(module: str, tmp_path: Path) -> None:
    code = f"""if True:
        import os, signal, sys
        class Interrupter:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupter())
        from persist.tools.cli import entry
        entry()
    """
    done = subprocess.run([sys.executable, "-c", code, "ls", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode in (-signal.SIGINT, 130)
    assert done.stderr in ("", "persist: interrupted\n")


def test_completion_can_be_installed() -> None:
    command = [sys.executable, "-m", "persist", "--show-completion", "bash"]
    environment = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "complete" in done.stdout


def test_a_process_that_was_told_not_to_heed_ctrl_c_does_not(tmp_path: Path) -> None:
    code = """if True:
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        from persist.tools.cli import entry
        try:
            entry()
        finally:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    """
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_is_in_one_section_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    named = [name for names in SECTIONS.values() for name in names]
    assert sorted(named) == sorted(vars(typer.main.get_command(app))["commands"])
    assert [line[:-1] for line in shown.splitlines() if line[:-1] in SECTIONS] == [*SECTIONS]
    assert re.findall(r"^  ([a-z]+)  ", shown, re.MULTILINE) == named
    assert "..." not in shown.partition("Options:")[2]


def test_a_shell_completes_the_commands_in_the_order_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0  # Registers the commands.
    group = typer.main.get_command(app)
    assert isinstance(group, SectionedGroup)
    context = group.make_context("persist", ["ls", "shop"])
    assert group.list_commands(context) == [name for names in SECTIONS.values() for name in names]


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "command", [["tail", "orders", "--as-of", "0", "--json"], ["ls", "--watch"], ["ui", "--port", "0", "--json"]]
)
def test_what_has_no_end_ends_well_by_sigterm(command: list[str], tmp_path: Path) -> None:
    with persist.open(tmp_path) as client:
        made = client.create_or_load("orders", key={"k": int})
        made.write([(1, None)], time=1, seal=2).result()
    asked = [*forked_python(), "-m", "persist", command[0], str(tmp_path), *command[1:]]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, "")


def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path) -> None:
    output = tmp_path / "rows.csv"
    code = """if True:
        import os, signal, sys
        from persist.tools.cli import row_output
        def batches(*_):
            os.kill(os.getpid(), signal.SIGTERM)
            yield
        row_output._limit_batches = batches
        from persist.tools.cli import entry
        entry()
    """
    with persist.open(tmp_path / "shop") as client:
        client.write("orders", [{"id": 1}], key=["id"]).result()
    asked = [sys.executable, "-c", code, "read", str(tmp_path / "shop"), "orders", "--output", str(output)]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "persist: ended by SIGTERM\n")
    assert not [*tmp_path.glob("rows.csv*")], "what was begun is taken away"
