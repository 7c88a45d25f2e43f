"""Files that are damaged, cut off, or hold what their collection cannot: refused by name and line, or exact."""

import bz2
import datetime as dt
import gzip
import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import persist
from persist.connect.egress.files import make_row_writer

NOON = dt.datetime(2024, 1, 1, 12, 30)
Taken = Callable[..., list[dict[str, Any]]]


def parquet(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def stream(table: pa.Table) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    return out.getvalue()


def rows(*values: Any, kind: pa.DataType | None = None) -> bytes:
    return parquet(pa.table({"id": range(len(values)), "v": pa.array(values, kind)}))


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    """Takes in files one after the other, each given by its ending and its bytes; returns what is there then."""
    (tmp_path / "in").mkdir()

    def take(
        *files: tuple[str, str | bytes], together: bool = False, kind: pa.DataType | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        if kind is not None:
            with persist.open(str(tmp_path / "location")) as client:
                client.create_or_load("t", key={"id": pa.int64()}, value={"v": kind})
        for number, (ending, data) in enumerate(files):
            path = tmp_path / "in" / f"{number}.{ending}"
            path.write_bytes(data.encode() if isinstance(data, str) else data)
            if together and number < len(files) - 1:
                continue
            source = {"source": str(tmp_path / "in"), "collection": "t", "key": ["id"], "settle_s": 0.0, **options}
            persist.ingest(str(tmp_path / "location"), source, once=True)
        with persist.open(str(tmp_path / "location"), mode="read") as client:
            return sorted(client.load(options.get("collection", "t")).snapshot().to_pylist(), key=str)

    return take


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("row_csv", "row_files"):
        monkeypatch.setattr(f"persist.connect.ingest.{module}.BLOCK_BYTES", 64 << 10)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1.5], pa.float32()), pa.array([0.1])),
        (pa.array([1.5], pa.float32()), pa.array([1e300])),
        (pa.array([Decimal("1.10")]), pa.array([1.005])),
        (pa.array([True]), pa.array([7])),
        (pa.array([NOON.date()]), pa.array([NOON])),
        (pa.array([NOON.time()]), pa.array([NOON])),
        (pa.array([NOON]), pa.array([1_700_000_000])),
        (pa.array([NOON], pa.timestamp("us", "Asia/Tokyo")), pa.array([NOON])),
        (pa.array([{"a": [1]}]), pa.array([{"a": ["007"]}])),
        (pa.array([1]), pa.array(["007"])),
        (pa.array([1.5]), pa.array([2**53 + 1])),
        (pa.array([{"a": 1.5}], pa.struct([("a", pa.float32())])), pa.array([{"a": 0.1}])),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["parquet", "arrows"])
def test_a_value_that_its_type_would_change_stops_before_its_file(
    taken: Taken, form: str, first: pa.Array, second: pa.Array
) -> None:
    files = [(form, (parquet if form == "parquet" else stream)(pa.table({"id": [1], "v": v}))) for v in (first, second)]
    with pytest.raises(persist.InvalidUsage, match=rf"(?s)1\.{form}.*'v") as caught:
        taken(*files)
    assert "Nothing of it was taken in" in str(caught.value)
    assert not isinstance(caught.value, persist.errors.SchemaMismatch)


def test_a_number_of_a_file_is_taken_into_a_type_that_holds_it(taken: Taken) -> None:
    decimal = parquet(pa.table({"id": [1], "v": pa.array([Decimal("1.50")])}))
    found = taken(
        ("parquet", decimal), ("parquet", rows(7)), ("csv", "id,v\n2,2.25\n"), ("jsonl", '{"id":3,"v":"1e0"}')
    )
    assert [row["v"] for row in found] == [Decimal("7"), Decimal("1.5"), Decimal("2.25"), Decimal("1")]


@pytest.mark.parametrize(
    ("ending", "text"), [("csv", "id,v\n1,1.5\n2,{}\n"), ("jsonl", '{{"id": 1, "v": 1.5}}\n{{"id": 2, "v": {}}}\n')]
)
@pytest.mark.parametrize("number", ["9007199254740993", "123456789012345678.25", "1e400", "1e-400"])
def test_text_that_its_float_would_change_is_named_by_its_line(
    taken: Taken, ending: str, text: str, number: str
) -> None:
    options = {"columns": {"id": "int64", "v": "float64"}}
    with pytest.raises(
        persist.InvalidUsage, match=rf"(?s)0\.{ending}.*line [23]: column 'v': '?{number}'? is not of type double"
    ):
        taken((ending, text.format(number)), **options)


def test_blank_lines_before_the_head_of_a_csv_file_do_not_count(taken: Taken) -> None:
    assert taken(("csv", "\n\r\nid,v\n\n1,x\n")) == [{"id": 1, "v": "x"}]
    with pytest.raises(persist.InvalidUsage, match=r"line 4: column 'id': 'one' is not"):
        taken(("csv", "\n\nid,v\none,y\n"), columns={"id": "int64", "v": "string"}, collection="u")


MAP = pa.map_(pa.string(), pa.int64())
NESTED = pa.list_(pa.struct([("x", pa.map_(pa.int32(), pa.map_(pa.date32(), pa.binary(2))))]))


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (pa.binary(), '"YQA="', b"a\0"),
        (pa.binary(), '""', b""),
        (pa.list_(pa.large_binary()), '["YQ==", null]', [b"a", None]),
        (MAP, '{"b": 1, "a": null}', [("b", 1), ("a", None)]),
        (MAP, '[["b", 1], ["a", null]]', [("b", 1), ("a", None)]),
        (MAP, '[{"key": "a", "value": 9007199254740993}]', [("a", 2**53 + 1)]),
        (MAP, "{}", []),
        (MAP, "null", None),
        (pa.map_(pa.float64(), pa.float64()), '[[NaN, Infinity], ["1e0", 2]]', None),
        (NESTED, '[{"x": {"7": {"2024-01-01": "YWI="}}}, null]', [{"x": [(7, [(NOON.date(), b"ab")])]}, None]),
    ],
)
def test_bytes_and_maps_are_read_from_json(taken: Taken, kind: pa.DataType, written: str, value: Any) -> None:
    [row] = taken(("jsonl", f'{{"id": 1, "v": {written}}}'), kind=kind)
    assert row["v"] == value or repr(row["v"]) == "[(nan, inf), (1.0, 2.0)]"


@pytest.mark.parametrize(
    ("kind", "written", "says"),
    [
        (pa.binary(), '"yes"', "'yes' is not of type binary"),
        (pa.binary(2), '"YQ=="', "is not of type fixed_size_binary"),
        (MAP, '{"a": 1.5}', "is not of type map<string, int64>"),
        (MAP, "[[null, 1]]", "null as the key of a map"),
        (MAP, "[1]", "is not of type map<string, int64>"),
        (pa.map_(pa.string(), pa.float64()), '{"a": 9007199254740993}', "without rounding"),
        (pa.map_(pa.int8(), pa.int8()), '{"300": 1}', "is not of type map<int8, int8>"),
    ],
)
def test_bytes_and_maps_that_do_not_fit_are_named(taken: Taken, kind: pa.DataType, written: str, says: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=rf"(?s)0\.jsonl.*line 2: .*{says}"):
        taken(("jsonl", f'{{"id": 1, "v": null}}\n{{"id": 2, "v": {written}}}'), kind=kind)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("form", ["csv", "json", "parquet", "arrow"])
@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"a\n", b"\xff", None, b""]),
        pa.array([{"k": [("b", b"1")]}, None], pa.struct([("k", pa.map_(pa.string(), pa.binary()))])),
        pa.array([[(1, 0.5)], [], None], pa.map_(pa.int64(), pa.float64())),
        pa.array([123456792.0, 0.25, 16777216.0, 3e38, float("inf")], pa.float32()),
    ],
    ids=["bytes", "map in a struct", "map", "float32"],
)
def test_what_is_written_as_a_file_is_read_equal_or_refused(taken: Taken, form: str, values: pa.Array) -> None:
    out = io.BytesIO()
    table = pa.table({"id": range(len(values)), "v": values})
    try:
        writer = make_row_writer(table.schema, form, out, nan="refuse")
        for batch in table.to_batches():
            writer.write_batch(batch)
        writer.close()
    except persist.InvalidUsage:
        return
    found = taken((form, out.getvalue()), kind=values.type)
    assert [row["v"] for row in sorted(found, key=lambda row: row["id"])] == values.to_pylist()


IDS = [12345678901234567890, 12345678901234567891, 12345678901234567892]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_whole_numbers_beyond_int64_stay_apart(taken: Taken, ending: str, keyed: bool) -> None:
    lines = [f"{n},x" if ending == "csv" else f'{{"id": {n}, "v": "x"}}' for n in IDS]
    text = "\n".join(["id,v", *lines] if ending == "csv" else lines)
    assert [int(row["id"]) for row in taken((ending, text), keyed=keyed)] == IDS


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("number", ["9007199254740993", "9007199254740993.5", "-123456789012345678.25"])
def test_a_whole_number_beside_a_fraction_is_exact(taken: Taken, ending: str, number: str) -> None:
    numbers = [number, "1.5"]
    lines = [f"{at},{n}" if ending == "csv" else f'{{"id": {at}, "v": {n}}}' for at, n in enumerate(numbers)]
    text = "\n".join(["id,v", *lines] if ending == "csv" else lines)
    assert [row["v"] for row in taken((ending, text))] == [Decimal(number), Decimal("1.5")]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('id,v\n1,"abc\n2,d\n3,e\n', 2),
        ('id,v\n1,x\n2,"abc\n3,"d"\n4,e\n', 3),
        ('id,v\n1,x\n2,"', 3),
        ('id,v\n1,"a"b\n', 2),
        ('id,v\n1,"' + "x\n" * 50_000, 2),
    ],
    ids=["cut off", "an even number", "the last byte", "text after quotes", "longer than a block"],
)
def test_quotes_that_do_not_end_are_named_by_their_line(taken: Taken, text: str, line: int) -> None:
    with pytest.raises(persist.InvalidUsage, match=rf"0\.csv .*quotes of the record that begins on line {line} "):
        taken(("csv", text))


def test_quotes_inside_of_a_field_are_text(taken: Taken) -> None:
    found = taken(("csv", 'id,v\n1,5" pipe\n2,"q""x"\n3,"a\nb"\n4,""\n5,""""\n'))
    assert [row["v"] for row in found] == ['5" pipe', 'q"x', "a\nb", "", '"']


TABLE = pa.table({"id": [1, 2, 3], "v": [1.5, 2.5, 3.5]})
TEXT = b"id,v\n" + b"1,2.5\n" * 50_000


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    ("ending", "data"),
    [
        ("csv", b"id,v\n1,2.5\n2"),
        ("csv", b"id,v\n1,2.5\n2,\xc3"),
        ("jsonl", b'{"id": 1, "v": 2.5}\n{"id": 2, "v": 2'),
        ("jsonl", b'{"id": 1, "v": "\xc3"}'),
        ("csv.gz", TEXT),
        ("csv.gz", gzip.compress(TEXT)[:-9]),
        ("csv.gz", gzip.compress(TEXT)[:5]),
        ("csv.bz2", bz2.compress(TEXT)[:-9]),
        ("csv.zst", pa.compress(TEXT, codec="zstd", asbytes=True)[:-9]),
        ("parquet", parquet(TABLE)[:-9]),
        ("arrows", stream(TABLE)[:-8]),
        ("arrows", stream(TABLE)[:-200]),
        ("arrows", stream(TABLE) * 2),
        ("csv", "id,v\n1,2.5\n".encode("utf-16")),
        ("csv", "id,é\n1,2.5\n".encode("latin-1")),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_that_is_cut_off_or_foreign_is_refused_by_its_name(
    taken: Taken, ending: str, data: bytes, is_first: bool
) -> None:
    files = [] if is_first else [("csv", "id,v\n1,2.5\n")]
    with pytest.raises(persist.InvalidUsage, match=rf"{len(files)}\.{ending}"):
        taken(*files, (ending, data))


A, AB = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (rows({"a": 1}, kind=A), rows({"a": 2, "b": "x"}, kind=AB), "v.b"),
        (rows([{"a": 1}], kind=pa.list_(A)), rows([{"a": 2, "b": "x"}], kind=pa.list_(AB)), "v.element.b"),
        (
            rows([("k", {"a": 1})], kind=pa.map_(pa.string(), A)),
            rows([("k", {"a": 1, "b": "x"})], kind=pa.map_(pa.string(), AB)),
            "v.value.b",
        ),
        ('{"id": 1, "v": {"a": 1}}', '{"id": 2, "v": {"a": 2, "b": "x"}}', "v.b"),
        ('{"id": 1, "v": [{"a": 1}]}', '{"id": 2, "v": [{"a": 2, "b": "x"}]}', "v.element.b"),
    ],
)
def test_another_field_inside_of_a_column_stops_before_its_file(
    taken: Taken, first: str | bytes, second: str | bytes, path: str
) -> None:
    ending = "jsonl" if isinstance(first, str) else "parquet"
    with pytest.raises(persist.InvalidUsage, match=rf"(?s)1\.{ending}.*'{path}'.*say drift"):
        taken((ending, first), (ending, second))


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [(rows({"a": 1}), rows({"a": "x"}), "v"), ('{"id": 1, "v": {"a": 1}}', '{"id": 2, "v": {"a": "x"}}', "v")],
)
@pytest.mark.parametrize("drift", ["refuse", "add", "ignore"])
def test_another_type_inside_of_a_column_stops_before_its_file(
    taken: Taken, first: str | bytes, second: str | bytes, path: str, drift: str
) -> None:
    ending = "jsonl" if isinstance(first, str) else "parquet"
    with pytest.raises(persist.InvalidUsage, match=rf"(?s)1\.{ending}.*'{path}"):
        taken((ending, first), (ending, second), drift=drift)


MOMENTS = [dt.datetime(1000, 1, 1), NOON, dt.datetime(9999, 12, 31, 23, 59, 59), None]


@pytest.mark.parametrize("shape", ["flat", "list", "struct"])
def test_int96_of_all_centuries_comes_in_right(taken: Taken, shape: str) -> None:
    at = pa.array(MOMENTS, pa.timestamp("us"))
    if shape == "list":
        at = pa.ListArray.from_arrays(pa.array(range(5), pa.int32()), at)
    if shape == "struct":
        at = pa.StructArray.from_arrays([at], ["x"])
    data = parquet(pa.table({"id": range(4), "v": at}), use_deprecated_int96_timestamps=True, store_schema=False)
    found = [row["v"] for row in taken(("parquet", data))]
    assert [v[0] if shape == "list" else v["x"] if shape == "struct" else v for v in found] == MOMENTS


def test_int96_finer_than_a_microsecond_is_kept_by_nanoseconds_alone(taken: Taken) -> None:
    data = parquet(
        pa.table({"id": [1], "v": pa.array([1], pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True,
        store_schema=False,
    )  # fmt: skip
    with pytest.raises(persist.InvalidUsage, match=r"(?s)0\.parquet.*row 1: .*'v'.*timestamp\[us\]"):
        taken(("parquet", data))
    [row] = taken(("parquet", data), columns={"v": "timestamp[ns]"}, collection="u")
    assert row["v"].nanosecond == 1


@pytest.mark.parametrize(
    ("ending", "data"),
    [
        ("csv", "id,v,v\n1,2,3\n"),
        ("jsonl", '{"id": 1, "v": 1, "v": 2}'),
        ("jsonl", '{"id": 1, "w": {"v": 1, "v": 2}}'),
        ("parquet", parquet(pa.Table.from_arrays([pa.array([1])] * 3, names=["id", "v", "v"]))),
        ("arrows", stream(pa.Table.from_arrays([pa.array([1])] * 3, names=["id", "v", "v"]))),
        ("parquet", parquet(pa.table({"id": [1], "w": pa.StructArray.from_arrays([pa.array([1])] * 2, ["v", "v"])}))),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_column_that_is_named_twice_is_refused(taken: Taken, ending: str, data: str | bytes, is_first: bool) -> None:
    files = [] if is_first else [("jsonl", '{"id": 0, "v": 5, "w": {"v": 5}}')]
    with pytest.raises(persist.InvalidUsage, match=rf"(?s){len(files)}\.{ending}.*'.*v'"):
        taken(*files, (ending, data), drift="ignore")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("ending", "begin", "line", "bad"),
    [("csv", "id,v\n", "1,2\n", "1,x\n"), ("jsonl", "", '{"id": 1, "v": 2}\n', '{"id": 1, "v": "x"}\n')],
)
def test_a_value_behind_the_first_block_is_named_by_its_line(
    taken: Taken, ending: str, begin: str, line: str, bad: str
) -> None:
    many = (72 << 10) // len(line)
    number = many + bool(begin) + 1
    with pytest.raises(persist.InvalidUsage, match=rf"(?s)1\.{ending} .*line {number}: column 'v'.*x"):
        taken((ending, begin + line), (ending, begin + line * many + bad))


@pytest.mark.usefixtures("small_blocks")
def test_a_field_behind_the_first_block_follows_drift(taken: Taken) -> None:
    many, more = '{"id": 1}\n' * 9_000, '{"id": 2, "w": {"a": 9007199254740993}}'
    assert taken(("jsonl", '{"id": 0}'), ("jsonl", many + more), drift="add")[-1] == {
        "id": 2, "w": {"a": 9007199254740993}
    }  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_column_gets_its_type_from_the_first_file_that_has_a_value(taken: Taken, ending: str) -> None:
    texts = ["id,v\n1,\n", "id,v\n2,\n", "id,v\n3,2.5\n"]
    if ending == "jsonl":
        texts = ['{"id": 1, "v": null}', '{"id": 2, "v": null}', '{"id": 3, "v": 2.5}']
    assert [row["v"] for row in taken(*((ending, text) for text in texts))] == [None, None, 2.5]


@pytest.mark.parametrize(
    ("ending", "text", "column"),
    [
        ("csv", "id,v\n", "id"),
        ("csv", "id,v\n,1\n", "id"),
        ("jsonl", '{"id": null, "v": 1}', "id"),
        ("jsonl", '{"id": 1, "v": []}', "v"),
        ("jsonl", '{"id": 1, "v": {}}', "v"),
        ("jsonl", '{"id": 1, "v": {"a": null, "b": 2}}', "v"),
    ],
)
def test_a_file_whose_values_tell_no_type_asks_for_it(taken: Taken, ending: str, text: str, column: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=rf"0\.{ending} has no value in the column '{column}' .*columns = "):
        taken((ending, text))
    later = {"csv": "id,v\n1,2\n", "jsonl": text.replace("null", "7").replace("[]", "[7]").replace("{}", '{"a": 7}')}
    assert taken((ending, text), (ending, later[ending]), together=True)


@pytest.mark.parametrize("text", ["[]", "{}", '{"a": null}', "[\n]"])
def test_a_first_file_without_columns_is_named(taken: Taken, text: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=r"0\.jsonl|no file with columns at .*columns = "):
        taken(("jsonl", text))


def test_moments_of_json_keep_what_their_texts_say(taken: Taken) -> None:
    texts = '{"id": 1, "a": "2024-01-01", "b": "2024-01-01T14:30:00+02:00", "c": ["2024-01-01 12:30"]}'
    [row] = taken(("jsonl", texts))
    assert row == {"id": 1, "a": NOON.date(), "b": NOON.replace(tzinfo=dt.UTC), "c": [NOON]}


def test_a_line_of_json_has_its_key_and_another_column_may_be_null(taken: Taken) -> None:
    first = ("jsonl", '{"id": 1, "v": 1}\n{"id": 2}\n{"id": null, "v": 3}\n')
    assert taken(first) == [{"id": 1, "v": 1}, {"id": 2, "v": None}, {"id": None, "v": 3}]


def test_a_line_of_json_that_lacks_its_key_is_refused(taken: Taken) -> None:
    second = ("jsonl", '{"id": 4}\n{"v": 5}\n{"id": null}\n')
    with pytest.raises(persist.InvalidUsage, match=r"1 of the 3 rows(?s:.*)line 2: it lacks the column 'id'"):
        taken(("jsonl", '{"id": 1, "v": 1}\n'), second)


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_column_that_no_row_of_a_file_has_is_a_warning(
    taken: Taken, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = {"jsonl": ('{"id": 1, "v": 1}\n', '{"id": 2}\n'), "csv": ("id,v\n1,1\n", "id\n2\n")}[ending]
    taken((ending, files[0]), (ending, files[1]))
    assert [record.message for record in caplog.records if "these are NULL: v" in record.message]


def test_documents_of_mixed_shape_go_into_one_column_as_they_are_written(taken: Taken) -> None:
    lines = [
        '{"id": 1, "payload": {"a": 1.50, "b": [1, {"c": "é"}]}, "n": 1}',
        '{"payload": [1,2], "id": 2, "n": 2}',
        '{"id": 3, "payload": 7.0}',
        '{"id": 4, "payload": null}',
        '{"id": 5, "payload": "{\\"q\\": 1}"}',
    ]
    expected = ['{"a": 1.50, "b": [1, {"c": "é"}]}', "[1,2]", "7.0", None, '{"q": 1}']
    rows = taken(("json", "\n".join(lines)), columns={"payload": "json"})
    assert [row["payload"] for row in rows] == expected
    more = taken(("json", lines[0]), ("json", '{"id": 6, "payload": {}, "new": "x"}'), columns={"payload": "json"},
                 drift="add", changed="ignore")  # fmt: skip
    assert {"id": 6, "payload": "{}", "n": None, "new": "x"} in more
    assert taken(("csv", ""), ("csv", ""), ("csv", 'id,payload\n7,"{""a"":1}"\n'), drift="add", changed="ignore")[-1][
        "payload"
    ] == '{"a":1}'  # fmt: skip


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            '{"id": 1, "payload": "nope"}',
            "line 1: column 'payload': it has 'nope' in column 'payload', which is no JSON",
        ),
        ('{"id": 1, "payload": {"a": NaN}}', "line 1: column 'payload': .* NaN is not JSON"),
        ('{"id": 1, "payload": {"a": 1}, "payload": 2}', "line 1: it has the field 'payload' twice"),
        ('{"id": 1, "payload": {"a": 1}, "more": 2}', "line 1: it has the field 'more'"),
    ],
)
def test_a_line_without_a_document_is_refused_by_its_reason(taken: Taken, line: str, reason: str) -> None:
    taken(("json", '{"id": 0, "payload": [true]}'), columns={"payload": "json"})
    with pytest.raises(persist.InvalidUsage, match=reason):
        taken(("json", '{"id": 0, "payload": [true]}'), ("json", line), columns={"payload": "json"}, changed="ignore")


@pytest.mark.parametrize("line", ['{"v": NaN}', '{"v": -Infinity}'])
def test_a_line_with_nan_and_without_its_key_is_refused(taken: Taken, line: str) -> None:
    assert taken(("json", '{"id": 1, "v": 1.5}\n{"id": 2, "v": Infinity}'))[1] == {"id": 2, "v": float("inf")}
    with pytest.raises(persist.InvalidUsage, match="line 1: it lacks"):
        taken(("json", '{"id": 1, "v": 1.5}'), ("json", line), changed="ignore")
