"""The values that the table of cells (`tests.compute.sql.cells`) is made of, as texts that DuckDB casts to their types.

Of each type: NULL, nothing, both ends, and what is known to be hard. Some arguments have a role, such as a unit or a
pattern, and values of their own.
"""

from typing import TypeAlias

Pool: TypeAlias = tuple[str | None, ...]
Role: TypeAlias = tuple[str | None, ...]


def _whole(bits: int, *, signed: bool) -> Pool:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return (None, "0", "1", *(("-1", "-7") if signed else ()), "2", "12", str(low), str(high))


POOLS: dict[str, Pool] = {
    "BOOLEAN": (None, "true", "false"),
    "TINYINT": _whole(8, signed=True),
    "SMALLINT": _whole(16, signed=True),
    "INTEGER": _whole(32, signed=True),
    "BIGINT": _whole(64, signed=True),
    "UTINYINT": _whole(8, signed=False),
    "USMALLINT": _whole(16, signed=False),
    "UINTEGER": _whole(32, signed=False),
    "UBIGINT": _whole(64, signed=False),
    "FLOAT": (None, "0", "-0.0", "1", "-1.5", "2.5", "0.1", "3.4e38", "-3.4e38", "1e-40", "inf", "-inf", "nan"),
    "DOUBLE": (
        *(None, "0", "-0.0", "1", "-1", "0.5", "1.5", "2.5", "-2.5", "0.1", "1e15", "123456.789", "9.5e18"),
        *("1.7e308", "-1.7e308", "5e-324", "inf", "-inf", "nan"),
    ),
    "DECIMAL(4,2)": (None, "0", "0.01", "-0.01", "0.5", "-0.5", "1.25", "99.99", "-99.99", "99.50", "-12.34"),
    "DECIMAL(18,3)": (None, "0", "0.001", "1.5", "-2.5", "12.345", "999999999999999.999", "-999999999999999.999"),
    "DECIMAL(38,10)": (None, "0", "0.0000000001", "-1.5", "12.3456789012", "9" * 28 + "." + "9" * 10),
    "VARCHAR": (
        *(None, "", "a", "abc", "aXbX", " x ", "Äpfel und Öl", "日本語", "a\nb", "%", "a_b%", "\\", "o+", "ﬀ"),
        "İstanbul",
    ),
    "BLOB": (None, "", "abc", "\\x00\\xFF", "a\\x0Ab"),
    "DATE": (
        *(None, "1970-01-01", "1969-12-31", "2000-02-29", "2020-12-31", "2021-01-01", "1900-03-01", "0001-01-01"),
        *("2024-01-31", "9999-12-31"),
    ),
    "TIME": (None, "00:00:00", "09:05:07", "12:30:00.5", "23:59:59.999999", "13:00:00.000001"),
    "TIMESTAMP": (
        *(None, "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2000-02-29 12:00:00", "2020-12-31 23:59:59.5"),
        *("2024-01-31 00:00:01", "1900-03-01 01:02:03.004005", "0001-01-01 00:00:00", "9999-12-31 23:59:59"),
    ),
    "TIMESTAMP_S": (None, "1970-01-01 00:00:00", "1969-12-31 23:59:59", "2024-02-29 12:30:15"),
    "TIMESTAMP_MS": (None, "1970-01-01 00:00:00", "1969-12-31 23:59:59.999", "2024-02-29 12:30:15.25"),
    "TIMESTAMP_NS": (None, "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999999", "2024-02-29 12:30:15.250000001"),
    "TIMESTAMP WITH TIME ZONE": (
        *(None, "1970-01-01 00:00:00+00", "1969-12-31 23:59:59.999999+00", "2020-12-31 23:59:59.5+00"),
        *("2024-02-29 12:30:15+00", "0001-01-01 00:00:00+00"),
    ),
}

_FLOAT_TEXTS = (None, "", "1", "-2.5", " 7 ", "1e2", "1E-3", "+3", "inf", "-Infinity", "nan", "1_000", ".5", "5.", "x")
_WHOLE_TEXTS = (
    *(
        None,
        "",
        "0",
        "7",
        "-7",
        "+7",
        " 12 ",
        "1e2",
        "1.7",
        "1.5",
        "2.5",
        "-1.5",
        "0.4",
        "1_000",
        "0x1F",
        "0b11",
        "12x",
    ),
    *("128", "-129", "255", "256", "32768", "65536", "2147483648", "4294967296", "9223372036854775808", "1e400", "abc"),
    *("18446744073709551616", "1e-2", "15e-1", "007", "- 1", "1 2", "true"),
)
_DECIMAL_TEXTS = (
    *(None, "", "0", "1.555", "1.554", "-1.555", "99.995", "99.994", "1e2", "1.5e1", "1e-3", " 5.5 ", ".5", "5.", "+1"),
    *("100", "x", "1_0.5", "1.2.3", "999999999999999.9995", "0.00000000005", "-0.005"),
)
_MOMENT_TEXTS = (
    *(None, "", "2020-01-02", "2020-1-2", "2020/01/02", "2020-01-02 03:04:05", "2020-01-02T03:04:05", "20200102"),
    *("2020-01-02 03:04:05.123456", "2020-01-02 03:04:05.1", "2020-01-02 03:04", "2020-01-02T03:04:05Z", "x"),
    *("2020-01-02 03:04:05+02", "2020-01-02 03:04:05-05:30", " 2020-01-02 ", "2020-02-30", "2020-13-01", "1969-12-31"),
    *("2020-01-02 25:00:00", "2020-01-02 24:00:00", "0001-01-01", "99999-01-01", "2020-01-02 03:04:05.1234567", "2020"),
    *("2020-01-02 03:04:05 UTC", "-2020-01-02", "2020-01-02 x", "2020-01-02 03:04:60"),
)
CASTS_FROM_TEXT: dict[str, Pool] = {
    "BOOLEAN": (
        None,
        "",
        "t",
        "f",
        "true",
        "FALSE",
        "True",
        "1",
        "0",
        "yes",
        "no",
        "y",
        "n",
        "on",
        "off",
        " true ",
        "2",
    ),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"), _WHOLE_TEXTS),
    **dict.fromkeys(("UBIGINT", "HUGEINT"), _WHOLE_TEXTS),
    **dict.fromkeys(("FLOAT", "DOUBLE"), (*_FLOAT_TEXTS, "1e400", "1e39", "0.1", "1e-400", "Inf", "NaN", "-nan", "1e")),
    **dict.fromkeys(("DECIMAL(4,2)", "DECIMAL(18,3)", "DECIMAL(38,10)"), _DECIMAL_TEXTS),
    "BLOB": (None, "", "abc", "\\x41", "\\x4", "\\xZZ", "a\\x41b", "é", "\\\\", "\\xff\\x00"),
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), _MOMENT_TEXTS),
    "TIMESTAMP WITH TIME ZONE": _MOMENT_TEXTS,
    "TIME": (
        *(None, "", "9:30", "09:30:15", "09:30:15.25", "09:30:15.1234567", "23:59:60", "x", " 10:00:00 "),
        *("2020-01-02 03:04:05", "10", "1:2:3", "10:00:00+02", "12:30:00.", "-1:00:00"),
    ),
}

_UNITS = (
    *(None, "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microseconds"),
    *(
        "decade",
        "century",
        "millennium",
        "DAY",
        "doy",
        "dow",
        "isodow",
        "isoyear",
        "yearweek",
        "epoch",
        "era",
        "x",
        "d",
    ),
)
_FORMATS = (
    *(None, "", "plain", "%Y-%m-%d %H:%M:%S.%f", "%U", "%W", "%w %u %V %G", "%c", "%x", "%X", "%j %-j", "%p %I %-I"),
    *("%a %A %b %B", "%y %-y", "%g %n", "%z", "%Z", "100%%", "%q", "%", "%s"),
)
_ESCAPES: Pool = ("\\", None, "!")
CONSTANTS = (
    _UNITS,
    _FORMATS,
    _ESCAPES,
)  # Roles of arguments that views take as constants only, so each value is tried.
_SMALL: Pool = (None, "0", "1", "3", "-1", "-3", "7", "100")
_PATTERNS: Pool = (None, "", "a", "o+", "^a", "b$", "(a)(X)?", "[", "(?i)A", ".", "a|b", "\\s", "語")
_OPTIONS: Pool = (None, "", "i", "g", "s", "c", "x")
_LIKES: Pool = (None, "", "%", "a%", "%b%", "_", "a_b\\%", "\\", "A%", "%X", "日%", "Ä%", "ab\\")
_FACTORS: Pool = (None, "0", "1", "-1", "2", "12", "-31", "400")
_COUNTS: dict[str, Role] = {"INTEGER": _SMALL, "BIGINT": (*_SMALL, "9223372036854775807", "-9223372036854775808")}
_PADDED: dict[str, Role] = {"INTEGER": _SMALL}
_REPEATED: dict[str, Role] = {"BIGINT": (None, "0", "1", "3", "-1", "100")}
_DIGITS: dict[str, Role] = {"INTEGER": (None, "0", "1", "2", "-1", "-2", "5", "20", "-20", "400")}
_GROUPS: Role = (None, "0", "1", "2", "-1", "9")
_NEWS: Role = (None, "", "<\\1>", "\\0", "x", "\\9", "\\\\")
_ANY: dict[str, Role] = {}
ROLES: dict[str, tuple[dict[str, Role], ...]] = {
    **{name: (_ANY, {"VARCHAR": _LIKES}) for name in ("~~", "!~~", "~~*", "!~~*")},
    **{
        name: (_ANY, {"VARCHAR": _LIKES}, {"VARCHAR": _ESCAPES})
        for name in ("like_escape", "not_like_escape", "ilike_escape", "not_ilike_escape")
    },
    **dict.fromkeys(("substring", "substr", "left", "right"), (_ANY, _COUNTS, _COUNTS)),
    **{name: (_ANY, _PADDED, {"VARCHAR": (None, "x", "xy", "語", "")}) for name in ("lpad", "rpad")},
    "repeat": (_ANY, _REPEATED),
    "replace": (_ANY, {"VARCHAR": (None, "", "a", "X", "語")}, {"VARCHAR": (None, "", "b", "xyz")}),
    "translate": (_ANY, {"VARCHAR": (None, "", "ab", "aXa", "語")}, {"VARCHAR": (None, "", "b", "xyz")}),
    "chr": ({"INTEGER": (None, "0", "1", "65", "8364", "127", "128", "128512", "-1", "55296", "1114111", "1114112")},),
    "regexp_matches": (_ANY, {"VARCHAR": _PATTERNS}, {"VARCHAR": _OPTIONS}),
    "regexp_full_match": (_ANY, {"VARCHAR": _PATTERNS}, {"VARCHAR": _OPTIONS}),
    "regexp_replace": (*(_ANY, {"VARCHAR": _PATTERNS}, {"VARCHAR": _NEWS}), {"VARCHAR": _OPTIONS}),
    "regexp_extract": (
        *(_ANY, {"VARCHAR": _PATTERNS}, {"INTEGER": _GROUPS, "VARCHAR": _OPTIONS}),
        {"VARCHAR": _OPTIONS},
    ),
    **dict.fromkeys(("round", "trunc"), (_ANY, _DIGITS)),
    **{name: ({"VARCHAR": _UNITS},) for name in ("date_part", "datepart", "date_trunc", "datetrunc")},
    **{name: ({"VARCHAR": _UNITS},) for name in ("date_diff", "datediff")},
    "strftime": ({"VARCHAR": _FORMATS}, {"VARCHAR": _FORMATS}),
    "make_date": (
        {"BIGINT": (None, "2020", "1", "0", "-5", "9999", "300000"), "INTEGER": (None, "0", "20000", "-1")},
        {"BIGINT": (None, "1", "2", "12", "13", "0")},
        {"BIGINT": (None, "1", "29", "31", "32", "0")},
    ),
    **{f"to_{unit}": ({"INTEGER": _FACTORS, "BIGINT": _FACTORS},) for unit in ("years", "quarters", "months")},
    **{f"to_{unit}": ({"INTEGER": _FACTORS, "BIGINT": _FACTORS},) for unit in ("weeks", "days", "hours", "minutes")},
}
