"""Each function on values at the ends of what it takes, and on what a query's tables do not hold, against DuckDB."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.errors import InvalidUsage, PersistError
from tests.compute.sql.oracle import Changes, Columns, Row, check, program_of

TABLES = {
    "x": [("s", "text"), ("p", "text"), ("i", "int32"), ("n", "int64"), ("f", "double")],
    "m": [("d", "date"), ("ts", "timestamp")],
}
_ROWS: dict[str, list[Row]] = {
    "x": [
        (None, None, None, None, None),
        ("", "", 0, 0, 0.0),
        ("foobar12", "o+", 1, -1, -0.0),
        ("Äpfel\nund Öl", "(?i)ä", -3, 2**63 - 1, 1.5),
        ("a.b.c", ".", 7, 12, -2.0),
        ("x(y)[z]", r"\(y\)", 255, 18, float("nan")),
        ("aaa", "a", -(2**31), -18, float("inf")),
        ("日本語", "語", 8364, 100, 0.5),
        ("NULL\x00byte", "u", 65, 6, 1e300),
    ],
    "m": [
        (None, None),
        (datetime.date(2020, 12, 31), datetime.datetime(2020, 12, 31, 23, 59, 59, 999999)),
        (datetime.date(2021, 1, 1), datetime.datetime(2021, 1, 1, 0, 0, 0, 1)),
        (datetime.date(2000, 2, 29), datetime.datetime(2000, 1, 3, 12, 0)),
        (datetime.date(1999, 12, 31), datetime.datetime(1969, 12, 31, 13, 7, 5, 250000)),
        (datetime.date(1900, 1, 1), datetime.datetime(1900, 3, 1, 1, 2, 3)),
        (datetime.date(1, 1, 1), datetime.datetime(101, 1, 1)),
        (datetime.date(9999, 12, 31), datetime.datetime(2262, 4, 11, 11, 59)),
    ],
}
_TEXTS = [
    *(
        "concat_ws(',', s, p, 'z')",
        "concat_ws(p, s, s)",
        "concat_ws('-', s, i::text)",
        "concat_ws('', nullif(s, ''), p, nullif(p, '.'))",
    ),
    *("lpad(s, 5, 'xy')", "rpad(s, 5, 'xy')", "lpad(s, 3, '語')", "rpad(s, least(i, 9), '.')", "lpad(s, -1, 'x')"),
    *("repeat(s, 2)", "repeat(s, least(i, 3))", "translate(s, 'abo', 'xy')", "translate(s, 'aab', 'xyz')"),
    *("ascii(s)", "unicode(s)", "ord(s)", "chr(greatest(i, 1))", "md5(s)", "sha256(s)", "bit_length(s)"),
    *("regexp_matches(s, 'o+')", "regexp_matches(s, '^A', 'i')", "regexp_matches(s, 'l.u')", "regexp_matches(s, p)"),
    *(
        "regexp_matches(s, 'l.u', 's')",
        "regexp_matches(s, '^und', 'm')",
        "regexp_matches(s, '^und')",
        "regexp_matches(s, 'l.u', 'sn')",
    ),
    *("regexp_full_match(s, 'a+')", "regexp_full_match(s, 'a|aaa')", "regexp_full_match(s, '.*')"),
    *("regexp_replace(s, 'a', 'b')", "regexp_replace(s, '(o)(b)?', '<\\1\\2>')", "regexp_replace(s, '[ao]', '', 'g')"),
    *("regexp_replace(s, 'Ä', 'ae', 'i')", "regexp_replace(s, '', '_', 'g')"),
    *("regexp_extract(s, 'o+')", "regexp_extract(s, '(o+)(b)(x)?', 2)", "regexp_extract(s, '(?:f)(o+)(?P<n>b)', 2)"),
    *(
        "regexp_extract(s, '[(]([a-z])[)]', 1)",
        "regexp_extract(s, '([])]+)', 1)",
        "regexp_extract(s, '(o+)(b)(x)?', 3)",
    ),
]
_MOMENTS = [
    *(f"{part}({of})" for part in ("decade", "century", "millennium", "yearweek") for of in ("d", "ts")),
    *("millisecond(ts)", "microsecond(ts)", "date_part('epoch', ts)", "date_part('century', d)"),
    *("epoch(d)", "epoch(ts)", "epoch_ms(ts)", "epoch_us(ts)", "epoch_ns(greatest(ts, '1900-01-01'))", "epoch_ms(d)"),
    *("dayname(d)", "dayname(ts)", "monthname(d)", "make_date(year(d), 1, 31)", "make_date(2020, month(d)::int, 28)"),
    *(
        "strftime(ts, '%Y-%m-%d %H:%M:%S.%f')",
        "strftime(d, '%d.%m.%y %j %a %A %b %B %u %w')",
        "strftime(ts, '%I:%M %p')",
    ),
    *("strftime(ts, '%-d.%-m. %-H:%-M:%-S %-I %-j %g %G-%V 100%%')", "strftime('%H', ts)", "strftime(d, 'plain')"),
    *("time_bucket(interval 2 week, ts)", "time_bucket(interval 15 minute, ts)", "time_bucket(interval 5 month, ts)"),
    *(
        "time_bucket(interval 1 year, d)",
        "time_bucket(interval 3 day, greatest(d, '0002-01-01'))",
        "time_bucket(interval 36 hour, ts)",
    ),
]


def _of(table: str) -> list[Changes]:
    """Return steps in which each row comes, and some go."""
    rows = _ROWS[table]
    return [{table: [(row, 1) for row in rows]}, {table: [(row, -1) for row in rows[1::2]]}]


@pytest.mark.thorough(except_every=7)
@pytest.mark.parametrize("made", _TEXTS)
def test_a_function_of_texts_gives_what_duckdb_gives(made: str) -> None:
    check(f"select s, i, {made} as made from x", _of("x"), TABLES)


@pytest.mark.thorough(except_every=7)
@pytest.mark.parametrize("made", _MOMENTS)
def test_a_function_of_moments_gives_what_duckdb_gives(made: str) -> None:
    check(f"select d, ts, {made} as made from m", _of("m"), TABLES)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select lpad(s, 20, '') from x", "lpad.*Insufficient padding"),
        ("select strftime(ts, '%q') from m", "does not know %q|unknown|format"),
        ("select time_bucket(interval '0' day, ts) from m", "time_bucket.*Period must be greater than 0"),
        ("select make_date(2021, 2, 29 + month(d)::int * 0) from m", "make_date.*2021-2-29"),
        ("select chr(i) from x", "chr.*Invalid UTF8 Codepoint -3"),
    ],
)
def test_what_a_function_does_not_take_is_said(sql: str, words: str) -> None:
    with pytest.raises((PersistError, ValueError), match=words):
        check(sql, _of("m" if " m" in sql else "x"), TABLES)


def test_the_least_common_multiple_raises_where_it_does_not_fit() -> None:
    rows: Any = {"x": [(("", "", 3, 2**62 + 2, 0.0), 1)]}
    with pytest.raises(PersistError, match="lcm value is out of range"):
        check("select lcm(n, 5) from x", [rows], TABLES)


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "sql",
    [
        "select i % 2 as g, arg_max(s, n), arg_min(s, n), count(*) from x group by g",
        "select max_by(f, n), min_by(i, n), argmax(n, s) filter (where i > 0) from x",
        "select arg_min(s, f) from x where i > 10000000",
        "select arg_max(d, ts), arg_min(ts, d) from m",
        "select i % 2 as g, arg_max(n, s), sum(i), count(distinct p) from x group by rollup(g)",
    ],
)
def test_what_belongs_to_the_least_and_the_greatest(sql: str) -> None:
    check(sql, _of("m" if sql.endswith(" m") else "x"), TABLES)
    check(sql, _of("m" if sql.endswith(" m") else "x"), TABLES, is_rewritten=False)


def test_of_several_that_are_greatest_the_least_value_is_taken() -> None:
    program, answer, _ = program_of("select i, arg_max(s, f) as s from x group by i", TABLES)
    seen = answer.capture()
    with program.open() as running:
        rows = [("b", "", 1, 0, 2.0), ("a", "", 1, 0, 2.0), (None, "", 1, 0, 9.0), ("c", "", 1, 0, None)]
        running["x"].insert([((row, None), 0, 1) for row in rows])
        running["x"].advance_to(1)
        running.step()
        assert seen.updates().to_pylist() == [{"c0": 1, "c1": "a", "_time": 0, "_diff": 1}]


SOME_TABLES: dict[str, Columns] = {
    "t": [("id", "int32"), ("n", "int32"), ("ts", "timestamp"), ("s", "text"), ("m", "decimal(4,2)"), ("p", "boolean")]
}


def _steps() -> list[Changes]:
    ts = datetime.datetime(2020, 1, 31, 12, 0)
    rows: Any = [(at, n, ts, "ab", None, at % 2 == 0) for at, n in enumerate([None, 3, -1, 0, 14, 3])]
    return [{"t": [(row, 1) for row in rows]}, {"t": [(rows[0], -1), (rows[4], -1)]}, {"t": [(rows[1], -1)]}]


@pytest.mark.thorough(except_every=3)
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
    check(f"SELECT id, {made} AS x FROM t" if "--" not in made else f"SELECT id, {made}", _steps(), SOME_TABLES)


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
    check(f"SELECT id, {made} AS x FROM t WHERE {where}", [{"t": [(row, 1) for row in rows]}], SOME_TABLES)


@pytest.mark.parametrize("where", ["id > 100", "p IS NULL", "true", "NOT p"])
def test_count_if_of_nothing_is_null(where: str) -> None:
    check(f"SELECT count_if(p) AS c, count_if(n > 2) AS d FROM t WHERE {where}", _steps(), SOME_TABLES)
    check(f"SELECT n, count_if(p) FILTER (WHERE id > 2) AS c FROM t WHERE {where} GROUP BY n", _steps(), SOME_TABLES)


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


@pytest.mark.thorough
def test_a_text_of_more_than_16_mebibytes_names_the_row(tmp_path: Path) -> None:
    with persist.open(str(tmp_path)) as client:
        t = client.create_or_load("t", key={"id": pa.int64()}, value={"n": pa.int64()})
        t.write([(1, 1), (2, None), (3, 20_000_000), (4, 0)], time=1, seal=2).result()
        view = client.create_view("v", "SELECT id, left(made, 5) AS x FROM (SELECT id, repeat('x', n) AS made FROM t)")
        with pytest.raises(persist.PersistError, match=r"id=3.*at most 16,777,216"):
            view.refresh()


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(
    "call",
    [
        *("lag(n)", "lag(n, 2)", "lead(n, 0)", "lead(n, 2, id)", "lag(n, 1, -5)", "nth_value(n, 2)", "ntile(2)"),
        *("first_value(n)", "count(n)", "count(*)"),
    ],
)
def test_a_window_takes_what_its_function_is_given(call: str) -> None:
    check(f"SELECT id, {call} OVER (PARTITION BY p ORDER BY id) AS x FROM t", _steps(), SOME_TABLES)


def test_a_place_in_a_window_may_differ_by_row() -> None:
    places = "nth_value(n, id + 1) OVER (PARTITION BY p ORDER BY id) AS x, ntile(id + 1) OVER (ORDER BY id) AS y"
    check(f"SELECT id, {places} FROM t", _steps(), SOME_TABLES)


def test_a_frame_may_be_counted_by_a_cast_number_and_by_no_other_expression() -> None:
    frame = "SELECT id, sum(n) OVER (ORDER BY id ROWS BETWEEN {} PRECEDING AND CURRENT ROW) AS x FROM t"
    check(frame.format("CAST(1 AS BIGINT)"), _steps(), SOME_TABLES)
    with pytest.raises(InvalidUsage, match="a constant whole number"):
        check(frame.format("abs(1)"), _steps(), SOME_TABLES)


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


@pytest.mark.thorough(except_every=3)
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
