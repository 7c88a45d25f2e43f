"""Values of documents that are stored beside them: chosen, exact as DuckDB says, used by filters, and examined."""

import json
from collections.abc import Sequence
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.codecs.part import shredding
from persist.codecs.part.decoding import Request, decode_part
from persist.codecs.part.describing import check_part
from persist.codecs.part.filters import select_matching_parts
from persist.codecs.part.index import decode_groups, read_index
from persist.codecs.part.part import Part
from persist.codecs.part.stream import Encoded, PartStream, encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.core.expression.filters import parse_where
from tests.support.tiers import examples

SCHEMA = CollectionSchema.of({"id": int}, {"n": int, "payload": persist.JSON})
NAMES = st.sampled_from(["a", "b", "a.b", "ü", "a'b", "$", "*", "0", "", 'x"y', "end: 'x"])
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
WRITTEN = st.sampled_from(
    ['{"a":1,"a":2}', '{"a":1.0}', '{"a":1}', '{"a":-0}', '{"a":1e400}', '{"a":null}', "{}", '{"\\u0061":"\\n\\u0000"}',
     '{"a":{"b":"x"}}', '{"a.b":3}', '{"a":12345678901234567890123}', '{"a":[1, 2]}', ' {"a" : true} ', '"a"', "7"]
)  # fmt: skip
PATHS = ["a", "$.a", "$.a.b", "a.b", '$."a.b"', "ü", "a'b", "$", "*", "0", "/a", "$.a[0]", "end: 'x", "b"]


@pytest.fixture
def for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    store_values_of_few(monkeypatch)


def store_values_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shredding, "ROWS_MIN", 1)


def rows_of(documents: Sequence[str | None]) -> pa.Table:
    count = range(len(documents))
    columns = {
        "id": [*count],
        "n": [*count],
        "payload": documents,
        "_time": [0 for _ in count],
        "_diff": [1 for _ in count],
    }
    return pa.table(columns, schema=SCHEMA.arrow)


def encoded(documents: Sequence[str | None], groups: int = 1) -> Encoded:
    [(data, part)] = encode_parts(rows_of(documents), SCHEMA, row_group_rows=-(-len(documents) // groups))
    return data, part


def value_names(data: bytes) -> tuple[str, ...]:
    metadata = pa.parquet.read_metadata(pa.BufferReader(data))
    entry = shredding.read_entry(metadata.metadata, metadata.num_row_groups)
    return () if entry is None else entry.names


def kept(data: bytes, part: Part, where: str) -> list[int]:
    """Return the rows that a condition keeps, which all ways of reading agree on."""
    filter_ = parse_where(where, SCHEMA)
    whole = decode_part(data, part, SCHEMA, filter=filter_)
    start, end = part.footer_range
    index = read_index(data[start:end], part, SCHEMA)
    pieces = [(at, data[group.start : group.end]) for at, group in enumerate(index.groups)]
    for columns in (["id"], ["payload", "id"]):
        for table in (
            decode_part(data, part, SCHEMA, filter=filter_, columns=columns),
            decode_groups(pieces, index, part, Request(SCHEMA, columns, filter_)),
        ):
            assert table.equals(whole.select(columns))
    if len(whole):
        assert select_matching_parts([part], filter_, SCHEMA)
    kept_ids: list[int] = whole["id"].to_pylist()
    return kept_ids


def test_paths_that_most_documents_have_are_stored() -> None:
    documents = [
        json.dumps(
            {"at": at, "user": {"name": f"u{at}", "on": True}, "rare": 1} if at % 20 else {"at": "x", "user": {}}
        )
        for at in range(4000)
    ]
    data, part = encoded([doc if at else None for at, doc in enumerate(documents)], groups=3)
    numbers = ('2 ->> $."at"', '2 ->> $."at" ::DOUBLE', '2 ->> $."rare"', '2 ->> $."rare" ::DOUBLE')
    assert value_names(data) == (*numbers, '2 ->> $."user"."name"', '2 ->> $."user"."on"')
    assert part.stats['2 ->> $."rare" ::DOUBLE'] == ("1.0", "1.0", 200)
    assert part.stats['2 ->> $."at" ::DOUBLE'][1] == "nan", "a text is among its numbers"
    assert part.stats['2 ->> $."user"."on"'] == ("true", "true", 200)
    assert pa.parquet.read_table(pa.BufferReader(data)).column_names == SCHEMA.arrow.names
    assert kept(data, part, "payload->>'$.user.name' = 'u7'") == [7]
    assert kept(data, part, "payload->'user'->>'name' in ('u7', 'u3999')") == [7, 3999]
    assert kept(data, part, "n < 25 and not (payload->>'at' <= '2')") == [*range(3, 10), *range(20, 25)]
    assert len(kept(data, part, "payload->>'rare' is null")) == 200


@pytest.mark.parametrize(
    ("documents", "names"),
    [
        (['{"a":1}'] * 1023, ()),
        (['{"a":"' + "x" * 65 + '"}'] * 1024, ()),
        (['{"a":1}'] * 900 + ["{}"] * 124, ()),
        (['{"a":[1],"b":null,"c":{}}'] * 1024, ()),
        (['{"a\\"b":1,"a\\nb":1,"a\\\\b":1,"":1,"a b":1}'] * 1024, ('2 ->> $."a b"', '2 ->> $."a b" ::DOUBLE')),
        ([json.dumps({f"k{at}": "x" for at in range(20)})] * 1024, tuple(f'2 ->> $."k{at}"' for at in range(16))),
        (['{"a":true}'] * 1024, ('2 ->> $."a"',)),
        ([json.dumps({f"k{row}-{at}": 1 for at in range(20)}) for row in range(1024)], ()),
    ],
)
def test_what_few_documents_have_is_not_stored(documents: list[str], names: tuple[str, ...]) -> None:
    data, part = encoded(documents)
    assert value_names(data) == names
    assert check_part(data, part, SCHEMA)[0] == ()


CONDITIONS = [
    "{0} = {1}", "{0} != {1}", "{0} < {1}", "{0} >= {1}", "{0} in ({1}, 'true')", "{0} not in ({1}, '2')",
    "{0} is null", "{0} is not null", "{0} between '0' and {1}", "{0} like '%1%'", "not ({0} > {1} or n = 3)",
]  # fmt: skip


@settings(max_examples=examples(150, quick=6))
@given(st.lists(WRITTEN | DOCUMENTS.map(json.dumps) | st.none(), min_size=1, max_size=12), st.data())
def test_a_filter_keeps_what_duckdb_keeps(documents: list[str | None], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patched:
        store_values_of_few(patched)
        patched.setattr(shredding, "SHARE_MIN", data.draw(st.sampled_from([0.0, 0.9])))
        bytes_, part = encoded(documents, data.draw(st.integers(1, 2)))
    assert check_part(bytes_, part, SCHEMA)[0] == ()
    value = data.draw(st.sampled_from(["'1'", "'1.0'", "'x'", "'true'", '\'{"b":"x"}\'', "''"]))
    path = data.draw(st.sampled_from(PATHS)).replace("'", "''")
    shape = data.draw(st.sampled_from(CONDITIONS))
    form = data.draw(st.sampled_from(["payload->>'{}'", "json_extract_string(payload, '{}')", "payload->'{}'->>'b'"]))
    operand = form.format(path)
    where = shape.format(operand, value)
    condition = shape.format("(" + operand + ")", value)
    with duckdb.connect() as connection:
        expected = connection.from_arrow(rows_of(documents)).filter(condition).project("id").fetchall()
    assert kept(bytes_, part, where) == sorted(id_ for (id_,) in expected)


@pytest.mark.parametrize(
    ("operand", "value"),
    [
        ("payload->>'a.b'", "dot"),
        ("payload->>'$.a.b'", "inner"),
        ("payload->>'$.\"a.b\"'", "dot"),
        ("payload->'a'->>'b'", "inner"),
        ("payload->>'c'", "1.0"),
        ("payload->>'d'", "first"),
        ("payload->>'$.e'", "true"),
    ],
)
def test_each_way_to_write_a_path_reads_its_value(operand: str, value: str, for_few_rows: None) -> None:
    data, part = encoded(['{"a.b":"dot","a":{"b":"inner"},"c":1.0,"d":"first","d":"last","e":true}', "{}"])
    other, other_part = encoded(['{"a.b":"dot","a":{"b":"inner"},"c":1.0,"d":"first","d":"last","e":true}'] * 3)
    assert kept(data, part, f"{operand} = '{value}'") == [0]
    assert len(value_names(other)) == 6
    assert kept(other, other_part, f"{operand} = '{value}'") == [0, 1, 2]


def test_parts_are_pruned_by_values(for_few_rows: None) -> None:
    parts = [encoded([f'{{"day":"2026-11-{at:02}"}}'])[1] for at in range(1, 31)]
    for where, days in (
        ("payload->>'day' = '2026-11-07'", [7]),
        ("payload->>'$.day' >= '2026-11-29'", [29, 30]),
        ("payload->>'day' is null", []),
        ("payload->>'other' = 'x'", [*range(1, 31)]),
    ):
        matching = select_matching_parts(parts * 5, parse_where(where, SCHEMA), SCHEMA)
        assert matching == [parts[day - 1] for day in days] * 5, where


def test_values_of_a_column_are_not_those_of_one_that_is_called_alike(for_few_rows: None) -> None:
    name = '1 ->> $."a"'
    schema = CollectionSchema.of({"id": int}, {"payload": persist.JSON, name: str})
    rows = pa.table([[1], ['{"a":"x"}'], ["y"], [0], [1]], schema=schema.arrow)
    [(data, part)] = encode_parts(rows, schema)
    assert value_names(data) == ()
    assert part.stats[name] == ("y", "y", 0)
    for where, count in (
        ("payload->>'a' = 'x'", 1),
        ("payload->>'a' = 'y'", 0),
        (f"\"{name.replace(chr(34), chr(34) * 2)}\" = 'y'", 1),
    ):
        filter_ = parse_where(where, schema)
        assert len(decode_part(data, part, schema, filter=filter_)) == count
        assert len(select_matching_parts([part], filter_, schema)) == 1


def test_wrong_values_are_found_and_later_versions_ignored(for_few_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = ['{"a":"1"}', '{"a":"2"}', '{"a":"3"}']
    with monkeypatch.context() as patched:
        computed = shredding.compute_values
        other = [*documents[:2], '{"a":"4"}']

        def compute_wrongly(names: Sequence[str], rows: pa.Table, schema: CollectionSchema) -> pa.Table | None:
            return computed(names, rows_of(other), schema)

        patched.setattr("persist.codecs.part.stream.compute_values", compute_wrongly)
        data, part = encoded(documents)
    [finding] = check_part(data, part, SCHEMA)[0]
    assert finding.kind == "values"
    assert "are not what its documents hold" in finding.what
    monkeypatch.setattr(shredding, "VALUES_VERSION", 2)
    data, part = encoded(documents)
    monkeypatch.setattr(shredding, "VALUES_VERSION", 1)
    assert value_names(data) == ()
    assert kept(data, part, "payload->>'a' = '2'") == [1]


def test_malformed_values_are_corruption(for_few_rows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    filter_ = parse_where("payload->>'a' = '2'", SCHEMA)
    entries = {
        "footer is malformed": lambda names, files: b'{"version":1,"names":5}',
        "of 1 row groups": lambda names, files: msgspec.json.encode({"version": 1, "names": names, "files": []}),
        "unreadable": lambda names, files: msgspec.json.encode({"version": 1, "names": names, "files": [(4, 9)]}),
    }
    for message, entry in entries.items():
        with monkeypatch.context() as patched:
            patched.setattr("persist.codecs.part.file_writer.encode_entry", entry)
            data, part = encoded(['{"a":2}'])
        with pytest.raises(persist.errors.CorruptBlob, match=message):
            decode_part(data, part, SCHEMA, filter=filter_)
        assert "wrong" in check_part(data, part, SCHEMA)[0][0].what
        assert len(decode_part(data, part, SCHEMA)) == 1


def test_a_file_that_is_written_again_for_its_floats_keeps_its_values(for_few_rows: None) -> None:
    schema = CollectionSchema.of({"id": int}, {"f": float, "payload": persist.JSON})
    rows = pa.table(
        [[1, 2, 3], [1.0, 2.0, float("nan")], ['{"a":"x"}', '{"a":"y"}', '{"a":"z"}'], [0] * 3, [1] * 3],
        schema=schema.arrow,
    )
    stream = PartStream(schema, row_group_rows=1)
    parts = [encoded for at in range(3) for encoded in stream.add(rows.slice(at, 1))]
    [(data, part)] = parts + stream.finish()
    assert check_part(data, part, schema)[0] == ()
    found = decode_part(data, part, schema, filter=parse_where("payload->>'a' = 'y'", schema))
    assert found["id"].to_pylist() == [2]
    assert value_names(data) == ('2 ->> $."a"',)


def test_values_need_no_function_of_arrow() -> None:
    filter_ = parse_where("payload->'a'->>'b' = 'x' and n > 1", SCHEMA)
    rewritten = shredding.rewrite_filter(filter_, SCHEMA, None)
    assert rewritten is not None
    name = '2 ->> $."a"."b"'
    assert rewritten[0].equals((pc.field(name) == "x") & (pc.field("n") > 1))
    assert rewritten[1].names == [name]
    assert shredding.rewrite_filter(filter_, SCHEMA, ()) is None


def test_paths_of_scalars_in_nine_of_ten_documents_are_common() -> None:
    find = shredding._find_common_paths
    share = [
        {"all": n, "nine": n, "eight": n, "text": "x", "flag": True, "mixed": n, "in": {"er": {"most": n}}}
        for n in range(10)
    ]
    del share[3]["nine"], share[3]["eight"], share[5]["eight"]
    for n in (2, 4):
        share[n]["mixed"] = "1"
    documents = [json.dumps(document) for document in share]
    assert find(documents) == [
        *(('$."all"', True), ('$."nine"', True), ('$."text"', False), ('$."flag"', False), ('$."mixed"', False)),
        ('$."in"."er"."most"', True),
    ]
    assert find([*documents[:9], "not json"]) == [path for path in find(documents) if "nine" not in path[0]]
    assert find(['{"a":[1],"b":null,"":1,"c\\\\n":1,"d\\\\"":1}', "[]", "7"]) == find([]) == []
    nested: dict[str, Any] = {"x": 1}
    for _ in range(shredding._DEPTH_MAX - 1):
        nested = {"x": nested}
    assert len(find([json.dumps(nested)])) == 1
    assert find([json.dumps({"x": nested})]) == []
    for name, length in (("n", shredding._NAME_BYTES_MAX), ("é", shredding._NAME_BYTES_MAX // 2)):
        assert len(find([json.dumps({name * length: 1})])) == 1
        assert find([json.dumps({name * (length + 1): 1})]) == []
    assert len(find([json.dumps({"t": "x" * shredding._TEXT_BYTES_MAX})])) == 1
    assert find([json.dumps({"t": "x" * (shredding._TEXT_BYTES_MAX + 1)})]) == []
    assert len(find([json.dumps({"t": "x" * (2 * shredding._TEXT_BYTES_MAX - 1)}), '{"t":"y"}'])) == 1
    assert len(find([json.dumps({"t": "x" * (2 * shredding._TEXT_BYTES_MAX - 8)}), '{"t":1}'])) == 1, (
        "a number takes 8 bytes"
    )
    assert find([json.dumps({"t": "x" * (2 * shredding._TEXT_BYTES_MAX - 7)}), '{"t":1}']) == []
    many = {f"n{n}": n for n in range(shredding.NAMES_MAX)}
    assert find([json.dumps(many)]) == [(f'$."n{n}"', True) for n in range(shredding.PATHS_MAX)]
    assert find([json.dumps(many | {"more": 1})]) == []


@pytest.mark.parametrize("sign", ["<", "<=", "=", ">=", ">"])
@pytest.mark.parametrize("kind", ["DOUBLE", *shredding._RANGES])
@pytest.mark.parametrize("bound", ["3", "-3.0", "0"])
def test_a_test_of_numbers_keeps_what_may_pass_and_little_more(kind: str, sign: str, bound: str) -> None:
    passes = shredding._make_number_filter("x", f"{kind} {sign} {bound}")
    assert passes is not None
    at, half = float(bound), 0.0 if kind == "DOUBLE" else 0.5
    values = [at - 2, at - 0.6, at - 0.4, at, at + 0.4, at + 0.6, at + 2, 1e300, -1e300, float("nan")]
    kept = pa.table({"x": values}).filter(passes)["x"].to_pylist()

    def may_pass(value: float) -> bool:
        if value != value or (kind in shredding._RANGES and abs(value) > 2.0 ** shredding._RANGES[kind]):
            return True
        return not (value > at + half if sign in ("<", "<=", "=") else False) and not (
            value < at - half if sign in (">", ">=", "=") else False
        )

    assert kept[:-1] == [value for value in values[:-1] if may_pass(value)]
    assert len(kept) == len([value for value in values if may_pass(value)])
    is_whole = kind != "DOUBLE"
    assert (shredding._make_number_filter("x", f"{kind} {sign} {bound} document") is None) == is_whole
