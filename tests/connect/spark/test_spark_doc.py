"""What the page about Spark shows must run as it stands there, and print what stands below it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.house.docs.test_pages import check_page


@pytest.mark.thorough
def test_the_blocks_of_the_page_about_spark_print_what_stands_below_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_page("use/spark.md")  # Its session is the one that is there.
