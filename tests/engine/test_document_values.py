"""Collections whose parts store values of documents: all operations keep them right, and conditions use them."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

import persist
from persist.codecs.part import shredding
from persist.core.expression import documents
from tests.services.publish.readers import by_deltalake
from tests.support.tiers import examples

ROWS = 40


@pytest.fixture(autouse=True)
def _for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shredding, "ROWS_MIN", 1)


@pytest.fixture
def _no_document_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    extract = documents._extract_values

    def extract_nothing(function: str, rows: pa.Array, literal: str) -> pa.Array:
        assert function == documents._TEST or len(rows) < 2, "a condition parses documents"
        return extract(function, rows, literal)

    monkeypatch.setattr(documents, "_extract_values", extract_nothing)


def frame(first: int, count: int = ROWS) -> pa.Table:
    ids = range(first, first + count)
    texts = [
        json.dumps(
            {"user": {"name": f"name-{at}", "on": at % 2 == 0}, "at": at, "pad": Random(at).randbytes(2000).hex()}
        )
        for at in ids
    ]
    return pa.table({"id": [*ids], "payload": pa.array(texts, pa.json_())})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path) as opened:
        opened.write("events", frame(0), key=["id"], mode="append").result()
        opened.write("events", frame(ROWS), key=["id"], mode="append").result()
        yield opened


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())


def part_files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("part/*/*.parquet")]


WHERE = "payload->>'$.user.name' in ('name-3', 'name-41')"


@pytest.mark.usefixtures("_no_document_is_parsed")
def test_conditions_read_values_in_the_place_of_documents(client: persist.Client, tmp_path: Path) -> None:
    events = client.load("events")
    assert len(part_files(tmp_path)) == 2
    assert ids(events.snapshot(where=WHERE).to_arrow()) == [3, 41]
    assert ids(events.snapshot(where="payload->'user'->>'on' = 'true' and id < 4", columns=["id"]).to_arrow()) == [0, 2]
    assert events.snapshot(where="payload->>'at' >= '70' and payload->>'at' < '8'").count() == 10
    events.evolve(add={"note": str})
    assert ids(events.snapshot(where=WHERE, columns=["id", "note"]).to_arrow()) == [3, 41]
    events.delete(where=WHERE).result()
    assert events.snapshot().count() == 2 * ROWS - 2
    events.compact()
    assert ids(events.snapshot(where="payload->>'$.user.name' < 'name-12'").to_arrow()) == [0, 1, 10, 11]


@pytest.mark.usefixtures("_no_document_is_parsed")
@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("e.payload ->> '$.user.name' = 'name-3'", [3]),
        ("(payload->'user'->>'name') IN ('name-3', 'name-41') AND id > 5", [41]),
        ("'name-8' <= (payload->'user'->>'name') AND (payload->>'at') IS NOT NULL", [8, 9]),
        ("json_extract_string(payload, '$.user.name') > 'name-78'", [79, 8, 9]),
        ("(payload->>'at') = '7' OR id = 1", [1, 7]),
        ("(payload->>'at')::INT > 77", [78, 79]),
        ("2 > CAST(payload->'at' AS DOUBLE)", [0, 1]),
        ("CAST(e.payload->>'$.at' AS BIGINT) = 8 AND id < 70", [8]),
        ("(payload->'user'->'name') = '\"name-3\"'", [3]),
        ("json_extract(payload, '$.at') IN ('3', '41', '\"x\"')", [3, 41]),
    ],
)
def test_sql_finds_the_same_rows(client: persist.Client, where: str, expected: list[int]) -> None:
    answer = client.sql(f"SELECT e.id FROM events e WHERE {where}")
    assert ids(answer.to_arrow()) == sorted(expected)
    assert "persist_json_extract_string" in answer.explain() or " OR " in where


CONDITIONS = [
    "({text})::{kind} {sign} {number}",
    "CAST({document} AS {kind}) {sign} {number}",
    "{number} {sign} ({text})::{kind}",
    "({document}) = '{value}'",
    "({document}) IN ('{value}', '1')",
    "({document}) IS NOT NULL",
    "({text}) {sign} '{value}'",
    "({text})::{kind} BETWEEN {number} AND 2",
    "({text}) BETWEEN '0' AND '{value}'",
]
VALUES = ["1", "1.0", '"1"', "true", "null", '"x"', '{"b":1}', '"\\u0061"', '"a"', "[1]", ""]
NUMBERS, TEXTS = [0, 1, -1, 1.5, 2.5, -0.0, 1e17, 2**63], ["1", "1.5", "x", " 2 ", "007", "1e0", "a", ""]
SCALARS = st.sampled_from([None, True, *NUMBERS, *TEXTS])


@settings(
    max_examples=examples(60, quick=3), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(SCALARS | st.lists(SCALARS, max_size=1), min_size=1, max_size=6), st.data())
def test_sql_keeps_what_duckdb_keeps(values: list[Any], data: st.DataObject) -> None:
    condition = data.draw(st.sampled_from(CONDITIONS)).format(
        text="payload ->> 'a'",
        document="payload -> 'a'",
        kind=data.draw(st.sampled_from(["INT", "TINYINT", "BIGINT", "DOUBLE", "HUGEINT", "DECIMAL(4,1)", "VARCHAR"])),
        sign=data.draw(st.sampled_from(["=", "<", ">", "<=", ">=", "<>"])),
        number=data.draw(st.sampled_from(["1", "2", "-1", "1.5", "0", "100000000000000000"])),
        value=data.draw(st.sampled_from(VALUES)),
    )
    texts = [json.dumps({"a": value, "pad": "x" * 9}) for value in values]
    rows = pa.table({"id": [*range(len(values))], "payload": pa.array(texts, pa.json_())})
    query = f"SELECT id FROM rows WHERE {condition}"
    with (
        duckdb.connect() as connection,
        persist.open(persist.MemoryBlob()) as client,
        pytest.MonkeyPatch.context() as p,
    ):
        p.setattr(shredding, "SHARE_MIN", data.draw(st.sampled_from([0.0, 0.9])))
        client.write("rows", rows, key=["id"], mode="append").result()
        try:
            expected = connection.sql(query).fetchall()
        except duckdb.Error:
            with pytest.raises(persist.InvalidUsage):
                client.sql(query).to_arrow()
            return
        assert ids(client.sql(query).to_arrow()) == sorted(id_ for (id_,) in expected), condition


def test_numbers_are_compared_as_doubles_and_prune_parts(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def extract_nothing(function: str, rows: pa.Array, literal: str) -> pa.Array:
        assert len(rows) < 2, "a condition compares texts"
        return pa.nulls(len(rows), pa.bool_() if function == documents._TEST else pa.string())

    monkeypatch.setattr(documents, "_extract_values", extract_nothing)
    for condition, expected, parts in (
        ("(payload ->> 'at')::INT > 77", [78, 79], 1),
        ("(payload ->> 'at')::BIGINT = 39", [39], 1),
        ("CAST(payload -> 'at' AS DOUBLE) <= 0.0", [0], 1),
        ("(payload ->> 'at')::DOUBLE BETWEEN 39 AND 40", [39, 40], 2),
        ("(payload ->> 'at')::TINYINT >= 80", [], 0),
    ):
        answer = client.sql(f"SELECT id FROM events WHERE {condition}")
        assert ids(answer.to_arrow()) == expected, condition
        assert f"history   {parts} parts" in answer.explain(), answer.explain()


def test_sql_compares_no_number_that_another_condition_leaves_out() -> None:
    texts = ['{"a":"170141183460469231731687303715884105727"}', '{"a":"5"}']
    rows = pa.table({"id": [1, 2], "payload": pa.array(texts, pa.json_())})
    with persist.open(persist.MemoryBlob()) as client:
        client.write("rows", rows, key=["id"]).result()
        client.load("rows").delete([1]).result()
        query = "SELECT id FROM rows WHERE (payload ->> 'a')::HUGEINT > 1.5"  # The first one has too many digits.
        assert client.sql(query).to_arrow().to_pylist() == [{"id": 2}]


def test_sql_reads_only_what_a_condition_on_documents_keeps(client: persist.Client) -> None:
    query = "SELECT id FROM events WHERE payload->>'at' = '7'"
    assert "persist_json_extract_string" in client.sql(query).explain()
    for query in (
        "SELECT id FROM events TABLESAMPLE 100% WHERE payload->>'at' = '7'",
        "SELECT id FROM events WHERE payload->>'at' = '7' USING SAMPLE reservoir(9 ROWS)",
        "SELECT id FROM events WHERE payload->>'at' = '7' UNION ALL SELECT id FROM events",
        "SELECT id FROM events AS e(id, x, payload) WHERE payload->>'at' = '7'",
        "SELECT id FROM events WHERE NOT (payload->>'at' = '7')",
        "SELECT id, '{}' AS payload FROM events WHERE payload->>'at' = '7'",
        "SELECT a.id FROM events a LEFT JOIN (SELECT 1) b ON true WHERE a.payload->>'at' = '7'",
    ):
        try:
            answer = client.sql(query)
        except persist.errors.InvalidUsage:
            continue
        assert "persist_json_extract_string" not in answer.explain(), query


def test_parts_are_pruned_by_values_also_after_a_rename(client: persist.Client) -> None:
    events = client.load("events")
    events.evolve(rename={"payload": "document"})
    where = "document->>'$.user.name' = 'name-9'"
    assert ids(events.snapshot(where=where).to_arrow()) == [9]
    assert len(events.handle.contents().parts) == 2
    assert len(events.snapshot(where=where).scan.all_parts) == 1


def names_in_values(events: persist.Collection, folder: Path) -> list[str]:
    """Return what the values of the newest parts say of the users' names."""
    names: list[str] = []
    for part in events.handle.contents().parts:
        data = (folder / part.blob).read_bytes()
        metadata = pq.read_metadata(pa.BufferReader(data))
        entry = shredding.read_entry(metadata.metadata, metadata.num_row_groups)
        assert entry is not None
        for group, (start, size) in enumerate(entry.files):
            rows = metadata.row_group(group).num_rows
            values = shredding.decode_values(data[start : start + size], entry.names, rows)
            names += values['1 ->> $."user"."name"'].to_pylist()
    return sorted(names)


def test_what_is_erased_is_gone_from_values_too(client: persist.Client, tmp_path: Path) -> None:
    events = client.load("events")
    assert any(b"name-79" in bytes(part.stats_json) for part in events.handle.contents().parts)
    assert "name-79" in names_in_values(events, tmp_path)
    events.erase([9, 79], reason="request 17")
    assert names_in_values(events, tmp_path) == sorted(f"name-{at}" for at in range(2 * ROWS) if at not in (9, 79))
    assert not any(b"name-79" in bytes(part.stats_json) for part in events.handle.contents().parts)
    found = events.traces([79], texts=["name-78", "ame-79"]).found
    assert found, "the old parts wait for their readers"
    assert not client.fsck().problems


def test_clones_restores_and_publications_hold_the_same_rows(client: persist.Client) -> None:
    events = client.load("events")
    copy = client.clone("events", "copy")
    events.delete(where="id < 50").result()
    assert ids(copy.snapshot(where=WHERE).to_arrow()) == [3, 41]
    published = copy.publish("delta")
    table = by_deltalake(published.url)
    assert table.column_names == ["id", "payload"]
    assert len(table) == 2 * ROWS
    assert not client.fsck().problems


def test_a_search_for_erased_texts_looks_into_values(client: persist.Client) -> None:
    text = json.dumps({"name": "Zoé", "pad": Random(1).randbytes(20_000).hex()})
    client.write("people", pa.table({"id": [1], "payload": pa.array([text], pa.json_())}), key=["id"]).result()
    assert "Zoé" not in text
    traces = client.load("people").traces([2], texts=["Zoé"])
    found = [trace.rows for trace in traces.found if trace.key.startswith("log")]
    assert found == [2], "it stands in the statistics of a value, and in the value"
