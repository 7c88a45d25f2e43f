"""Expressions of views whose arguments differ from row to row; what is refused when a view is made; bounds."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.errors import InvalidUsage
from tests.compute.sql.oracle import Changes, Columns, check

TABLES: dict[str, Columns] = {
    "t": [("id", "int32"), ("n", "int32"), ("ts", "timestamp"), ("s", "text"), ("m", "decimal(4,2)"), ("p", "boolean")]
}


def _steps() -> list[Changes]:
    ts = datetime.datetime(2020, 1, 31, 12, 0)
    rows: Any = [(at, n, ts, "ab", None, at % 2 == 0) for at, n in enumerate([None, 3, -1, 0, 14, 3])]
    return [{"t": [(row, 1) for row in rows]}, {"t": [(rows[0], -1), (rows[4], -1)]}, {"t": [(rows[1], -1)]}]


@pytest.mark.parametrize(
    "made",
    [
        *("ts + to_days(n)", "ts - to_days(n)", "ts + INTERVAL (n) MONTH", "ts + n * INTERVAL '1 hour'"),
        *("time_bucket(to_seconds(abs(n) + 1), ts)", "ts + coalesce(to_days(n), to_months(1))", "ts + (ts - ts)"),
        "ts + CASE WHEN n > 0 THEN to_days(n) ELSE to_months(n) END",
        *("round(1234.567::DOUBLE, n)", "round(id * 1000, -n)", "left(s, n)", "substring(s, n, 1)", "lpad(s, n, 'x')"),
        "ts + i AS x FROM (SELECT id, ts, to_days(n) AS i FROM t) --",
    ],
)
def test_each_row_has_an_interval_or_a_count_of_its_own(made: str) -> None:
    check(f"SELECT id, {made} AS x FROM t" if "--" not in made else f"SELECT id, {made}", _steps(), TABLES)


@pytest.mark.parametrize(
    "made",
    [
        *(
            "coalesce(n, 10 // (n - 3))",
            "ifnull(n, 10 // id)",
            "coalesce(NULL, n, s::INT)",
            "sqrt(coalesce(n, s::INT))",
        ),
        *("coalesce(p, s::INT > 1)", "[coalesce(n, s::INT)]", "coalesce(CASE WHEN p THEN 1 END, id, s::INT, n)"),
        "coalesce([n], [s::INT])",
    ],
)
def test_coalesce_computes_an_argument_only_where_those_before_it_are_null(made: str) -> None:
    ts = datetime.datetime(2020, 1, 31)
    rows: Any = [(at, n, ts, s, None, at > 1) for at, n, s in [(0, 3, "ab"), (2, None, "7"), (3, 5, "x"), (4, 4, "y")]]
    where = "n > 2 OR n IS NULL"
    check(f"SELECT id, {made} AS x FROM t WHERE {where}", [{"t": [(row, 1) for row in rows]}], TABLES)


@pytest.mark.parametrize("where", ["id > 100", "p IS NULL", "true", "NOT p"])
def test_count_if_of_nothing_is_null(where: str) -> None:
    check(f"SELECT count_if(p) AS c, count_if(n > 2) AS d FROM t WHERE {where}", _steps(), TABLES)
    check(f"SELECT n, count_if(p) FILTER (WHERE id > 2) AS c FROM t WHERE {where} GROUP BY n", _steps(), TABLES)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("strftime(ts, s)", "format|constant"),
        ("strftime(ts, '%q')", "%q"),
        ("regexp_matches(s, '[')", "missing ]"),
        ("round(m, n)", "constant|precision|scale"),
        ("[to_days(n)]", "hold no intervals"),
        ("{'i': to_days(n)}", "hold no intervals"),
        ("[n]::INTEGER", "DuckDB has no such cast"),
        ("[ts]::INTEGER[]", "DuckDB has no such cast"),
        ("to_days(n)::INTEGER", "DuckDB has no such cast"),
        ("mode(to_days(n)) OVER () + ts", "mode.. of intervals"),
        ("count(*) OVER (ORDER BY to_days(n) RANGE INTERVAL 1 DAY PRECEDING)", "RANGE over intervals"),
        ("ts::BIGINT", "DuckDB has no such cast"),
        ("bit_count(BITSTRING '01')", "BITSTRING '01'"),
        ("1234567890123456789012345678901234567890123", "number of 40 digits"),
        ("123456789012345678901234567890123456789", "more than 38 digits"),
    ],
)
def test_what_cannot_be_right_is_refused_when_the_view_is_made(made: str, words: str, tmp_path: Path) -> None:
    with persist.open(str(tmp_path)) as client:
        kinds = {"n": pa.int32(), "ts": pa.timestamp("us"), "s": pa.string(), "m": pa.decimal128(4, 2)}
        client.create_or_load("t", key={"id": pa.int64()}, value=kinds)
        with pytest.raises(InvalidUsage, match=words):
            client.create_view("v", f"SELECT id, {made} AS x FROM t")


def test_a_text_of_more_than_16_mebibytes_names_the_row(tmp_path: Path) -> None:
    with persist.open(str(tmp_path)) as client:
        t = client.create_or_load("t", key={"id": pa.int64()}, value={"n": pa.int64()})
        t.write([(1, 1), (2, None), (3, 20_000_000), (4, 0)], time=1, seal=2).result()
        view = client.create_view("v", "SELECT id, left(made, 5) AS x FROM (SELECT id, repeat('x', n) AS made FROM t)")
        with pytest.raises(persist.PersistError, match=r"id=3.*no more than 16,777,216"):
            view.refresh()


@pytest.mark.parametrize(
    "call",
    [
        *("lag(n)", "lag(n, 2)", "lead(n, 0)", "lead(n, 2, id)", "lag(n, 1, -5)", "nth_value(n, 2)", "ntile(2)"),
        *("first_value(n)", "count(n)", "count(*)"),
    ],
)
def test_a_window_takes_what_its_function_is_given(call: str) -> None:
    check(f"SELECT id, {call} OVER (PARTITION BY p ORDER BY id) AS x FROM t", _steps(), TABLES)


def test_a_frame_may_be_counted_by_a_cast_number_and_by_no_other_expression() -> None:
    frame = "SELECT id, sum(n) OVER (ORDER BY id ROWS BETWEEN {} PRECEDING AND CURRENT ROW) AS x FROM t"
    check(frame.format("CAST(1 AS BIGINT)"), _steps(), TABLES)
    with pytest.raises(InvalidUsage, match="a constant whole number"):
        check(frame.format("abs(1)"), _steps(), TABLES)


MOMENTS = ["infinity", "-infinity", "290000-01-01", "-40000-06-07", "0044-03-15 (BC)", "32768-02-03", "2024-05-06"]


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMPTZ"])
def test_parts_and_casts_of_infinite_and_extreme_moments_are_duckdbs(kind: str) -> None:
    # With a zone, DuckDB counts years before Christ from 1 on, by ICU.
    moments = [moment for moment in MOMENTS if kind != "TIMESTAMPTZ" or (moment[0] != "-" and "BC" not in moment)]
    parts = ("year", "quarter", "month", "day", "hour", "minute", "second")
    made = ", ".join(f"{part}(s::{kind}) AS p{at}" for at, part in enumerate(parts))
    casts = f"(s::{kind}::DATE)::VARCHAR AS d, (s::{kind}::TIMESTAMP)::VARCHAR AS t, (s::{kind})::VARCHAR AS v"
    steps: list[Changes] = [{"t": [((at, s), 1) for at, s in enumerate(moments)]}, {"t": [((0, moments[0]), -1)]}]
    check(f"SELECT id, {made}, {casts} FROM t", steps, {"t": [("id", "int32"), ("s", "text")]})


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMP_MS"])
def test_aggregates_and_nested_values_hold_infinite_and_extreme_moments(kind: str, tmp_path: Path) -> None:
    made = [f"list(s::{kind} ORDER BY id)", f"max([s::{kind}])", f"min({{'a': s::{kind}}})", f"max(s::{kind})"]
    with persist.open(str(tmp_path)) as client:
        texts = client.create_or_load("t", key={"id": int}, value={"s": str})
        texts.write([((at, s), 0, 1) for at, s in enumerate(MOMENTS)], seal=1).result()
        for at, expression in enumerate(made):
            sql = f"SELECT {expression} AS x FROM t"
            view = client.create_view(f"v{at}", sql)
            view.refresh()
            held = client.sql(f"SELECT x::VARCHAR AS x FROM v{at}").to_arrow()
            assert held == client.sql(f"SELECT x::VARCHAR AS x FROM ({sql})").to_arrow()
