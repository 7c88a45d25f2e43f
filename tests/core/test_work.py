"""What long work tells: progress to whoever asked, and spans to OpenTelemetry, by its real SDK."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.core.progress import Bars
from tests.support.forks import forked_python

LONG = 40_000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path / "location", settings=persist.Settings(background=False)) as client:
        yield client


def orders_of(client: persist.Client) -> persist.Collection:
    return client.create_or_load("orders", key={"id": pa.int64()}, value={"n": pa.int64()})


def written(orders: persist.Collection, upper: int) -> None:
    table = pa.table({"id": range(LONG), "n": [upper] * LONG, "_time": [upper - 1] * LONG, "_diff": [1] * LONG})
    orders.write(table, seal=upper).result()


def test_long_calls_tell_how_far_they_are_and_that_they_are_over(client: persist.Client) -> None:
    orders = orders_of(client)
    told: list[persist.Work] = []
    with persist.progress(told.append):
        written(orders, 1)
        written(orders, 2)
        orders.delete([1, 2], time=2).result()
        assert len(orders.snapshot().to_arrow()) == 2 * LONG - 4
        orders.compact()
        client.fsck()
        client.gc()
    ended = {each.what.split()[0]: each for each in told if each.is_over}
    assert ended["read"] == persist.Work("read orders", 2 * LONG - 4, None, "rows", is_over=True)
    assert ended["compact"].done >= 1
    assert (ended["check"].done, ended["check"].total) == (1, 1)
    assert "collect" in ended
    silent = len(told)
    orders.snapshot().to_arrow()
    assert len(told) == silent


def test_a_read_that_is_given_up_is_over(client: persist.Client) -> None:
    orders = orders_of(client)
    written(orders, 1)
    told: list[persist.Work] = []
    with persist.progress(told.append):
        batches = orders.snapshot().to_batches()
        next(batches)
        del batches
    assert told[-1].is_over


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(persist.InvalidUsage, match=r"takes a persist\.Work"), persist.progress("bar"):  # type: ignore[arg-type]
        pass


def test_nothing_is_drawn_where_standard_error_is_no_terminal(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = orders_of(client)
    written(orders, 1)
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    with persist.progress():
        orders.snapshot().to_arrow()
    assert printed.getvalue() == ""


def test_bars_are_drawn_after_a_second_with_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = 0.0
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    bars = Bars(lambda: now)
    done = bars.begin_work("read [red]orders\x1b[31m", 100, "rows")
    done(10)
    assert terminal.getvalue() == ""
    now = 1.5
    done(10)
    bars.end_work(done)
    drawn = terminal.getvalue()
    assert "read [red]orders\\x1b[31m (rows)" in drawn
    assert "20/100" in drawn
    bars.close()


SPANS = """
import opentelemetry.trace as trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exported = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exported))
trace.set_tracer_provider(provider)
import persist
with persist.open("memory://spans", settings=persist.Settings(background=False)) as client:
    orders = client.create_or_load("orders", key={"id": int}, value={"n": int})
    with trace.get_tracer("app").start_as_current_span("mine"):
        orders.write([((1, 1), 0, 1)], seal=1).result()
        orders.snapshot().to_arrow()
    late = orders.write([((1, 1), 0, 1)])
    assert isinstance(late.exception(), persist.errors.UpdateNotBeyondUpper)
    orders.compact()
    try:
        with persist.progress(): orders.snapshot(5, timeout_s=0)
    except persist.errors.AsOfNotSealed: pass
found = exported.get_finished_spans()
mine = next(each for each in found if each.name == "mine")
for each in found:
    below = each.parent is not None and each.parent.span_id == mine.context.span_id
    what = each.attributes.get("persist.action", each.attributes.get("persist.rows"))
    print(each.name, what, below, each.status.status_code.name)
"""


def test_commits_reads_and_compactions_are_spans_below_those_of_the_caller() -> None:
    pytest.importorskip("opentelemetry.sdk")
    done = subprocess.run([*forked_python(), "-c", SPANS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "persist.commit create_or_load False UNSET" in lines
    assert lines.count("persist.commit write True UNSET") == 1
    assert lines.count("persist.commit write False ERROR") == 1
    assert "persist.read 1 True UNSET" in lines
    assert any(line.startswith("persist.compact") for line in lines)


def test_an_error_that_only_a_span_has_seen_is_not_lost(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    code = SPANS.split("with persist.open")[0] + (
        "client = persist.open('memory://lost', settings=persist.Settings(background=False))\n"
        "orders = client.create_or_load('orders', key={'id': int})\n"
        "orders.seal(5).result()\n"
        "orders.write([((1, None), 0, 1)])\n"
        "try: client.close()\n"
        "except persist.errors.UpdateNotBeyondUpper: print('raised')\n"
    )
    done = subprocess.run([*forked_python(), "-c", code], capture_output=True, text=True)
    assert done.stdout == "raised\n", done.stderr
