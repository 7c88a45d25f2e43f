"""A column of JSON documents stays one in a view that shows it as it is."""

import uuid

import pyarrow as pa
import pytest

import persist
from persist.errors import InvalidUsage, SchemaMismatch
from tests.compute.sql.two_ways import QUIET

ROWS = [(1, '{"a": "x"}'), (2, None), (3, '{"a": {"b": 1}}')]


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    table = client.create_or_load("t", key={"id": int}, value={"doc": persist.JSON, "s": str})
    table.write([(key, (document, '{"a": 1}')) for key, document in ROWS], time=0, seal=1).result()
    return client


def documents_of(view: persist.View) -> tuple[str, ...]:
    view.refresh()
    return view.handle.contents().schema.json


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    ("query", "documents"),
    [
        ("SELECT id, doc FROM t", ("doc",)),
        ("SELECT doc AS d, id, s FROM t WHERE doc ->> 'a' = 'x'", ("d",)),
        ("SELECT a.id, a.doc, b.doc AS other FROM t a LEFT JOIN t b ON a.id = b.id + 1", ("doc", "other")),
        ("SELECT id, doc FROM t UNION ALL SELECT -id, doc FROM t", ("doc",)),
        ("SELECT id, doc FROM t UNION SELECT -id, doc FROM t", ("doc",)),
        ("WITH c AS (SELECT * FROM t) SELECT one.id, one.doc FROM c one JOIN c two USING (id)", ("doc",)),
        ("SELECT DISTINCT id, doc FROM t ORDER BY id LIMIT 2", ("doc",)),
        ("SELECT id, doc, row_number() OVER (ORDER BY id) AS n FROM t", ("doc",)),
        ("SELECT id, doc FROM t WHERE id IN (SELECT id FROM t)", ("doc",)),
        ("SELECT id, doc FROM t UNION ALL SELECT id, s FROM t", ()),
        ("SELECT id, upper(doc) AS doc, doc -> 'a' AS a, doc || '' AS b, s FROM t", ()),
        ("SELECT doc, count(*) AS n FROM t GROUP BY doc", ()),
        ("SELECT doc FROM t", ()),
    ],
)
def test_columns_of_documents_stay_documents(client: persist.Client, query: str, documents: tuple[str, ...]) -> None:
    view = client.create_view("v", query)
    assert documents_of(view) == documents
    above = client.create_view("above", "SELECT * FROM v")
    assert documents_of(above) == documents
    answer, expected = (found.to_arrow().to_pydict() for found in (view.snapshot(), client.sql(query)))
    for name, values in expected.items():
        assert sorted(map(str, answer[name])) == sorted(map(str, values))
    client["t"].write([((4, ('{"a": "x"}', "[]")), 1, 1)], seal=2).result()
    above.refresh()
    assert above.snapshot().count() == client.sql(query).to_arrow().num_rows


def test_the_documents_of_a_key_are_texts(client: persist.Client) -> None:
    view = client.create_view("v", "SELECT id, doc FROM t", key=["id", "doc"])
    assert documents_of(view) == ()
    view.redefine("SELECT id, doc FROM t WHERE id > 1")
    assert documents_of(view) == ()


def test_a_view_that_computes_its_documents_anew_has_texts(client: persist.Client) -> None:
    view = client.create_view("v", "SELECT id, doc FROM t", key=["id"])
    assert documents_of(view) == ("doc",)
    view.redefine("SELECT id, s || 'no document' AS doc, doc AS more FROM t")
    assert documents_of(view) == ("more",)
    view.redefine("SELECT id, doc, doc AS more FROM t")
    assert documents_of(view) == ("more",)
    client["t"].write([((4, ("[1]", "")), 1, 1)], seal=2).result()
    view.refresh()
    assert (4, ("[1]", "[1]")) in [(key, tuple(value)) for key, value in view.snapshot().rows()]


def test_documents_that_another_view_shows_do_not_become_texts(client: persist.Client) -> None:
    view = client.create_view("v", "SELECT id, doc FROM t", key=["id"])
    above = client.create_view("above", "SELECT id, doc FROM v")
    assert documents_of(above) == ("doc",)
    with pytest.raises(InvalidUsage, match=r"'above' reads column 'doc'.*the query gives texts for documents of JSON"):
        view.redefine("SELECT id, s AS doc FROM t")


def test_a_text_that_is_no_document_does_not_come_into_documents(client: persist.Client) -> None:
    view = client.create_view("v", "SELECT id, doc FROM t")
    assert documents_of(view) == ("doc",)
    client["t"].evolve(widen={"doc": pa.string()})
    client["t"].write([((4, ("{", "")), 1, 1)], seal=2).result()
    with pytest.raises(SchemaMismatch, match="'doc' holds values that its type json of schema version 1 cannot hold"):
        view.refresh()
    view.redefine("SELECT id, doc FROM t")
    view.refresh()
    assert documents_of(view) == ()
    assert (4, "{") in [(key, value) for key, value in view.snapshot().rows()]


def test_a_condition_on_documents_that_became_texts_tells_that_the_schema_changed() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    with persist.open(url, settings=QUIET) as client, persist.open(url, settings=QUIET) as other:
        table = client.create_or_load("t", key={"id": int}, value={"doc": persist.JSON})
        table.write([(1, '{"a":"x"}')], time=0, seal=1).result()
        view = client.create_view("v", "SELECT id FROM t WHERE doc ->> 'a' = 'x'")
        view.open_state()
        view.refresh()
        other["t"].evolve(widen={"doc": pa.string()})
        rows = pa.table({"id": range(5000), "doc": ["no document"] * 5000})
        other["t"].write(rows, time=1, seal=2).result()
        with pytest.raises(SchemaMismatch, match=r"source 't' has evolved .* create another one"):
            view.refresh()
        assert view.snapshot().count() == 1
        with pytest.raises(SchemaMismatch, match="has been widened to text that is none"):
            table.snapshot(schema=1, where="doc ->> 'a' = 'x'").count()
