"""Bad documents among good ones: all of them are found, and few of the good ones are read again."""

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from persist.upsert.envelopes.json_rows import parse, sifted, suspects

FIELDS = pa.schema([("a", pa.struct([("id", pa.int64()), ("at", pa.timestamp("us"))])), ("l", pa.list_(pa.string()))])


class Counting:
    """Reads documents, and counts them."""

    def __init__(self) -> None:
        self.documents = 0

    def read(self, texts: pa.Array) -> pa.Table:
        self.documents += len(texts)
        return parse(texts, FIELDS)

    def suspects(self, texts: pa.Array) -> npt.NDArray[np.bool_]:
        return suspects(texts, FIELDS)


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
    found = sifted(pa.array([each.encode() for each in documents], pa.large_binary()), reading)
    assert [each.row for each in sorted(found.bad, key=lambda each: each.row)] == places
    rows = np.sort(np.concatenate([rows for rows, _ in found.pieces]))
    assert rows.tolist() == [n for n in range(3000) if n not in places]
    assert reading.documents < 2.1 * len(documents)


def test_a_document_that_only_looks_bad_is_good() -> None:
    documents = [b'{"a":null,"l":[null],"z":[1,{"b":2}]}', b"{}", b" {} ", b'{"a":{"id":null}}', b"{"]
    found = sifted(pa.array(documents, pa.large_binary()), Counting())
    assert [each.row for each in found.bad] == [4]
    assert sum(len(table) for _, table in found.pieces) == 4
