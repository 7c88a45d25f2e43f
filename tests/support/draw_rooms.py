"""Draws the imports between rooms, as `scripts/rooms` does: a picture, and a page with the numbers.

Rooms stand as they do on the ladder. An arrow goes from a room to one that it imports; its width grows with how many
imports it stands for, it is dashed where all of them are late, and one that goes up would be red.
"""

from collections import Counter
from math import log2

from tests.support.rooms import (
    LADDER,
    ROOT,
    Import,
    all_imports,
    circle,
    is_upward,
    module_graph,
    modules,
    room_graph,
    room_of,
)

FOLDER = ROOT / "docs" / "internals"
WIDTH, ROW, BOX_X, BOX_Y = 900, 62, 150, 36
LEFT, RIGHT = "#3b6ea5", "#5a8f5a"


def between() -> dict[tuple[str, str], list[Import]]:
    """Return the imports of each pair of rooms that has some, in order."""
    found: dict[tuple[str, str], list[Import]] = {}
    for each in all_imports():
        pair = room_of(each.module), room_of(each.target)
        if pair[0] != pair[1]:
            found.setdefault(pair, []).append(each)
    return dict(sorted(found.items()))


def places() -> dict[str, tuple[float, float]]:
    """Return where the middle of each room is, the highest row first."""
    rows = list(reversed(LADDER))
    return {
        room: (WIDTH / 2 + (at - (len(row) - 1) / 2) * (BOX_X + 40), 40 + number * ROW)
        for number, row in enumerate(rows)
        for at, room in enumerate(row)
    }


def picture() -> str:
    """Return the drawing, as SVG."""
    where, sizes = places(), Counter(room_of(name) for name in modules())
    height = 40 + len(LADDER) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for at, ((upper, lower), imports) in enumerate(between().items()):
        lines.append(_arrow(at, where[upper], where[lower], upper, lower, imports))
    for room, (x, y) in where.items():
        box = f'x="{x - BOX_X / 2}" y="{y - BOX_Y / 2}" width="{BOX_X}" height="{BOX_Y}" rx="6"'
        lines.append(f'<rect {box} fill="#f4f4f4" stroke="#333"/>')
        lines.append(f'<text x="{x}" y="{y - 1}" text-anchor="middle" font-size="14">{room}</text>')
        count = f"{sizes[room]} module{'s' * (sizes[room] != 1)}"
        lines.append(f'<text x="{x}" y="{y + 13}" text-anchor="middle" font-size="10" fill="#555">{count}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _arrow(
    at: int, start: tuple[float, float], end: tuple[float, float], upper: str, lower: str, imports: list[Import]
) -> str:
    """Return a curve past the boxes in between, farther out the more of them there are; sides take turns."""
    (x1, y1), (x2, y2) = start, end
    side = 1 if at % 2 else -1
    reach = side * (BOX_X / 2 + 16 * (abs(y2 - y1) / ROW)) if abs(y2 - y1) > ROW else 0
    colour = "#c00" if any(map(is_upward, imports)) else RIGHT if side > 0 else LEFT
    dash = ' stroke-dasharray="5 4"' if all(each.kind != "top" for each in imports) else ""
    curve = f"M {x1} {y1} C {x1 + reach:.0f} {y1 + 20}, {x2 + reach:.0f} {y2 - 20}, {x2} {y2}"
    title = f"<title>{upper} imports {lower}: {len(imports)}</title>"
    width = f"{0.6 + log2(len(imports)) / 3:.1f}"
    style = f'fill="none" stroke="{colour}" stroke-opacity="0.55" stroke-width="{width}"{dash}'
    return f'<path d="{curve}" {style}>{title}</path>'


def page() -> str:
    """Return the page with the numbers."""
    pairs, sizes = between(), Counter(room_of(name) for name in modules())
    every = list(all_imports())
    kinds = Counter(each.kind for each in every)
    outside = [each for imports in pairs.values() for each in imports]
    upward = [each for each in every if is_upward(each)]
    circles = sum(bool(circle(graph)) for graph in (module_graph(), room_graph()))
    lines = [
        "# All imports between rooms",
        "",
        "Made by `scripts/rooms`; do not edit. `tests/support/rooms.py` says what counts as an import: those in
        functions,", "those for type checkers and names of modules in strings, too.",
        "",
        "![The rooms, from the highest to the lowest, with arrows for their imports](imports.svg)",
        "",
        "Arrows point from a room to one that it imports. They are wider for more imports, dashed where none of them",
        "is at the top of a module, and would be red where they went up.",
        "",
        "| | |",
        "|---|---|",
        f"| modules | {len(modules())} |",
        f"| rooms | {len(sizes)} |",
        f"| imports of ours by ours | {len(every)} |",
        f"| of these late, for type checkers, in strings | {kinds['late']}, {kinds['typing']}, {kinds['string']} |",
        f"| imports between rooms | {len(outside)} |",
        f"| pairs of rooms with some | {len(pairs)} |",
        f"| imports that go up or sideways | {len(upward)} |",
        f"| circles, of modules or of rooms | {circles or 'none'} |",
        "",
        "| room | modules | imports, by room |",
        "|---|---|---|",
    ]
    for room in (room for row in reversed(LADDER) for room in row):
        told = ", ".join(f"`{lower} {len(found)}`" for (upper, lower), found in pairs.items() if upper == room)
        lines.append(f"| {room} | {sizes[room]} | {told or 'none'} |")
    return "\n".join([*lines, ""])


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "imports.svg").write_text(picture(), encoding="utf-8")
    (FOLDER / "imports.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
