"""Which rows are tombstones, what tells them apart, and what marks one; and types that messages have together."""

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from persist.codecs import CollectionSchema
from persist.errors import InvalidUsage
from persist.log import KeyedForm, MachineForm
from persist.upsert.envelopes.rows import as_sent, merged
from persist.upsert.events import dead_filter, is_tombstone, live_filter, marked

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
    assert is_tombstone(table["t"], form).to_pylist() == says
    live, dead = live_filter(schema, form), dead_filter(schema, form)
    assert live is not None
    assert table.filter(dead)["k"].to_pylist() == [at for at, said in enumerate(says) if said]
    assert table.filter(live)["k"].to_pylist() == [at for at, said in enumerate(says) if not said]
    assert live_filter(schema, None) is None
    assert live_filter(schema, KeyedForm(form.machine, order_by=("k",))) is None


@pytest.mark.parametrize(("kind", "value", "values", "says"), KINDS)
def test_what_deletes_is_marked_where_its_column_can_say_so(
    kind: pa.DataType, value: str | None, values: list[Any], says: list[bool]
) -> None:
    _, form = form_of(kind, value)
    table = pa.table({"t": pa.array(values, kind)})
    for deleted in ([True] * len(values), says, [False] * len(values)):
        made = marked(table, form, pa.chunked_array([deleted]))
        lacks = any(flag and each is None for flag, each in zip(deleted, values, strict=True))
        if value is None and lacks and not pa.types.is_boolean(kind):
            assert made is None
            continue
        assert made is not None
        now = is_tombstone(made, form).to_pylist()
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
        assert merged(kinds, "c") == wanted, kinds
    for kinds, shown in (
        ([pa.string(), pa.int64()], "column 'c' is int64 and string in different messages"),
        ([pa.list_(pa.int8()), pa.int8()], "column 'c' is int8 and list"),
        ([pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())])], "column 'c.a' is int8 and string"),
        ([pa.struct([("a", pa.int8())]), pa.int8()], "column 'c' is int8 and struct"),
    ):
        with pytest.raises(InvalidUsage, match=shown):
            merged(kinds, "c")


def test_moments_that_were_inferred_are_texts_at_whatever_depth() -> None:
    moment = pa.timestamp("ms")
    assert as_sent(pa.struct([("a", pa.list_(moment)), ("b", pa.int8())])) == pa.struct(
        [("a", pa.list_(pa.string())), ("b", pa.int8())]
    )
    assert as_sent(moment) == pa.string()
