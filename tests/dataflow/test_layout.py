"""The picture of operators: nodes do not lie on each other, and no edge runs behind one."""

import random
import re

import pytest

from persist.dataflow.running.report import GAP_X, HIGH, WIDE, layout


def behind(places: list[tuple[float, float]], path: str) -> bool:
    """Whether an edge lies behind a node. Its curves lie between layers; what is looked at are its level stretches."""
    for x, y, end in re.findall(r"([\d.]+) ([\d.]+) H([\d.]+)", path):
        for left, top in places:
            if float(x) < left + WIDE and float(end) > left and top < float(y) < top + HIGH:
                return True
    starts = re.findall(r"(?:^M|H)([\d.]+)", path)
    ends = re.findall(r"C\S+ \S+ \S+ \S+ ([\d.]+) ", path)
    return any(float(b) - float(a) != GAP_X for a, b in zip(starts, ends, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_no_edge_runs_behind_a_node_and_no_node_lies_on_another(seed: int) -> None:
    chance = random.Random(seed)
    layers: list[int] = []
    edges: list[tuple[int, int]] = []
    for node in range(1 + chance.randrange(25)):
        inputs = {chance.randrange(node) for _ in range(chance.randrange(4))} if node else set()
        layers.append(max((layers[each] + 1 for each in inputs), default=0))
        edges += [(each, node) for each in inputs]
    found = layout(layers, edges)
    assert len(found.paths) == len(edges)
    assert not [path for path in found.paths if behind(found.places, path)]
    for i, (x, y) in enumerate(found.places):
        assert 0 <= x <= found.width - WIDE
        assert 0 <= y <= found.height - HIGH
        assert not [1 for a, b in found.places[:i] if abs(a - x) < WIDE and abs(b - y) < HIGH]


def test_what_has_no_operators_is_an_empty_picture() -> None:
    assert layout([], []).places == []
