"""The example for Dagster: assets that are collections, and data versions that are uppers."""

from pathlib import Path

import pyarrow as pa
import pytest

import persist

dg = pytest.importorskip("dagster", reason="Dagster is not installed: pip install dagster")
pytestmark = [
    pytest.mark.outside,
    pytest.mark.costly("Dagster itself loads for seconds"),
    pytest.mark.filterwarnings("ignore:.*currently in beta", "ignore::DeprecationWarning:dagster"),
]


def test_assets_of_dagster_are_collections_and_their_data_versions_are_uppers(tmp_path: Path) -> None:
    from dagster._core.definitions.observe import observe

    from examples.dagster_assets import PersistIOManager, observed

    location = str(tmp_path / "shop")
    with persist.open(location) as client:
        client.write("raw", pa.table({"id": [1, 2, 3], "amount": [5, 7, 9]}), key=["id"])
    raw = observed("raw", location)

    @dg.asset(io_manager_key="persist", metadata={"key": ["large"]})  # type: ignore[untyped-decorator]
    def sums(raw: pa.Table) -> pa.Table:
        amounts = raw["amount"].to_pylist()
        return pa.table(
            {"large": [False, True], "total": [sum(a for a in amounts if (a > 6) is big) for big in (False, True)]}
        )

    resources = {"persist": PersistIOManager(location)}
    instance = dg.DagsterInstance.ephemeral()

    def version() -> str:
        result = observe([raw], instance=instance, resources=resources)
        assert result.success
        [observation] = result.asset_observations_for_node("raw")
        return str(observation.data_version)

    before = version()
    assert version() == before
    assert dg.materialize([raw, sums], resources=resources, instance=instance).success
    with persist.open(location) as client:
        assert sorted(client.load("sums").snapshot().rows()) == [(False, 5), (True, 16)]
        client.load("raw").upsert(pa.table({"id": [1], "amount": [50]})).result()
    assert version() != before
    assert dg.materialize([raw, sums], resources=resources, instance=instance).success
    with persist.open(location) as client:
        assert sorted(client.load("sums").snapshot().rows()) == [(False, 0), (True, 66)]


def test_a_partition_of_an_asset_replaces_its_own_rows_only(tmp_path: Path) -> None:
    from examples.dagster_assets import PersistIOManager

    location = str(tmp_path / "shop")
    days = dg.StaticPartitionsDefinition(["2026-11-20", "2026-11-21"])

    @dg.asset(io_manager_key="persist", partitions_def=days, metadata={"key": ["id"], "partition_by": "day"})  # type: ignore[untyped-decorator]
    def daily(context) -> pa.Table:  # type: ignore[no-untyped-def]  # Dagster refuses the annotation Any.
        ids = [int(context.partition_key[-2:]) * 10 + n for n in range(context.run.run_id.count("-") - 3)]
        return pa.table({"id": ids, "day": [context.partition_key] * len(ids)})

    resources = {"persist": PersistIOManager(location)}
    for day in ("2026-11-20", "2026-11-21", "2026-11-20"):
        assert dg.materialize([daily], resources=resources, partition_key=day).success
    with persist.open(location) as client:
        assert sorted(client.load("daily").snapshot().rows()) == [(200, "2026-11-20"), (210, "2026-11-21")]
