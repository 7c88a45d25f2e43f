"""Tables of the catalog hold and find each type of Spark as it is, whatever the settings of the session."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.connect.spark import jar
from tests.connect.spark.sessions import KEPT, conf, name_catalog, read

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not jar.JAR.exists(), reason="the jar of the catalog is not built: there is no javac"),
]

SETTINGS = {
    "defaults": {},
    "of old": {
        "ansi_enabled": "false",
        "parquet_enableVectorizedReader": "false",
        "adaptive_enabled": "false",
        "session_timeZone": "America/New_York",
    },
    "interpreted": {
        "codegen_wholeStage": "false",
        "codegen_factoryMode": "NO_CODEGEN",
        "caseSensitive": "true",
        "timestampType": "TIMESTAMP_NTZ",
        "session_timeZone": "Asia/Kolkata",
    },
    "nothing pushed": {
        "parquet_filterPushdown": "false",
        "parquet_enableNestedColumnVectorizedReader": "false",
        "execution_arrow_useLargeVarTypes": "true",
        "autoBroadcastJoinThreshold": "-1",
        "session_timeZone": "Europe/Berlin",
    },
}
# Beside the value in KEPT, one that is easily taken for another.
OTHERS = {
    "BOOLEAN": "false",
    "TINYINT": "127",
    "SMALLINT": "7",
    "INT": "7",
    "BIGINT": "9007199254740993",
    "FLOAT": "'-Infinity'",
    "DOUBLE": "1.7976931348623157E308D",
    "DECIMAL(10,2)": "-99999999.99",
    "DECIMAL(38,38)": "-0.00000000000000000000000000000000000001",
    "STRING": "'\\\\ \\' é'",
    "BINARY": "X'80'",
    "DATE": "DATE'9999-12-31'",
    "TIMESTAMP_LTZ": "TIMESTAMP'2026-10-25 01:30:00Z'",  # The second time that it is half past two in Berlin.
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ'2026-10-25 02:30:00'",
    "TIME(6)": "TIME'00:00:00'",
    "INTERVAL DAY TO SECOND": "INTERVAL '99999 23:59:59.999999' DAY TO SECOND",
    "ARRAY<DATE>": "array()",
    "MAP<STRING,BIGINT>": "map('b', NULL, 'a', 2L)",
    "STRUCT<`a.b`:INT,`c``d`:ARRAY<STRUCT<e:TIMESTAMP_LTZ>>>": "named_struct('a.b', -1, 'c`d', array("
    "named_struct('e', TIMESTAMP'2026-10-25 01:30:00Z')))",
}
# TIMESTAMP is a type of its own in each session, and Python has no years above 9999 in any zone.
VALUES = {**dict(zip(OTHERS, KEPT.values(), strict=True)), "TIMESTAMP_LTZ": "TIMESTAMP'9999-12-30 00:00:00.000001Z'"}
NOT_NATIVE = {"TIME(6)", "INTERVAL DAY TO SECOND", "MAP<STRING,BIGINT>"}


class Rows:
    """Rows of some types as SQL: row 0 has VALUES, row 1 has OTHERS, row 2 has NULLs."""

    def __init__(self, kinds: list[str]) -> None:
        self.kinds = kinds
        self._values = [[VALUES[kind] for kind in kinds], [OTHERS[kind] for kind in kinds], ["NULL"] * len(kinds)]

    def select(self, number: int, like: int) -> str:
        """Return the query of a row with a number, that has the values of another one."""
        return f"SELECT {number}L AS id, " + ", ".join(
            f"{self.cast(like, at)} AS c{at}" for at in range(len(self.kinds))
        )

    def cast(self, like: int, at: int) -> str:
        return f"CAST({self._values[like][at]} AS {self.kinds[at]})"

    def match(self, form: str, like: int) -> str:
        """Return a condition on all columns that can be compared."""
        compared = [at for at, kind in enumerate(self.kinds) if not kind.startswith("MAP")]
        return " AND ".join(f"({form.format(c=f'c{at}', v=self.cast(like, at))})" for at in compared)


def show(frame: Any) -> list[str]:
    return sorted(map(repr, map(tuple, frame.collect())))


@pytest.mark.thorough(except_every=8)
@pytest.mark.costly("some thirty jobs for each setting")
@pytest.mark.parametrize("kinds", ["native", "all"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_statements_keep_each_type_whatever_the_settings(
    spark: SparkSession, tmp_path: Path, settings: str, kinds: str
) -> None:
    path, shop = str(tmp_path), name_catalog(spark, str(tmp_path))
    rows = Rows([kind for kind in VALUES if kinds == "all" or kind not in NOT_NATIVE])
    table = f"{shop}.types"

    def check(*expected: tuple[int, int]) -> None:
        wanted = show(spark.sql(" UNION ALL ".join(rows.select(*row) for row in expected)))
        assert show(spark.table(table)) == wanted
        assert show(read(spark, path, "types", "source")) == wanted

    def find(condition: str, as_of: str = "") -> list[int]:
        return sorted(row.id for row in spark.sql(f"SELECT id FROM {table} {as_of} WHERE {condition}").collect())

    with conf(spark, timeType_enabled="true", **SETTINGS[settings]):
        columns = ", ".join(f"c{at} {kind}" for at, kind in enumerate(rows.kinds))
        spark.sql(f"CREATE TABLE {table} (id BIGINT, {columns}, PRIMARY KEY (id)) USING persist")
        spark.sql(f"INSERT INTO {table} " + " UNION ALL ".join(rows.select(row, row % 3) for row in range(6)))
        check(*((row, row % 3) for row in range(6)))
        assert find(rows.match("{c} = {v}", 0)) == [0, 3]
        assert find(rows.match("{c} <=> {v}", 2)) == [2, 5]
        assert find(rows.match("{c} <= {v} AND NOT ({c} < {v})", 1) + " AND id > 1") == [4]
        assert find(rows.match("{c} IN ({v}, NULL) AND {c} IS NOT NULL", 1) + " AND id = 1") == [1]
        with persist.open(path, mode="read") as client:
            before = client.load("types").upper.time or 0
        source = f"{rows.select(5, 0)} UNION ALL {rows.select(6, 1)}"
        spark.sql(
            f"MERGE INTO {table} t USING ({source}) s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        new = ", ".join(f"c{at} = {rows.cast(2, at)}" for at in range(len(rows.kinds)))
        spark.sql(f"UPDATE {table} SET {new} WHERE {rows.match('{c} = {v}', 1)} AND id < 6")
        check((0, 0), (1, 2), (2, 2), (3, 0), (4, 2), (5, 0), (6, 1))
        spark.sql(f"DELETE FROM {table} WHERE {rows.match('{c} IS NULL', 2)} AND id > 1")
        spark.sql(f"INSERT INTO {table} REPLACE WHERE {rows.match('{c} = {v}', 0)} {rows.select(3, 0)}")
        spark.sql(f"INSERT INTO {table} REPLACE WHERE {rows.match('{c} = {v}', 1)} {rows.select(7, 1)}")
        check((1, 2), (3, 0), (7, 1))
        assert find(rows.match("{c} = {v}", 1), f"VERSION AS OF {before - 1}") == [1, 4]
        changes = spark.sql(f"SELECT * FROM {table} CHANGES FROM VERSION {before}")
        assert show(changes.where("id > 5 AND _change_type = 'insert'").select(*spark.table(table).columns)) == show(
            spark.sql(f"{rows.select(6, 1)} UNION ALL {rows.select(7, 1)}")
        )
        spark.sql(f"INSERT OVERWRITE {table} {rows.select(9, 1)}")
        check((9, 1))


# Conditions whose text means something else, or nothing, in some sessions; and the one row for which they are true.
CONDITIONS = {
    "at = CAST('2026-01-01 00:00:00Z' AS TIMESTAMP_LTZ)": 1,
    "at > CAST('2026-01-01 00:00:00Z' AS TIMESTAMP_LTZ)": 2,
    "named_struct('at', at) = named_struct('at', TIMESTAMP_LTZ'2026-01-01 05:00:00Z')": 2,
    "name = 'a\\b'": 1,
    "`na``me.` <> 'a\\b'": 2,
    "exists(counts, x -> x = 3)": 2,
    "counts = CAST(array('3') AS ARRAY<INT>)": 2,
    "counts = CAST(array() AS ARRAY<INT>)": 1,
}


@pytest.mark.thorough(except_every=len(CONDITIONS))
@pytest.mark.parametrize("condition", CONDITIONS)
def test_an_overwrite_replaces_what_its_condition_means_in_the_session(
    spark: SparkSession, tmp_path: Path, condition: str
) -> None:
    table, row = f"{name_catalog(spark, str(tmp_path))}.rows", CONDITIONS[condition]
    columns = "id BIGINT, at TIMESTAMP_LTZ, name STRING, `na``me.` STRING, counts ARRAY<INT>, changes INT"
    spark.sql(f"CREATE TABLE {table} ({columns}, PRIMARY KEY (id)) USING persist")
    spark.sql(
        f"INSERT INTO {table} VALUES (1, TIMESTAMP_LTZ'2026-01-01 00:00:00Z', 'a\\\\b', 'a\\\\b', array(), 0), "
        "(2, TIMESTAMP_LTZ'2026-01-01 05:00:00Z', 'c', 'c', array(3), 0)"
    )
    settings = {"timestampType": "TIMESTAMP_NTZ", "session_timeZone": "America/New_York"}
    with conf(spark, parser_escapedStringLiterals="true", **settings):
        new = f"SELECT id, at, name, `na``me.`, counts, changes + 1 FROM {table} WHERE id = {row}"
        spark.sql(f"INSERT INTO {table} REPLACE WHERE {condition} {new}")
    assert spark.table(table).where("changes = 1").select("id").collect() == [(row,)]
    assert spark.table(table).count() == 2
