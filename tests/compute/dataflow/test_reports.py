"""What a program tells of its operators."""

import pyarrow as pa
import pytest

from persist.compute.dataflow.running.reports import OperatorReport, make_reports, measure_depths, render_operators
from persist.dataflow import Program, col


def report(*inputs: int, title: str = "an operator", kept_bytes: int = 0) -> OperatorReport:
    return OperatorReport(title, "linear", inputs, 1200, 0.5, 3400, kept_bytes)


def test_an_operator_is_a_step_further_than_the_furthest_of_those_it_reads() -> None:
    assert measure_depths([report(), report(0), report(), report(1, 2), report(2), report(3, 4, 0)]) == [
        0,
        1,
        0,
        2,
        1,
        3,
    ]
    # What comes later feeds a loop back, and is not a step before it.
    assert measure_depths([report(), report(0, 3), report(1), report(2)]) == [0, 1, 2, 3]
    assert measure_depths([]) == []


@pytest.mark.parametrize(
    ("updates", "seconds", "kind", "rate"),
    [(8, 2.0, "linear", 4.0), (0, 2.0, "linear", None), (8, 0.0, "linear", None), (8, 2.0, "entry", None)],
)
def test_a_rate_is_of_an_operators_own_work(updates: int, seconds: float, kind: str, rate: float | None) -> None:
    assert OperatorReport("it", kind, (), updates, seconds, 0, 0).rate == rate


def test_reports_as_a_page_show_what_is_read_and_kept_and_interpret_nothing() -> None:
    page = render_operators("<p>", [report(title="<b>"), report(0, 1, kept_bytes=5600)])
    assert "<p>" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "0, 1" in page
    assert "1,200" in page
    assert "2,400" in page  # A second.
    assert page.count("3,400 (5,600 B)") == 1


def test_each_operator_reports_what_it_read_gave_and_keeps() -> None:
    program = Program("p")
    numbers = program.input("numbers", key={"k": pa.int64()}, value={"v": pa.int64()})
    sums = numbers.filter(col("v") > 1).named("large").group_by("k").agg(s=col("v").sum()).named("sums")
    sums.capture()
    with program.open() as running:
        running["numbers"].insert([((k, v), 0, 1) for k in range(3) for v in range(4)])
        running["numbers"].advance_to(1)
        running.step()
        reports = running.operators()
    assert [(each.title, each.kind, each.inputs, each.updates, each.kept_updates) for each in reports] == [
        ("input#1", "entry", (), 12, 0),
        ("sums.input", "arrangement", (0,), 6, 6),  # What the filter passes.
        ("sums", "totalreduce", (1,), 3, 0),
        ("capture#5", "capture", (2,), 3, 0),
    ]
    assert reports[1].kept_bytes == 6 * 8 * 5  # A hash, the key, the value, the time, the multiplicity.
    assert make_reports([]) == []
