"""A view with conditions reads little of its sources, and holds what a query of the same text returns."""

import math
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import persist
from persist.blob.layers.metered import MeteredBlob
from persist.codecs.types.schema import CollectionSchema
from persist.compute.dataflow.ports.hints import make_hint
from persist.core.expression.term import Col, Lit, make_sql_call
from persist.dataflow import Program, col
from tests.compute.sql.oracle import Row, multiset
from tests.compute.sql.two_ways import QUIET
from tests.support.tiers import examples

ROWS, PARTS = 30_000, 20  # Parts of fewer rows store no values of documents.


def rows_of(answer: Any) -> Counter[Row]:
    table = answer.to_arrow()
    return multiset(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.fixture(scope="module")
def large() -> persist.MemoryBlob:
    """Return a location with a collection of several parts, whose columns grow with its key."""
    blob, size = persist.MemoryBlob(), ROWS // PARTS
    with persist.open(blob, settings=QUIET) as client:
        kinds = {"n": pa.int64(), "f": pa.float64(), "d": pa.decimal128(12, 2), "s": pa.string(), "doc": persist.JSON}
        table = client.create_or_load("t", key={"id": int}, value=kinds)
        for start in range(0, ROWS, size):
            ids = [*range(start, start + size)]
            texts = [f"{id_:06}" for id_ in ids]
            rows = {"id": ids, "n": ids, "f": [*map(float, ids)], "d": [*map(Decimal, ids)], "s": texts}
            rows["doc"] = [f'{{"a": {{"b": "{text}"}}}}' for text in texts]
            table.write(pa.table(rows)).result()
    return blob


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM t WHERE n < 100",
        "SELECT id FROM t WHERE n IN (5, 17) OR 40 > n",
        "SELECT id FROM t WHERE f >= 29900",
        "SELECT id FROM t WHERE d BETWEEN 100 AND 150 AND length(s) = 6",
        "SELECT max(s) FROM t WHERE s < '000100' AND CAST(s AS BIGINT) < 50",
        "SELECT id FROM t WHERE doc -> 'a' ->> 'b' = '000007'",
        "SELECT id FROM t WHERE n > 10 AND json_extract_string(doc, '$.a.b') < '000100'",
        "SELECT a.id FROM t a JOIN t b ON a.n = b.id WHERE a.n < 50 AND b.f < 100",
        "SELECT id FROM t WHERE n < 50 UNION ALL SELECT -id FROM t WHERE n < 10",
    ],
)
def test_the_first_build_of_a_view_reads_the_parts_that_its_conditions_may_match(
    large: persist.MemoryBlob, query: str
) -> None:
    metered = MeteredBlob(large)
    with persist.open(metered, settings=QUIET) as client:
        size = sum(part.bytes for part in client["t"].handle.contents().parts)
        view = client.create_view("v", query)
        before = metered.get_counts()["get"].bytes
        view.refresh()
        assert metered.get_counts()["get"].bytes - before < size // 5
        assert rows_of(view.snapshot()) == rows_of(client.sql(query))
        view.drop()


NAN, BIG = math.nan, 2**53
POOLS: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "i": (pa.int32(), [-5, 0, 1, 7, 2**31 - 1], ["-5", "0", "3", "7", "2.5", "3000000000"]),
    "u": (pa.uint64(), [0, 1, BIG + 1, 2**64 - 1], ["0", "1", f"{BIG + 1}", "18446744073709551615"]),
    "f": (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, NAN], ["0", "-0.0::FLOAT8", "2.5", "'nan'"]),
    "g": (pa.float32(), [-1.5, 0.0, 0.1, NAN], ["0.1", "0", "0.1::FLOAT", "'nan'::FLOAT"]),
    "d": (pa.decimal128(8, 2), [Decimal("-0.01"), Decimal(0), Decimal("99.99")], ["0", "99.99", "0.005", "1e2"]),
    "s": (pa.string(), ["", "a", "ab", "\u00e9", "z"], ["''", "'a'", "'\u00e9'", "'it''s'"]),
    "y": (pa.binary(), [b"", b"a", b"\xff"], ["'a'::BLOB", "'\\xFF'::BLOB"]),
    "b": (pa.bool_(), [True, False], ["true", "false"]),
    "day": (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29)], ["DATE '2024-02-29'", "'1970-01-01'"]),
    "at": (
        pa.timestamp("ms", "UTC"),
        [datetime(2024, 1, 1, 0, 0, 0, 1000, UTC), datetime(1960, 1, 1, tzinfo=UTC)],
        ["TIMESTAMPTZ '2024-01-01 00:00:00.001+00'", "TIMESTAMPTZ '2024-01-01 00:00:00.0005+00'", "DATE '2024-01-01'"],
    ),
    "doc": (persist.JSON, ['{"a": 1}', '{"a": "x", "b": {"c": null}}', '{"b": {"c": "x\'y"}}', "null", '[1]'], []),
}  # fmt: skip
TEXTS = ["doc ->> 'a'", "doc -> 'b' ->> 'c'", "json_extract_string(doc, '$.b.c')", "doc ->> '$.a'", "doc ->> 'it''s'"]
KINDS = {name: kind for name, (kind, _, _) in POOLS.items()}


def conditions_on(alias: str) -> st.SearchStrategy[str]:
    """Return conditions on the columns of a table, of all forms."""
    columns = {f"{alias}.{name}": literals for name, (_, _, literals) in POOLS.items() if literals}
    texts = {text.replace("doc", f"{alias}.doc"): ["'1'", "'x'", "'x''y'"] for text in TEXTS}
    pairs = [(f"({value})", literal) for value, known in (columns | texts).items() for literal in known]
    signs = st.sampled_from(["{0} = {1}", "{0} <> {1}", "{0} < {1}", "{0} <= {1}", "{0} > {1}", "{1} >= {0}"])
    signs |= st.sampled_from(
        ["{0} IN ({1}, {1})", "{0} NOT IN ({1})", "{} IS NULL", "{} IS NOT NULL", "{0} IS DISTINCT FROM {1}"]
    )
    plain = st.builds(lambda sign, pair: sign.format(*pair), signs, st.sampled_from(pairs))
    plain |= st.sampled_from([f"{alias}.b", f"CAST({alias}.i AS BIGINT) * 2 > 3", f"{alias}.s LIKE 'a%'"])
    joined = st.builds(lambda one, sign, other: f"({one} {sign} {other})", plain, st.sampled_from(["AND", "OR"]), plain)
    return joined | plain | joined.map("NOT {}".format)


T = conditions_on("t")
QUERIES = st.one_of(
    st.builds("SELECT t.id, t.f FROM t WHERE {} AND {}".format, T, T),
    st.builds("SELECT t.s, count(*) AS n FROM t WHERE {} GROUP BY t.s".format, T),
    st.builds("SELECT t.id, b.i FROM t JOIN t b ON t.id = b.id + 1 WHERE {} AND {}".format, T, conditions_on("b")),
    st.builds("SELECT t.id FROM t WHERE {} UNION ALL SELECT t.id FROM t WHERE {}".format, T, T),
)
RECORD = st.tuples(*(st.none() | st.sampled_from(values) for _, values, _ in POOLS.values()))


@settings(max_examples=examples(100))
@given(QUERIES, st.lists(st.lists(RECORD, min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_a_view_holds_what_a_query_returns_whatever_its_conditions_are(
    query: str, batches: list[list[tuple[Any, ...]]], is_upserted: bool
) -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        keyed = persist.Keyed(order_by=["turn"]) if is_upserted else None
        table = client.create_or_load("t", key={"id": int}, value={"turn": int, **KINDS}, keyed=keyed)
        view = None
        for turn, batch in enumerate(batches):
            rows = [(id_, (turn, *record)) for id_, record in enumerate(batch)]
            if turn == 1 and not is_upserted:
                table.evolve(widen={"i": pa.int64()}, add={"more": pa.int32()})
            rows = [(key, (*value, None)) if turn and not is_upserted else (key, value) for key, value in rows]
            table.upsert(rows, time=turn, seal=turn + 1).result()
            view = view or (client.create_view("v", query) if turn == len(batches) // 2 else None)
            if view is not None:
                view.refresh()
                assert rows_of(view.snapshot(turn)) == rows_of(client.sql(query, as_of=turn))


def test_conditions_after_one_that_may_raise_do_not_hide_its_error() -> None:
    schema = CollectionSchema.of({"id": pa.int64()}, {"s": pa.string()})
    few = make_sql_call("less", pa.bool_(), Col("id"), Lit(pa.scalar(5)))
    number = make_sql_call("equal", pa.bool_(), make_sql_call("cast", pa.int64(), Col("s")), Lit(pa.scalar(1)))
    assert str(make_hint([[few, number]], schema)) == "(id < 5)"
    assert make_hint([[number, few]], schema) is None
    assert make_hint([[few], [number]], schema) is None
    assert make_hint([], schema) is None


def test_a_program_reads_what_its_filters_may_pass(large: persist.MemoryBlob) -> None:
    metered = MeteredBlob(large)
    with persist.open(metered, settings=QUIET) as client:
        program = Program("few").using(client)
        few = program.source("t").filter(col("n") < 50).map(id=col("id")).capture()
        before = metered.get_counts()["get"].bytes
        with program.open(client) as running:
            running.run()
            size = sum(part.bytes for part in client["t"].handle.contents().parts)
            assert metered.get_counts()["get"].bytes - before < size // 5
            assert sorted(few.updates()["id"].to_pylist()) == [*range(50)]


@pytest.mark.parametrize("condition", ["f > 1", "f >= 1", "1 < f", "g > 0", "f = 0", "f IN (-0.0::DOUBLE, 5)"])
def test_nan_is_greater_than_numbers_and_zeros_are_equal(condition: str) -> None:
    with persist.open(persist.MemoryBlob(), settings=QUIET) as client:
        table = client.create_or_load("t", key={"id": int}, value={"f": pa.float64(), "g": pa.float32()})
        table.write([(id_, (f, f)) for id_, f in enumerate([NAN, -0.0, 0.0, 2.0, None])], time=0, seal=1).result()
        query = f"SELECT id FROM t WHERE {condition}"
        view = client.create_view("v", query)
        view.refresh()
        assert rows_of(view.snapshot()) == rows_of(client.sql(query)) != Counter()
