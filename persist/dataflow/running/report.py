"""The operators of a running program for people: what each reads, keeps, and did so far; as values and as a picture.

In the picture, nodes stand in layers, from the left to the right. An edge that leads over several layers has a lane of
its own in each layer between, which all edges from the same node share, so no edge runs behind a node. The layers are
put in order by the mean place of their neighbours (Sugiyama's method). `persist/web/graphs.js` does the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from statistics import fmean

from persist.dataflow.operators.loop import Loop
from persist.dataflow.operators.operators import Operator
from persist.shown import plain

WIDE, HIGH, GAP_X, GAP_Y = 210, 52, 46, 14  # Of a node, and between nodes, in pixels.
LANE = 10  # The height that an edge takes where it passes a layer.
SWEEPS = 4
MARGIN = 4


@dataclass(slots=True, eq=False)
class _Item:
    """A node, or a lane."""

    layer: int
    tall: float
    before: "list[_Item]" = field(default_factory=list)
    after: "list[_Item]" = field(default_factory=list)
    at: float = 0.0  # Its place in its layer, from 0 to 1.
    y: float = 0.0

    @property
    def x(self) -> float:
        return MARGIN + self.layer * (WIDE + GAP_X)

    @property
    def middle(self) -> float:
        return self.y + self.tall / 2


@dataclass(frozen=True, slots=True)
class Layout:
    """The left upper corners of the nodes, the paths of the edges as SVG writes them, and the size of it all."""

    places: list[tuple[float, float]]
    paths: list[str]
    width: float
    height: float


def layout(layers: Sequence[int], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return where to draw nodes and edges.

    Args:
        layers: of each node.
        edges: pairs of nodes, by their places; each leads to a layer further right.
    """
    nodes = [_Item(layer, HIGH) for layer in layers]
    columns: list[list[_Item]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for node in nodes:
        columns[node.layer].append(node)
    lanes: dict[tuple[int, int], _Item] = {}
    ways: list[list[_Item]] = []
    for source, target in edges:
        way = [nodes[source]]
        for layer in range(layers[source] + 1, layers[target]):
            if (source, layer) not in lanes:
                lanes[source, layer] = _Item(layer, LANE)
                columns[layer].append(lanes[source, layer])
            way.append(lanes[source, layer])
        way.append(nodes[target])
        for left, right in pairwise(way):
            left.after.append(right)
            right.before.append(left)
        ways.append(way)
    _order(columns)
    height = _stack(columns)
    places = [(node.x, node.y) for node in nodes]
    return Layout(places, [_path(way) for way in ways], 2 * MARGIN + len(columns) * (WIDE + GAP_X) - GAP_X, height)


def _order(columns: list[list[_Item]]) -> None:
    """Put each layer in the order of the mean place of the neighbours, by turns to the right and to the left."""
    for column in columns:
        _number(column)
    for sweep in range(SWEEPS):
        for column in columns[1:]:
            _sort(column, lambda item: item.before)
        if sweep < SWEEPS - 1:
            for column in columns[-2::-1]:
                _sort(column, lambda item: item.after)


def _sort(column: list[_Item], side: Callable[[_Item], list[_Item]]) -> None:
    wishes = {id(item): fmean(neighbour.at for neighbour in side(item)) if side(item) else item.at for item in column}
    column.sort(key=lambda item: wishes[id(item)])
    _number(column)


def _number(column: list[_Item]) -> None:
    for i, item in enumerate(column):
        item.at = (i + 0.5) / len(column)


def _stack(columns: list[list[_Item]]) -> float:
    """Place the items of each layer below each other, beside what they read; return the height of all."""
    height = 0.0
    for column in columns:
        free: float = MARGIN
        for item in column:
            item.y = max(free, fmean(source.middle for source in item.before) - item.tall / 2) if item.before else free
            free = item.y + item.tall + GAP_Y
        height = max(height, free - GAP_Y + MARGIN)
    return height


def _path(way: list[_Item]) -> str:
    x, y = way[0].x + WIDE, way[0].middle
    drawn = f"M{x:g} {y:g}"
    for item in way[1:]:
        drawn += f" C{x + GAP_X / 2:g} {y:g} {item.x - GAP_X / 2:g} {item.middle:g} {item.x:g} {item.middle:g}"
        x, y = item.x + WIDE, item.middle
        if item is not way[-1]:
            drawn += f" H{x:g}"
    return drawn


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
    places = {id(operator): place for place, operator in enumerate(operators)}
    return [_report(operator, places) for operator in operators]


def _report(operator: Operator, places: dict[int, int]) -> OperatorReport:
    state = [*operator.state()]
    return OperatorReport(
        title=operator.title,
        kind="iteration" if isinstance(operator, Loop) else type(operator).__name__.removesuffix("Operator").lower(),
        inputs=tuple(dict.fromkeys(places[id(source)] for source in operator.inputs if id(source) in places)),
        updates=operator.given_out,
        seconds=operator.seconds,
        kept_updates=sum(rows for _, rows, _ in state),
        kept_bytes=sum(size for _, _, size in state),
    )


def depths(reports: Sequence[OperatorReport]) -> list[int]:
    """Return how many steps each operator is from those that read nothing."""
    steps: list[int] = []
    for place, report in enumerate(reports):
        steps.append(max((steps[i] + 1 for i in report.inputs if i < place), default=0))
    return steps


def drawn(name: str, reports: Sequence[OperatorReport]) -> str:
    """Return the operators as a picture in HTML, from the left to the right; nothing in names is interpreted."""
    edges = [(source, place) for place, report in enumerate(reports) for source in report.inputs if source < place]
    drawing = layout(depths(reports), edges)
    lines = [f'<path d="{path}"/>' for path in drawing.paths]
    boxes = [_box(report, *place) for report, place in zip(reports, drawing.places, strict=True)]
    size = f'width="{drawing.width:g}" height="{drawing.height:g}"'
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
