"""How a location fares: each figure against what was done to it, and against what the collector then deletes."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.tools.cli.main import main
from persist.tools.reports.health import RECENT, Health, report_health
from persist.tools.reports.surveys import FactsCache
from tests.support.tuned import tuned

Printed = pytest.CaptureFixture[str]
NOW_S = 1_767_312_000.0  # 2026-01-02T00:00Z
SETTINGS = tuned(background=False, grace_s=0, merge_runs=2)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "shop")


def opened(place: str, **more: object) -> persist.Client:
    return persist.open(place, settings=SETTINGS, storage_options={"fsync": False}, **more)  # type: ignore[arg-type]


def rows(first: int, count: int = 20_000) -> pa.Table:
    """Return enough for a part of its own."""
    return pa.table({"k": range(first, first + count), "v": [f"{k:032}" for k in range(first, first + count)]})


def test_lags_of_collections_views_and_sources_are_told_with_what_is_due(place: str) -> None:
    with opened(place) as client:
        orders = client.create_or_load("orders", key={"k": int}, value={"v": str}, timeline="ms")
        orders.write(rows(0, 5), time="2026-01-01T22:00Z", seal="2026-01-01T23:00Z").result()
        client.create_view("counts", "SELECT count(*) AS n FROM orders").refresh()
        orders.seal("2026-01-01T23:30Z").result()
        numbers = client.create_or_load("numbers", key={"k": int})
        numbers.write([(1, None)], time=3, seal=4).result()
        numbers.write([(2, None)], time=9).result()
        numbers.describe(properties={"ingest.source": "files of /in"}).result()
        orders.describe(properties={"ingest.source": "files of /in"}).result()

        fares = report_health(client, NOW_S)

    lags = {lag.collection: (lag.upper, lag.behind_s, lag.unsealed) for lag in fares.collections}
    assert lags == {"orders": (1767310200000, 1800, 0), "counts": (1767308400000, 3600, 0), "numbers": (4, None, 1)}
    assert [lag.collection for lag in fares.collections] == ["counts", "orders", "numbers"]
    [view] = fares.views
    assert (view.view, view.input, view.behind_s, view.is_due) == ("counts", "orders", 1800, True)
    [source] = fares.sources
    assert (source.source, source.collections, source.behind_s) == ("files of /in", ("numbers", "orders"), 1800)
    assert [(due.work, due.examples) for due in fares.due] == [("refresh views", ("counts",))]
    assert fares.records == fares.seqno + 1
    [writer] = fares.clients
    assert (writer.does, writer.release, writer.at) == ("writes", persist.__version__, fares.written_at)


def test_clients_are_told_with_their_releases_also_those_that_do_not_say_it(
    place: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.engine.location.writer.make_client_name", lambda: "a:b:1:0123abcd")
    with opened(place) as old:
        made = old.create_or_load("orders", key={"k": int})
        made.write([(1, None)]).result()
    monkeypatch.undo()
    with opened(place) as client, opened(place, mode="exclusive") as alone:
        orders = alone["orders"]
        orders.write([(2, None)]).result()
        with client["orders"].snapshot():
            clients = {
                each.client: (each.release, each.does, each.at is None) for each in report_health(client).clients
            }
            names = [each.engine.writer("test").name for each in (client, alone)]
            assert main(["status", place]) == 0
    assert clients == {
        "a:b:1:0123abcd": (None, "writes", False),
        names[0]: (persist.__version__, "reads", True),
        names[1]: (persist.__version__, "writes exclusively", False),
    }
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith(names[1])]
    assert (line.split()[1], *line.split()[3:]) == (persist.__version__, "writes", "exclusively")


def test_who_keeps_history_back_is_told_and_nobody_else(place: str) -> None:
    with opened(place) as client:
        for name in ("held", "tagged", "free", "whole"):
            each = client.create_or_load(name, key={"k": int})
            for time in range(6):
                each.write([(time, None)], time=time, seal=time + 1).result()
        client["held"].hold(2, name="nightly")
        client["held"].hold(4, name="later")
        client["tagged"].tag("quarter", 3)
        for name in ("held", "tagged", "free"):
            client[name].allow_compaction(5).result()
        with client["free"].hold(5):
            fares = report_health(client, NOW_S)
            kept = {(each.collection, each.hold, each.since, each.allowed) for each in fares.kept_back}
            assert kept == {("held", "nightly", 2, 5), ("tagged", "tag 'quarter'", 3, 5)}
            assert fares.keeps_all == 1
        client["held"].hold(name="nightly").release()
        [held, _] = report_health(client, NOW_S).kept_back
        assert (held.hold, held.since) == ("later", 4)


def part_bytes(place: str) -> int:
    return sum(file.stat().st_size for file in Path(place).glob("part/*/*.parquet"))


def test_bytes_add_up_and_what_waits_is_what_the_collector_deletes(place: str) -> None:
    with opened(place) as client, opened(place) as reader:
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
        gone = client.create_or_load("gone", key={"k": pa.int64()}, value={"v": pa.string()})
        for time in range(4):
            orders.overwrite(rows(time * 10), time=time).result()
            gone.write(rows(time), time=time, seal=time + 1).result()
        before = report_health(client, NOW_S)
        assert before.live_bytes + before.history_bytes == part_bytes(place)
        assert (before.waiting, before.waiting_bytes) == ((), 0)
        orders.compact()  # A keyframe, which is all that the latest contents need; history stays.
        with opened(place) as other:
            needed = sum(other[name].snapshot().explain().bytes for name in ("orders", "gone"))
        after = report_health(client, NOW_S)
        assert (after.live_bytes, after.history_bytes > 0) == (needed, True)

        kept = reader["orders"].hold(3)
        orders.allow_compaction(3).result()
        orders.compact()
        client.drop("gone").result()
        fares = report_health(client, NOW_S)
        assert fares.live_bytes + fares.history_bytes + (fares.waiting_bytes or 0) == part_bytes(place)
        whys = {(each.collection.split(" (")[0], each.why) for each in fares.waiting}
        assert whys == {("orders", "replaced"), ("one that is gone", "dropped")}
        read = [each for each in fares.waiting if each.collection == "orders"]
        assert all("the lease of" in each.waits_for for each in read)
        assert [each.waits_for for each in fares.waiting if each.why == "dropped"] == ["the grace period"]
        kept.release()
    with opened(place) as client:
        fares = report_health(client, NOW_S + 10**9)
        assert {each.waits_for for each in fares.waiting} == {"the next gc"}
        assert [due.count for due in fares.due if due.command == "persist gc"] == [len(fares.waiting)]
        bytes_before, waiting = part_bytes(place), fares.waiting_bytes
        client.gc()
        assert bytes_before - part_bytes(place) == waiting
        assert report_health(client, NOW_S).waiting == ()


def test_a_location_of_many_collections_is_looked_at_once(place: str) -> None:
    with opened(place) as client, client.multi_write() as multi:
        for i in range(300):
            multi.write(client.create_or_load(f"c{i}", key={"k": int}), [(1, None)])
    with opened(place, mode="read") as client:
        client.collections()
        known, before = FactsCache(client), client.metrics().store
        assert len(report_health(client, NOW_S, known=known).collections) == 300
        after = client.metrics().store
        asked = {name: after[name].requests - before[name].requests for name in after}
        assert sum(asked.values()) <= 2 + RECENT, asked
        with opened(place) as writer:
            writer["c7"].seal(99).result()
            writer.drop("c8").result()
        before = client.metrics().store
        again = report_health(client, NOW_S, known=known)
        asked_again = {name: count.requests - before[name].requests for name, count in client.metrics().store.items()}
        assert sum(asked_again.values()) <= 7, asked_again
        assert again == report_health(client, NOW_S)
        assert {lag.collection: lag.upper for lag in again.collections}["c7"] == 99


def test_the_screen_and_its_json_tell_the_same(place: str, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(place) as client:
        for i in range(12):
            each = client.create_or_load(f"collection-{i:02}", key={"k": int}, timeline="s")
            each.write([(1, None)], time="2026-01-01", seal="2026-01-01T12:00Z").result()
        client.drop("collection-11").result()
    assert main(["status", place, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(Health.__dataclass_fields__)
    assert len(told["collections"]) == 11
    assert main(["status", place]) == 0
    head, row = capsys.readouterr().out[len(place) :].partition("\ncollections ")[2].splitlines()[:2]
    assert row.removeprefix("collection-0")[: head.index("behind") + len("behind") - 1].endswith(" day"), (
        "it is aligned"
    )
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for width in (100, 160):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["status", place]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        for text in (" in format ", "collection-00", "2026-01-01T12:00:00Z", "… and 3 more", "the grace period"):
            assert text in out, width
    assert main(["status", place, "--watch", "--json"]) == 2
