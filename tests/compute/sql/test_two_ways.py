"""Steps and open handles: at every time a view holds what DuckDB computes anew, whichever of the two refreshes it."""

import re
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import persist
from persist.errors import InvalidUsage, OperatorFailed, WouldRecompute
from persist.sql import open_together
from tests.compute.dataflow.step.emulated import stepped
from tests.compute.index.always import indexes_that_always_pay
from tests.compute.sql.grammar import Grammar
from tests.compute.sql.oracle import changes
from tests.compute.sql.two_ways import QUIET, chain, check_in_turns, check_together, steps_that_always_pay

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


@pytest.mark.thorough(except_every=8)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_open_handles_in_turns_have_the_answers_of_duckdb(kind: str) -> None:
    ways = check_in_turns(KINDS[kind], changes(len(kind), steps=6, size=5), seed=len(kind))
    assert ("step" in ways) == (kind != "recursion")


@pytest.mark.thorough(except_every=10)
@pytest.mark.parametrize("seed", range(20))
def test_keys_that_one_table_of_a_chain_gives_are_passed_on_to_the_next(seed: int) -> None:
    assert "step" in check_in_turns(chain(seed), changes(seed, steps=5, size=6), seed)


@pytest.mark.thorough(except_every=10)
@pytest.mark.parametrize("seed", range(20))
def test_views_that_one_step_refreshes_need_each_its_own_of_what_they_share(seed: int) -> None:
    whole = "SELECT b, count(*) AS n FROM (SELECT a + b AS b FROM t) GROUP BY b HAVING count(*) > 1"
    chosen = [KINDS[kind] for kind in ("others of a key", "sums of a key", "windows", "except", "scalar subqueries")]
    check_together([chain(seed), whole, chain(seed + 1000), chosen[seed % 5]], changes(seed, steps=4, size=5), seed)


def test_a_view_that_needs_all_of_an_input_leaves_the_others_their_touched_keys() -> None:
    queries = {"by key": "SELECT k, sum(v) AS s FROM t GROUP BY k", "all": "SELECT DISTINCT v + 1 AS w FROM t"}
    with steps_that_always_pay(), persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as client:
        t = client.create_or_load("t", key={"k": pa.int64()}, value={"v": pa.int64()})
        t.write([((i, i % 7), 0, 1) for i in range(1000)], seal=1).result()
        views = [client.create_view(name, sql) for name, sql in queries.items()]
        for view in views:
            view.refresh()
            view.close()
        t.write([((3, 3), 1, -1), ((3, 4), 1, 1)], seal=2).result()
        with open_together(views) as together:
            told = [line for line in together.explain_refresh().splitlines() if line.startswith("read t")]
            assert [re.sub(r"[\d,]+ (of [\d,]+ )?bytes", "bytes", line) for line in told] == [
                "read t for by key: bytes of changes, and of the past what touched keys hold, by k, bytes",
                "read t for all: bytes of changes, and all of the past, bytes",
            ]
            together.refresh()
        assert sorted(views[0].snapshot().to_arrow()["s"].to_pylist())[-1] == 6
        assert views[1].snapshot().to_arrow()["w"].to_pylist() == [*range(1, 8)]


def test_keys_are_looked_for_in_what_is_read_in_any_case_however_much_that_is(client: persist.Client) -> None:
    ids = range(80_000)
    lines = pa.table({"o": [n // 2 for n in ids], "p": ids, "q": [n % 7 for n in ids]})
    client.write("lines", lines, key=["o", "p"], timeline=None, time=0, seal=1).result()
    orders = pa.table({"o": ids[:40_000], "day": [n % 9 for n in ids[:40_000]]})
    client.write("orders", orders, key=["o"], timeline=None, time=0, seal=1).result()
    parts = pa.table({"p": ids, "name": [n % 5 for n in ids]})
    client.write("parts", parts, key=["p"], timeline=None, time=0, seal=1).result()
    query = "SELECT name, day, sum(q) AS n FROM lines JOIN orders USING (o) JOIN parts USING (p) GROUP BY name, day"
    view = client.create_view("v", query, indexes="auto")
    view.refresh()
    view.close()
    with client.multi_write() as multi:
        for o in range(5, 40_000, 1000):
            multi.write(client.load("orders"), [((o, o % 9), 1, -1), ((o, 9), 1, 1)])
        for name in ("lines", "orders", "parts"):
            multi.seal(client.load(name), 2)
    told = {line.split(":")[0]: line for line in view.explain_refresh().splitlines() if line.startswith("read ")}
    assert "what touched keys hold, by o" in told["read lines"]
    assert "what touched keys hold, by p" in told["read parts"]
    view.refresh()
    with client.sql(query) as wanted:
        assert sorted(map(str, wanted.to_arrow().to_pylist())) == sorted(
            map(str, view.snapshot().to_arrow().to_pylist())
        )


def test_of_what_changed_a_correlated_average_asks_only_for_what_a_filter_of_the_other_table_passes(
    client: persist.Client,
) -> None:
    ids = range(60_000)
    lines = pa.table({"n": ids, "p": [n % 20_000 for n in ids], "q": [n % 7 for n in ids]})
    client.write("lines", lines, key=["n"], timeline=None, time=0, seal=1).result()
    parts = pa.table({"p": ids[:20_000], "brand": [n % 1000 for n in ids[:20_000]]})
    client.write("parts", parts, key=["p"], timeline=None, time=0, seal=1).result()
    mean = "(SELECT avg(q) FROM lines AS l WHERE l.p = parts.p)"
    query = f"SELECT sum(q) AS s FROM lines JOIN parts USING (p) WHERE brand = 5 AND q < {mean}"
    view = client.create_view("v", query, indexes="auto")
    view.refresh()
    view.close()
    with client.multi_write() as multi:
        for n in range(5, 60_000, 1501):
            multi.write(client.load("lines"), [((n, (n % 20_000, n % 7)), 1, -1), ((n, (n % 20_000, 9)), 1, 1)])
        for name in ("lines", "parts"):
            multi.seal(client.load(name), 2)
    with steps_that_always_pay():
        [told] = [line for line in view.explain_refresh().splitlines() if line.startswith("read lines")]
        view.refresh()
    read, held = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) of ([\d,]+) bytes", told)[0])
    assert 4 * read < held
    with client.sql(query) as wanted:
        assert wanted.to_arrow().to_pylist() == view.snapshot().to_arrow().to_pylist()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::persist.sql.UnboundedState")
@pytest.mark.parametrize("block", range(10))
def test_random_queries_refreshed_in_turns_have_the_answers_of_duckdb(block: int) -> None:
    stepped = sum(tried(seed) for seed in range(1000 + 20 * block, 1020 + 20 * block))
    assert stepped >= 5, "most random queries were refused, or took no step"


def tried(seed: int) -> bool:
    """Check the query of a seed; return whether there was one of which a step was taken."""
    try:
        return "step" in check_in_turns(Grammar(seed).query(), changes(seed, steps=5, size=4), seed)
    except InvalidUsage:
        return False
    except Exception as error:
        if "duckdb" in type(error).__module__:
            return False
        raise


JOINED = "SELECT g, count(*) AS n, sum(amount) AS total FROM facts JOIN dims USING (d) GROUP BY g"
FACTS = 60_000


@pytest.fixture
def client() -> Iterator[persist.Client]:
    """Yield a client of facts and dimensions that have been sealed to 1."""
    with persist.open(f"memory://{uuid.uuid4()}", settings=QUIET) as opened:
        facts = opened.create_or_load("facts", key={"id": int}, value={"d": int, "amount": int})
        dims = opened.create_or_load("dims", key={"d": int}, value={"g": int})
        ids = range(FACTS)
        rows = {"id": ids, "d": [n * 7 % 1000 for n in ids], "amount": [n % 100 for n in ids]}
        facts.write(pa.table({name: pa.array(values) for name, values in rows.items()}), time=0, seal=1).result()
        dims.write([((d, d % 50), 0, 1) for d in range(1000)], seal=1).result()
        yield opened


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


def test_a_new_handle_takes_a_step_that_reads_what_has_to_do_with_what_changed(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    change(client, 1, 5, 700)
    view = client.view("totals")
    with steps_that_always_pay():
        explained = view.explain_refresh()
        view.refresh()
    assert not view.is_open
    assert held(view) == totals(client)
    assert explained.startswith("by a step of ")
    assert "of what touched keys hold" in explained
    assert "read facts: " in explained
    assert "nothing of the past" in explained  # The view tells what the groups were.
    assert "read dims: 0 bytes of changes, and of the past what touched keys hold, by d" in explained


def test_a_handle_opens_its_state_once_its_steps_have_taken_as_long(
    client: persist.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.compute.dataflow.step.choosing.OPEN_S", 0.16)
    client.create_view("totals", JOINED).refresh()
    view, is_open = client.view("totals"), []
    for time in range(1, 7):
        change(client, time, 8)
        view.refresh()
        is_open.append(view.is_open)
        assert held(view) == totals(client)
    assert is_open == sorted(is_open)
    assert (is_open[0], is_open[-1]) == (False, True)
    assert "this handle has its state" in view.explain_refresh()


def turn(client: persist.Client, time: int, *keys: int) -> None:
    """Put some dimensions into the next group, and seal both collections."""
    dims = client.load("dims")
    dims.upsert([(d, (g + 1) % 50) for d, g in dims.get([*keys])], time=time).result()
    for collection in (dims, client.load("facts")):
        collection.seal(time + 1).result()


def read_of_facts(view: persist.View) -> int:
    """Return how many bytes of the past of the facts the next step reads, as it says itself."""
    with steps_that_always_pay():
        [told] = [line for line in view.explain_refresh().splitlines() if line.startswith("read facts")]
    held = re.search(r"([\d,]+) of [\d,]+ bytes|all of the past, ([\d,]+)", told)
    assert held is not None, told
    return int((held[1] or held[2]).replace(",", ""))


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
    monkeypatch.setattr("persist.compute.dataflow.step.reading.MISSED_BYTES", 0)
    monkeypatch.setattr("persist.compute.dataflow.step.reading.INDEXED_ROWS", 2000)
    client.create_view("totals", JOINED).refresh()
    turn(client, 1, 7)
    view = client.view("totals")
    without = read_of_facts(view)
    with steps_that_always_pay():
        assert "an index would save about" in view.explain_refresh()
        assert "bytes: facts.index('d')" in view.explain_refresh()
    client.load("facts").index("d")
    assert read_of_facts(view) < without / 4
    with steps_that_always_pay():
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


def test_tasks_find_records_by_several_indexes_and_give_each_once(client: persist.Client) -> None:
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
    with indexes_that_always_pay():
        stepped(view, partitions=2, seed=1, looks_up=True)
    assert view.upper == persist.Antichain(2)
    with client.sql(query) as wanted:
        assert Counter(tuple(row.values()) for row in wanted.to_arrow().to_pylist()) == Counter(
            tuple(row.values()) for row in view.snapshot().to_pylist()
        )


def test_a_refresh_that_only_seals_opens_no_state(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    for collection in ("facts", "dims"):
        client.load(collection).seal(5).result()
    view = client.view("totals")
    with steps_that_always_pay():
        assert view.refresh() == persist.Antichain(5)
    assert not view.is_open
    assert held(view) == totals(client)
    for _ in range(5):  # To look time and again is cheaper with state.
        assert view.refresh() == persist.Antichain(5)
    assert view.is_open


def test_a_refresh_that_must_not_recompute_names_the_operator_that_would(client: persist.Client) -> None:
    view = client.create_view("first", "SELECT id, amount FROM facts ORDER BY amount DESC, id LIMIT 3")
    with pytest.raises(WouldRecompute, match="an output begins"):
        view.refresh(policy="incremental")
    view.refresh()
    view.close()
    change(client, 1, 99)
    with pytest.raises(WouldRecompute, match=r"%\d+ reduce\[by .*top.* needs all of read facts"):
        view.refresh(policy="incremental")
    assert view.upper == persist.Antichain(1)
    view.open_state()
    change(client, 2, 99)
    view.refresh(policy="incremental")  # It has its state, and recomputes nothing.
    assert view.upper == persist.Antichain(3)
    with pytest.raises(InvalidUsage, match="is not a way to refresh"):
        view.refresh(policy="full")  # type: ignore[arg-type]


def test_a_refusal_to_recompute_names_an_operator_where_several_need_all(client: persist.Client) -> None:
    counted = "SELECT id, (SELECT count(*) FROM facts y WHERE y.amount = x.amount) AS n FROM facts x"
    client.create_view("counted", counted).refresh()
    change(client, 1, 99)
    with pytest.raises(WouldRecompute, match=r"%\d+ .* needs all of read facts"):
        client.view("counted").refresh(policy="incremental")


def test_a_row_that_a_step_fails_on_is_named_and_the_view_stays(client: persist.Client) -> None:
    view = client.create_view("v", "SELECT id, (amount * 1000000)::INTEGER AS n FROM facts")
    view.refresh()
    view.close()
    client.load("facts").write([((FACTS, (1, 5000)), 1, 1)], seal=2).result()
    with steps_that_always_pay(), pytest.raises(OperatorFailed, match=str(FACTS)):
        view.refresh()
    assert view.upper == persist.Antichain(1)
    client.load("facts").write([((FACTS, (1, 5000)), 2, -1)], seal=3).result()
    with steps_that_always_pay():
        view.refresh()
    assert view.upper == persist.Antichain(3)


def test_several_clients_that_step_a_view_at_once_write_it_once(client: persist.Client) -> None:
    client.create_view("totals", JOINED).refresh()
    with steps_that_always_pay(), ThreadPoolExecutor(3) as threads:
        clients = [persist.open(client.url, settings=QUIET) for _ in range(3)]
        for time in range(1, 5):
            change(client, time, 3)
            for refresh in [threads.submit(each.view("totals").refresh, policy="incremental") for each in clients]:
                assert refresh.result() == persist.Antichain(time + 1)
            assert held(client.view("totals")) == totals(client)
        for each in clients:
            each.close()
    assert client.fsck().problems == ()
