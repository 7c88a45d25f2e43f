"""The checkout, the wheel and the type checker must agree on what persist contains."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from persist.tools.cli.main import main
from tests.support.paths import ROOT

MAPPED = {"codecs": "persist.codecs", "blob": "persist.blob"}


def declared_packages() -> list[str]:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages: list[str] = pyproject["tool"]["setuptools"]["packages"]
    return packages


def packages_on_disk() -> list[str]:
    found = []
    for top in ("persist", "pyspark_persist", *MAPPED):
        for init in (ROOT / top).rglob("__init__.py"):
            parts = list(init.parent.relative_to(ROOT).parts)
            if parts[0] in MAPPED:
                parts = [*MAPPED[parts[0]].split("."), *parts[1:]]
            found.append(".".join(parts))
    return found


def test_every_package_on_disk_is_declared_once() -> None:
    assert sorted(set(packages_on_disk())) == sorted(declared_packages())


def test_a_child_started_in_the_checkout_sees_the_stdlib_codecs() -> None:
    code = "import codecs, persist.codecs; print(codecs.__file__)"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not child.stdout.startswith(str(ROOT))


def test_the_lock_names_all_that_its_packages_need() -> None:
    """Set-up installs what it names, and asks no package what else that package needs."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    locked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    installed = {canonicalize_name(each.name) for each in locked if each.marker is None or each.marker.evaluate()}
    missing = {
        f"{needed} of {name}"
        for name in installed
        for needed in map(Requirement, metadata.requires(name) or ())
        if needed.marker is None or needed.marker.evaluate({"extra": ""})
        if canonicalize_name(needed.name) not in installed
    }
    assert missing == set()


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, tracked: list[str]) -> Path:
    """A copy of the checkout: setuptools packs again what it has packed from a folder before."""
    tree = tmp_path_factory.mktemp("tree")
    for name in tracked:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    return tree


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Path:
    folder = tmp_path_factory.mktemp("built")
    built(tree, "build_wheel", folder)
    [found] = folder.glob("*.whl")
    return found


def built(tree: Path, hook: str, folder: Path) -> None:
    """Have the backend that a tree names build something into a folder."""
    build = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    code = f"import sys, {build['build-backend']} as backend; backend.{hook}(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(tree / at) for at in build.get("backend-path", ()))}
    command = [sys.executable, "-W", "ignore", "-c", code, str(folder)]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)


@pytest.mark.thorough  # To pack it takes as long as all else here; a wheel is built from the same tree above.
def test_a_source_distribution_holds_the_whole_tree(tree: Path, tmp_path: Path, tracked: list[str]) -> None:
    built(tree, "build_sdist", tmp_path)
    [packed] = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    # The links make a checkout importable; a source distribution is installed.
    assert {name for name in tracked if not (ROOT / name).is_symlink()} <= names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.thorough
def test_a_wheel_holds_every_module_and_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packed = {name for name in names if name.endswith(".py")}
    on_disk = {
        str(Path(MAPPED.get(top, top).replace(".", "/"), path.relative_to(ROOT / top)))
        for top in ("persist", "pyspark_persist", *MAPPED)
        for path in (ROOT / top).rglob("*.py")
        if not {"codecs", "blob"} & set(path.relative_to(ROOT / top).parts)
    }
    assert packed == on_disk
    pages = {
        str(path.relative_to(ROOT)) for kind in ("html", "js", "css") for path in (ROOT / "persist").rglob(f"*.{kind}")
    }
    assert pages
    assert pages <= names
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    code = "import persist.codecs, persist.blob, pyspark_persist; print(persist.codecs.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(target))


def test_an_editable_install_has_the_package_by_which_spark_finds_the_data_source(tmp_path: Path) -> None:
    """PySpark looks for it among the files beside other packages, where no import hook is asked."""
    built(ROOT, "build_editable", tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("pyspark_persist/__init__.py") == (ROOT / "pyspark_persist" / "__init__.py").read_bytes()
        [record] = [name for name in archive.namelist() if name.endswith("/RECORD")]
        listed = [line.split(",") for line in archive.read(record).decode().splitlines()]
        assert sorted(name for name, *_ in listed) == sorted(archive.namelist())
        for name, digest, size in listed:
            if name != record:
                told = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={told}", len(archive.read(name)))


def required(name: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """Return the distributions that one needs, all the way down, as they are installed here."""
    found: set[str] = set()
    left = [(name, extras)]
    while left:
        each, wanted = left.pop()
        for text in metadata.requires(each) or []:
            need = Requirement(text)
            is_wanted = need.marker is None or any(need.marker.evaluate({"extra": e}) for e in (*wanted, ""))
            if is_wanted and need.name not in found:
                found.add(need.name)
                left.append((need.name, frozenset(need.extras)))
    return found


@pytest.mark.thorough
def test_a_wheel_in_a_clean_environment_needs_only_what_it_says(wheel: Path, tmp_path: Path) -> None:
    """Only the dependencies that the package declares are put beside it, so that one that it forgot would be missed."""
    venv.create(tmp_path / "clean", with_pip=False)
    [site] = (tmp_path / "clean").glob("lib/python*/site-packages")
    for name in required("persist-collections"):
        for file in metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = f"""if True:
        import sys, persist
        from persist.tools.cli.main import main
        assert persist.__file__.startswith({str(site)!r}), persist.__file__
        open("rows.csv", "w").write("id,name\\n1,a\\n2,b\\n")
        assert main(["create", "here", "c", "--key", "id:int64", "--value", "name:string"]) == 0
        assert main(["write", "here", "c", "rows.csv", "--time", "1", "--seal", "2", "--mode", "append"]) == 0
        assert main(["read", "here", "c", "--json"]) == 0
        assert main(["fsck", "here"]) == 0
        for command, package in ((["sql", "here", "FROM c"], "duckdb"), (["ui", "here"], None)):
            assert main(command) == 2
        assert main(["ls", "s3://bucket/x"]) == 2
    """
    python = str(tmp_path / "clean" / "bin" / "python")
    done = subprocess.run(
        [python, "-c", script], cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/usr/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert '{"id":1,"name":"a"}' in done.stdout
    for package in ("duckdb", "starlette", "obstore"):
        assert f"pip install '{package}>=" in done.stderr


def test_the_version_is_said_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == pyproject["project"]["version"]


@pytest.mark.thorough
def test_a_wheel_is_built_the_same_every_time(tmp_path: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
    wheels = []
    for name in ("one", "two"):
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / name), str(ROOT)]
        subprocess.run(build, check=True, capture_output=True, env=environment)
        [wheel] = (tmp_path / name).glob("*.whl")
        wheels.append(wheel.read_bytes())
    assert wheels[0] == wheels[1]


def test_one_extra_installs_what_all_others_for_users_do() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [everything] = extras["all"]
    named = set(everything.removeprefix("persist-collections[").removesuffix("]").split(","))
    assert named == extras.keys() - {"all", "dev", "demo", "bench", "docs"}
