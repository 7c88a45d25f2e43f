"""The example for dbt: a jaffle shop whose models are views, built, tested and changed by dbt itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import persist
from examples.dbt.shop import add_day
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

pytest.importorskip("dbt.adapters.duckdb", reason="dbt is not installed: pip install 'dbt-core<1.12' dbt-duckdb")
pytestmark = [pytest.mark.outside, pytest.mark.costly("dbt itself loads for seconds, four times")]
EXAMPLE = ROOT / "examples" / "dbt"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "dbt"))


def built(project: Path, location: Path, *arguments: str) -> str:
    program = [sys.executable, "-c", "from dbt.cli.main import cli; cli()", "build", "--no-use-colors", *arguments]
    environment = os.environ | {
        "DBT_PROFILES_DIR": ".", "DO_NOT_TRACK": "1", "PERSIST_LOCATION": str(location),
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE.parent.parent), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    done = subprocess.run(program, cwd=project, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def totals(location: Path) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return what the view holds for each order, and what DuckDB makes of the raw tables."""
    with persist.open(location) as client:
        columns = ["order_id", "cents", "coupon_cents"]
        held = client.load("orders").snapshot().to_arrow().select(columns).to_pylist()
        expected = client.sql(
            "SELECT o.id AS order_id, coalesce(sum(cents), 0)::BIGINT AS cents, "
            "coalesce(sum(cents) FILTER (payment_method = 'coupon'), 0)::BIGINT AS coupon_cents "
            "FROM raw_orders AS o LEFT JOIN raw_payments AS p ON p.order_id = o.id GROUP BY o.id"
        ).to_arrow().to_pylist()  # fmt: skip
    return tuple(sorted(tuple(map(int, row.values())) for row in rows) for rows in (held, expected))  # type: ignore[return-value]


def test_dbt_builds_the_jaffle_shop_and_takes_in_a_day_and_a_changed_model(project: Path, tmp_path: Path) -> None:
    location = tmp_path / "jaffle"
    add_day(str(location))
    assert "PASS=17 WARN=0 ERROR=0" in built(project, location)
    held, expected = totals(location)
    assert len(held) == 50
    assert held == expected
    with persist.open(location) as client:
        made = client.load("orders").id

    add_day(str(location), 1)
    assert "PASS=17 WARN=0 ERROR=0" in built(project, location)
    held, expected = totals(location)
    assert len(held) == 100
    assert held == expected
    with persist.open(location) as client:
        assert client.load("orders").id == made  # It was refreshed, and not made anew.

    # A column is renamed in a model, and in those that read it: they do not fit each other until all have run.
    for model in ("stg_payments", "orders", "customers"):
        file = project / "models" / f"{model}.sql"
        text = file.read_text().replace("payment_method, cents", "payment_method, cents AS paid")
        file.write_text(
            text.replace("sum(cents)", "sum(paid)").replace("THEN cents", "THEN paid").replace("p.cents)", "p.paid)")
        )
    assert "PASS=17 WARN=0 ERROR=0" in built(project, location)
    held, expected = totals(location)
    assert len(held) == 100
    assert held == expected


def test_dbt_tests_a_source_at_its_time(project: Path, tmp_path: Path) -> None:
    location = tmp_path / "jaffle"
    add_day(str(location))
    with persist.open(location) as client:
        first = client.load("raw_orders").snapshot().as_of
    add_day(str(location), 1)
    sources = project / "models" / "sources.yml"
    sources.write_text(sources.read_text().replace("{plugin: persist}", f"{{plugin: persist, as_of: {first}}}"))
    counts = project / "tests"
    counts.mkdir()
    (counts / "fifty_orders.sql").write_text(
        "SELECT count(*) AS n FROM {{ source('shop', 'raw_orders') }} HAVING count(*) <> 50"
    )
    assert "PASS=1 " in built(project, location, "--select", "fifty_orders")
