"""Functions that DuckDB computes itself: which they are, where DuckDB is needed, and columns that are nested."""

import sys
from datetime import date
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import persist
from persist.compute.sql.by_duckdb import is_cast_checked_late, is_definite
from persist.errors import InvalidUsage, OperatorFailed
from tests.compute.sql.two_ways import requests_by_key

PLACE = pa.struct([("x", pa.int32()), ("name", pa.string())])
COLUMNS = {
    "tags": (pa.list_(pa.string()), ["a", None]),
    "long": (pa.large_list(pa.int64()), [1, 2]),
    "pair": (pa.list_(pa.float32(), 2), [1.0, 2.0]),
    "place": (PLACE, {"x": 1, "name": "p"}),
    "counts": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    "deep": (pa.list_(pa.struct([("l", pa.list_(pa.int8()))])), [{"l": [1]}, None]),
    "half": (pa.float16(), 1.5),
}


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_of_a_nested_type_comes_and_goes(client: persist.Client, column: str) -> None:
    kind, value = COLUMNS[column]
    table = client.create_or_load("t", key={"id": pa.int64()}, value={"c": kind})
    table.write([((1, value), 0, 1), ((2, None), 0, 1)], seal=1).result()
    queries = ["SELECT id, c FROM t", "SELECT c, count(*) AS n FROM t GROUP BY c", "SELECT DISTINCT c FROM t"]
    queries += ["SELECT list(c ORDER BY id) AS l FROM t", "SELECT id, c FROM t WHERE c IS NOT NULL ORDER BY c LIMIT 1"]
    with requests_by_key():
        views = [client.create_view(f"v{at}", sql) for at, sql in enumerate(queries)]
        for view in views:
            view.refresh()
        table.write([((1, value), 1, -1), ((3, value), 1, 1)], seal=2).result()
        for view in views:
            view.refresh()
    contents = [view.snapshot().to_arrow().to_pylist() for view in views]
    assert sorted((row["id"], row["c"]) for row in contents[0]) == [(2, None), (3, value)]
    assert {repr(row["c"]): row["n"] for row in contents[1]} == {repr(value): 1, "None": 1}
    assert sorted(repr(row["c"]) for row in contents[2]) == sorted([repr(value), "None"])
    assert contents[3] == [{"l": [None, value]}]
    assert contents[4] == [{"id": 3, "c": value}]


def test_a_view_reads_fields_elements_and_values_of_nested_columns(client: persist.Client) -> None:
    kinds = {"place": PLACE, "tags": pa.list_(pa.string()), "doc": pa.string()}
    table = client.create_or_load("t", key={"id": pa.int64()}, value=kinds)
    table.write([((1, ({"x": 1, "name": "p"}, ["a", "b"], '{"k": [7]}')), 0, 1)], seal=1).result()
    sql = (
        "SELECT id, place.name AS n, tags[2] AS t, len(tags) AS l, doc->'k'->>0 AS d, list_sort(tags, 'DESC') AS s,"
        " list_transform(tags, lambda x: upper(x)) AS u, hour(to_hours(id + 1)) AS h FROM t"
    )
    view = client.create_view("v", sql)
    view.refresh()
    assert view.snapshot().to_arrow().to_pylist() == [
        {"id": 1, "n": "p", "t": "b", "l": 2, "d": "7", "s": ["b", "a"], "u": ["A", "B"], "h": 2}
    ]


def test_a_row_on_which_duckdb_raises_stops_the_view_and_is_named(client: persist.Client) -> None:
    table = client.create_or_load("t", key={"id": pa.int64()}, value={"s": pa.string()})
    table.write([((1, "2020-01-01"), 0, 1)], seal=1).result()
    view = client.create_view("v", "SELECT id, strptime(s, '%Y-%m-%d') AS d FROM t")
    view.refresh()
    table.write([((2, "no day"), 1, 1)], seal=2).result()
    with pytest.raises(OperatorFailed, match="no day"):
        view.refresh()
    table.write([((2, "no day"), 2, -1)], seal=3).result()
    view.refresh()
    assert len(view.snapshot().to_arrow()) == 1


@pytest.mark.parametrize("version", [None, "1.4.1"])
def test_without_duckdb_a_view_of_its_functions_says_what_to_install(
    client: persist.Client, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = client.create_or_load("t", key={"id": pa.int64()}, value={"s": pa.string()})
    table.write([((1, "a,b"), 0, 1)], seal=1).result()
    split = client.create_view("split", "SELECT id, string_split(s, ',') AS l FROM t")
    plain = client.create_view("plain", "SELECT id, upper(s) AS s FROM t")
    for view in (split, plain):
        view.close()
    if version is None:
        monkeypatch.setitem(sys.modules, "duckdb", None)
    else:
        monkeypatch.setattr(duckdb, "__version__", version)
    with pytest.raises(InvalidUsage, match=r"pip install 'duckdb>=2.0,<2.1'"):
        split.refresh()
    with pytest.raises(InvalidUsage, match=r"pip install 'duckdb>=2.0,<2.1'.*Views that exist are refreshed with"):
        client.create_view("other", "SELECT id FROM t")
    plain.refresh()
    assert len(plain.snapshot().to_arrow()) == 1


@pytest.mark.parametrize(
    "name", ["random", "now", "hash", "version", "getvariable", "nextval", "uuid", "current_setting"]
)
def test_what_is_not_the_same_each_time_is_not_left_to_duckdb(name: str) -> None:
    assert not is_definite(name)


def test_a_text_of_a_query_cannot_leave_its_quotes(client: persist.Client) -> None:
    table = client.create_or_load("t", key={"id": pa.int64()}, value={"s": pa.string()})
    table.write([((1, "$1'),(\"x"), 0, 1)], seal=1).result()
    quotes: list[Any] = ["'); SELECT 1 --", '"$1"', "$1", "''"]
    shown = ", ".join("'" + text.replace("'", "''") + "'" for text in quotes)
    view = client.create_view("v", f"SELECT id, list_value(s, {shown}) AS l FROM t")
    view.refresh()
    assert view.snapshot().to_arrow()["l"].to_pylist() == [["$1'),(\"x", *quotes]]


def test_aggregates_of_bits_are_refused_of_wide_numbers_and_never_give_what_cannot_be_told_from_null(
    client: persist.Client,
) -> None:
    table = client.create_or_load("t", key={"id": pa.int64()}, value={"a": pa.int64()})
    table.write([((1, 2**63 - 1), 0, 1), ((2, -1), 0, 1)], seal=1).result()
    with pytest.raises(InvalidUsage, match=r"bit_or\(\) of HUGEINT is not supported in a view: cast to BIGINT"):
        client.create_view("wide", "SELECT bit_or(a::HUGEINT) AS x FROM t")
    with pytest.raises(InvalidUsage, match="HUGEINT"):
        client.create_view("wide", "SELECT bit_or(a::HUGEINT) OVER () AS x FROM t")
    with pytest.raises(InvalidUsage, match=r"-2\*\*63"):
        client.create_view("least", "SELECT bit_xor(a) AS x FROM t").refresh()


def test_a_constant_that_is_a_map_is_one_of_a_view(client: persist.Client) -> None:
    client.create_or_load("t", key={"id": pa.int64()}).write([((1, None), 0, 1)], seal=1).result()
    view = client.create_view("v", "SELECT id, MAP {'d': DATE '2024-01-01', 'e': NULL} AS m FROM t")
    view.refresh()
    assert view.snapshot().to_arrow().to_pylist() == [{"id": 1, "m": [("d", date(2024, 1, 1)), ("e", None)]}]


def test_functions_that_are_computed_together_keep_their_own_columns_and_constants(client: persist.Client) -> None:
    table = client.create_or_load("t", key={"id": pa.int64()}, value={"a": pa.string(), "b": pa.string()})
    table.write([((1, ("x", "yy")), 0, 1), ((2, ("it's", None)), 0, 1)], seal=1).result()
    sql = """SELECT id, reverse(b) AS r, concat(b, '"$1"', a) AS c, a || '''"$2"' AS q, id + 1 AS n FROM t"""
    view = client.create_view("v", sql)
    for at in (1, 2):
        view.refresh()
        made = sorted(tuple(row.values())[:5] for row in view.snapshot().to_arrow().to_pylist())
        expected = [(1, "yy"[::-1], 'yy"$1"x', 'x\'"$2"', 2), (2, None, '"$1"it\'s', "it's'\"$2\"", 3)]
        assert made == expected + [(3, "c", 'c"$1"z', 'z\'"$2"', 4)] * (at == 2)
        table.write([((3, ("z", "c")), 1, 1)] * (at == 1), seal=at + 1).result()


def test_one_function_that_raises_is_told_with_its_record_though_others_are_computed_with_it(
    client: persist.Client,
) -> None:
    table = client.create_or_load("t", key={"id": pa.int64()}, value={"a": pa.string()})
    table.write([((1, "1"), 0, 1), ((2, "two"), 0, 1)], seal=1).result()
    view = client.create_view("v", "SELECT id, reverse(a) AS r, CAST(a AS INTEGER) AS n FROM t")
    with pytest.raises(OperatorFailed, match="two"):
        view.refresh()


def test_intervals_are_stored_as_their_months_days_and_microseconds() -> None:
    with persist.open("memory://intervals") as client:
        given = client.create_or_load("given", key={"id": int}, value={"days": int, "micros": int})
        rows = [(1, (400, -5)), (2, (None, 3)), (3, (-1, 90_061_000_001)), (4, (-1, 2**62))]
        given.write(rows[:3], time=1, seal=2).result()
        asked = "SELECT id, to_months(days) + to_days(days) + to_microseconds(micros) AS i FROM given"
        view = client.create_view("v", asked)
        again = "to_months(i.months) + to_days(i.days) + to_microseconds(i.micros)"
        above = client.create_view("above", f"SELECT id, {again} > INTERVAL 1 DAY AS is_long FROM v", key=["id"])
        above.refresh()
        kept = [{"months": m, "days": m, "micros": n} for _, (m, n) in rows[:3]]
        assert view.snapshot().to_arrow()["i"].to_pylist() == [kept[0], None, kept[2]]
        assert sorted(above.snapshot().rows()) == [(1, True), (2, None), (3, False)]
        given.write(rows[3:], time=2, seal=3).result()
        view.refresh()
        assert view.snapshot().to_arrow()["i"].to_pylist()[3] == {"months": -1, "days": -1, "micros": 2**62}


def kind(name: str, *inner: Any, **more: Any) -> dict[str, Any]:
    """Return a type as a plan of DuckDB has it."""
    if name in ("LIST", "ARRAY"):
        return {"id": name, "type_info": {"child_type": inner[0], **more}}
    if inner:
        return {
            "id": name,
            "type_info": {"child_types": [{"first": f"f{at}", "second": each} for at, each in enumerate(inner)]},
        }
    return {"id": name, **({"type_info": more} if more else {})}


INT, TEXT, NULL, BIT = kind("INTEGER"), kind("VARCHAR"), kind("SQLNULL"), kind("BIT")
CASTS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    (INT, kind("BIGINT"), True), (INT, TEXT, True), (TEXT, kind("LIST", INT), True), (NULL, kind("LIST", INT), True),
    (INT, kind("DATE"), False), (kind("TIMESTAMP"), kind("DATE"), True), (kind("DATE"), kind("TIMESTAMP_NS"), True),
    (kind("LIST", INT), kind("LIST", TEXT), True), (kind("LIST", INT), kind("LIST", kind("DATE")), False),
    (kind("LIST", INT), kind("ARRAY", INT, size=2), True), (kind("ARRAY", INT, size=2), kind("LIST", INT), True),
    (kind("STRUCT", INT, TEXT), kind("STRUCT", TEXT, TEXT), True), (kind("STRUCT", INT), kind("TUPLE", INT), True),
    (kind("STRUCT", INT), kind("STRUCT", INT, INT), False), (kind("STRUCT", INT, INT), kind("STRUCT", INT), False),
    (kind("STRUCT", INT, INT), kind("STRUCT", INT, kind("DATE")), False),
    (INT, BIT, True), (BIT, INT, True), (BIT, kind("DATE"), False), (BIT, TEXT, True), (BIT, kind("BIGNUM"), False),
    (kind("UHUGEINT"), kind("BIGINT"), True), (kind("UHUGEINT"), kind("BIGNUM"), True),
    (kind("DOUBLE"), kind("UHUGEINT"), False), (INT, kind("UNION", INT), True), (kind("UNION", INT), INT, False),
    (kind("LIST", INT), kind("UNION", INT), False), (kind("ENUM"), TEXT, True), (kind("ENUM"), INT, False),
]  # fmt: skip


def test_what_duckdb_casts_is_known_by_types_at_whatever_depth() -> None:
    assert [(given, wanted) for given, wanted, does in CASTS if is_cast_checked_late(given, wanted) != does] == []
