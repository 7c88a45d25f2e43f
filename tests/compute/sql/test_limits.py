"""A refresh that is given up, by a limit or by Ctrl-C, leaves the view at its last time, and the next one goes on."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist import View
from persist.errors import InvalidUsage, LimitReached
from tests.compute.sql.test_views import rows

QUERY = "SELECT g, count(*) AS n FROM t GROUP BY g"


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open(persist.MemoryBlob(), settings=persist.Settings(background=False)) as found:
        found.create_or_load("t", key={"k": pa.int64()}, value={"g": pa.int64()})
        yield found


def begun(client: persist.Client) -> View:
    client.load("t").write([((1, 7), 0, 1)], seal=1).result()
    view = client.create_view("v", QUERY)
    view.refresh()
    client.load("t").write([((2, 7), 1, 1)], seal=2).result()
    return view


@pytest.mark.parametrize("keeps_state", [True, False])
def test_a_refresh_ends_at_its_limit_of_time(client: persist.Client, keeps_state: bool) -> None:
    view = begun(client)
    if keeps_state:
        view.open_state()
        client.load("t").write([((3, 7), 2, 1)], seal=3).result()
    before = view.upper
    with pytest.raises(LimitReached, match=r"limit of time, which is timeout_s=0.*nothing else was written"):
        view.refresh(timeout_s=0, policy="auto" if keeps_state else "incremental")
    assert view.upper == before
    assert not view.is_open
    view.refresh(timeout_s=600, memory_limit=1 << 40)
    assert rows(view) == [(7, 3 if keeps_state else 2)]


@pytest.mark.costly("a table that is large enough for its memory to show")
def test_a_refresh_ends_at_its_limit_of_memory(client: persist.Client) -> None:
    view = begun(client)
    numbers = np.arange(10, 600_000)
    table = pa.table({"k": numbers, "g": numbers, "_time": numbers * 0 + 2, "_diff": numbers * 0 + 1})
    client.load("t").write(table, seal=3).result()
    before = view.upper
    with pytest.raises(LimitReached, match="limit of memory, which is memory_limit=1,000 bytes"):
        view.refresh(memory_limit=1000)
    assert view.upper == before


def test_a_recursion_ends_at_its_limit_between_iterations(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.load("t").write([((1, 7), 0, 1)], seal=1).result()
    view = client.create_view(
        "far", "WITH RECURSIVE r(n) AS (SELECT k FROM t UNION SELECT n + 1 FROM r WHERE n < 60) SELECT n FROM r"
    )
    looks = iter(range(10))

    def limited() -> None:
        if next(looks, None) is None:
            raise LimitReached("time", "timeout_s=1")

    monkeypatch.setattr("persist.compute.dataflow.operators.loop.check_limits", limited)
    with pytest.raises(LimitReached, match="limit of time"):
        view.refresh()
    assert (view.upper, view.is_open) == (persist.Antichain(0), False)
    monkeypatch.undo()
    view.refresh()
    assert len(rows(view)) == 60


@pytest.mark.parametrize("limits", [{"timeout_s": -1}, {"memory_limit": "1 GB"}, {"timeout_s": True}])
def test_what_is_no_limit_is_refused(client: persist.Client, limits: dict[str, float]) -> None:
    with pytest.raises(InvalidUsage, match="is not a limit: give a number of at least 0"):
        begun(client).refresh(**limits)  # type: ignore[arg-type]


def test_ctrl_c_leaves_a_view_at_its_last_time(client: persist.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    view = begun(client)
    view.open_state()
    client.load("t").write([((3, 7), 2, 1)], seal=3).result()
    before = view.upper

    def interrupted() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt  # As Python does; a signal may come while an object is freed, where it is passed over.

    monkeypatch.setattr("persist.compute.dataflow.running.graph.check_limits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        view.refresh()
    assert (view.upper, view.is_open) == (before, False)
    view.refresh()
    assert rows(view) == [(7, 3)]
