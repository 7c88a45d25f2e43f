"""Steps and open handles: at every time a view holds what DuckDB computes anew, whichever of the two refreshes it."""

import gc
import re
import sys
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.errors import InvalidUsage, OperatorFailed, WouldRecompute
from persist.sql import open_together
from tests.compute.index.always import indexes_that_always_pay
from tests.compute.sql.grammar import Grammar
from tests.compute.sql.oracle import changes
from tests.compute.sql.two_ways import QUIET, chain, check_in_turns, check_together, requests_by_key, way_of

KINDS = {
    "sums and counts": "SELECT a, count(*) AS n, sum(b) AS s, count(b) AS c FROM t GROUP BY a",
    "sums of floats": "SELECT a, sum(f) AS s, avg(f) AS m, count(*) AS n FROM t GROUP BY a",
    "sums without a group": "SELECT count(*) AS n, sum(m) AS s, count(m) AS c FROM t WHERE b > 1",
    "least and greatest": "SELECT a, min(b) AS l, max(f) AS g, count(*) AS n FROM t GROUP BY a",
    "the place of the least": "SELECT a, arg_min(s, f) AS l, arg_max(d, m) AS g FROM t GROUP BY a",
    "first rows": "SELECT a, b, s FROM t ORDER BY f DESC, a LIMIT 4",
    "first rows of groups": "SELECT DISTINCT ON (a) a, b, m FROM t ORDER BY a, m",
    "first rows of partitions": "SELECT a, b, s FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b, s) < 3",
    "first ranks": "SELECT a, b, s, dense_rank() OVER (PARTITION BY a ORDER BY b DESC) AS r FROM t QUALIFY r IN (1, 3)",
    "distinct": "SELECT DISTINCT a, b FROM t",
    "distinct in an aggregate": "SELECT a, count(DISTINCT b) AS n FROM t GROUP BY a",
    "windows": "SELECT a, m, row_number() OVER w AS r, sum(b) OVER w FROM t WINDOW w AS (PARTITION BY a ORDER BY m)",
    "frames": "SELECT a, b, count(*) OVER (ORDER BY b RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE GROUP) FROM t",
    "asof joins": "SELECT a, t.b, v.b AS c FROM t ASOF LEFT JOIN (SELECT DISTINCT a, b FROM u) v USING (a, b)",
    "rows of lists": "SELECT a, count(*) AS n, sum(x) AS s FROM (SELECT a, unnest(range(b)) AS x FROM t) GROUP BY a",
    "texts by duckdb": "SELECT a, string_split(s, 'x') AS l, count(*) AS n FROM t GROUP BY ALL",
    "firsts in an order": "SELECT a, first(s ORDER BY m, s) AS f, last(b ORDER BY m, b), count(*) FROM t GROUP BY a",
    "quantiles": "SELECT a, median(b) AS m, quantile_disc(s, 0.7) AS q, mad(f) AS d FROM t WHERE f < 9 GROUP BY a",
    "statistics": "SELECT a, stddev(b) AS s, var_pop(m) AS v, regr_sxy(b, m) AS c, count(*) AS n FROM t GROUP BY a",
    "lists": "SELECT a, list(b ORDER BY b DESC) AS l, string_agg(s, '|' ORDER BY s) AS t FROM t GROUP BY a",
    "lists of nothing": "SELECT list(b ORDER BY b) AS l, string_agg(DISTINCT s, '|' ORDER BY s) FROM t WHERE b = 9",
    "joins": "SELECT u.b, count(*) AS n, sum(t.b) AS s FROM t JOIN u USING (a) GROUP BY u.b",
    "left joins": "SELECT t.a, t.b, u.s FROM t LEFT JOIN u ON t.a = u.a AND t.b = u.b",
    "full joins": "SELECT t.a, u.a AS o, t.b, u.s FROM t FULL JOIN u ON t.a = u.a",
    "semi joins": "SELECT a, b FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > 1)",
    "anti joins": "SELECT a, b FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.b > 1)",
    "not in": "SELECT a, b FROM t WHERE b NOT IN (SELECT b FROM u WHERE u.a > 2)",
    "others of a key": "SELECT x.s, count(*) AS n FROM t x JOIN u USING (a) "
    "WHERE EXISTS (SELECT 1 FROM t y WHERE y.a = x.a AND y.b <> x.b) "
    "AND NOT EXISTS (SELECT 1 FROM t z WHERE z.a = x.a AND z.b <> x.b AND z.b > 2) GROUP BY 1",
    "sums of a key": "SELECT a, b FROM t WHERE a IN (SELECT a FROM u WHERE a IN (SELECT a FROM w) "
    "AND b > (SELECT 0.5 * sum(x.b) FROM t x WHERE x.a = u.a AND x.s = u.s))",
    "union": "SELECT a, b FROM t UNION SELECT a, b FROM u",
    "union all": "SELECT a, b FROM t UNION ALL SELECT a, b FROM u",
    "except": "SELECT a, b FROM t EXCEPT ALL SELECT a, b FROM u",
    "intersect": "SELECT a, b FROM t INTERSECT SELECT a, b FROM u",
    "scalar subqueries": "SELECT a, b FROM t WHERE b > (SELECT avg(b) FROM u)",
    "recursion": "WITH RECURSIVE r AS (SELECT a FROM u UNION SELECT a + 1 FROM r WHERE a < 6) SELECT a FROM r",
}  # fmt: skip


@pytest.mark.thorough(except_every=12)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_open_handles_in_turns_have_the_answers_of_duckdb(kind: str) -> None:
    ways = check_in_turns(KINDS[kind], changes(len(kind), steps=6, size=5), seed=len(kind))
    assert ("part" in ways) == (kind != "recursion")


@pytest.mark.thorough(except_every=20)
@pytest.mark.parametrize("seed", range(20))
def test_keys_that_one_table_of_a_chain_gives_are_passed_on_to_the_next(seed: int) -> None:
    assert "part" in check_in_turns(chain(seed), changes(seed, steps=5, size=6), seed)


@pytest.mark.thorough(except_every=20)
@pytest.mark.parametrize("seed", range(20))
def test_views_that_one_step_refreshes_need_each_its_own_of_what_they_share(seed: int) -> None:
    whole = "SELECT b, count(*) AS n FROM (SELECT a + b AS b FROM t) GROUP BY b HAVING count(*) > 1"
    chosen = [KINDS[kind] for kind in ("others of a key", "sums of a key", "windows", "except", "scalar subqueries")]
    check_together([chain(seed), whole, chain(seed + 1000), chosen[seed % 5]], changes(seed, steps=4, size=5), seed)


def test_a_view_that_needs_all_of_an_input_leaves_the_others_their_keys() -> None:
    queries = {"by key": "SELECT k, max(v) AS s FROM t GROUP BY k", "all": "SELECT DISTINCT v + 1 AS w FROM t"}
    with requests_by_key(), persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client:
        t = client.create_or_load("t", key={"k": pa.int64()}, value={"v": pa.int64()})
        t.write([((i, i % 7), 0, 1) for i in range(1000)], seal=1).result()
        views = [client.create_view(name, sql) for name, sql in queries.items()]
        for view in views:
            view.refresh()
            view.close()
        t.write([((3, 3), 1, -1), ((3, 14), 1, 1)], seal=2).result()
        with open_together(views) as together:
            lines = [line for line in together.explain_refresh().splitlines() if line.startswith("read t")]
            assert [re.sub(r"[\d,]+ bytes", "bytes", line) for line in lines] == [
                "read t: what 1 keys of (k) held, about bytes",
                "read t: all that it held, about bytes",
            ]
            together.refresh()
        assert sorted(views[0].snapshot().to_arrow()["s"].to_pylist())[-1] == 14
        assert views[1].snapshot().to_arrow()["w"].to_pylist() == [*range(1, 8), 15]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::persist.sql.UnboundedState")
@pytest.mark.parametrize("block", range(10))
def test_random_queries_refreshed_in_turns_have_the_answers_of_duckdb(block: int) -> None:
    stepped = sum(tried(seed) for seed in range(1000 + 20 * block, 1020 + 20 * block))
    assert stepped >= 5, "most random queries were refused, or took no step"


def tried(seed: int) -> bool:
    """Check the query of a seed; return whether there was one of which a step was taken."""
    try:
        return "part" in check_in_turns(Grammar(seed).query(), changes(seed, steps=5, size=4), seed)
    except InvalidUsage:
        return False
    except Exception as error:
        if "duckdb" in type(error).__module__:
            return False
        raise


JOINED = "SELECT g, count(*) AS n, sum(amount) AS total FROM facts JOIN dims USING (d) GROUP BY g"
FACTS = 60_000


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    """Return a client of facts and dimensions that have been sealed to 1."""
    facts = client.create_or_load("facts", key={"id": int}, value={"d": int, "amount": int})
    dims = client.create_or_load("dims", key={"d": int}, value={"g": int})
    ids = range(FACTS)
    rows = {"id": ids, "d": [n * 7 % 1000 for n in ids], "amount": [n % 100 for n in ids]}
    facts.write(pa.table({name: pa.array(values) for name, values in rows.items()}), time=0, seal=1).result()
    dims.write([((d, d % 50), 0, 1) for d in range(1000)], seal=1).result()
    return client


def change(client: persist.Client, time: int, *ids: int) -> None:
    """Raise the amounts of some facts."""
    facts = client.load("facts")
    rows = [((n, (n * 7 % 1000, n % 100 + time - 1)), time, -1) for n in ids]
    facts.write([*rows, *(((n, (d, amount + 1)), time, 1) for (n, (d, amount)), _, _ in rows)], seal=time + 1)
    client.load("dims").seal(time + 1).result()


def totals(client: persist.Client) -> dict[int, tuple[int, int]]:
    """Return what the view of all facts and dimensions has to hold."""
    table = client.load("facts").snapshot().to_arrow()
    g, amounts = table["d"].to_numpy() % 50, table["amount"].to_numpy()
    return {n: (int((g == n).sum()), int(amounts[g == n].sum())) for n in range(50)}


def held(view: persist.View) -> dict[int, tuple[int, int]]:
    return {row["g"]: (row["n"], int(row["total"])) for row in view.snapshot().to_arrow().to_pylist()}


def test_a_new_handle_reads_what_the_keys_of_changes_held(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    change(client, 1, 5, 700)
    view = client.view("totals")
    with requests_by_key():
        explained = view.explain_refresh()
        assert not view.is_open
        view.refresh()
    assert way_of(view) == "part"
    assert held(view) == totals(client)
    assert explained.startswith("computed here, reads changes, and what their keys held")
    assert "read facts" not in explained  # The view shows what the groups were.
    assert "read dims: what 2 keys of (d) held" in explained
    assert "output totals: what 2 keys of (g) held" in explained


def test_a_handle_keeps_what_it_requested_and_reads_it_once(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    view = client.view("totals")
    with requests_by_key():
        for time in range(1, 4):
            change(client, time, 8)
            view.refresh()
            assert view.live.running is not None
            assert view.live.running.partial is not None
            assert bool(view.live.running.partial.readings) == (time == 1)  # These facts are of one dimension.
            assert held(view) == totals(client)
    assert "this handle keeps what it read" in view.explain_refresh()


def test_a_handle_that_keeps_more_than_its_budget_lets_go_of_it(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    view = client.view("totals", memory_budget=100)
    change(client, 1, 8)
    view.refresh()
    assert not view.is_open
    assert held(view) == totals(client)


def test_the_work_of_a_cold_refresh_is_bounded(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    calls = []
    for time in (1, 2):
        change(client, time, 8)
        with persist.open(client.url, settings=QUIET) as fresh:
            view, count = fresh.view("totals"), 0

            def counted(frame: Any, event: str, argument: Any) -> None:
                nonlocal count
                count += event == "call"

            gc.collect()
            gc.disable()  # Finalizers of what other tests have left would be counted.
            sys.setprofile(counted)
            try:
                view.refresh()
            finally:
                sys.setprofile(None)
                gc.enable()
            calls.append(count)
            assert way_of(view) == "part"
            running = view.live.running
            assert running is not None
            assert running.partial is not None
            assert sum(reading.bytes for reading in running.partial.readings) < 100_000
    assert calls[-1] <= 2_500  # 2,451 where they were measured.
    assert held(client.view("totals")) == totals(client)


@pytest.mark.filterwarnings("ignore::persist.sql.UnboundedState")
def test_who_requests_a_join_with_a_bound_sees_more_than_what_lay_between_two_bounds(client: persist.Client) -> None:
    limits = client.create_or_load("limits", key={"k": int}, value={"m": float})
    limits.write([((1, 50.1), 0, 1)], seal=1).result()
    query = "SELECT count(*) AS n, max(id) AS m FROM facts f, limits l WHERE f.amount::DOUBLE > l.m"
    client.create_view("above", query).refresh()
    view = client.view("above")
    for time, (old, new) in enumerate(((50.1, 50.2), (50.2, 80.0), (80.0, 20.0)), 1):
        limits.write([((1, old), time, -1), ((1, new), time, 1)], seal=time + 1).result()
        client.load("facts").seal(time + 1).result()
        view.refresh()
        with client.sql(query) as wanted:
            assert wanted.to_arrow().to_pylist() == view.snapshot().to_arrow().to_pylist()


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_a_handle_goes_on_where_another_client_has_refreshed_its_view(
    client: persist.Client, compacts: bool, together: bool
) -> None:
    client.create_view("totals", JOINED, indexes="auto").refresh()
    with (
        requests_by_key(),
        persist.open(client.url, settings=QUIET) as other,
        open_together([client.view("totals")]) as views,
    ):
        mine = views if together else client.view("totals")
        for time in range(1, 7):
            change(client, time, 8)
            if time % 3:
                (mine if time % 3 == 1 else other.view("totals")).refresh()
            if compacts and time > 3:
                for name in ("facts", "dims"):
                    client.load(name).allow_compaction(time - 1).result()
        mine.refresh()
        assert held(client.view("totals")) == totals(client)


@pytest.mark.parametrize("kind", [pa.struct({"x": pa.int64()}), pa.list_(pa.int64())])
def test_keys_of_nested_types_are_requested_by_more_columns_than_a_path_has(
    client: persist.Client, kind: pa.DataType
) -> None:
    def nested(n: int) -> Any:
        return {"x": n} if pa.types.is_struct(kind) else [n]

    left = client.create_or_load("l", key={"k": kind, "i": int}, value={"z": int})
    right = client.create_or_load("r", key={"i": int}, value={"k": kind, "z": int})
    left.write([((((nested(n % 5)), n), n % 3), 0, 1) for n in range(50)], seal=1).result()
    right.write([((n, (nested(n % 4), n % 3)), 0, 1) for n in range(20)], seal=1).result()
    query = "SELECT r.i, l.i AS j FROM l JOIN r ON l.k = r.k AND l.z = r.z"
    client.create_view("v", query).refresh()
    right.write([((99, (nested(2), 1)), 1, 1)], seal=2)
    left.seal(2).result()
    with requests_by_key():
        client.view("v").refresh()
    with client.sql(query) as wanted:
        assert sorted(map(str, wanted.to_arrow().to_pylist())) == sorted(
            map(str, client.view("v").snapshot().to_arrow().to_pylist())
        )


def turn(client: persist.Client, time: int, *keys: int) -> None:
    """Put some dimensions into the next group, and seal both collections."""
    dims = client.load("dims")
    dims.upsert([(d, (g + 1) % 50) for d, g in dims.get([*keys])], time=time).result()
    for collection in (dims, client.load("facts")):
        collection.seal(time + 1).result()


def read_of_facts(view: persist.View) -> int:
    """Return how many bytes of the past of the facts a cold refresh reads, as it says itself."""
    view.close()
    with requests_by_key():
        lines = [line for line in view.explain_refresh().splitlines() if line.startswith("read facts")]
    return sum(int(line.split("about ")[1].split()[0].replace(",", "")) for line in lines)


def grouped(client: persist.Client) -> dict[int, tuple[int, int]]:
    """Return what the view has to hold, whatever groups the dimensions are in."""
    groups = dict(client.load("dims").snapshot().rows())
    wanted: dict[int, tuple[int, int]] = {}
    for d, amount in zip(
        *(client.load("facts").snapshot().to_arrow()[c].to_pylist() for c in ("d", "amount")), strict=True
    ):
        n, total = wanted.get(groups[d], (0, 0))
        wanted[groups[d]] = (n + 1, total + amount)
    return wanted


def test_a_step_finds_the_facts_of_a_dimension_by_an_index(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.compute.dataflow.running.refreshed.INDEX_BYTES", 0)
    monkeypatch.setattr("persist.compute.dataflow.ports.past.INDEXED_ROWS", 2000)
    client.create_view("totals", JOINED).refresh()
    turn(client, 1, 7)
    view = client.view("totals")
    without = read_of_facts(view)
    with requests_by_key():
        assert "an index would save about" in view.explain_refresh()
        assert "bytes: facts.index('d')" in view.explain_refresh()
    client.load("facts").index("d")
    assert read_of_facts(view) < without / 4
    with requests_by_key():
        assert "an index would save" not in view.explain_refresh()
        view.refresh()
        assert held(view) == grouped(client)
        change_a_little(client)
        turn(client, 3, 7, 8)  # The index is behind; what it lacks is among the changes.
        view.refresh()
    assert client.load("facts").indexes()[0].as_of == 1
    assert held(view) == grouped(client)
    client.load("facts").drop_index("d").result()
    turn(client, 4, 9)
    assert read_of_facts(view) > without / 2
    view.refresh()
    assert held(view) == grouped(client)


def change_a_little(client: persist.Client) -> None:
    facts = client.load("facts")
    facts.upsert([(FACTS + 1, (7, 1000)), (1, None)], time=2).result()
    for name in ("facts", "dims"):
        client.load(name).seal(3).result()


def test_a_view_makes_the_indexes_that_its_steps_want(client: persist.Client) -> None:
    client.create_view("plain", JOINED)
    assert client.load("facts").indexes() == []
    view = client.create_view("totals", JOINED, indexes="auto")
    assert [index.columns for index in client.load("facts").indexes()] == [("d",)]
    assert client.load("dims").indexes() == []
    view.refresh()
    client.create_view("totals", JOINED, indexes="auto")  # Idempotent.
    view.drop().result()
    assert len(client.load("facts").indexes()) == 1
    with pytest.raises(InvalidUsage, match='give "auto"'):
        client.create_view("other", JOINED, indexes="all")  # type: ignore[arg-type]


def test_records_are_found_by_several_indexes(client: persist.Client) -> None:
    regions = client.create_or_load("regions", key={"r": int}, value={"name": str})
    regions.write([((r, f"r{r}"), 0, 1) for r in range(100)], seal=1).result()
    query = "SELECT id, g, name FROM facts JOIN dims USING (d) JOIN regions ON amount = r"
    view = client.create_view("all", query, indexes="auto")
    view.refresh()
    view.close()
    assert [index.columns for index in client.load("facts").indexes()] == [("amount",), ("d",)]
    regions.upsert([(5, "other"), (7, "another")], time=1).result()
    regions.seal(2).result()
    turn(client, 1, 35, 49, 7)  # Facts of the first two are of the regions that change, too.
    with indexes_that_always_pay(), requests_by_key():
        view.refresh()
    assert view.upper == persist.Antichain(2)
    with client.sql(query) as wanted:
        assert Counter(tuple(row.values()) for row in wanted.to_arrow().to_pylist()) == Counter(
            tuple(row.values()) for row in view.snapshot().to_pylist()
        )


def test_a_refresh_that_only_seals_reads_nothing(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    for collection in ("facts", "dims"):
        client.load(collection).seal(5).result()
    view = client.view("totals")
    assert view.refresh() == persist.Antichain(5)
    assert view.live.running is not None
    assert view.live.running.partial is not None
    assert view.live.running.partial.readings == []
    assert held(view) == totals(client)


def test_an_open_state_keeps_what_a_refresh_would_read(client: persist.Client) -> None:
    view = client.create_view("counted", "SELECT amount, count(*) AS n FROM facts GROUP BY amount")
    view.refresh()
    view.close()
    view.open_state()
    assert sum(report.kept_updates for report in view.live.operators()) > 0


def test_a_refresh_that_must_not_recompute_names_the_operator_that_would(client: persist.Client) -> None:
    view = client.create_view("first", "SELECT id, amount FROM facts ORDER BY amount DESC, id LIMIT 3")
    with pytest.raises(WouldRecompute, match="an output begins"):
        view.refresh(policy="incremental")
    view.refresh()
    view.close()
    change(client, 1, 99)
    with pytest.raises(WouldRecompute, match=r"all of read facts is needed, by "):
        view.refresh(policy="incremental")
    assert view.upper == persist.Antichain(1)
    view.open_state()
    change(client, 2, 99)
    view.refresh(policy="incremental")  # It has its state, and recomputes nothing.
    assert view.upper == persist.Antichain(3)
    with pytest.raises(InvalidUsage, match="is not a way to refresh"):
        view.refresh(policy="full")  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_correlated_count_requests_the_rows_that_it_is_correlated_with(client: persist.Client) -> None:
    counted = "SELECT id, (SELECT count(*) FROM facts y WHERE y.amount = x.amount) AS n FROM facts x"
    client.create_view("counted", counted).refresh()
    change(client, 1, 99)
    view = client.view("counted")
    view.refresh(policy="incremental")
    with client.sql(counted) as wanted:
        assert sorted(map(str, wanted.to_arrow().to_pylist())) == sorted(
            map(str, view.snapshot().to_arrow().to_pylist())
        )


def test_a_row_that_a_step_fails_on_is_named_and_the_view_stays(client: persist.Client) -> None:
    view = client.create_view("v", "SELECT id, (amount * 1000000)::INTEGER AS n FROM facts")
    view.refresh()
    view.close()
    client.load("facts").write([((FACTS, (1, 5000)), 1, 1)], seal=2).result()
    with requests_by_key(), pytest.raises(OperatorFailed, match=str(FACTS)):
        view.refresh()
    assert view.upper == persist.Antichain(1)
    client.load("facts").write([((FACTS, (1, 5000)), 2, -1)], seal=3).result()
    with requests_by_key():
        view.refresh()
    assert view.upper == persist.Antichain(3)


@pytest.mark.thorough
def test_several_clients_that_step_a_view_at_once_write_it_once(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    with requests_by_key(), ThreadPoolExecutor(3) as threads:
        clients = [persist.open(client.url, settings=QUIET) for _ in range(3)]
        for time in range(1, 5):
            change(client, time, 3)
            for refresh in [threads.submit(each.view("totals").refresh, policy="incremental") for each in clients]:
                assert refresh.result() == persist.Antichain(time + 1)
            assert held(client.view("totals")) == totals(client)
        for each in clients:
            each.close()
    assert client.fsck().problems == ()
