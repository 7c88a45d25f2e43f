"""Plans that are stored with views: they are what the definition lowers to, and a view without one is as good."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import persist
from persist.compute.dataflow.plan.optimise import Statistics
from persist.compute.sql.compile import plan_query
from persist.compute.sql.definition import Definition, to_json
from persist.compute.sql.draft import Catalog, draft_view
from persist.compute.sql.graph import ViewProgram, list_functions, load_views, lower_relation
from persist.compute.sql.order import list_ordered_collections
from persist.compute.sql.rewrite import rewrite_plan
from persist.compute.sql.stored import FORM, StoredPlan, encode_plan, read_plan
from persist.core.log.kinds import Create
from tests.compute.sql.corpus import QUERIES
from tests.compute.sql.oracle import TABLES, schemas
from tests.compute.sql.plans import KNOWN, SCHEMAS
from tests.compute.sql.two_ways import QUIET, way_of

GOLDEN = Path(__file__).with_name("stored_plans.json")
# A struct and a map as constants; nobody needs them stored.
UNSTORED = ("struct_values", "MAP {'d': DATE '2024-01-01'}")


def stored_of(sql: str) -> dict[str, Any] | None:
    relation, columns = plan_query(sql, SCHEMAS)
    plan = lower_relation(rewrite_plan(relation, KNOWN), columns)
    known = {name: KNOWN[name] for name in list_ordered_collections(rewrite_plan(relation, KNOWN))}
    return encode_plan(plan, list_functions(relation), known)


@pytest.mark.thorough(except_every=40)
@pytest.mark.parametrize("block", range(40))
def test_a_plan_is_read_back_as_it_was_stored(block: int) -> None:
    for sql in QUERIES[block::40]:
        relation, columns = plan_query(sql, SCHEMAS)
        plan = lower_relation(rewrite_plan(relation, KNOWN), columns)
        stored = stored_of(sql)
        if stored is None:
            assert any(part in sql for part in UNSTORED), sql
            continue
        again = read_plan(json.loads(json.dumps(stored)))
        assert again is not None
        read = again.plan()
        assert (list(read.nodes.values()), read.scopes) == (list(plan.nodes.values()), plan.scopes), sql
        assert [*dict(columns)] == [*read.nodes.values()][-1].schema.names


def test_plans_of_this_form_that_were_stored_before_are_read() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert str(FORM) in golden, "write the plans of this form: python -m tests.compute.sql.test_stored_plans"
    for form, plans in golden.items():
        for sql, stored in plans.items():
            if int(form) != FORM:
                assert read_plan(stored) is None
                continue
            plan = msgspec.convert(stored, StoredPlan)
            again = encode_plan(plan.plan(), plan.functions, {})
            assert again is not None
            assert json.loads(json.dumps(again))["nodes"] == stored["nodes"], sql


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    t = client.create_or_load("t", key={"id": int}, value={"a": int, "b": int, "c": int})
    u = client.create_or_load("u", key={"a": int}, value={"s": str})
    t.write([((n, (n % 5, n, -n)), 0, 1) for n in range(200)], seal=1).result()
    u.write([((n, f"name {n}"), 0, 1) for n in range(5)], seal=1).result()
    return client


def change(client: persist.Client, time: int) -> None:
    t, u = client.load("t"), client.load("u")
    t.write([((time, (time % 5, time, -time)), time, -1), ((time, (0, 7, time)), time, 1)], seal=time + 1).result()
    u.write([((time, f"name {time}"), time, -1), ((time, "another"), time, 1)], seal=time + 1).result()


VIEWS = {
    "joined": "SELECT s, count(*) AS n, sum(b) AS total FROM t JOIN u USING (a) GROUP BY s",
    "others": "SELECT a, sum(c) AS total FROM t GROUP BY a",
    "all": "SELECT a, b FROM t UNION ALL SELECT a, c FROM t",
    "first": "SELECT s, total FROM joined ORDER BY total DESC LIMIT 2",
    "both": "SELECT j.s, j.total, u.a FROM joined j JOIN u USING (s)",
}


def create_edited(
    client: persist.Client, name: str, sql: str, edit: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Create a view whose stored definition a function has edited."""
    draft = draft_view(Catalog(client.engine), name, sql, None)
    steps = [
        msgspec.structs.replace(step, view=edit(step.view)) if isinstance(step, Create) and step.view else step
        for step in draft.steps
    ]
    client.engine.submit("create_view", steps, dict(draft.names)).result()


def create_as_before(client: persist.Client, name: str, sql: str) -> None:
    """Create a view as a release did that stored no plan."""
    create_edited(
        client,
        name,
        sql,
        lambda view: {member: view[member] for member in view if member != "program"} | {"version": 1},
    )


def holds_its_query(client: persist.Client, name: str, sql: str) -> bool:
    with persist.open(client.url, settings=QUIET) as other:
        other.view(name).refresh()
        with other.sql(sql) as wanted:
            expected = sorted(map(repr, wanted.to_arrow().to_pylist()))
        return sorted(map(repr, other.view(name).snapshot().to_arrow().to_pylist())) == expected


@pytest.mark.thorough
def test_views_with_and_without_a_plan_hold_the_same(client: persist.Client) -> None:
    for name, sql in VIEWS.items():
        client.create_view(name, sql)
        create_as_before(client, f"{name} before", sql)
        assert client.view(name).live.definition.program is not None
        assert client.view(f"{name} before").live.definition.program is None
    for time in (1, 2):
        with persist.open(client.url, settings=QUIET) as other:
            for name, sql in VIEWS.items():
                for view in (other.view(name), other.view(f"{name} before")):
                    view.refresh()
                    assert time == 1 or way_of(view) == "part"
                    with other.sql(sql) as wanted:
                        expected = sorted(map(repr, wanted.to_pylist()))
                    assert sorted(map(repr, view.snapshot().to_pylist())) == expected
        change(client, time)


def edited(program: Any, random: Random) -> Any:
    """Return a stored value with one change somewhere inside."""
    if isinstance(program, dict | list) and program and random.random() < 0.9:
        copy = program.copy()
        at = random.choice([*copy] if isinstance(copy, dict) else range(len(copy)))
        copy[at] = edited(copy[at], random)
        return copy
    return random.choice([None, 0, 7, "b", "sum", [], {}, {"Unknown": []}, {"Col": ["c"]}, {"type": ["int64"]}])


def test_a_plan_that_somebody_has_edited_is_made_anew(client: persist.Client) -> None:
    random = Random(7)
    for number in range(6):
        create_edited(
            client,
            f"edited {number}",
            VIEWS["joined"],
            lambda view: {
                **view,
                "program": {**view["program"], "nodes": [edited([*node], random) for node in view["program"]["nodes"]]},
            },
        )
        assert holds_its_query(client, f"edited {number}", VIEWS["joined"])
    # A program that fits another relation.
    other = draft_view(Catalog(client.engine), "other", VIEWS["others"], None).definition.to_json()
    create_edited(client, "others", VIEWS["others"], lambda view: view)
    create_edited(client, "swapped", VIEWS["joined"], lambda view: {**view, "program": other["program"]})
    assert client.view("others").live.definition.program is not None
    assert client.view("swapped").live.definition.program is None
    assert holds_its_query(client, "swapped", VIEWS["joined"])


CONSTANTS = (
    *("DATE 'infinity'", "DATE '5000000-01-01'", "TIMESTAMP '-infinity'", "TIMESTAMPTZ '2024-01-01 00:00:00+05:30'"),
    *("[TIMESTAMP 'infinity', NULL]", "[DATE '-infinity']", "{'a': TIMESTAMP 'infinity'}", "[NULL::INTEGER[], [1]]"),
    *("'nan'::DOUBLE", "-0.1::DECIMAL(38,38)", "'a\x00b😀'", "NULL::INTEGER[]", "INTERVAL '-1 month 3 days'"),
    "['00000000-0000-0000-0000-000000000001'::UUID, 'f0000000-0000-0000-0000-000000000001'::UUID]",
    "[TIMESTAMP_NS '2024-01-01 00:00:00.123456789']",
)


def test_constants_that_python_has_no_object_for_are_stored(client: persist.Client) -> None:
    columns = ", ".join(f"({constant})::VARCHAR AS c{at}" for at, constant in enumerate(CONSTANTS))
    rows = ", ".join(f"x.column{at}::VARCHAR AS v{at}" for at in range(len(CONSTANTS)))
    values = ", ".join(CONSTANTS)
    sql = f"SELECT id, {columns}, {rows} FROM t CROSS JOIN (VALUES ({values})) AS x(" + (
        ", ".join(f"column{at}" for at in range(len(CONSTANTS))) + ") WHERE id < 2"
    )
    client.create_view("constants", sql)
    assert holds_its_query(client, "constants", sql)
    assert stored_of("SELECT a, [1, 2] AS l FROM t") is not None


def programs(client: persist.Client, name: str, definition: Definition) -> ViewProgram:
    handle = client.view(name).live.handle
    *below, view = load_views(client.engine, {handle.id: name})
    return ViewProgram(client.engine, [*below, replace(view, definition=definition)])


def test_a_plan_of_another_release_is_made_anew(client: persist.Client) -> None:
    client.create_view("joined", VIEWS["joined"])
    definition = client.view("joined").live.definition
    assert definition.program is not None
    # A plan that would read nothing of u: it must not be run.
    wrong = stored_of("SELECT s, count(*) AS n, sum(b) AS total FROM t GROUP BY s")
    assert wrong is not None
    for other in ({"library": "0.0.1"}, {"form": FORM + 1}):
        program = programs(client, "joined", msgspec.structs.replace(definition, program={**wrong, **other}))
        assert "source['u']" in str(program.optimise())
    program = programs(client, "joined", msgspec.structs.replace(definition, program=wrong))
    assert "source['u']" not in str(program.optimise())


def test_an_order_of_joins_is_chosen_anew_where_sizes_have_changed() -> None:
    relation, _ = plan_query("SELECT t.a FROM t JOIN u USING (a) JOIN w ON w.a = t.b", schemas(TABLES))
    stored = encode_plan(
        lower_relation(rewrite_plan(relation)), (), dict.fromkeys(list_ordered_collections(rewrite_plan(relation)))
    )
    plan = read_plan(stored)
    assert plan is not None
    assert set(plan.rows) == {"t", "u", "w"}
    assert plan.fits({})
    assert plan.fits({"t": Statistics(5_000.0), "u": Statistics(0.0)})
    assert not plan.fits({"t": Statistics(100_000.0)})
    pair, _ = plan_query("SELECT t.a FROM t JOIN u USING (a)", schemas(TABLES))
    assert not list_ordered_collections(rewrite_plan(pair))


def test_a_location_of_an_older_format_keeps_no_plans(client: persist.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.compute.sql.draft.PLANS_CAME_WITH", client.engine.follower.state.format + 1)
    client.create_view("joined", VIEWS["joined"])
    definition = client.view("joined").live.definition
    assert (definition.version, definition.program) == (1, None)
    client.view("joined").refresh()
    assert client.view("joined").snapshot().to_pylist()


def test_the_definition_of_the_first_version_is_read_and_a_later_one_refused(client: persist.Client) -> None:
    client.create_view("joined", VIEWS["joined"])
    stored = client.view("joined").live.definition.to_json()
    first = {name: value for name, value in stored.items() if name != "program"} | {"version": 1}
    assert to_json(Definition.from_json(first).plan) == stored["plan"]
    with pytest.raises(persist.errors.IncompatibleVersion):
        Definition.from_json({**stored, "version": 3})


def main() -> None:
    """Add the plans of this form to the file."""
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    golden[str(FORM)] = {sql: stored_of(sql) for sql in QUERIES[::40]}
    GOLDEN.write_text(json.dumps(golden, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
