"""Parts of sinks: positions as targets store them, shares of contents without a key, and types of Postgres."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import persist
from persist.compute.tasks.stream_hold import Position
from persist.connect.egress.feed import HASHES, SHARES_MAX, compute_bounds
from persist.connect.egress.pg_table import can_hold, to_postgres_type
from persist.connect.egress.sink import Leaving, Piece, Reached, build_sink_name

AT = Reached("following", 4, 9, None, 2)


@pytest.mark.parametrize(
    ("reached", "written", "position"),
    [
        (AT, '{"version":1,"stage":"following","as_of":4,"upper":9,"below":null,"schema":2}', (None, 9, 9)),
        (replace(AT, upper=None),
         '{"version":1,"stage":"following","as_of":4,"upper":"complete","below":null,"schema":2}', (None, 0, None)),
        (Reached("copying", 4, 5, ("k", 7), 0),
         '{"version":1,"stage":"copying","as_of":4,"upper":5,"below":["k",7],"schema":0}', (4, None, 5)),
        (Reached("copied", None, 0, (), 0),
         '{"version":1,"stage":"copied","as_of":null,"upper":0,"below":[],"schema":0}', (None, 0, 0)),
    ],
)  # fmt: skip
def test_a_position_is_stored_as_json_and_says_what_its_hold_keeps(
    reached: Reached, written: str, position: tuple[int | None, int | None, int | None]
) -> None:
    assert (reached.to_json(), Reached.of(written, "it"), Reached.of(written.encode(), "it")) == (
        written,
        reached,
        reached,
    )
    assert reached.position("h") == Position(*position, "h")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('"version":1', '"version":2'), '\'{"version":2,'), (('"upper":9', '"upper":"all"'), '\'{"version":1,'),
        (('"following"', '"flying"'), "Invalid enum value 'flying'"),
        (('"as_of":4,', ""), "Object missing required field"),
        (("{", "["), "Expected `object`, got `array`"),
    ],
)  # fmt: skip
def test_a_position_of_another_version_is_refused(change: tuple[str, str], reason: str) -> None:
    with pytest.raises(persist.InvalidUsage) as caught:
        Reached.of(AT.to_json().replace(*change), "the target")
    assert str(caught.value).startswith(f"the target has a position that this version does not know: {reason}")
    assert str(caught.value).endswith(". Use the version that wrote it, or give the sink up by --drop, and begin anew")


def test_a_piece_without_rows_is_stored_where_the_position_turns() -> None:
    def is_turn(before: Reached | None, after: Reached) -> bool:
        return Piece(Leaving("i", "n", True), before, after, cast(Any, None)).is_turn

    copying = Reached("copying", 4, 5, (1,), 2)
    assert [is_turn(before, after) for before, after in [
        (None, AT), (AT, replace(AT, upper=None)), (copying, replace(copying, below=(2,))),
        (copying, replace(copying, stage="copied")),
        (AT, replace(AT, upper=10)), (copying, replace(copying, schema=3)),
    ]] == [True, True, True, True, False, False]  # fmt: skip
    piece = Piece(
        Leaving("i", "n", True),
        None,
        AT,
        cast(Any, None),
        None,
        [pa.RecordBatch.from_pydict({"n": n}) for n in ([1, 2], [], [3])],
    )
    assert ([batch.num_rows for batch in piece.read()], piece.count) == ([2, 1], 3)


def test_shares_have_about_the_wanted_size_and_cover_all_hashes() -> None:
    assert compute_bounds(0, 0, 10) == compute_bounds(0, 10, 10) == [0, HASHES]
    assert compute_bounds(0, 11, 10) == [0, HASHES // 2, HASHES]
    assert compute_bounds(HASHES // 2, 31, 10) == [HASHES // 2, HASHES // 4 * 3, HASHES]
    assert compute_bounds(HASHES // 2, 20, 10) == [HASHES // 2, HASHES]
    assert compute_bounds(6, 25, 10) == [6, 6 + (HASHES - 6) // 3, 6 + (HASHES - 6) * 2 // 3, HASHES]
    assert len(compute_bounds(0, 1 << 60, 10)) == SHARES_MAX + 1


def test_a_sink_without_a_name_is_named_by_its_place() -> None:
    assert build_sink_name("files", "a", "b") == build_sink_name("files", "a", "b") != build_sink_name("files", "ab")
    assert len(build_sink_name("kafka", "a")) == len("egress-kafka-12345678")


def test_types_of_postgres_hold_all_values_of_columns() -> None:
    for kind, name in [
        (pa.bool_(), "boolean"), (pa.int8(), "smallint"), (pa.uint16(), "integer"), (pa.uint64(), "numeric(20,0)"),
        (pa.decimal128(5, 2), "numeric(5,2)"), (pa.decimal128(5, 0), "numeric(5,0)"),
        (pa.decimal128(5, -2), "numeric(7,0)"),
        (pa.decimal128(2, 4), "numeric(4,4)"), (pa.large_string(), "text"), (pa.string_view(), "text"),
        (pa.binary(3), "bytea"), (pa.time32("s"), "time without time zone"), (pa.duration("s"), "interval"),
        (pa.timestamp("s"), "timestamp without time zone"), (pa.timestamp("ns", "UTC"), "timestamp with time zone"),
        (pa.list_(pa.int8()), "jsonb"),
    ]:  # fmt: skip
        assert to_postgres_type(kind, "t.c") == name
    with pytest.raises(
        persist.InvalidUsage, match=r"^the column t\.c has the type null, which Postgres has no counterpart"
    ):
        to_postgres_type(pa.null(), "t.c")
    for ours, theirs, holds in [
        ("date", "date", True), ("date", "text", False), ("text", "uuid", True), ("jsonb", "json", True),
        ("jsonb", "text", True),
        ("jsonb", "date", False), ("json", "text", False), ("smallint", "bigint", True), ("bigint", "integer", False),
        ("bigint", "numeric", True), ("real", "double precision", True), ("double precision", "numeric", False),
        ("numeric(5,2)", "numeric", True), ("numeric(5,2)", "numeric(5,2)", True),
        ("numeric(5,2)", "numeric(6,2)", True),
        ("numeric(5,2)", "numeric(6,3)", True), ("numeric(5,2)", "numeric(5,3)", False),
        ("numeric(5,2)", "numeric(6,1)", False),
        ("numeric(20,0)", "numeric", True), ("numeric(20,0)", "bigint", False), ("integer", "numeric(5,2)", False),
    ]:  # fmt: skip
        assert can_hold(ours, theirs) == holds, (ours, theirs)


def test_contents_without_a_key_are_sent_in_shares_that_lose_no_row(
    client: persist.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = import_module("persist.connect.egress.feed")
    monkeypatch.setattr(feed, "SLICE_BYTES", 3000)
    monkeypatch.setattr(feed, "CHUNK_BYTES", 5000)
    lines = client.create_or_load("lines", key=None, value={"n": pa.int64()})
    for time in range(3):
        lines.write(pa.table({"n": range(time * 300, time * 300 + 400)}), time=time, seal=time + 1).result()
    assert (
        persist.egress(client, {"sink": str(tmp_path), "collections": ["lines"], "format": "json"}, once=True).rows
        == 1000
    )
    shares = [[json.loads(line) for line in path.read_text().splitlines()] for path in (tmp_path / "lines").iterdir()]
    assert {(row["n"], row["_diff"]) for rows in shares for row in rows} == {
        (n, 2 if n in (*range(300, 400), *range(600, 700)) else 1) for n in range(1000)
    }
    assert len(shares) > 3
    assert max(map(len, shares)) < 2 * min(map(len, shares))
