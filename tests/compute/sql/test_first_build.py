"""First builds by DuckDB: exactly what the operators compute, or left to them; all of it in one commit, or nothing."""

import os
import random
import sys
from contextlib import suppress
from fractions import Fraction
from typing import Literal

import pyarrow as pa
import pytest

import persist
from persist import View
from persist.blob.errors import CorruptBlob, Unavailable
from persist.blob.protocol import MemoryBlob
from persist.compute.sql.types import to_arrow
from tests.compute.sql.oracle import TABLES, value
from tests.compute.sql.test_cold_steps import MORTAL, Mortal
from tests.compute.sql.test_two_ways import KINDS
from tests.compute.sql.two_ways import QUIET, let_duckdb_build, way_of

ROWS = 400
BUILT = (
    *("sums and counts", "sums of floats", "sums without a group", "least and greatest", "distinct"),
    *("distinct in an aggregate", "joins", "left joins", "full joins", "semi joins", "anti joins", "not in"),
    *("others of a key", "sums of a key", "union", "intersect", "scalar subqueries"),
)
MORE = {
    "a limit over groups": "SELECT a, sum(m) AS n FROM t GROUP BY a ORDER BY n DESC, a LIMIT 2",
    "texts by duckdb": "SELECT reverse(s) AS r, count(*) AS n, avg(m) AS d FROM t GROUP BY 1",
    "wide decimals": "SELECT p, sum(h) AS s, avg(h) AS d, max(ts) AS l FROM w GROUP BY p",
    "parts of dates": "SELECT year(d) AS y, month(d) AS n, count(*) AS c, sum(f) AS s FROM t GROUP BY ALL",
}


def fill(client: persist.Client, seed: int, *, rows: int = ROWS, time: int = 0) -> dict[str, list[tuple[object, ...]]]:
    """Write rows into the tables of tests at a time; return them."""
    chance, every = random.Random(seed), {}
    for name, columns in TABLES.items():
        table = client.create_or_load(name, key={column: to_arrow(kind) for column, kind in columns})
        every[name] = [tuple(value(chance, kind) for _, kind in columns) for _ in range(rows)]
        table.write([((row, None), time, 1) for row in every[name]], seal=time + 1).result()
    return every


def build_twice(client: persist.Client, sql: str, indexes: Literal["auto"] | None = None) -> tuple[View, View]:
    """Return two views of a query: one that DuckDB builds, and one that the operators build."""
    built, other = (client.create_view(name, sql, indexes=indexes) for name in ("built", "other"))
    let_duckdb_build(built)
    for view in (built, other):
        view.refresh()
    assert way_of(other) == "state"
    return built, other


def check_alike(built: View, other: View, times: int = 1) -> None:
    """Raise AssertionError unless two views hold exactly the same at all times."""
    assert built.upper == other.upper == persist.Antichain(times)
    for as_of in range(times):
        contents = [repr(view.snapshot(as_of, form="diff").to_arrow().to_pylist()) for view in (built, other)]
        assert contents[0] == contents[1]  # As texts, NaN equals itself, and 0.0 is not -0.0.


@pytest.mark.thorough(except_every=7)
@pytest.mark.parametrize("groups", [None, "auto"])
@pytest.mark.parametrize("kind", [*BUILT, *MORE])
def test_duckdb_builds_what_the_operators_build_and_refreshes_go_on_from_it(
    client: persist.Client, kind: str, groups: Literal["auto"] | None
) -> None:
    rows = fill(client, len(kind))
    built, other = build_twice(client, MORE.get(kind) or KINDS[kind], groups)
    assert way_of(built) == "part"
    check_alike(built, other)
    for name in TABLES:
        gone = [((row, None), 1, -1) for row in rows[name][::7]]
        come = [((row, None), 1, 1) for row in rows[name][3::11]]
        client.load(name).write(gone + come, seal=2).result()
    for view in (built, other):
        view.refresh()
    check_alike(built, other, 2)
    assert client.fsck().problems == ()


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("kind", ["sums of floats", "left joins", "distinct"])
def test_the_updates_of_a_few_times_are_built_at_once_retractions_too(client: persist.Client, kind: str) -> None:
    rows = fill(client, 1)
    for time in (2, 5):
        for name in TABLES:
            gone = [((row, None), time, -1) for row in rows[name][time::6]]
            client.load(name).write(gone, seal=time + 1).result()
    built, other = build_twice(client, KINDS[kind])
    assert way_of(built) == "part"
    check_alike(built, other, 6)


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us")])
def test_the_number_that_stands_for_null_is_refused_by_both_ways(client: persist.Client, kind: pa.DataType) -> None:
    rows = pa.table({"k": [0, 1], "x": pa.array([-(2**63), 5]).cast(kind)})
    client.write("least", rows, key=["k"]).result()
    for name in ("built", "other"):
        view = client.create_view(name, "SELECT x, count(*) AS n FROM least GROUP BY x")
        if name == "built":
            let_duckdb_build(view)
        with pytest.raises(persist.errors.InvalidUsage, match=r"the value -2\*\*63 of a column"):
            view.refresh()


def test_a_view_of_a_view_is_built_with_it(client: persist.Client) -> None:
    fill(client, 2)
    client.create_view("below", KINDS["sums and counts"])
    view = client.create_view("outer", "SELECT n, count(*) AS c, max(s) AS s FROM below GROUP BY n")
    let_duckdb_build(view)
    view.refresh()
    assert way_of(view) == "part"
    whole = f"SELECT n, count(*) AS c, max(s) AS s FROM ({KINDS['sums and counts']}) GROUP BY n"
    again = client.create_view("again", whole)
    again.refresh()
    check_alike(view, again)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("kind", range(5))
def test_sums_and_means_of_floats_are_rounded_once(client: persist.Client, kind: int) -> None:
    chance = random.Random(kind)

    def draw() -> float:
        """Return a float of one kind."""
        match kind:
            case 0:
                return chance.gauss(0, 100)
            case 1:
                return round(chance.uniform(0, 1e5), 2)
            case 2:
                return chance.randint(-9, 9) / 7
            case 3:
                return chance.choice([0.1, -0.1, -0.0])
        return chance.uniform(1e9, 1e10)

    values = [(number, number % 300, None if number % 11 == 0 else draw()) for number in range(3000)]
    table = client.create_or_load("v", key={"i": pa.int64()}, value={"g": pa.int64(), "x": pa.float64()})
    table.write([((i, (g, x)), 0, 1) for i, g, x in values], seal=1).result()
    view = client.create_view("sums", "SELECT g, sum(x) AS s, avg(x) AS m FROM v GROUP BY g")
    let_duckdb_build(view)
    view.refresh()
    assert way_of(view) == "part"
    groups: dict[int, list[Fraction]] = {}
    for _, g, x in values:
        groups.setdefault(g, []).extend([] if x is None else [Fraction(x)])
    expected = {g: (float(sum(x)), float(sum(x) / len(x))) if x else (None, None) for g, x in groups.items()}
    rows = view.snapshot().to_arrow().to_pylist()
    assert {row["g"]: (row["s"], row["m"]) for row in rows} == expected
    assert "-0.0" not in {str(row["s"]) for row in rows}


@pytest.mark.parametrize("x", [1e300, 1e-30])
def test_floats_that_three_parts_do_not_hold_are_left_to_the_operators(client: persist.Client, x: float) -> None:
    table = client.create_or_load("v", key={"i": pa.int64()}, value={"x": pa.float64()})
    table.write([((1, x), 0, 1), ((2, 0.5), 0, 1)], seal=1).result()
    built, other = build_twice(client, "SELECT sum(x) AS s, count(*) AS n FROM v")
    assert way_of(built) == "state"
    check_alike(built, other)


def test_multiplicities_below_zero_are_left_to_the_operators(client: persist.Client) -> None:
    fill(client, 3)
    client.load("u").write([(((9, 9, "x"), None), 1, -1)], seal=2).result()
    for name in ("t", "w"):
        client.load(name).seal(2).result()
    built, other = build_twice(client, KINDS["joins"])
    assert way_of(built) == "state"
    check_alike(built, other, 2)


def test_without_duckdb_and_for_few_rows_the_operators_build(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, 4)
    views = [client.create_view(name, KINDS["joins"]) for name in ("few", "without")]
    let_duckdb_build(views[1])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for view in views:
        view.refresh()
        assert way_of(view) == "state"


def build_from_texts(client: persist.Client, sql: str, **options: int) -> View:
    """Return a view of a table of texts; raise AssertionError unless DuckDB's build holds what the operators' does."""
    table = client.create_or_load("v", key={"i": pa.int32()}, value={"s": pa.string(), "l": pa.list_(pa.int64())})
    texts = ["\u017f", "\u0130", "\u03c2", "\u212a", "2020-01-01 03:00:00+00", *map(str, range(2000))]
    table.write([((i, (text, [i])), 0, 1) for i, text in enumerate(texts)], seal=1).result()
    built, other = (client.create_view(name, sql) for name in ("built", "other"))
    let_duckdb_build(built)
    built.live.together.options = {**built.live.together.options, **options}
    for view in (built, other):
        view.refresh()
    check_alike(built, other)
    return built


@pytest.mark.parametrize("pattern", ["%s%", "i", "\u03c3"])
def test_patterns_without_case_are_left_to_the_operators(client: persist.Client, pattern: str) -> None:
    view = build_from_texts(client, f"SELECT s ILIKE '{pattern}' AS p, count(*) AS n FROM v GROUP BY 1")
    assert way_of(view) == "state"


@pytest.mark.usefixtures("elsewhere")
def test_texts_of_moments_are_in_utc_wherever_the_process_is(client: persist.Client) -> None:
    moments = "CAST(TRY_CAST(s AS TIMESTAMPTZ) AS VARCHAR)"
    view = build_from_texts(client, f"SELECT {moments} AS m, count(*) AS n FROM v WHERE s IS NOT NULL GROUP BY 1")
    assert way_of(view) == "part"


def test_sources_without_a_text_above_others_with_one_are_left_to_the_operators(client: persist.Client) -> None:
    fill(client, 6)
    groups = "SELECT a, count(*) AS n FROM t GROUP BY a"
    view = build_from_texts(client, f"SELECT v.i, v.l, g.n FROM v JOIN ({groups}) AS g ON v.i = g.a")
    assert way_of(view) == "state"


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT " rest 0 0", sum(x) AS s FROM named GROUP BY 1',
        'SELECT " weight", count(*) AS n FROM (SELECT i, " weight" FROM named EXCEPT SELECT 3, 0) AS o GROUP BY 1',
    ],
)
def test_columns_with_names_that_texts_use_are_left_to_the_operators(client: persist.Client, sql: str) -> None:
    values = {" rest 0 0": pa.float64(), " weight": pa.int64(), "x": pa.float64()}
    table = client.create_or_load("named", key={"i": pa.int64()}, value=values)
    table.write([((i, (float(i % 2), i % 4, i / 10)), 0, 1) for i in range(50)], seal=1).result()
    check_alike(*build_twice(client, sql))


@pytest.mark.parametrize("bounded_by", ["memory", "files", "the system"])
def test_what_needs_much_memory_or_many_files_is_left_to_the_operators(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch, bounded_by: str
) -> None:
    def refuse(name: str) -> int:
        """Raise as a process does that has too many files."""
        raise OSError(24, "Too many open files")

    if bounded_by == "files":
        monkeypatch.setattr("persist.compute.sql.first_build.FILES_MAX", 0)
    elif bounded_by == "the system":
        monkeypatch.setattr(os, "memfd_create", refuse)
    budget = {"memory_budget": 5000} if bounded_by == "memory" else {}
    view = build_from_texts(client, "SELECT s, count(*) AS n FROM v GROUP BY s", **budget)
    assert way_of(view) == "state"


def test_a_damaged_part_is_never_built_from() -> None:
    blob = MemoryBlob()
    with persist.open(blob, settings=QUIET) as client:
        fill(client, 5, rows=20_000)
        view = client.create_view("v", KINDS["sums and counts"])
        let_duckdb_build(view)
        [key, *_] = [entry.key for entry in blob.list("part/")]
        data = bytearray(blob.get(key) or b"")
        data[len(data) // 2] ^= 1
        blob.set(key, bytes(data))
        with pytest.raises(CorruptBlob, match="checksum"):
            for name in ("t", "u", "w"):
                client.create_view(f"of {name}", f"SELECT a, count(*) AS n FROM {name} GROUP BY a").refresh()
            view.refresh()


@pytest.mark.thorough
@pytest.mark.parametrize("happens", [False, True])
def test_a_first_build_that_dies_at_any_call_of_the_store_is_whole_or_absent(happens: bool) -> None:
    at, died = 0, True
    while died:
        blob = MemoryBlob()
        with persist.open(blob, settings=QUIET) as client:
            fill(client, at)
            client.create_view("v", MORE["a limit over groups"], indexes="auto")
            other = client.create_view("other", MORE["a limit over groups"])
            other.refresh()
        mortal = Mortal(blob, at, happens=happens)
        with (
            suppress(Unavailable, persist.Indeterminate, BaseExceptionGroup),
            persist.open(mortal, settings=MORTAL) as client,
        ):
            view = client.view("v")
            let_duckdb_build(view)
            view.refresh()
        died = mortal.is_dead
        with persist.open(blob, settings=QUIET) as client:
            view, other = client.view("v"), client.view("other")
            assert view.upper in (persist.Antichain(0), persist.Antichain(1))
            view.refresh()
            check_alike(view, other)
            assert client.fsck().problems == ()
        at += 1
    assert at > 5, "a first build asks the store for something"
