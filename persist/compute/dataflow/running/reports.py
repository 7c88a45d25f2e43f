"""Reports of the operators of a running program, and their state."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from persist.compute.dataflow.operators.loop import Loop
from persist.compute.dataflow.operators.operators import Operator
from persist.core.rendering import render_html_rows, strip_control_characters


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """What one operator of a running program reads, keeps and did so far.

    Attributes:
        title, kind: its name in messages, and its kind, such as "join".
        inputs: the operators that it reads, by their places in the list of all reports.
        updates, seconds: how many it returned, and how long it ran, since the program was opened.
        kept_updates, kept_bytes: the size of its state.
    """

    title: str
    kind: str
    inputs: tuple[int, ...]
    updates: int
    seconds: float
    kept_updates: int
    kept_bytes: int

    @property
    def rate(self) -> float | None:
        """Updates per second of its own work; None if there was none."""
        works = self.updates and self.seconds > 0 and self.kind != "entry"
        return self.updates / self.seconds if works else None


def make_reports(operators: Sequence[Operator]) -> list[OperatorReport]:
    """Return a report of each operator of the outermost scope; an iteration is one."""
    places = {id(operator): place for place, operator in enumerate(operators)}
    return [_make_report(operator, places) for operator in operators]


def _make_report(operator: Operator, places: dict[int, int]) -> OperatorReport:
    """Return an operator's report. `places`: the number of each operator, by its id."""
    state = [*operator.list_states()]
    return OperatorReport(
        title=operator.title,
        kind="iteration" if isinstance(operator, Loop) else type(operator).__name__.removesuffix("Operator").lower(),
        inputs=tuple(dict.fromkeys(places[id(source)] for source in operator.inputs if id(source) in places)),
        updates=operator.given_out,
        seconds=operator.seconds,
        kept_updates=sum(rows for _, rows, _ in state),
        kept_bytes=sum(size for _, _, size in state),
    )


def measure_depths(reports: Sequence[OperatorReport]) -> list[int]:
    """Return the distance of each operator from the operators without inputs."""
    steps: list[int] = []
    for place, report in enumerate(reports):
        steps.append(max((steps[i] + 1 for i in report.inputs if i < place), default=0))
    return steps


def render_operators(name: str, reports: Sequence[OperatorReport]) -> str:
    """Return the operators as a table in HTML; nothing in names is interpreted."""
    head = ("", "operator", "kind", "reads", "updates", "per second", "keeps")
    rows = [
        (
            str(place),
            report.title,
            report.kind,
            ", ".join(map(str, report.inputs)),
            f"{report.updates:,}",
            "" if report.rate is None else f"{report.rate:,.0f}",
            f"{report.kept_updates:,} ({report.kept_bytes:,} B)" if report.kept_bytes else "",
        )
        for place, report in enumerate(reports)
    ]
    caption = escape(strip_control_characters(name))
    return f"<figure><figcaption>{caption}</figcaption>{render_html_rows(head, rows)}</figure>"
