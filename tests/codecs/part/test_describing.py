"""What a descriptor says, what of it can be wrong, and which parts overlap."""

import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from persist.codecs.part.describing import check_part, decode_bounds, describe_in_memory, describe_part, find_overlaps
from persist.codecs.part.part import SINGLE, Part
from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from tests.codecs.part.made import file_of
from tests.codecs.part.test_part import only

SCHEMA = CollectionSchema.of({"k": pa.int64()}, {"x": pa.float64(), "s": pa.string()})
ROWS = {"k": [1, 1, 2], "x": [0.5, None, 1.0], "s": ["a", "b", None], "_time": [3, 4, 5], "_diff": [1, -1, 7]}


def table_of(**changes: Any) -> pa.Table:
    return pa.table({**ROWS, **changes}, SCHEMA.arrow)


def found(data: bytes, part: Part) -> list[tuple[str, str]]:
    return [(finding.kind, finding.what) for finding in check_part(data, part, SCHEMA)[0]]


def changed(part: Part, **changes: Any) -> Part:
    return msgspec.structs.replace(part, **changes)


@pytest.mark.parametrize("is_batch", [False, True])
def test_each_wrong_member_is_a_finding_and_what_writers_may_leave_out_is_none(is_batch: bool) -> None:
    data, part = only(encode_parts(table_of(), SCHEMA, batch_bytes_max=10_000 * is_batch))
    assert (part.footer is None) == is_batch
    findings, bounds = check_part(data, part, SCHEMA)
    assert findings == ()
    assert bounds is not None
    assert bounds.to_pydict() == {"k": [1, 2]}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"time_min": 2}, "time_min 2, and it is 3"),
        ({"time_max": 6}, "time_max 6, and it is 5"),
        ({"negatives": 2}, "negatives 2, and it is 1"),
        ({"diff_sum": 8}, "diff_sum 8, and it is 7"),
        ({"keys_json": msgspec.Raw(b"[[1],[2]]" if is_batch else b"[[1],[2],[2]]")}, "keys [[1],"),
    ]
    if not is_batch:
        wrong.append(({"stats_json": msgspec.Raw(b'{"k":[1,3,0]}')}, "stats of 'k' [1,3,0], and it is [1,2,0]"))
        wrong.append(({"stats_json": msgspec.Raw(b'{"odd":[1,3,0]}')}, "stats of 'odd' [1,3,0], and it is null"))
    for change, text in wrong:
        if is_batch and "keys_json" in change:
            continue
        ((kind, what),) = found(data, changed(part, **change))
        assert (kind, what.startswith(f"its descriptor says {text}")) == ("descriptor", True), what
    assert len(found(data, changed(part, time_min=2, negatives=2))) == 2
    fine: list[dict[str, Any]] = [{"keys_json": msgspec.Raw(b"null")}, {"stats_json": msgspec.Raw(b"{}")}]
    fine.append({"stats_json": msgspec.Raw(msgspec.json.encode({"_diff": SINGLE}))})
    assert [found(data, changed(part, **change)) for change in fine] == [[], [], []]
    for change in ({"keys_json": msgspec.Raw(b"[[1],[2],[2],[2]]")}, {"keys_json": msgspec.Raw(b"7")}):
        ((kind, _),) = found(data, changed(part, **change))
        assert kind == "descriptor"
    stamped = only(encode_parts(table_of(_time=[0, 0, 0]), SCHEMA))
    assert found(stamped[0], stamped[1].set_time(9)) == []
    assert found(data, part.set_time(9))[0][0] == "descriptor"


NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"_time": [-1, 4, TIME_MAX + 1]}, [("values", f"2 of its times are outside [0, {TIME_MAX}]")]),
        ({"_time": [0, 4, TIME_MAX]}, []),
        ({"_diff": [0, -1, 0]}, [("values", "2 of its diffs are 0")]),
        ({"x": [-0.0, None, 1.0]}, [("values", "its column 'x' has floats that are not in their one form")]),
        ({"x": [0.0, 1.0, NAN]}, [("values", "its column 'x' has floats that are not in their one form")]),
        ({"x": [0.0, 1.0, np.nan]}, []),
        ({"k": [2, 1, 2]}, [("unsorted", "2 of its 3 rows are not in order, row 0 first")]),
        ({"k": [1, 2, 1]}, [("unsorted", "2 of its 3 rows are not in order, row 1 first")]),
        (
            {"k": [1, 1, 1], "x": [1.0] * 3, "s": ["a"] * 3, "_time": [3] * 3},
            [("unconsolidated", "its rows 0 and 1 are equal in key, value and time; so are 1 more")],
        ),
        (
            {"k": [1, 2, 2], "x": [1.0] * 3, "s": ["a"] * 3, "_time": [3] * 3},
            [("unconsolidated", "its rows 1 and 2 are equal in key, value and time; so are 0 more")],
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_rows_that_no_writer_makes_are_findings(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    loose = pa.schema([field.with_nullable(True) for field in SCHEMA.arrow])
    table = pa.table({**ROWS, **changes}, loose)
    data = file_of(table, compression="zstd")
    times, diffs = ([value for value in table[name].to_pylist() if value is not None] for name in ("_time", "_diff"))
    part = describe_part(data, pa.table(ROWS, SCHEMA.arrow), SCHEMA)
    part = changed(
        part,
        time_min=max(min(times), 0),
        time_max=min(max(times), TIME_MAX),
        negatives=sum(d < 0 for d in diffs),
        diff_sum=sum(diffs),
    )
    kinds = [one for one in found(data, part) if one[0] != "descriptor"]
    assert [one for one in kinds if one[0] == expected[0][0]] == expected if expected else kinds == []


def test_bounds_are_the_first_and_last_sampled_key() -> None:
    rows = {"k": range(50), "x": [0.0] * 50, "s": ["a"] * 50, "_time": [0] * 50, "_diff": [1] * 50}
    _, part = only(encode_parts(pa.table(rows, SCHEMA.arrow), SCHEMA))
    bounds = decode_bounds(part, SCHEMA)
    assert bounds is not None
    assert bounds.to_pydict() == {"k": [0, 49]}
    for wrong in (b"null", b"[]", b'[["a"],["b"]]', b"[[1],[2],[3],[4]]", b"[[1,1],[2,2]]"):
        assert decode_bounds(changed(part, keys_json=msgspec.Raw(wrong)), SCHEMA) is None
    memory = describe_in_memory(bounds, 77, SCHEMA)
    assert (memory.rows, memory.memory, memory.keys, memory.bytes) == (2, 77, [[0], [49]], 0)
    assert (memory.time_min, memory.time_max, memory.negatives, memory.diff_sum) == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(30))
def test_each_part_that_overlaps_with_an_earlier_one_is_found_once(seed: int) -> None:
    chance = random.Random(seed)
    schema = CollectionSchema.of({"k": pa.int64(), "s": pa.string()}, None)
    ranges = []
    for _ in range(chance.randrange(7)):
        keys = [(chance.randrange(12), chance.choice("ab")) for _ in range(2)]
        ranges.append((min(keys), max(keys)))
    bounds = [pa.table({"k": [low[0], high[0]], "s": [low[1], high[1]]}) for low, high in ranges]
    pairs = [*find_overlaps(bounds, schema)]
    in_order = sorted(range(len(ranges)), key=lambda at: ranges[at])
    overlapping = [
        late
        for place, late in enumerate(in_order)
        if any(ranges[early][1] >= ranges[late][0] for early in in_order[:place])
    ]
    assert [late for _, late in pairs] == overlapping
    for early, late in pairs:
        assert in_order.index(early) < in_order.index(late)
        assert ranges[early][1] == max(ranges[one][1] for one in in_order[: in_order.index(late)])
    unit = CollectionSchema.of(None, {"v": pa.int64()})
    nothing = [pa.table({"v": [0, 0]}).select([])] * len(ranges)
    assert [*find_overlaps(nothing, unit)] == [(0, late) for late in range(1, len(ranges))]
