"""The change feed of a published Delta table: what deltalake reads of it makes of each version the next one."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.services.publish import Published
from tests.services.publish.readers import by_deltalake
from tests.services.publish.test_delta import client, collect, orders, random_steps

__all__ = ["client"]  # The fixture.
deltalake = pytest.importorskip("deltalake")


def feed(made: Published, first: int, last: int | None = None) -> pa.Table:
    """Return the change feed of some versions, as deltalake reads it."""
    return pa.table(deltalake.DeltaTable(made.url).load_cdf(first, made.version if last is None else last))


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted((k, v) for k, v in row.items() if not k.startswith("_"))) for row in rows)


def changed(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return how often each row came, less how often it went."""
    came = [row for row in rows if row["_change_type"] in ("insert", "update_postimage")]
    total = counted(came)
    total.subtract(counted([row for row in rows if row not in came]))
    return Counter({row: count for row, count in total.items() if count})


def test_a_feed_has_the_rows_that_changed_with_old_and_new_values(client: persist.Client) -> None:
    c = orders(client, 50)
    c.publish("delta", feed=True)
    went = [((1, ("s1", 0.25)), 1, -1), ((2, ("s2", 0.5)), 1, -1)]
    c.write([*went, ((1, ("new", 1.0)), 1, 1), ((99, ("x", 2.0)), 1, 1)], seal=2).result()
    made = c.publish("delta", feed=True)
    rows = sorted(feed(made, 1).to_pylist(), key=lambda row: (row["id"], row["_change_type"] != "update_preimage"))
    assert [(row["id"], row["status"], row["_change_type"], row["_commit_version"]) for row in rows] == [
        (1, "s1", "update_preimage", 1),
        (1, "new", "update_postimage", 1),
        (2, "s2", "delete", 1),
        (99, "x", "insert", 1),
    ]
    files = [path.stat().st_size for path in Path(made.url).glob("*.parquet")]
    assert len(files) == 3, "the part, the rows that hold now, and the changes"


def test_the_first_version_of_a_feed_inserts_what_there_is(client: persist.Client) -> None:
    """delta-rs takes the rows that a vector leaves out for those of the file, so there are no vectors."""
    c = orders(client, 50)
    c.write([((1, ("s1", 0.25)), 1, -1)], seal=2).result()
    made = c.publish("delta", feed=True)
    assert changed(feed(made, 0).to_pylist()) == counted(c.snapshot().to_arrow().to_pylist())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 9))])
def test_each_version_of_a_feed_makes_the_next_table_of_the_one_before(client: persist.Client, seed: int) -> None:
    c, chance = orders(client, 300), random.Random(seed)
    made, held = c.publish("delta", feed=True), counted(c.snapshot().to_arrow().to_pylist())
    for as_of in random_steps(client, c, seed):
        later = c.publish("delta", as_of=max(as_of, made.as_of), feed=True)
        if later.version == made.version:
            continue
        wanted = counted(c.snapshot(later.as_of).to_arrow().to_pylist())
        assert counted(by_deltalake(later.url).to_pylist()) == wanted
        difference = wanted.copy()
        difference.subtract(held)
        assert changed(feed(later, later.version).to_pylist()) == Counter({r: n for r, n in difference.items() if n})
        made, held = later, wanted
        if chance.random() < 0.3:
            c.compact()
    assert client.fsck(deep=True).is_clean


def test_a_feed_of_tombstones_multiplicities_and_no_keys(client: persist.Client) -> None:
    form = persist.Keyed(tombstone="gone")
    keyed = client.create_or_load("keyed", key={"k": int}, value={"v": str, "gone": bool}, keyed=form)
    keyed.upsert([(k, (f"v{k}", False)) for k in range(9)], time=0, seal=1).result()
    keyed.publish("delta", feed=True)
    keyed.upsert([(3, None), (4, ("w", False))], time=1, seal=2).result()
    assert changed(feed(keyed.publish("delta", feed=True), 1).to_pylist()) == Counter(
        {
            "[('gone', False), ('k', 3), ('v', 'v3')]": -1,
            "[('gone', False), ('k', 4), ('v', 'v4')]": -1,
            "[('gone', False), ('k', 4), ('v', 'w')]": 1,
        }
    )
    log = client.create_or_load("log", key=None, value={"line": str})
    log.write([((None, "a"), 0, 3), ((None, "b"), 0, 1)], seal=1).result()
    log.publish("delta", feed=True)
    log.write([((None, "a"), 1, -2), ((None, "c"), 1, 2)], seal=2).result()
    assert changed(feed(log.publish("delta", feed=True), 1).to_pylist()) == Counter(
        {"[('line', 'a')]": -2, "[('line', 'c')]": 2}
    )


def test_the_changes_that_a_feed_has_not_told_yet_stay_readable(client: persist.Client) -> None:
    c = orders(client, 50)
    c.publish("delta", feed=True)
    for time in range(1, 4):
        c.write([((time, (f"s{time}", time / 4)), time, -1)], seal=time + 1).result()
    c.allow_compaction(3).result()
    c.compact()
    client.gc()
    assert c.since.time == 0
    made = c.publish("delta", feed=True)
    assert len(feed(made, 1)) == 3
    assert ("published delta", 3) in [(hold.name, hold.time) for hold in c.holds()]
    c.unpublish("delta")
    assert "published delta" not in [hold.name for hold in c.holds()]
    collect(client)


def test_a_change_of_columns_alone_changes_no_rows(client: persist.Client) -> None:
    c = orders(client, 20)
    c.publish("delta", feed=True)
    c.evolve(rename={"status": "state"})
    made = client.load("orders").publish("delta", feed=True)
    assert made.version == 1
    assert len(feed(made, 1)) == 0


@pytest.mark.thorough
def test_as_many_versions_of_a_feed_stay_as_the_log_shows(client: persist.Client) -> None:
    c = orders(client, 100)
    c.publish("delta", feed=True)
    for time in range(1, 45):
        c.write([((time, (f"s{time % 7}", time / 4)), time, -1)], seal=time + 1).result()
        made = c.publish("delta", feed=True)
        client.gc()
    first = min(int(path.name[:20]) for path in (Path(made.url) / "_delta_log").glob("*.json"))
    assert 20 <= first <= 40
    assert sorted(feed(made, first)["id"].to_pylist()) == [*range(first, 45)]
    assert len([*Path(made.url).glob("*.parquet")]) < 60


@pytest.mark.parametrize("name", ["_change_type", "_old_v"])
def test_a_feed_of_columns_with_its_own_names_is_refused(client: persist.Client, name: str) -> None:
    c = client.create_or_load("c", key={"k": int}, value={name: str})
    c.seal(1).result()
    with pytest.raises(persist.InvalidUsage, match=f"column '{name}' has a name .* rename it"):
        c.publish("delta", feed=True)
    with pytest.raises(persist.InvalidUsage, match="goes with the table"):
        c.publish("iceberg", feed=True)
    assert c.publish("delta").rows == 0
