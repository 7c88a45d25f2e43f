"""Windows and first rows over partitions that are kept in order have the answers of whole partitions."""

from collections import Counter
from typing import Any

import pytest

from persist.dataflow.operators.large_groups import LargeGroups
from tests.sql.oracle import changes, check

FIRST = "PARTITION BY a ORDER BY b DESC"
FIRST_ROWS = [
    "SELECT a, b, s FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b DESC, s) <= 2",
    f"SELECT a, b, s FROM t QUALIFY rank() OVER ({FIRST}) <= 3",
    f"SELECT a, b, s FROM t QUALIFY dense_rank() OVER ({FIRST}) <= 2",
    "SELECT a, b, s FROM t QUALIFY rank() OVER (ORDER BY s NULLS FIRST, m) <= 4",
]


@pytest.fixture
def always_ranked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Rank every group at once, in blocks of few records; count what is done with them."""
    done = Counter[str]()
    changed = LargeGroups.changed

    def counted(self: LargeGroups, *arguments: Any) -> Any:
        done["changed"] += 1
        return changed(self, *arguments)

    monkeypatch.setattr("persist.dataflow.operators.reduce.LARGE_ROWS", 1)
    monkeypatch.setattr("persist.dataflow.operators.large_groups.LARGE_ROWS", 1)
    monkeypatch.setattr("persist.dataflow.operators.large_groups.CHANGE_ROWS", 0)
    monkeypatch.setattr("persist.dataflow.state.ranked.BLOCK_ROWS", 3)
    monkeypatch.setattr(LargeGroups, "changed", counted)
    return done


@pytest.mark.parametrize("sql", FIRST_ROWS)
def test_first_rows_of_partitions_in_order(sql: str, always_ranked: Counter[str]) -> None:
    for seed in range(3):
        check(sql, changes(seed, steps=8, size=6))
    assert always_ranked["changed"] > 20
