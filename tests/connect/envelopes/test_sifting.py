"""Bad documents among good ones: all of them are found, and few of the good ones are read again."""

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from persist.connect.envelopes import Unreadable, find_suspects, json_rows, parse, read_separately
from persist.connect.envelopes.messages import decode_latin_1, to_decimals

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
