"""Each function on values at the ends of what it takes, and on what a query's tables do not hold, against DuckDB."""

import datetime
from typing import Any

import pytest

from persist.errors import PersistError
from tests.compute.sql.oracle import Changes, Row, check, program_of

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
