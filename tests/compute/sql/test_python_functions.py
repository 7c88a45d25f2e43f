"""Functions of Python in queries and views: computed on whole columns, known by name and version, stored nowhere."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import persist
from persist.core.expression import python_functions as room
from persist.errors import FunctionNotFound, InvalidUsage, OperatorFailed

ROWS = [{"id": 1, "name": "ann", "n": 2}, {"id": 2, "name": None, "n": 5}, {"id": 3, "name": "bo", "n": None}]


@pytest.fixture(autouse=True)
def no_functions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Begin as a process that was given no function; what the test gives is forgotten."""
    functions: dict[str, Any] = {}
    monkeypatch.setattr(room, "_functions", functions)
    return functions


@pytest.fixture
def client(client: persist.Client) -> persist.Client:
    people = client.create_or_load("people", key={"id": int}, value={"name": str, "n": int})
    people.write(ROWS, time=1, seal=2).result()
    return client


def shouted(names: pa.Array, times: pa.Array) -> pa.Array:
    rows = zip(names.to_pylist(), times.to_pylist(), strict=True)
    return pa.array([None if n is None or t is None else n.upper() + "!" * t for n, t in rows], pa.string())


def give(client: persist.Client, version: str | int = 1, function: Any = shouted) -> None:
    client.create_function("shouted", function, [str, int], str, version=version)


def rows_of(view: Any, time: int) -> dict[int, Any]:
    return {row["id"]: row["s"] for row in view.snapshot(time).to_arrow().to_pylist()}


def test_a_view_calls_a_function_and_computes_only_what_changed(client: persist.Client) -> None:
    seen: list[int] = []

    def counted(names: pa.Array, times: pa.Array) -> pa.Array:
        seen.append(len(names))
        return shouted(names, times)

    give(client, function=counted)
    view = client.create_view(
        "loud", "SELECT id, SHOUTED(name, n + 1) AS s FROM people WHERE shouted(name, 0) IS NOT NULL"
    )
    view.refresh()
    assert rows_of(view, 1) == {1: "ANN!!!", 3: None}
    seen.clear()
    changed = [{"id": 3, "name": "bo", "n": None, "_diff": -1}, {"id": 3, "name": "bo", "n": 0, "_diff": 1}]
    client.load("people").write(changed, time=2, seal=3).result()
    view.refresh()
    assert rows_of(view, 2) == {1: "ANN!!!", 3: "BO!"}
    assert seen
    assert max(seen) <= 2, seen


def test_constants_and_nested_types_are_given_as_columns(client: persist.Client) -> None:
    client.create_function(
        "total",
        lambda lists: pc.cast(pc.list_value_length(lists), pa.int64()),
        [pa.list_(pa.int64())],
        int,
        version="a",
    )
    give(client)
    view = client.create_view(
        "c", "SELECT id, shouted('x', 2) || total([n, n]) || sum(total([1, 2, 3])) OVER () AS s FROM people"
    )
    view.refresh()
    assert rows_of(view, 1) == dict.fromkeys((1, 2, 3), "X!!29")
    assert client.sql(
        "SELECT shouted('x', 2) AS s, total([n]) AS t FROM people WHERE id = 1"
    ).to_arrow().to_pylist() == [{"s": "X!!", "t": 1}]


def test_statements_call_functions(client: persist.Client) -> None:
    give(client)
    assert client.sql("UPDATE people SET name = shouted(name, n) WHERE id < 3").to_arrow()["rows"].to_pylist() == [2]
    assert [row["name"] for row in client.load("people").snapshot().to_arrow().sort_by("id").to_pylist()] == [
        "ANN!!",
        None,
        "bo",
    ]


def test_another_process_needs_the_function_in_its_version(
    client: persist.Client, no_functions: dict[str, Any]
) -> None:
    give(client)
    view = client.create_view("loud", "SELECT id, shouted(name, n) AS s FROM people")
    above = client.create_view("above", "SELECT count(s) AS n FROM loud")
    no_functions.clear()  # As in a process that has just begun.
    for each in (view, above):
        with pytest.raises(FunctionNotFound, match=r"has none of that name.*version='1'") as raised:
            each.refresh()
        assert (raised.value.name, raised.value.version, raised.value.view) == ("shouted", "1", "loud")
    with pytest.raises(FunctionNotFound, match="loud"):
        view.explain_refresh()
    give(client, version=2, function=lambda names, times: names)
    with pytest.raises(FunctionNotFound, match=r"has version 2 of it.*give the view the other version"):
        view.refresh()
    assert view.upper.time == 0, "nothing is written"
    give(client)
    view.refresh()
    assert rows_of(view, 1)[1] == "ANN!!"


def test_a_new_version_is_another_definition(client: persist.Client) -> None:
    give(client)
    sql = "SELECT id, shouted(name, n) AS s FROM people"
    view = client.create_view("loud", sql)
    view.refresh()
    view.redefine(sql)
    assert view.live.definition.number == 1, "it means the same"
    give(client, version=2, function=lambda names, times: names)
    view.refresh()
    assert rows_of(view, 1)[1] == "ANN!!", "a view keeps the version that it has"
    view.redefine(sql)
    client.load("people").seal(3).result()
    view.refresh()
    assert rows_of(view, 1)[1] == "ANN!!"
    assert rows_of(view, 2) == {1: "ann", 2: None, 3: "bo"}


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda names, times: 1 / 0, "raised ZeroDivisionError"),
        (lambda names, times: names.slice(1), "values for"),
        (lambda names, times: names.to_pylist(), "gave a list: return an Arrow array"),
        (lambda names, times: pa.array([[1]] * len(names)), "declared to return string"),
    ],
)
def test_a_function_that_fails_leaves_the_view_as_it_was(client: persist.Client, function: Any, says: str) -> None:
    give(client, function=function)
    view = client.create_view("loud", "SELECT id, shouted(name, n) AS s FROM people")
    with pytest.raises(OperatorFailed, match=says):
        view.refresh()
    assert view.upper.time == 0
    with pytest.raises(InvalidUsage, match=says):
        client.sql("SELECT shouted(name, n) AS s FROM people").to_arrow()
    give(client)
    view.refresh()
    assert rows_of(view, 1)[1] == "ANN!!"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"name": "two words"}, "names no function"),
        ({"name": "Lower"}, r"SQL has a function lower\(\) already"),
        ({"name": "_now"}, "SQL has a function"),
        ({"function": 3}, "is not a function"),
        ({"arguments": []}, "give a list of one at least"),
        ({"arguments": "int"}, "are not types"),
        ({"arguments": ["nothing"]}, "for a type"),
        ({"returns": 7}, "for a type"),
        ({"version": None}, "neither a text nor a whole number"),
        ({"version": ""}, "neither a text nor a whole number"),
    ],
)
def test_what_is_no_function_is_refused(client: persist.Client, given: dict[str, Any], says: str) -> None:
    right: dict[str, Any] = {"name": "f", "function": len, "arguments": [int], "returns": int, "version": 1}
    with pytest.raises(persist.errors.PersistError, match=says):
        client.create_function(**{**right, **given})
    assert not room.list_python_functions()


def test_arguments_of_other_types_are_refused_with_the_place(client: persist.Client) -> None:
    give(client)
    with pytest.raises(InvalidUsage, match="shouted"):
        client.create_view("v", "SELECT id, shouted(name) AS s FROM people")
    with pytest.raises(InvalidUsage, match=r"lambda|not supported"):
        client.create_view("v", "SELECT id, list_transform([n], lambda x: shouted('a', x)) AS s FROM people")
