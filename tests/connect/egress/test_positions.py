"""Positions of a target as it stores them, and into how many shares contents without a key are divided."""

from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

import persist
from persist.compute.tasks.stream_hold import Position
from persist.connect.egress.feed import HASHES, SHARES_MAX, compute_bounds
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
