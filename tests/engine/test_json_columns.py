"""Columns of JSON documents: declared, checked, compared as text, and looked into by conditions, SQL and views."""

import json
import pickle
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.codecs.errors import InvalidUpdate
from persist.codecs.types.documents import check_documents
from persist.core.expression.filters import parse_where
from persist.core.log import kinds
from persist.core.log.fields import KeyedForm, MachineForm
from persist.engine.read.planning.snapshot_plan import plan_snapshot
from persist.errors import InvalidUsage, SchemaMismatch
from tests.support.forks import forked_python
from tests.support.tiers import examples

BAD = ['{"a":NaN}', "nan", "Infinity", "1 2", '{"a":1,}', "/*c*/1", "", '"\\ud800"', "01", "{'a':1}", "tru", "[" * 9999]
GOOD = ['{"a": 1, "b": {"c": "x"}}', "[1,2.5]", '"text"', "7", "null", ' {"a":2}', '{"a":1,"a":2}', "1e999"]


def client() -> persist.Client:
    return persist.open(persist.MemoryBlob())


def documents(client: persist.Client) -> persist.Collection:
    collection = client.create_or_load("events", key={"id": int}, value={"n": int, "payload": persist.JSON})
    collection.write([((at, (at, text)), 0, 1) for at, text in enumerate(GOOD)], seal=1).result()
    return collection


def test_a_column_of_json_is_stored_as_text_and_keeps_its_type() -> None:
    with client() as here:
        documents(here)
        again = here.load("events")
        assert again.schema.json == ("payload",)
        assert again.snapshot().to_arrow()["payload"].to_pylist() == GOOD
        assert again.schema.to_json()["value"] == {"fields": [["n", "int64"], ["payload", "json"]]}
        assert "payload  json" in repr(again.schema)
        frame = pa.table({"id": [1], "payload": pa.array(["1"], pa.json_())})
        here.write("copied", frame, key=["id"]).result()
        assert here.load("copied").schema.json == ("payload",)
        value = {"n": int, "payload": "json"}
        assert here.create_or_load("events", key={"id": int}, value=value).schema.json == ("payload",)
        with pytest.raises(SchemaMismatch, match="stored as json, given as string"):
            here.create_or_load("events", key={"id": int}, value=value | {"payload": str})


@pytest.mark.parametrize("bad", BAD)
def test_what_is_no_document_is_refused(bad: str) -> None:
    with pytest.raises(InvalidUpdate, match=r"update 1 has .* in column 'payload', which is no JSON document"):
        check_documents(pa.chunked_array([GOOD[:1], [bad]]), "payload")


def test_every_write_checks_documents() -> None:
    with client() as here:
        plain, bad = documents(here), '{"a":NaN}'
        keyed = here.create_or_load("keyed", key={"id": int}, value={"payload": persist.JSON}, keyed=persist.Keyed())
        keyed.upsert([{"id": 1, "payload": "1"}]).result()
        table = pa.table({"id": [9, 10], "n": [1, 1], "payload": ["1", bad]})
        writes: list[Callable[[], persist.CommitFuture]] = [
            lambda: plain.write(table),
            lambda: plain.write([((9, (1, bad)), 5, 1)]),
            lambda: plain.write([{"id": 9, "n": 1, "payload": bad}]),
            lambda: plain.upsert([{"id": 9, "n": 1, "payload": bad}]),
            lambda: plain.update([{"id": 1, "payload": bad}]),
            lambda: keyed.upsert([{"id": 9, "payload": bad}]),
            lambda: keyed.update([{"id": 1, "payload": bad}]),
        ]
        for write in writes:
            with pytest.raises(InvalidUsage, match="no JSON document"):
                write().result()
        assert plain.snapshot().to_arrow()["payload"].to_pylist() == GOOD
        assert keyed.snapshot().to_arrow()["payload"].to_pylist() == ["1"]


def test_what_is_no_document_is_refused_by_statements() -> None:
    with client() as here:
        documents(here)
        for sql in ("UPDATE events SET payload = '{' WHERE id = 1", "INSERT INTO events VALUES (99, 1, 'NaN')"):
            with pytest.raises(InvalidUsage, match="JSON"):
                here.sql(sql)
        here.sql("UPDATE events SET payload = '{\"a\": 3}' WHERE id = 1")
        assert here.sql("SELECT payload->>'a' AS a FROM events WHERE id = 1").to_pylist() == [{"a": "3"}]


@pytest.mark.parametrize("keyed", [None, persist.Keyed()])
def test_statements_store_the_documents_that_duckdb_stores(keyed: persist.Keyed | None) -> None:
    """As text, the list of two texts would become one of two numbers."""
    odd = [' {"a": 1} ', '{"a":1,"a":2}', '"\\u0000"', "1e400", "-0.0", "[" * 900 + "]" * 900, "null"]
    with client() as here, duckdb.connect() as database:
        for run in (here.sql, database.execute):
            run("CREATE TABLE events (id BIGINT, payload JSON)")
        if keyed is not None:
            here.drop("events")
            here.create_or_load("events", key={"id": int}, value={"payload": persist.JSON}, keyed=keyed)
        given = pa.table({"id": range(7), "document": odd})
        database.register("given", given)
        here.sql("INSERT INTO events FROM given", files=True)
        database.execute("INSERT INTO events FROM given")
        for statement in (
            "UPDATE events SET payload = ['1', '2'] WHERE id = 0",
            "UPDATE events SET payload = json_object('was', payload, 'n', 1.50) WHERE json_array(payload)->>1 IS NULL",
            "MERGE INTO events USING (SELECT 6 AS id, {'a': DATE '2026-01-01'} AS new) AS s ON events.id = s.id "
            "WHEN MATCHED THEN UPDATE SET payload = s.new",
            "INSERT INTO events SELECT 7, ['true']",
            "UPDATE events SET id = id + 10 WHERE typeof(payload) = 'JSON'",
        ):
            here.sql(statement)
            database.execute(statement)
            answer = "FROM events ORDER BY id"
            assert here.sql(answer).to_pylist() == database.sql(answer).to_arrow_table().to_pylist(), statement


def test_conditions_look_into_documents_as_duckdb_does() -> None:
    with client() as here:
        collection = documents(here)
        for where in (
            "(payload->>'a') = '1'",
            "(payload ->> '$.b.c') = 'x'",
            "(payload->'b'->>'c') = 'x' and n < 5",
            "json_extract_string(payload, '$.a') in ('1', '2')",
            "json_extract(payload, '$.b') = '{\"c\":\"x\"}'",
            "(payload->>0) = '1' or (payload->1) = '2.5'",
            "(payload->>'a') is not null",
            "not ((payload->>'a') = '1')",
            "(payload->>'it''s') is null",
        ):
            expected = sorted(row["id"] for row in here.sql(f"SELECT id FROM events WHERE {where}").to_pylist())
            for form in (where, re.sub(r"\((payload ?->[^)]*)\)", r"\1", where)):
                assert sorted(collection.snapshot(where=form).to_arrow()["id"].to_pylist()) == expected, form
        collection.delete(where="payload->>'a' = '1'").result()
        assert 0 not in collection.snapshot().to_arrow()["id"].to_pylist()


def test_conditions_look_into_columns_of_json_alone() -> None:
    with client() as here:
        collection = documents(here)
        with pytest.raises(InvalidUsage, match="no column of type json"):
            collection.snapshot(where="n->>'a' = '1'")
        with pytest.raises(InvalidUsage, match="no path"):
            collection.snapshot(where="payload->>'$.[' = '1'")
        with pytest.raises(InvalidUsage, match="wanted is a path"):
            collection.snapshot(where="payload->>n = '1'")


def test_views_look_into_documents() -> None:
    with client() as here:
        documents(here)
        view = here.create_view("by_a", "SELECT payload->>'a' AS a, count(*) AS rows FROM events GROUP BY 1")
        view.refresh()
        rows = {(row["a"], row["rows"]) for row in view.snapshot().to_pylist()}
        assert rows == {("1", 1), ("2", 2), (None, 5)} or rows == {("1", 2), ("2", 1), (None, 5)}


def test_json_evolves_and_a_key_has_none() -> None:
    with client() as here:
        collection = documents(here)
        collection.evolve(add={"extra": persist.JSON}, defaults={"extra": "{}"}, rename={"payload": "document"})
        assert here.load("events").schema.json == ("document", "extra")
        assert {*collection.snapshot().to_arrow()["extra"].to_pylist()} == {"{}"}
        with pytest.raises(InvalidUsage, match="no JSON document"):
            collection.write([((9, (1, "1", "x")), 5, 1)]).result()
        with pytest.raises(SchemaMismatch, match="does not fit column 'more' of type json"):
            collection.evolve(add={"more": persist.JSON}, defaults={"more": "{"})
        collection.evolve(add={"text": str})
        with pytest.raises(SchemaMismatch, match="does not hold all of its values"):
            collection.evolve(widen={"text": persist.JSON})
        collection.evolve(widen={"document": str})
        assert here.load("events").schema.json == ("extra",)
        assert sorted(collection.snapshot().to_arrow()["document"].to_pylist()) == sorted(GOOD)
        row = ((99, (99, "no document", None, None)), 1)
        collection.write([(*row, 1), ((0, (0, "{}", None, None)), 1, 1)], seal=2).result()
        collection.write([((99, row[0][1]), 2, -1)], seal=3).result()
        with pytest.raises(SchemaMismatch, match="'document' holds values that its type json of schema version 2 can"):
            collection.snapshot(1, schema=2).to_arrow()
        assert "{}" in collection.snapshot(1, schema=2, where="id < 99").to_arrow()["document"].to_pylist()
        assert "{}" in collection.snapshot(2, schema=2).to_arrow()["document"].to_pylist()
        with pytest.raises(SchemaMismatch, match="type json"):
            here.create_or_load("by document", key={"document": persist.JSON}, value=None)
        nested = here.create_or_load("nested", key={"id": int}, value={"in": pa.struct({"a": persist.JSON})})
        nested.evolve(add={"in.b": persist.JSON})
        assert nested.schema.arrow.field("in").type == pa.struct({"a": pa.string(), "b": pa.string()})


def test_statements_make_columns_of_json() -> None:
    with client() as here:
        here.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, payload JSON)")
        here.sql("ALTER TABLE events ADD COLUMN more JSON")
        assert here.load("events").schema.json == ("payload", "more")
        kinds = here.sql("SELECT data_type FROM information_schema.columns WHERE table_name = 'events'").to_pylist()
        assert [kind["data_type"] for kind in kinds] == ["BIGINT", "JSON", "JSON"]


def test_a_plan_with_a_condition_on_documents_goes_to_another_process() -> None:
    with client() as here:
        collection = documents(here)
        filter_ = parse_where("payload->>'a' = '2'", collection.schema)
        again = pickle.loads(pickle.dumps(filter_))
        assert collection.snapshot().to_arrow().filter(again)["id"].to_pylist() == [5]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(60, quick=3))
@given(ANY, st.data())
def test_a_text_is_a_document_as_pythons_parser_and_duckdb_say(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    for candidate in (text, text[:at], text[:at] + data.draw(st.sampled_from('{}[]",:0\\nN ')) + text[at:]):
        try:
            json.loads(candidate, parse_constant=lambda name: int("not JSON: " + name))
            is_document = True
        except ValueError:
            is_document = False
        try:
            check_documents(pa.array([candidate]), "payload")
        except InvalidUpdate:
            assert not is_document or "\\ud" in candidate, candidate
        else:
            assert is_document
            assert duckdb.execute("SELECT json_valid(?)", [candidate]).fetchone() == (True,)


def test_published_tables_have_documents_as_text(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    with persist.open(tmp_path) as here:
        published = documents(here).publish("delta")
        fields = {field.name: field.type.type for field in deltalake.DeltaTable(published.url).schema().fields}
        assert fields["payload"] == "string"


def test_a_wildcard_and_an_index_are_refused_with_reasons() -> None:
    with client() as here:
        events = documents(here)
        with pytest.raises(InvalidUsage, match="path into a JSON document"):
            events.snapshot(where="payload->>'$.*' = '1'").to_arrow()
        with pytest.raises(InvalidUsage, match="type json, which has no order"):
            events.index("payload")


def test_events_with_documents_need_the_format_that_has_them() -> None:
    create = kinds.Create("id", "users", {}, KeyedForm(MachineForm("m", 1), fields=(("doc", "json"),)))
    assert create.format_needed == 13
    assert (
        kinds.Create("id", "users", {}, KeyedForm(MachineForm("m", 1), fields=(("doc", "string"),))).format_needed < 13
    )


def test_a_table_of_a_query_has_the_columns_of_json_that_the_query_has() -> None:
    with client() as here:
        documents(here)
        here.rename("events", "sales.events")
        here.sql("CREATE TABLE some AS SELECT id, payload, payload->'a' AS a, payload->>'a' AS text FROM sales.events")
        here.sql("CREATE TABLE none AS SELECT payload FROM sales.events WHERE id > 99")
        assert (here["some"].schema.json, here["none"].schema.json) == (("payload", "a"), ("payload",))
        assert here["some"].snapshot().to_arrow()["payload"].to_pylist() == GOOD
        assert here.sql("SELECT count(*) AS n FROM sales.events").to_pylist() == [{"n": len(GOOD)}]


def test_a_line_may_have_documents_and_numbers_that_json_lacks(tmp_path: Path) -> None:
    columns = {"id": "int64", "payload": "json", "x": "float64"}
    lines = [
        '{"id": 1, "payload": {"a": "NaN, \\"Infinity"}, "x": NaN}',
        '{"id": 2, "x": -Infinity, "payload": [1, {}]}',
    ]
    with client() as here:
        (tmp_path / "good.json").write_text("\n".join(lines))
        persist.ingest(here, str(tmp_path / "good.json"), collection="good", columns=columns, once=True)
        rows = sorted(here["good"].snapshot().to_pylist(), key=lambda row: row["id"])
        assert [row["payload"] for row in rows] == ['{"a": "NaN, \\"Infinity"}', "[1, {}]"]
        assert repr([row["x"] for row in rows]) == "[nan, -inf]"
        (tmp_path / "bad.json").write_text('{"id": 1, "payload": {"a": NaN}, "x": NaN}')
        with pytest.raises(InvalidUsage, match="NaN is not JSON"):
            persist.ingest(here, str(tmp_path / "bad.json"), collection="bad", columns=columns, once=True)


@pytest.mark.thorough  # A new process loads DuckDB; the test before it pickles plans, too.
def test_a_plan_in_a_fresh_process_knows_the_functions_of_its_condition() -> None:
    with client() as here:
        handle = documents(here).handle
        condition = parse_where("payload->>'a' = '1'", handle.schema)
        scan = plan_snapshot(handle.contents(), handle.schema, 0, None, condition)
        program = "import pickle, sys, pyarrow as pa; scan = pickle.load(sys.stdin.buffer)\n"
        program += "print(pa.table({'payload': ['{\"a\": 1}', '2']}).filter(scan.filter).num_rows)"
        python = [*forked_python(), "-c", program]
        done = subprocess.run(python, input=pickle.dumps(scan), capture_output=True, check=False)
        assert done.stdout.split() == [b"1"], done.stderr.decode()


def test_a_stream_without_rows_repeats_no_column() -> None:
    schema = pa.schema([("id", pa.int64()), ("id", pa.int64()), ("n", pa.int64())])
    with client() as here:
        documents(here)
        writes: list[Callable[[Any], Any]] = [here["events"].write, here["events"].upsert]
        writes.append(lambda rows: here.write("new", rows, key=["id"]))
        for write in writes:
            with pytest.raises(SchemaMismatch, match="'id' is there 2 times"):
                write(pa.RecordBatchReader.from_batches(schema, []))
        assert "new" not in here
