"""The pages of the site: every block runs as it stands there, prints what stands there, and no link is loose."""

import io
import os
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import persist
import persist.events
import persist.spark
import persist.tools.web.slider
from persist.tools.cli.main import main
from tests.support.console import commands_of, matches
from tests.support.paths import DOCS, ROOT

PAGES = [
    "../README.md",
    "index.md",
    "learn/notebook.md",
    "learn/pipeline.md",
    "learn/cdc.md",
    "learn/operating.md",
    "learn/concepts.md",
    "use/from-tables.md",
    "use/events.md",
    "use/ingest.md",
    "use/egress.md",
    "use/dataflow.md",
    "use/views.md",
    "use/views-sql.md",
    "use/publish.md",
    "run/servers.md",
    "run/erase.md",
]
PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"```(python|text|console)\n(.*?)```", re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


class _Bytes(io.TextIOWrapper):
    """What commands print into, whether as text or as bytes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def taken(self) -> list[str]:
        raw: Any = self.buffer
        return str(raw.getvalue().decode()).splitlines()


def ran(kind: str, block: str, names: dict[str, object]) -> list[str]:
    """Run Python, in one namespace for the whole page; return the lines that it printed."""
    out = _Bytes()
    with redirect_stdout(out):
        exec(compile(block, "<page>", "exec"), names)
    return out.taken()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_prints_what_stands_below_it(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_page(page)


def check_page(page: str) -> None:
    """Run the blocks of a page, in the present folder, from top to bottom; compare what they print."""
    names: dict[str, object] = {"__name__": "page"}
    clients: dict[int, persist.Client] = {}  # A page may give a name to another client, and never close the first one.
    try:
        check_blocks(page, names, clients)
    finally:
        for client in clients.values():
            client.close()


def check_blocks(page: str, names: dict[str, object], clients: dict[int, persist.Client]) -> None:
    """Run the blocks of a page in one namespace; compare what they print."""
    printed: list[str] = []
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    assert len(blocks) >= 2
    for kind, block in blocks:
        if kind == "python":
            assert not printed, f"nothing says what this prints: {printed}"
            printed = ran(kind, block, names)
            clients |= {id(value): value for value in names.values() if isinstance(value, persist.Client)}
        elif kind == "text":
            assert matches(block.splitlines(), printed), "\n".join(["printed:", *printed, "expected:", block])
            printed = []
        else:
            for command, expected in commands_of(f"```console\n{block}```"):
                check_command(command, expected)
    assert not printed


def check_command(command: str, expected: list[str]) -> None:
    import shlex

    out = _Bytes()
    with redirect_stdout(out), redirect_stderr(out):
        main(shlex.split(command)[1:])
    assert matches(expected, out.taken()), "\n".join([f"$ {command}", *out.taken(), "expected:", *expected])


@pytest.mark.thorough
def test_the_site_is_built_without_a_warning_and_asks_no_other_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").glob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?://[^\"]+)\"", page.read_text())
        assert loaded == [], page


def test_the_reference_has_every_public_name_once() -> None:
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    there = [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]
    faces: list[Any] = [persist, persist.errors, persist.spark, persist.events]
    members = [getattr(face, name) for face in faces for name in face.__all__ if name != "errors"]
    public = {f"{member.__module__}.{member.__qualname__}" for member in members if hasattr(member, "__qualname__")}
    assert len(there) == len(set(there))
    assert public - set(there) == set()


def test_the_table_of_versions_says_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    table = (DOCS / "run" / "compatibility.md").read_text()
    for package, shown in (
        ("pyarrow", "PyArrow | {}"),
        ("numpy", "NumPy | {}"),
        ("pyspark", "`spark`) | {}"),
        ("duckdb", "`sql`) | {}"),
    ):
        [floor] = {match[1] for each in wanted if (match := re.match(rf"{package}(?:\[\w+\])?>=([\d.]+)", each))}
        assert shown.format(floor) in table
    assert project["requires-python"] == ">=3.11"
    pythons = [each.rsplit(" ", 1)[1] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert f"Python | {pythons[0]} | {pythons[-1]} |" in table


def test_hints_name_what_an_extra_would_install() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].values()
    hints = [
        hint
        for folder in ("persist", "blob", "codecs")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "pip install" in line or "required(" in line
        for hint in re.findall(r"[\"']([a-z][\w\[\]-]*[><=][\d.,<>=]+)[\"']", line)
    ]
    assert len(hints) >= 10
    assert set(hints) - {requirement for extra in extras for requirement in extra} == set()
    assert not [path for path in (ROOT / "persist").rglob("*.py") if "persist-collections[" in path.read_text("utf-8")]


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for path in DOCS.rglob("*.md"):
        assert f" {path.relative_to(DOCS)}\n" in menu


@pytest.mark.parametrize("path", PROSE, ids=name_of)
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", link):
            target, _, anchor = link.partition("#")
            file = path.parent / target if target else path
            assert file.exists(), link
            assert not anchor or anchor in anchors_of(file), link


def anchors_of(page: Path) -> set[str]:
    """Return what links can name of a page, as the site makes it of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


def test_pictures_are_svg_of_their_own_or_small() -> None:
    for path in [*DOCS.rglob("*.svg"), *DOCS.rglob("*.png")]:
        assert path.stat().st_size < 200_000
        if path.parent.name == "pictures":
            assert "href" not in path.read_text()
