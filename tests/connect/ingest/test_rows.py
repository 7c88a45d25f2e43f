"""Types and rows of one file, exactly: what is inferred, what is read, and the reason for each row that is not."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from persist.codecs.types.arrow_types import JSON
from persist.codecs.types.schema import CollectionSchema
from persist.connect.ingest.row_casts import Misfits
from persist.connect.ingest.row_columns import RowColumns
from persist.connect.ingest.row_csv import _QuoteChecker
from persist.connect.ingest.row_files import read_names, read_pieces
from persist.connect.ingest.row_formats import MEND, RowFile
from persist.connect.ingest.row_types import contains_null, infer_types

S, NS, US = (pa.timestamp(unit) for unit in ("s", "ns", "us"))


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def make(ending: str, data: str | bytes) -> RowFile:
        path = tmp_path / f"f.{ending}"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return RowFile.at(str(path), None, name=f"f.{ending}")

    return make


def test_each_column_of_csv_has_the_first_type_that_fits_all_its_texts(make: Any) -> None:
    for texts, kind in [
        (["1", "-2", ""], pa.int64()), (["true", "FALSE"], pa.bool_()), (["1", "true"], pa.string()),
        (["1.5", "2"], pa.float64()), (["1e5", "nan"], pa.float64()), (["2026-01-02"], pa.date32()),
        (["12:30:00"], pa.time32("s")), (["2026-01-02 03:04:05"], S), (["2026-01-02", "2026-01-02 03:04:05"], S),
        (["2026-01-02 03:04:05", "2026-01-02 03:04:05.0"], NS), (["2026-01-02 03:04:05.123456789"], NS),
        (["0001-01-01 00:00:00.5"], US),
        (["2026-01-02T03:04:05Z", "2026-01-02T03:04:05+02:00"], pa.timestamp("s", "UTC")),
        (["2026-01-02T03:04:05.5Z"], pa.timestamp("ns", "UTC")),
        (["0001-01-01T03:04:05.5Z"], pa.timestamp("us", "UTC")),
        (["2026-01-02T03:04:05Z", "2026-01-02T03:04:05"], pa.string()), (["12:30:00.5"], pa.string()),
        (["007"], pa.string()), (["+7"], pa.string()), (["-07"], pa.string()), (["0", "0.5"], pa.float64()),
        (["+1.5"], pa.float64()), (["0x10"], pa.string()), ([" 1"], pa.string()), (["x", ""], pa.string()),
        (["", ""], pa.null()), (["9223372036854775808"], pa.float64()),
        (["9223372036854775809"], pa.decimal128(38, 0)), (["9007199254740993", "1.25"], pa.decimal128(38, 2)),
        (["9007199254740992", "1.25"], pa.float64()), (["0.1", "123456789012345678"], pa.decimal128(38, 1)),
    ]:  # fmt: skip
        rows = "".join(f'{at},"{text}"\n' if text else f"{at},\n" for at, text in enumerate(texts))
        assert infer_types(make("csv", f"n,c\n{rows}1,2,3\n")) == {"n": pa.int64(), "c": kind}, texts
    known = {"b": pa.int8(), "z": pa.int8()}
    assert infer_types(make("csv", "a,b\n1,x\n"), known) == {"a": pa.int64(), "b": pa.int8()}
    for data, text in [
        (
            b"a,b\n1,x\n2,\xff\n",
            "f.csv cannot be read as csv: line 3: column 'b' is not UTF-8. Convert the file, such as with iconv -t "
            f"utf-8. {MEND}",
        ),
        (b"a\n1.5\n1e400\n", "f.csv: line 3: column 'a' has the number 1e400"),
        (b"a\n1.5\n" + b"1" * 39, f"f.csv: line 3: column 'a' has the number {'1' * 39}"),
    ]:
        with pytest.raises(persist.InvalidUsage) as caught:
            infer_types(make("csv", data))
        assert str(caught.value)[: len(text)] == text


def test_each_field_of_json_has_a_type_that_holds_all_its_values(make: Any) -> None:
    def find(*values: str, **known: pa.DataType) -> Any:
        return infer_types(make("jsonl", "\n\n".join(f'{{"v": {value}}}' for value in values)), known)["v"]

    for values, kind in [
        (["1", "null", "2"], pa.int64()), (["1", "2.5"], pa.float64()), (["null"], pa.null()), (["true"], pa.bool_()),
        (["[]", "[1]"], pa.list_(pa.int64())), (['{"a": 1}', '{"b": "x"}'], pa.struct([("a", pa.int64()),
        ("b", pa.string())])),
        (['"2026-01-02"'], pa.date32()), (['"2026-01-02T03:04:05Z"', "null"], pa.timestamp("s", "UTC")),
        (['"2026-01-02 03:04:05"', '"x"'], pa.string()), (['["2026-01-02T03:04:05"]'], pa.list_(S)),
        (['{"a": ["2026-01-02"], "b": "2026-01-02 03:04:05"}'], pa.struct([("a", pa.list_(pa.date32())), ("b", S)])),
        (["9007199254740993", "0.5"], pa.decimal128(38, 1)),
        (["[18446744073709551617]"], pa.list_(pa.decimal128(38, 0))),
    ]:  # fmt: skip
        assert find(*values) == kind, values
    assert find('{"a": 1}', "2", v=JSON) == JSON
    for data, text in [
        ('{"a": 1}\n\n{"a": \n', "f.jsonl cannot be read as json: line 3: "),
        ('{"a": 1}\n{"a": "x"}\n', "f.jsonl cannot be read as json: line 2: "),
        ('{"a": {"b": 1, "b": 2}}', "f.jsonl"),
    ]:
        with pytest.raises(persist.InvalidUsage) as caught:
            infer_types(make("jsonl", data))
        assert str(caught.value)[: len(text)] == text
        assert str(caught.value).endswith(MEND)
    nested = [pa.null(), pa.struct([]), pa.list_(pa.null()), pa.struct([("a", pa.int8()), ("b", pa.null())])]
    assert [*map(contains_null, nested)] == [True] * 4
    assert not any(map(contains_null, (pa.int8(), pa.list_(pa.int8()), pa.struct([("a", pa.int8())]))))


def test_types_of_several_blocks_of_json_are_merged(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.connect.ingest.row_files.BLOCK_BYTES", 1)
    for values, kind in [
        (["null", "1", "1"], pa.int64()), (["1", "null", "2.5"], pa.float64()), (["2.5", "1"], pa.float64()),
        (['{"a": null}', '{"a": 1, "b": [null]}', '{"b": ["x"]}'], pa.struct([("a", pa.int64()),
        ("b", pa.list_(pa.string()))])),
        (['"2026-01-02 03:04:05"', '"x"'], pa.string()), (['"x"', '"2026-01-02 03:04:05"'], pa.string()),
        (['"2026-01-02 03:04:05"', '"2026-01-02 03:04:05.5"'], pa.string()),
    ]:  # fmt: skip
        text = "\n\n".join(f'{{"v": {value}}}' for value in values)
        assert infer_types(make("jsonl", f"\n{text}")) == {"v": kind}, values
    with pytest.raises(persist.InvalidUsage) as caught:
        infer_types(make("jsonl", '{"v": {"a": [1]}}\n\n{"v": {"a": ["x"]}}\n'))
    assert str(caught.value) == (
        "f.jsonl: by line 3, column 'v.a' is int64 and string. Write all its values alike, or say its type, such as "
        f'columns = {{ v.a = "string" }}. {MEND}'
    )


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ('a,"b"\r\n"c""d",""\n"x\ny,"\n', False), ('"a"', False), ('""""', False), ("a,b\n", False), ("", False),
        ('a"b"\n', True), ('"a"b\n', True), ('"a\n', True), ('"a""', True), ('a,"b" ,c\n', True), ('a\n"', True),
    ],
)  # fmt: skip
def test_quotes_are_found_wrong_however_the_bytes_come(text: str, is_wrong: bool) -> None:
    for size in range(1, len(text) + 2):
        checker, parts = _QuoteChecker(io.BytesIO(text.encode())), []
        while part := checker.read(size):
            parts.append(part)
        assert (b"".join(parts).decode(), checker.are_wrong) == (text, is_wrong), size
    checker = _QuoteChecker(io.BytesIO(text.encode()))
    assert (checker.read(), checker.read()) == (text.encode(), b"")


VALUE = {"n": pa.int16(), "s": pa.string(), "at": pa.timestamp("us", "UTC"), "doc": pa.string()}
SCHEMA = CollectionSchema.of(key={"id": pa.int64()}, value=VALUE)


def read(file: RowFile, **options: Any) -> tuple[list[dict[str, Any]], list[str], int]:
    """Return the rows of a file, the reasons for others, and their number."""
    misfits = Misfits()
    columns = RowColumns(options.pop("schema", SCHEMA), "leave out {}", **options)
    pieces = [*read_pieces(file, columns, misfits)]
    assert {tuple(piece.schema.names) for piece in pieces} <= {tuple(piece.schema.names) for piece in pieces[:1]}
    return [row for piece in pieces for row in piece.to_pylist()], misfits.reasons, misfits.count


def test_rows_of_csv_are_read_or_refused_by_line(make: Any) -> None:
    schema = CollectionSchema.of(key={"id": pa.int64()}, value={"s": pa.string(), "b": pa.bool_()})
    text = 'b,id,s\ntrue,1,"a\nb"\n,2,\nfalse,x,""\n\n1\nyes,4,5\n,5,""\n1,2,3,4\n'
    rows, reasons, count = read(make("csv", text), schema=schema)
    assert rows == [{"b": True, "id": 1, "s": "a\nb"}, {"b": None, "id": 2, "s": None}, {"b": None, "id": 5, "s": ""}]
    assert (count, reasons) == (4, [
        "line 5: column 'id': 'x' is not of type int64",
        "line 7: it has 1 field, and the head has 3",
        "line 8: column 'b': 'yes' is not of type bool",
        "line 10: it has 4 fields, and the head has 3",
    ])  # fmt: skip
    many = make("csv", "b,id,s\n" + "1\n" * 3 + "no,1,\n" * 20)
    _, reasons, count = read(many, schema=schema)
    assert (count, [reason.partition(":")[0] for reason in reasons]) == (23, [f"line {line}" for line in range(2, 12)])
    assert read(make("csv", "\ufeffid,s,b\n"), schema=schema) == ([], [], 0)
    assert read_names(make("csv", "\ufeff\n\nid,s,b\n")) == ["id", "s", "b"]
    for head, text in [
        ("", "f.csv is empty: the first line of a CSV file names its columns"),
        ("\n\n", "f.csv is empty: the first line of a CSV file names its columns"),
        ("id,s\0\n", "f.csv cannot be read as csv: its first line is not UTF-8. Convert it, such as with iconv "
         "-t utf-8"),
        ("id,s,b,s,b\n", "f.csv has the column 'b' more than once: give each a name of its own"),
        ("id,s\n", "f.csv has no column 'b'; it has ['id', 's']"),
        ("id,s,bb\n", "f.csv has no column 'b', did you mean 'bb'?; it has ['id', 's', 'bb']"),
        ("id,s,b,t\n", "f.csv has the column 't', which the collection has not: leave out t."),
        ("id,s,b,_time\n", "f.csv has the column '_time', which the collection has not: leave out _time. A time for "
         "all rows goes with rows without one."),
    ]:  # fmt: skip
        with pytest.raises(persist.InvalidUsage) as caught:
            read(make("csv", head), schema=schema)
        assert str(caught.value) == text
    listed = CollectionSchema.of(key={"id": pa.int64()}, value={"l": pa.list_(pa.int8())})
    with pytest.raises(
        persist.InvalidUsage, match=r"^column 'l' of type list<.*> cannot be read from CSV: use Parquet or"
    ):
        read(make("csv", "id,l\n"), schema=listed)


def test_rows_of_json_are_read_or_refused_by_line(make: Any) -> None:
    schema = CollectionSchema.of(
        key={"id": pa.int64()}, value={"f": pa.float64(), "s": pa.struct([("a", pa.int8()),
        ("m", pa.map_(pa.string(), pa.int8()))])}
    )  # fmt: skip
    good = '{"id": 1, "f": NaN, "s": {"a": 1, "m": {"k": 2}}}\n\n {"s": null, "f": null, "id": 2} \n'
    whole = [{"id": 1, "f": "nan", "s": {"a": 1, "m": [("k", 2)]}}, {"id": 2, "f": None, "s": None}]
    rows, reasons, count = read(make("jsonl", "\ufeff" + good), schema=schema)
    rows[0]["f"] = str(rows[0]["f"])
    assert (rows, reasons, count) == (whole, [], 0)
    bad = [
        ('{"id": 1, "f": 1, "s": null, "f": 2}', "it has the field 'f' twice"),
        ("{", "it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[1]", "it is not a JSON object"),
        ('{"id": 1, "f": 1, "s": null, "g": 1}', "it has the field 'g', which the collection has not: leave out g"),
        ('{"id": 1, "f": 1, "s": {"x": 1}}', "it has the field 's.x', which the collection has not: leave out s.x"),
        ('{"id": 1, "f": 1}', "it lacks the column 's', which would be NULL: give 's' as null if that is meant"),
        ('{"id": 1.5, "f": 1, "s": null}', "column 'id': 1.5 is not of type int64"),
        ('{"id": 1, "f": "x", "s": null}', "column 'f': \"x\" is not of type double"),
        ('{"id": 1, "f": 9007199254740993, "s": null}',
         "column 'f': 9007199254740993 is not of type double without rounding"),
        ('{"id": 1, "f": 1, "s": {"a": 300, "m": null}}',
         "column 's': {\"a\":300,\"m\":null} is not of type struct<a: int8, m: map<string, int8>>"),
    ]  # fmt: skip
    rows, reasons, count = read(make("jsonl", good + "\n".join(line for line, _ in bad) + "\n" + good), schema=schema)
    assert ([row["id"] for row in rows], count) == ([1, 2, 1, 2], len(bad))
    assert reasons == [f"line {at}: {reason}" for at, (_, reason) in enumerate(bad, 4)]
    _, reasons, count = read(make("jsonl", good + "{\n" * 12), schema=schema)
    assert (count, [reason.partition(":")[0] for reason in reasons]) == (12, [f"line {at}" for at in range(4, 14)])
    assert read(make("jsonl", b'{"id": 1, "f": 1, "s": "\xff"}'), schema=schema)[1] == ["line 1: it is not UTF-8"]
    deep = read(make("jsonl", '{"id": 1, "f": 1, "s": ' + "[" * 100_000), schema=schema)
    assert deep == ([], ["line 1: it nests too deeply"], 1)
    assert read(make("jsonl", "\n"), schema=schema) == ([], [], 0)
    texts = ('\n{"a": 1, "b": 2}\n{"c": 3}', "[]", "{", "", "[" * 100_000)
    assert [read_names(make("jsonl", text)) for text in texts] == [
        ["a", "b"], [], [], [], [],
    ]  # fmt: skip


def test_options_say_which_columns_a_file_may_lack_or_have(make: Any) -> None:
    schema = CollectionSchema.of(key={"id": pa.int64()}, value={"v": pa.string(), "s": pa.struct([("a", pa.int8())])})
    row = {"id": 1, "v": None, "s": None}
    assert read(make("jsonl", '{"id": 1}'), schema=schema, may_lack_values=True) == ([row], [], 0)
    assert read(make("jsonl", '{"id": 1, "x": 2}'), schema=schema, keys_only=True, ignored=("x",)) == (
        [{"id": 1}],
        [],
        0,
    )
    found = read(
        make("jsonl", '{"id": 1, "x": 2, "s": {"a": 3, "b": 4}}'),
        schema=schema,
        may_lack_values=True,
        ignored=("x", "s.b"),
    )
    assert found == ([row | {"s": {"a": 3}}], [], 0)
    events = make("jsonl", '{"id": 1, "_deleted": true}\n{"id": 2, "v": "x", "s": null}\n{"id": 3, "_deleted": false}')
    rows, reasons, count = read(events, schema=schema, mark="_deleted")
    assert rows == [row | {"_deleted": True}, {"id": 2, "v": "x", "s": None, "_deleted": None}]
    assert (reasons, count) == (
        ["line 3: it lacks the columns 'v', 's', which would be NULL: give 'v' as null if that is meant"],
        1,
    )
    events = make("jsonl", '{"id": 1, "_deleted": true, "x": 1}')
    assert read(events, schema=schema, mark="_deleted", ignored=("x",)) == ([row | {"_deleted": True}], [], 0)
    plain = CollectionSchema.of(key={"id": pa.int64()}, value=None)
    updates = make("csv", "id,_time,_diff\n1,4,1\n2,5,-1\n3,,1\n4,9,\n5,6,2\n6,x,1\n7,-1,1\n")
    rows, reasons, count = read(updates, schema=plain, mark="_diff", time_column="_time", upper=5)
    assert rows == [{"id": 2, "_time": 5, "_diff": -1}, {"id": 5, "_time": 6, "_diff": 2}]
    assert (count, reasons) == (5, [
        "line 2: its time 4 is sealed: times from 5 on can be written",
        "line 4: column '_time' is empty, and every row needs a time",
        "line 5: column '_diff' is missing its number",
        "line 7: column '_time': 'x' is not of type int64",
        "line 8: its time -1 is not allowed: times go from 0 to 9223372036854775806",
    ])  # fmt: skip
    lines = make("jsonl", '{"id": 1, "_time": "x"}\n{"id": 2, "_time": "5"}')
    assert read(lines, schema=plain, time_column="_time") == (
        [{"id": 2, "_time": 5}], ["line 1: column '_time': 'x' is not of type int64"], 1,
    )  # fmt: skip
    moments = CollectionSchema.of(key={"id": pa.int64()}, value=None, timeline="ms")
    for ending, text in (("csv", "id,at\n1,2026-01-02\n"), ("jsonl", '{"id": 1, "at": "2026-01-02"}')):
        rows, reasons, _ = read(make(ending, text), schema=moments, time_column="at")
        assert (rows, reasons) == ([{"id": 1, "at": 1_767_312_000_000}], [])
    table = pa.table({"id": [1, 2], "_time": [5, None], "x": ["a", "b"]})
    pq.write_table(table, out := io.BytesIO())
    rows, reasons, _ = read(make("parquet", out.getvalue()), schema=plain, time_column="_time", ignored=("x",))
    assert (rows, reasons) == ([{"id": 1, "_time": 5}], ["row 2: column '_time' is empty, and every row needs a time"])
