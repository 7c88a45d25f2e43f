"""The checkout, the wheel and the type checker must agree on what persist contains."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAPPED = {"codecs": "persist.codecs", "blob": "persist.blob"}


def declared_packages() -> list[str]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages: list[str] = pyproject["tool"]["setuptools"]["packages"]
    return packages


def packages_on_disk() -> list[str]:
    found = []
    for top in ("persist", *MAPPED):
        for init in (ROOT / top).rglob("__init__.py", recurse_symlinks=False):
            parts = list(init.parent.relative_to(ROOT).parts)
            if parts[0] in MAPPED:
                parts = [*MAPPED[parts[0]].split("."), *parts[1:]]
            found.append(".".join(parts))
    return found


def test_every_package_on_disk_is_declared_once() -> None:
    assert sorted(set(packages_on_disk())) == sorted(declared_packages())


def test_a_child_started_in_the_checkout_sees_the_stdlib_codecs() -> None:
    code = "import codecs, persist.codecs; print(codecs.__file__)"
    child = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not child.stdout.startswith(str(ROOT))
