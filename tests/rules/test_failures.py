"""Why a view or a source came no further: kept in the location, without values of rows, until it succeeds again."""

import threading
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.connect.egress.files import FilesConfig, FilesSink
from persist.engine.collection.failures import load_failures, record_failures
from persist.errors import TargetUnavailable
from persist.tools.cli.main import main
from persist.tools.reports.health import SinkHealth, report_health
from persist.tools.web.metrics import Exposition
from tests.support.clocks import ImpatientClock

SETTINGS = persist.Settings(background=False)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "shop")


def failing(place: str, text: str) -> None:
    """Let a view fail on a row that is not a number, in a client that is gone then."""
    with persist.open(place, settings=SETTINGS) as client:
        orders = client.create_or_load("orders", key={"k": str})
        view = client.create_view("numbers", "SELECT CAST(k AS INTEGER) AS n FROM orders")
        orders.write([(text, None)]).result()
        with pytest.raises(persist.errors.OperatorFailed):
            view.refresh()


def test_a_failure_of_a_view_is_told_when_its_process_is_gone_and_taken_back_by_success(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(place, "ann@example.com")
    with persist.open(place, mode="read") as client:
        [view] = report_health(client).views
    assert view.failed is not None
    assert view.failed.error.startswith("OperatorFailed: operator ")
    assert "ann" not in view.failed.error
    assert main(["status", place]) == 0
    shown = capsys.readouterr().out
    assert view.failed.at in shown
    assert "OperatorFailed" in shown
    with persist.open(place, settings=SETTINGS) as client:
        client.load("orders").delete(["ann@example.com"]).result()
        client.view("numbers").refresh()
        assert report_health(client).views[0].failed is None
        assert "failed" not in client.load("numbers").about.properties
        before = client.seqno
        client.view("numbers").refresh()
        assert client.seqno == before


def test_the_same_failure_is_told_once_in_a_while(place: str) -> None:
    failing(place, "x")
    with persist.open(place, settings=SETTINGS) as client:
        before = client.load("numbers").about
        for _ in range(3):
            with pytest.raises(persist.errors.OperatorFailed):
                client.view("numbers").refresh()
        assert client.load("numbers").about == before


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("could not take 'O'Brien' of 'orders', born 1971-03-04"), "ValueError: could not take '…' of 'ord"),
        (persist.InvalidUsage('row 7: postgres://me:secret@host/x?token=abc, "a value'), "InvalidUsage: row 7: "),
        (persist.InvalidUsage("x" * 1000), "InvalidUsage: xxx"),
    ],
)
def test_neither_secrets_nor_values_are_kept(place: str, error: Exception, told: str) -> None:
    with persist.open(place, settings=SETTINGS) as client:
        orders = client.create_or_load("orders", key={"k": str})
        with pytest.raises(type(error)), record_failures([orders.handle]):
            raise error
        failure = load_failures(orders.handle.contents())[""]
    assert failure.error.startswith(told)
    assert len(failure.error) <= 400
    for word in ("Brien", "1971", "secret", "token", "a value"):
        assert word not in failure.error


@pytest.mark.parametrize("error", [persist.Conflict("x"), persist.Unavailable("x"), KeyboardInterrupt()])
def test_conflicts_the_own_store_and_interrupts_are_no_failures(place: str, error: BaseException) -> None:
    with persist.open(place, settings=SETTINGS) as client:
        orders = client.create_or_load("orders", key={"k": str})
        with pytest.raises(type(error)), record_failures([orders.handle]):
            raise error
        assert not load_failures(orders.handle.contents())


def test_a_property_of_that_name_that_somebody_else_set_stays(place: str) -> None:
    with persist.open(place, settings=SETTINGS) as client:
        orders = client.create_or_load("orders", key={"k": str})
        orders.describe(properties={"failed": "in 2019"}).result()
        with record_failures([orders.handle]):
            pass
        assert orders.about.properties == {"failed": "in 2019"}


def test_a_source_that_fails_says_so_until_it_is_read_again(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("k,n\n1,2\n")

    def take() -> None:
        persist.ingest(place, str(folder), once=True, collection="orders", key=["k"])

    take()
    (folder / "b.csv").write_text("k,n\n2,zoe@x\n")
    with pytest.raises(persist.InvalidUsage):
        take()
    with persist.open(place, mode="read") as client:
        [source] = report_health(client).sources
    assert source.failed is not None
    assert "zoe" not in source.failed.error
    (folder / "b.csv").write_text("k,n\n2,3\n")
    take()
    with persist.open(place, mode="read") as client:
        assert report_health(client).sources[0].failed is None
        assert client.load("orders").snapshot().count() == 2


def numbers(place: str, *values: float) -> None:
    with persist.open(place, settings=SETTINGS) as client:
        made = client.create_or_load("numbers", key={"id": int}, value={"x": float})
        made.write([(at, value) for at, value in enumerate(values)]).result()


def sink_of(place: str) -> SinkHealth:
    with persist.open(place, mode="read") as client:
        [sink] = report_health(client).sinks
        collection = client.load("numbers")
        failed = int(sink.failed is not None)
        assert f'persist_collection_failed{{collection="numbers"}} {failed}.0\n' in Exposition(client).text()
        assert ("failed.out" in collection.about.properties) == bool(failed)
        return sink


def test_a_sink_that_fails_says_so_until_it_sends_again(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers(place, 1.0)
    there = {"sink": str(tmp_path / "out"), "name": "out", "format": "json", "collections": ["numbers"]}
    persist.egress(place, there, once=True)
    assert sink_of(place).failed is None
    numbers(place, 1.0, float("nan"))
    for _ in range(2):
        with pytest.raises(persist.InvalidUsage, match="has NaN"):
            persist.egress(place, there, once=True)
    sink = sink_of(place)
    assert sink.sink == str(tmp_path / "out")
    assert sink.failed is not None
    assert sink.failed.error.startswith("InvalidUsage: ")
    assert main(["status", place]) == 0
    assert sink.failed.at in capsys.readouterr().out
    with persist.open(place, settings=SETTINGS) as client:
        copy = client.clone("numbers", "copy")
        assert "failed.out" not in copy.about.properties, "nothing is sent of it"
    persist.egress(place, {**there, "nan": "null"}, once=True)
    assert sink_of(place).failed is None


def test_a_sink_whose_target_was_never_there_is_told_of_by_its_hold_until_it_is_given_up(place: str) -> None:
    numbers(place, 1.0)
    there = {"sink": "postgresql://me:hunter2@127.0.0.1:1/db", "name": "out", "collections": ["numbers"]}
    with pytest.raises(persist.Unavailable, match="does not answer"):
        persist.egress(place, there, once=True)
    sink = sink_of(place)
    assert (sink.sink, sink.hold, sink.behind_s, sink.behind_bytes > 0) == ("out", "out", None, True)
    assert sink.failed is not None
    assert "hunter2" not in sink.failed.error


class Flaky(FilesSink):
    """A target that answers, and does not take its first steps."""

    refusals = 5
    stop = threading.Event()

    def take(self, step: Any) -> Any:
        self.refusals -= 1
        if self.refusals >= 0:
            raise TargetUnavailable("it is busy")
        self.stop.set()
        return super().take(step)


def test_a_target_that_is_away_for_a_while_costs_two_records(tmp_path: Path) -> None:
    with persist.open(persist.MemoryBlob(), clock=ImpatientClock(), settings=SETTINGS) as client:
        client.create_or_load("numbers", key={"id": int}).write([(1, None)]).result()
        sink = Flaky(FilesConfig(sink=str(tmp_path / "out"), collections=["numbers"], name="out"))
        persist.egress(client, sink, stop=sink.stop)
        assert client.load("numbers").about.version == 2 + 1, "and the name of the sink"
        assert not load_failures(client.load("numbers").handle.contents())
