"""Messages that are rows: what becomes an event, what deletes, and what is bad, in the order of arrival."""

import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from persist.connect.envelopes import Unreadable, find_suspects, json_rows, parse, plain, read_separately
from persist.connect.envelopes.json_rows import split_pieces
from persist.connect.envelopes.messages import decode_latin_1, to_decimals
from persist.errors import BadMessage, InvalidUsage

SCHEMA = {"a": pa.int64(), "b": pa.string(), "v": pa.int64()}
NOTHING, NO_KEY = "it has neither a value nor a key", "it is empty, and rows without a key cannot be deleted"


def table(*messages: tuple[Any, Any], offset: bool = False) -> pa.Table:
    """Return messages of a key and a value each: objects as JSON, text as it is."""
    sent = [[m if m is None or isinstance(m, str) else json.dumps(m) for m in side] for side in messages]
    columns = {"key": pa.array([k for k, _ in sent], pa.string()), "value": pa.array([v for _, v in sent], pa.string())}
    return pa.table(columns | ({"offset": pa.array(range(len(sent)), pa.int64())} if offset else {}))


@pytest.mark.parametrize("seed", range(6))
def test_rows_tombstones_and_bad_messages_each_become_their_own_in_order(seed: int) -> None:
    chance, messages, events, bad = random.Random(seed), list[tuple[Any, Any]](), list[Any](), list[Any]()
    for row in range(chance.randrange(1, 30)):
        key = {"a": chance.randrange(3), "b": chance.choice("xy")}
        value = key | {"v": row}
        gone = key | {"v": None, "_deleted": True, "offset": row}
        here = value | {"_deleted": False, "offset": row}
        message, event, why = chance.choice(
            [
                ((None, value), here, None),
                ((key, value), here, None),
                (("anything", {"payload": value, "schema": None}), here, None),
                ((key, None), gone, None),
                ((key, {"payload": None, "schema": None}), gone, None),
                ((None, None), None, NOTHING),
                (({"a": 1}, None), None, "the column 'b' of its key is missing or null"),
                (("{", None), None, "in its key: "),
                ((key, "{"), None, ""),
            ]
        )
        messages.append(message)
        if event is None:
            bad.append((row, why))
        else:
            events.append(event)
    made = plain(
        table(*messages, offset=True), key=["a", "b"], schema=SCHEMA, metadata={"offset": "offset"}, on_error="collect"
    )
    assert made.table.to_pylist() == [{name: each[name] for name in made.table.column_names} for each in events]
    rejected = made.rejected.to_pylist()
    assert len(rejected) == len(bad)
    for found, (row, why) in zip(rejected, bad, strict=True):
        assert (found["message"], why in found["reason"]) == (row, True)


def test_the_key_of_one_column_may_be_bare() -> None:
    schema = {"a": pa.int64(), "v": pa.int64()}
    made = plain(table(("7", None), ({"a": 8}, None)), key="a", schema=schema).table
    assert made["a"].to_pylist() == [7, 8]
    assert made["_deleted"].to_pylist() == [True, True]


def test_a_key_that_is_bare_text_is_taken_as_it_is() -> None:
    schema = {"a": pa.string(), "v": pa.int64()}
    keys = ["x", 'say "no"', "back\\slash", "", json.dumps({"a": "y"}), json.dumps("quoted")]
    made = plain(table(*((key, None) for key in keys)), key="a", schema=schema).table
    assert made["a"].to_pylist() == ["x", 'say "no"', "back\\slash", "", "y", "quoted"]
    two = plain(
        table((json.dumps({"a": "x", "b": "y"}), None)), key=["a", "b"], schema={"a": pa.string(), "b": pa.string()}
    )
    assert two.table.select(["a", "b"]).to_pylist() == [{"a": "x", "b": "y"}]


def test_numbers_that_nothing_tells_the_unit_of_are_refused_before_anything_is_read() -> None:
    schema = {"a": pa.int64(), "t": pa.timestamp("us")}
    numbers = [(None, {"a": n, "t": 1_700_000_000 + n}) for n in range(3)]
    for messages in (numbers[:1], numbers, [*numbers, (None, {"a": 9, "t": None})]):
        with pytest.raises(InvalidUsage, match="'t'"):
            plain(table(*messages), key="a", schema=schema)
    told = [(None, {"a": 1, "t": "2026-01-01T00:00:00"})]
    assert plain(table(*told), key="a", schema=schema).table["a"].to_pylist() == [1]
    made = plain(table(*told, numbers[2]), key="a", schema=schema, on_error="collect")
    assert (made.table["a"].to_pylist(), len(made.rejected)) == ([1], 1)


def test_messages_are_read_in_pieces_of_a_bounded_size_and_a_larger_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.connect.envelopes.json_rows.PIECE_BYTES", 10)
    texts = pa.array([b"x" * size for size in (4, 4, 4, 20, 1, 9, 10, 1)], pa.large_binary())
    assert [*split_pieces(texts)] == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7), (7, 8)]
    assert [*split_pieces(texts[:0])] == []


def test_the_first_of_several_bad_messages_is_named_with_how_many_there_are() -> None:
    messages = [(None, {"a": 1}), (None, "{"), (None, {"a": 2}), (None, "[")]
    with pytest.raises(BadMessage) as caught:
        plain(table(*messages), key="a", schema={"a": pa.int64()})
    collected = plain(table(*messages), key="a", schema={"a": pa.int64()}, on_error="collect")
    assert collected.rejected["message"].to_pylist() == [1, 3]
    assert str(BadMessage(1, collected.rejected["reason"][0].as_py(), 2)) == str(caught.value)


def test_rows_without_a_key_are_rows_and_nothing_deletes_them() -> None:
    made = plain(table((None, {"a": 1}), ({"a": 1}, None)), schema={"a": pa.int64()}, on_error="collect")
    assert made.table["a"].to_pylist() == [1]
    assert NO_KEY in str(made.rejected.to_pylist())
    with pytest.raises(BadMessage, match=NO_KEY):
        plain(table((None, None)), schema={"a": pa.int64()})


def test_what_json_shows_is_taken_if_no_type_is_given() -> None:
    made = plain(table((None, {"a": 1, "v": "x"}), (None, {"a": 2})), key="a").table
    assert made.column_names == ["a", "v", "_deleted"]
    assert made.to_pylist() == [{"a": 1, "v": "x", "_deleted": False}, {"a": 2, "v": None, "_deleted": False}]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("QQ==", b"A"),
        ("QUI=", b"AB"),
        ("QUJD", b"ABC"),
        ("", b""),
        *((bad, None) for bad in ("QQ===", "Q=Q=", "=QQQ", "Q")),
    ],
)
def test_bytes_are_base64_with_its_padding_at_the_end(text: str, meant: bytes | None) -> None:
    schema = {"a": pa.int64(), "x": pa.binary()}
    made = plain(table((None, {"a": 1, "x": text}), (None, {"a": 2, "x": None})), schema=schema, on_error="collect")
    assert made.table["x"].to_pylist() == ([None] if meant is None else [meant, None])
    assert made.rejected.num_rows == (meant is None)


def test_an_object_is_a_key_of_several_columns_and_a_bare_value_is_none() -> None:
    made = plain(table(("7", None), ({"a": 1, "b": "x"}, None)), key=["a", "b"], schema=SCHEMA, on_error="collect")
    assert made.table["a"].to_pylist() == [1]
    assert made.rejected["message"].to_pylist() == [0]


def test_a_value_of_another_kind_than_its_column_is_bad() -> None:
    schema = {"d": pa.decimal128(9, 2), "s": pa.string(), "b": pa.bool_()}
    good = {"d": 1.5, "s": "1.50", "b": True}
    others = [good | {"d": 2.25}, good | {"s": [1]}, good | {"b": "x"}, good | {"d": [1]}]
    made = plain(table((None, good), *((None, each) for each in others)), schema=schema, on_error="collect")
    assert [str(each) for each in made.table["d"].to_pylist()] == ["1.50", "2.25"]
    assert made.rejected["message"].to_pylist() == [2, 3, 4]


IDS = [12345678901234567890, 12345678901234567891, 12345678901234567892]


@pytest.mark.parametrize("place", ['{"id": %s}', '{"id": 1, "in": {"side": [{"it": %s}]}}'])
def test_whole_numbers_that_no_integer_type_holds_are_inferred_as_decimals(place: str) -> None:
    rows = plain([place % number for number in IDS]).table.to_pylist()
    found = [row["in"]["side"][0]["it"] if "in" in row else row["id"] for row in rows]
    assert [int(number) for number in found] == IDS


def test_a_whole_number_beside_a_fraction_stays_what_it_is() -> None:
    table = plain(['{"v": 9007199254740993}', '{"v": 1.25}']).table
    assert table["v"].to_pylist() == [Decimal("9007199254740993.00"), Decimal("1.25")]
    with pytest.raises(InvalidUsage, match="column 'v' has the number 9007199254740993 beside 1e300"):
        plain(['{"v": 9007199254740993}', '{"v": 1e300}'])


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("9007199254740993", pa.float64()),
        ('"9007199254740993"', pa.float64()),
        ("1e-400", pa.float64()),
        ('"1e400"', pa.float64()),
        ("1e39", pa.float32()),
        ("16777217", pa.float32()),
        ("2049", pa.float16()),
        ('{"a": [9007199254740993]}', pa.struct([("a", pa.list_(pa.float64()))])),
    ],
)
def test_a_number_that_its_float_would_round_is_rejected(value: str, kind: pa.DataType) -> None:
    events = plain(['{"v": null}', f'{{"v": {value}}}', "{}"], schema={"v": kind}, on_error="collect")
    assert events.table["v"].to_pylist() == [None, None]
    [bad] = events.rejected.to_pylist()
    assert bad["message"] == 1
    assert "column 'v" in bad["reason"]
    assert "would round" in bad["reason"] or "would be rounded" in bad["reason"]


FIELDS = pa.schema([("a", pa.struct([("id", pa.int64()), ("at", pa.timestamp("us"))])), ("l", pa.list_(pa.string()))])


class Counting:
    """Reads documents, and counts them."""

    def __init__(self) -> None:
        self.documents = 0

    def read(self, texts: pa.Array) -> pa.Table:
        self.documents += len(texts)
        return parse(texts, FIELDS)

    def find_suspects(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        return find_suspects(texts, FIELDS)


@pytest.mark.parametrize(
    "bad",
    ["{", '{"a":{"id":1}', '{"a":{"id":"x"}}', '{"a":5}', '{"l":[1]}', '{"a":{"at":7}}', "{} {}", '{"a":{"id":1.5}}'],
)
def test_good_documents_are_read_twice_at_most_however_many_others_are_bad(bad: str) -> None:
    places = [*range(3, 3000, 100)]
    documents = [json.dumps({"a": {"id": n, "at": "2020-01-01T00:00:00"}, "l": ["x", None]}) for n in range(3000)]
    for place in places:
        documents[place] = bad
    reading = Counting()
    found = read_separately(pa.array([each.encode() for each in documents], pa.large_binary()), reading)
    assert [each.row for each in sorted(found.bad, key=lambda each: each.row)] == places
    rows = np.sort(np.concatenate([rows for rows, _ in found.pieces]))
    assert rows.tolist() == [n for n in range(3000) if n not in places]
    assert reading.documents < 2.1 * len(documents)


def test_a_document_that_only_looks_bad_is_good() -> None:
    documents = [b'{"a":null,"l":[null],"z":[1,{"b":2}]}', b"{}", b" {} ", b'{"a":{"id":null}}', b"{"]
    found = read_separately(pa.array(documents, pa.large_binary()), Counting())
    assert [each.row for each in found.bad] == [4]
    assert sum(len(table) for _, table in found.pieces) == 4


def test_each_document_is_read_once_though_they_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "PIECE_BYTES", 40)
    documents = [b'{"a":{"id":%d}}' % number for number in range(20)]
    reading = Counting()
    found = read_separately(pa.array(documents, pa.large_binary()), reading)
    assert len(found.pieces) > 5
    assert [row for rows, _ in found.pieces for row in rows] == [*range(20)]
    assert reading.documents == 20


def test_bytes_written_as_characters_are_read_and_what_is_no_byte_is_refused() -> None:
    assert decode_latin_1(pa.array(["\u00ff\u0001", None, ""], pa.large_string())).to_pylist() == [
        b"\xff\x01",
        None,
        b"",
    ]
    with pytest.raises(Unreadable, match="beyond U"):
        decode_latin_1(pa.array(["\u0100"], pa.large_string()))


def test_a_decimal_fits_as_many_bytes_as_arrow_has() -> None:
    wide = pa.decimal128(38, 0)
    values = [(5).to_bytes(16, "big"), (-5).to_bytes(16, "big", signed=True), b"\xfb", None]
    assert to_decimals(pa.array(values, pa.large_binary()), wide).to_pylist() == [5, -5, -5, None]
    for wrong in ((5).to_bytes(17, "big"), b""):
        with pytest.raises(Unreadable, match="does not fit"):
            to_decimals(pa.array([wrong], pa.large_binary()), wide)
