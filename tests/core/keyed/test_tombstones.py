"""What tells tombstones apart and marks them, distances of watermarks, and what messages are taken for together."""

from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest

from persist.codecs.types.schema import CollectionSchema
from persist.connect.envelopes import Unreadable, find_suspects
from persist.connect.envelopes.json_rows import _check_ends
from persist.connect.envelopes.messages import SAMPLES, decode_samples
from persist.connect.envelopes.rows import merge_types, replace_moments
from persist.core.keyed.events import make_live_filter, make_tombstone_filter, mark_deletions, mark_tombstones
from persist.core.keyed.form import _parse_distance
from persist.core.log.fields import KeyedForm, MachineForm
from persist.errors import InvalidUsage

# The type of the column, the value that says it, values, and which of them do.
KINDS: list[tuple[pa.DataType, str | None, list[Any], list[bool]]] = [
    (pa.bool_(), None, [True, False, None], [True, False, False]),
    (pa.string(), "gone", ["gone", "here", None, "", "GONE"], [True, False, False, False, False]),
    (pa.string(), None, ["gone", "", None], [True, True, False]),
    (pa.date32(), None, [date(2026, 1, 1), None], [True, False]),
]


def form_of(kind: pa.DataType, value: str | None) -> tuple[CollectionSchema, KeyedForm]:
    form = KeyedForm(MachineForm("replacing", 1), order_by=("k",), tombstone="t", tombstone_value=value)
    return CollectionSchema.of({"k": pa.int64()}, {"t": kind}), form


@pytest.mark.parametrize(("kind", "value", "values", "says"), KINDS)
def test_each_row_is_live_or_a_tombstone(
    kind: pa.DataType, value: str | None, values: list[Any], says: list[bool]
) -> None:
    schema, form = form_of(kind, value)
    table = pa.table({"k": range(len(values)), "t": pa.array(values, kind)})
    assert mark_tombstones(table["t"], form).to_pylist() == says
    live, dead = make_live_filter(schema, form), make_tombstone_filter(schema, form)
    assert live is not None
    assert table.filter(dead)["k"].to_pylist() == [at for at, said in enumerate(says) if said]
    assert table.filter(live)["k"].to_pylist() == [at for at, said in enumerate(says) if not said]
    assert make_live_filter(schema, None) is None
    assert make_live_filter(schema, KeyedForm(form.machine, order_by=("k",))) is None


@pytest.mark.parametrize(("kind", "value", "values", "says"), KINDS)
def test_what_deletes_is_marked_where_its_column_can_say_so(
    kind: pa.DataType, value: str | None, values: list[Any], says: list[bool]
) -> None:
    _, form = form_of(kind, value)
    table = pa.table({"t": pa.array(values, kind)})
    for deleted in ([True] * len(values), says, [False] * len(values)):
        made = mark_deletions(table, form, pa.chunked_array([deleted]))
        lacks = any(flag and each is None for flag, each in zip(deleted, values, strict=True))
        if value is None and lacks and not pa.types.is_boolean(kind):
            assert made is None
            continue
        assert made is not None
        now = mark_tombstones(made, form).to_pylist()
        assert now == [flag or said for flag, said in zip(deleted, says, strict=True)]
        kept = [each for each, flag in zip(made.to_pylist(), deleted, strict=True) if not flag]
        assert kept == [each for each, flag in zip(values, deleted, strict=True) if not flag]


NESTED = [pa.struct([("a", pa.int8())]), pa.struct([("b", pa.string()), ("a", pa.int64())])]
MERGED: list[tuple[list[pa.DataType], pa.DataType]] = [
    ([pa.null()], pa.null()), ([pa.null(), pa.string()], pa.string()), ([pa.string(), pa.string()], pa.string()),
    ([pa.int8(), pa.int64(), pa.int32()], pa.int64()), ([pa.int64(), pa.float64()], pa.float64()),
    ([pa.uint64(), pa.int64()], pa.float64()), ([pa.list_(pa.null()), pa.null()], pa.list_(pa.null())),
    ([pa.list_(pa.int8()), pa.list_(pa.int64())], pa.list_(pa.int64())),
    ([pa.list_(pa.null()), pa.list_(pa.string())], pa.list_(pa.string())),
    (NESTED, pa.struct([("a", pa.int64()), ("b", pa.string())])),
]  # fmt: skip


def test_columns_have_the_type_that_holds_what_all_messages_have() -> None:
    for kinds, wanted in MERGED:
        assert merge_types(kinds, "c") == wanted, kinds
    for kinds, shown in (
        ([pa.string(), pa.int64()], "column 'c' is int64 and string in different messages"),
        ([pa.list_(pa.int8()), pa.int8()], "column 'c' is int8 and list"),
        ([pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())])], "column 'c.a' is int8 and string"),
        ([pa.struct([("a", pa.int8())]), pa.int8()], "column 'c' is int8 and struct"),
    ):
        with pytest.raises(InvalidUsage, match=shown):
            merge_types(kinds, "c")


def test_moments_that_were_inferred_are_texts_at_whatever_depth() -> None:
    moment = pa.timestamp("ms")
    assert replace_moments(pa.struct([("a", pa.list_(moment)), ("b", pa.int8())])) == pa.struct(
        [("a", pa.list_(pa.string())), ("b", pa.int8())]
    )
    assert replace_moments(moment) == pa.string()


@pytest.mark.parametrize(
    ("distance", "kind", "number"),
    [
        (5, pa.int64(), 5), (0, pa.int64(), 0), (7, pa.timestamp("ns"), 7), (timedelta(days=2), pa.date32(), 2),
        (timedelta(days=2, hours=5), pa.date32(), 2), (timedelta(days=2), pa.date64(), 172_800_000),
        (timedelta(seconds=3), pa.timestamp("s"), 3), (timedelta(milliseconds=1500), pa.timestamp("s"), 1),
        (timedelta(milliseconds=1500), pa.timestamp("ms"), 1500),
        (timedelta(seconds=90), pa.timestamp("ms"), 90_000), (timedelta(seconds=90), pa.date64(), 0),
        (timedelta(microseconds=7), pa.timestamp("us"), 7), (timedelta(microseconds=7), pa.timestamp("ns"), 7000),
        (timedelta(days=400_000), pa.timestamp("us", "UTC"), 400_000 * 86_400 * 10**6),
    ],
)  # fmt: skip
def test_a_distance_is_counted_in_the_unit_of_watermarks(distance: Any, kind: pa.DataType, number: int) -> None:
    assert _parse_distance(distance, kind) == number


@pytest.mark.parametrize(
    ("distance", "kind"),
    [
        (-1, pa.int64()), (timedelta(days=-1), pa.date32()), (timedelta(seconds=-1), pa.timestamp("s")),
        (True, pa.int64()), (1.5, pa.int64()), (timedelta(days=1), pa.int64()), (timedelta(days=1), pa.time64("us")),
    ],
)  # fmt: skip
def test_what_is_no_distance_is_refused(distance: Any, kind: pa.DataType) -> None:
    with pytest.raises(InvalidUsage):
        _parse_distance(distance, kind)


@pytest.mark.parametrize("count", [0, 1, 11, 12, 13, 24, 100, 1000])
def test_samples_are_the_first_messages_and_some_from_all_over(count: int) -> None:
    texts = pa.array([f'{{"n": {n}}}'.encode() for n in range(count)], pa.large_binary())
    places = {*range(min(count, SAMPLES // 2)), *(count * n // SAMPLES for n in range(SAMPLES) if count)}
    assert [sample["n"] for sample in decode_samples(texts)] == sorted(places)
    odd = pa.array([b"[1]", b"{", b'{"n": 1}', b"null"], pa.large_binary())
    assert decode_samples(odd) == [{"n": 1}]


def test_a_message_that_is_no_object_is_shown_and_space_around_one_is_not_looked_at() -> None:
    good = [b'{"a": 1}', b' {"a": 1}\n', b"\t{}"]
    _check_ends(pa.array([], pa.large_binary()))
    _check_ends(pa.array(good, pa.large_binary()))
    for bad, said in (
        (b"[1]", r"it is not a JSON object: '\[1\]'"),
        (b"{", "not a JSON object: '{'"),
        (b" ", "it is empty"),
    ):
        for others in ([], good):
            for texts in ([*others, bad], [*others, bad, b"]"]):
                with pytest.raises(Unreadable, match=said):
                    _check_ends(pa.array(texts, pa.large_binary()))


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.bool_(), ["true", "false", "null"], ["1", '"true"', "[]"]),
        (pa.int64(), ["1", "-5", "null"], ["1.5", '"1"', "true"]),
        (pa.float64(), ["1", "1.5", "-2e9", "null"], ['"1"', "{}"]),
        (pa.decimal128(9, 2), ['"1.5"', "1", "1.5", "null"], ["[1]", "true"]),
        (pa.string(), ['"x"', '""', "null"], ["1", "{}"]),
        (pa.timestamp("us"), ['"2026-01-01"', "null"], ["1", "{}"]),
        (pa.list_(pa.int64()), ["[]", "[1, null]", "null"], ["1", '["x"]']),
        (pa.struct([("x", pa.float64())]), ["{}", '{"x": 2}', '{"y": "z"}', "null"], ["1", '{"x": "2"}']),
    ],
)
def test_messages_whose_members_are_of_other_kinds_are_suspects(
    kind: pa.DataType, good: list[str], bad: list[str]
) -> None:
    texts = [f'{{"a": {value}}}'.encode() for value in [*good, *bad]]
    found = find_suspects(pa.array([*texts, b"{}", b"nothing"], pa.large_binary()), pa.schema([("a", kind)]))
    assert found.tolist() == [False] * len(good) + [True] * len(bad) + [False, True]
