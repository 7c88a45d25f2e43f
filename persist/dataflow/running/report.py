"""The operators of a running program for people: what each reads, keeps, and did so far; as values and as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from persist.dataflow.operators.loop import Loop
from persist.dataflow.operators.operators import Operator
from persist.dataflow.running.layout import HIGH, WIDE, layout
from persist.shown import plain

TITLE_CHARS_MAX = 26
_STYLE = (
    "rect{fill:none;stroke:#4c86d6}text{font:12px system-ui,sans-serif;fill:currentColor}"
    "path{fill:none;stroke:#8a92a0}.keeps{stroke:#3a9d6e;stroke-width:2}"
)


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """One operator.

    Attributes:
        title, kind: how messages call it, and what it is, such as "join".
        inputs: the places, in the list of all, of the operators that it reads.
        updates, seconds: it gave out so many, and took so long, since the program was opened.
        kept_updates, kept_bytes: its state.
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
        """Updates given out per second of its own work; None where there was none."""
        works = self.updates and self.seconds > 0 and self.kind != "entry"
        return self.updates / self.seconds if works else None


def reports_of(operators: Sequence[Operator]) -> list[OperatorReport]:
    """Return a report of each operator of the outermost scope; an iteration is one."""
    places = {id(each): place for place, each in enumerate(operators)}
    return [_report(each, places) for each in operators]


def _report(operator: Operator, places: dict[int, int]) -> OperatorReport:
    state = [*operator.state()]
    return OperatorReport(
        title=operator.title,
        kind="iteration" if isinstance(operator, Loop) else type(operator).__name__.removesuffix("Operator").lower(),
        inputs=tuple(dict.fromkeys(places[id(each)] for each in operator.inputs if id(each) in places)),
        updates=operator.given_out,
        seconds=operator.seconds,
        kept_updates=sum(rows for _, rows, _ in state),
        kept_bytes=sum(size for _, _, size in state),
    )


def depths(reports: Sequence[OperatorReport]) -> list[int]:
    """Return how many steps each operator is from those that read nothing."""
    found: list[int] = []
    for place, each in enumerate(reports):
        found.append(max((found[i] + 1 for i in each.inputs if i < place), default=0))
    return found


def drawn(name: str, reports: Sequence[OperatorReport]) -> str:
    """Return the operators as a picture in HTML, from the left to the right; nothing in names is interpreted."""
    edges = [(source, place) for place, each in enumerate(reports) for source in each.inputs if source < place]
    found = layout(depths(reports), edges)
    lines = [f'<path d="{path}"/>' for path in found.paths]
    boxes = [_box(each, *place) for each, place in zip(reports, found.places, strict=True)]
    size = f'width="{found.width:g}" height="{found.height:g}"'
    return (
        f'<figure><figcaption>{escape(plain(name))}</figcaption><div style="overflow-x:auto"><svg {size} role="img">'
        f"<style>{_STYLE}</style>{''.join(lines)}{''.join(boxes)}</svg></div></figure>"
    )


def _box(each: OperatorReport, x: float, y: float) -> str:
    title = each.title if len(each.title) <= TITLE_CHARS_MAX else each.title[: TITLE_CHARS_MAX - 1] + "…"
    rate = "" if each.rate is None else f", {each.rate:,.0f}/s"
    kept = f"keeps {each.kept_updates:,} ({each.kept_bytes:,} B)" if each.kept_bytes else each.kind
    css = ' class="keeps"' if each.kept_bytes else ""
    texts = ((plain(title), 15), (f"{each.updates:,} updates{rate}", 30), (kept, 45))
    shown = "".join(f'<text x="{x + 8:g}" y="{y + dy:g}">{escape(text)}</text>' for text, dy in texts)
    return (
        f"<g><title>{escape(plain(each.title))}</title>"
        f'<rect{css} x="{x:g}" y="{y:g}" width="{WIDE}" height="{HIGH}" rx="5"/>{shown}</g>'
    )
