"""A project of dbt-spark whose models are tables of the catalog: dbt creates, merges and reads them by SQL alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import persist
from persist.connect.spark import jar
from persist.connect.spark.catalog import CATALOG, EXTENSIONS
from tests.support.stepped import WAIT_S

pytest.importorskip("dbt.adapters.spark", reason="dbt-spark is not installed: pip install 'dbt-core<1.12' dbt-spark")
pytestmark = [
    pytest.mark.outside,
    pytest.mark.spark,
    pytest.mark.costly("dbt itself loads for seconds, twice"),
    pytest.mark.skipif(not jar.JAR.exists(), reason="the jar of the catalog is not built: there is no javac"),
]
# dbt merges into the formats that it knows. The catalog makes a collection of any format.
ORDERS = """
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id', file_format='iceberg',
          tblproperties={'key': 'id'}) }}
{% if is_incremental() %} SELECT * FROM VALUES (2L, 'paid'), (3L, 'new') AS v(id, status)
{% else %} SELECT * FROM VALUES (1L, 'new'), (2L, 'new') AS v(id, status) {% endif %}
"""
NEW = "{{ config(materialized='table') }} SELECT count(*) AS n FROM {{ ref('orders') }} WHERE status = 'new'"


def built(project: Path) -> None:
    program = [sys.executable, "-c", "from dbt.cli.main import cli; cli()", "run", "--no-use-colors"]
    environment = os.environ | {"DBT_PROFILES_DIR": str(project), "DO_NOT_TRACK": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(program, cwd=project, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]


def test_dbt_creates_merges_and_reads_tables_of_the_catalog(tmp_path: Path) -> None:
    location = str(tmp_path / "location")
    settings = {
        "spark.master": "local[1]",
        "spark.jars": str(jar.JAR),
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.catalog.persist": CATALOG,
        "spark.sql.catalog.persist.location": location,
        "spark.sql.defaultCatalog": "persist",
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
    }
    target = {"type": "spark", "method": "session", "host": "NA", "schema": "shop", "threads": 1}
    profile = {"shop": {"target": "dev", "outputs": {"dev": {**target, "server_side_parameters": settings}}}}
    project = {"name": "shop", "version": "1.0", "config-version": 2, "profile": "shop", "model-paths": ["models"]}
    (tmp_path / "models").mkdir()
    for name, text in {
        "profiles.yml": json.dumps(profile),
        "dbt_project.yml": json.dumps(project),
        "models/orders.sql": ORDERS,
        "models/new.sql": NEW,
    }.items():
        (tmp_path / name).write_text(text)
    for rows, new in (([(1, "new"), (2, "new")], 2), ([(1, "new"), (2, "paid"), (3, "new")], 2)):
        built(tmp_path)
        with persist.open(location, mode="read") as client:
            orders = client.load("shop.orders").to_arrow().to_pylist()
            assert sorted((row["id"], row["status"]) for row in orders) == rows
            assert client.load("shop.new").to_arrow().to_pylist() == [{"n": new}]
