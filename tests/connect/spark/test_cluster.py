"""On a real cluster: the same as in one process, whatever workers die and whatever tasks run twice."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from tests.connect.spark.cluster import Cluster, Driver, running_cluster, until
from tests.support.tuned import tuned

pytestmark = pytest.mark.spark

# Nobody else uses these locations: what nothing refers to goes at once.
SETTINGS = tuned(background=False, grace_s=0, orphan_grace_s=0, hold_linger_s=0)

Place = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, wheel_python: Path) -> Iterator[tuple[Cluster, Driver]]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), wheel_python) as running:
        yield running


@pytest.fixture
def cluster(running: tuple[Cluster, Driver]) -> Cluster:
    """With two workers, whatever the test before has killed."""
    running[0].restore()
    return running[0]


@pytest.fixture
def driver(running: tuple[Cluster, Driver]) -> Driver:
    return running[1]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A location with a collection, and its storage options."""
    s3: Place | None = request.getfixturevalue("s3_location") if request.param == "s3" else None
    found: Place = s3 or (str(tmp_path / "location"), {})
    with opened(found) as client:
        c = client.create_or_load("c", key={"k": pa.int64()}, value={"v": pa.string()})
        c.write([((k, text(k)), 0, 1) for k in range(3000)], seal=1).result()
    return found


def text(k: int) -> str:
    """A value that does not compress away, so that there is something to be cut into slices."""
    return hashlib.sha256(str(k).encode()).hexdigest()


def opened(place: Place) -> persist.Client:
    return persist.open(place[0], storage_options=place[1], settings=SETTINGS)


def arguments(place: Place) -> dict[str, Any]:
    return {"location": place[0], "storage": place[1]}


def contents(place: Place) -> dict[str, list[tuple[Any, ...]]]:
    with opened(place) as client:
        c = client.load("c")
        upper = c.upper.time or 0
        tables = {
            "rows": c.snapshot().to_arrow(),
            "diff": c.snapshot(0, form="diff").to_arrow(),
            "changes": c.changes(1, upper).to_arrow(),
        }
        return {form: sorted(tuple(row.values()) for row in table.to_pylist()) for form, table in tables.items()}


def stored_and_named(place: Place) -> tuple[set[str], set[str]]:
    """The parts that are stored, and those that the collection has."""
    with opened(place) as client:
        stored = {entry.key for entry in client.engine.blob.list("part/")}
        return stored, {part.blob for part in client.load("c").handle.contents().parts if part.blob}


def check_clean(place: Place) -> None:
    """Nothing is left over once garbage has been collected, and nothing is missing."""
    with opened(place) as client:
        client.gc()
        client.gc()
        report = client.fsck()
        assert report.is_clean, report
        assert not report.unreferenced, report
    stored, named = stored_and_named(place)
    assert stored == named


def stalled(folder: Path) -> int:
    """The process of the task that has come to where it stalls."""
    until((folder / "stalled").exists, "a task to stall")
    return int((folder / "stalled").read_text())


def as_written(first: int, last: int, at: int) -> list[tuple[Any, ...]]:
    return sorted((k, text(k), at, 1) for k in range(first, last))


@pytest.mark.thorough
def test_tasks_have_the_library_from_the_wheel(driver: Driver, wheel_python: Path) -> None:
    [found] = driver.call("where")
    assert Path(found).is_relative_to(wheel_python.parent.parent)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["folder", "s3"], indirect=True)
def test_a_cluster_writes_reads_and_compacts_as_one_process_does(
    cluster: Cluster, driver: Driver, place: Place
) -> None:
    driver.call("write", **arguments(place), start=2000, end=5000, at=1)
    with opened(place) as client:
        c = client.load("c")
        c.write([((k, text(k)), 2, -1) for k in range(0, 4000, 2)], seal=3).result()
        assert list(c.changes(1, 2).updates()) == [((k, text(k)), 1, 1) for k in range(2000, 5000)]
    before = contents(place)
    for compacted in (False, True):
        if compacted:
            report = driver.call("compact", **arguments(place))
            assert report["keyframes"] == [2]
            assert report["parts_written"] >= 3
            assert contents(place) == before
        for form, asked in (
            ("rows", {}),
            ("diff", {"as_of": 0, "partitions": 3}),
            ("changes", {"start": 1, "until": 3}),
        ):
            found = driver.call("read", **arguments(place), form=form, **asked)
            assert sorted(map(tuple, found)) == before[form], (form, compacted)
        assert sorted(map(tuple, driver.call("snapshot", **arguments(place), form="rows"))) == before["rows"]
        way = "Spark's own scan" if "://" not in place[0] else "the data source: the JVM cannot read"
        assert way in driver.call("route", **arguments(place))
    [[count]] = driver.call("query", **arguments(place), sql="SELECT count(v) FROM {c}")
    assert count == len(before["rows"])
    check_clean(place)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["folder", "s3"], indirect=True)
def test_a_write_ends_right_though_a_worker_is_killed_in_the_middle_of_it(
    cluster: Cluster, driver: Driver, place: Place, tmp_path: Path
) -> None:
    answer = driver.ask("write_stalling", **arguments(place), folder=str(tmp_path), at=1)
    cluster.kill_worker_of(stalled(tmp_path))
    stored, named = stored_and_named(place)
    lost = stored - named
    assert lost, "what the killed task had uploaded"
    answer()
    assert contents(place)["changes"] == as_written(10_000, 14_000, 1)
    stored, named = stored_and_named(place)
    assert (stored - named) & lost, "the upload of the killed task is in nobody's way, and nobody's"
    check_clean(place)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_read_ends_right_though_a_worker_is_killed_in_the_middle_of_it(
    cluster: Cluster, driver: Driver, place: Place, tmp_path: Path
) -> None:
    answer = driver.ask("read_stalling", **arguments(place), folder=str(tmp_path))
    cluster.kill_worker_of(stalled(tmp_path))
    assert sorted(map(tuple, answer())) == contents(place)["rows"]
    check_clean(place)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_task_that_runs_twice_at_once_counts_once(
    cluster: Cluster, driver: Driver, place: Place, tmp_path: Path
) -> None:
    driver.call("write_stalling", **arguments(place), folder=str(tmp_path), at=1, speculates=True)
    assert (tmp_path / "stalled").exists()
    assert (tmp_path / "go").exists(), "a second attempt has done the same"
    assert contents(place)["changes"] == as_written(10_000, 14_000, 1)
    stored, named = stored_and_named(place)
    assert stored - named, "one of the two uploads is nobody's"
    check_clean(place)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["folder", "s3"], indirect=True)
def test_a_step_ends_right_though_a_worker_is_killed_in_the_middle_of_it(
    cluster: Cluster, driver: Driver, place: Place, tmp_path: Path
) -> None:
    assert driver.call("step_stalling", **arguments(place), folder=str(tmp_path)) == "everything"
    with opened(place) as client:
        client.load("c").write([((k, text(k)), 1, -1) for k in range(0, 3000, 70)], seal=2).result()
    (tmp_path / "may stall").touch()
    answer = driver.ask("step_stalling", **arguments(place), folder=str(tmp_path))
    cluster.kill_worker_of(stalled(tmp_path))
    assert answer() == "everything"
    with opened(place) as client:
        halves, left = client.load("halves"), [k for k in range(3000) if k % 70]
        assert halves.upper == persist.Antichain(2)
        expected = [
            (half, len(every), every[-1]) for half in range(7) for every in [[k for k in left if k % 7 == half]]
        ]
        assert sorted(tuple(row.values()) for row in halves.snapshot().to_arrow().to_pylist()) == expected
        assert client.fsck().problems == ()
