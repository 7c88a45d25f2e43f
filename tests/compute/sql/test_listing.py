"""What the documents say of functions is what views do."""

import duckdb
import pytest

import persist
from tests.compute.sql.listing import HEAD, PAGE, listed


def test_the_list_of_functions_in_the_documents_is_the_one_that_is_generated() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = HEAD + text.partition(HEAD)[2]
    if f"DuckDB {duckdb.__version__} " not in section:
        pytest.skip("the list was made with another release of DuckDB")
    assert section == listed(), "write it anew with: python -m tests.compute.sql.listing"


@pytest.mark.parametrize("call", ["version()", "hash('y')", "approx_quantile(1, 0.5)", "lttb(1, 2, 3)"])
def test_a_function_that_is_listed_as_refused_is_refused(call: str) -> None:
    assert f"`{call.partition('(')[0]}`" in listed().partition("**Refused aggregates**")[2]
    with (
        persist.open("memory://listing") as client,
        pytest.raises(persist.InvalidUsage, match=r"is not supported in a view|gives something else each time"),
    ):
        client.create_view("refused", f"SELECT {call} AS x")
