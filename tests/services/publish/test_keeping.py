"""Tables that are kept current, that a catalog knows, and that are published from the command line."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.stores.file import FileBlob
from persist.core.log.fields import Table
from persist.tools.cli.main import main
from tests.services.publish.readers import by_polars, by_pyiceberg, same_rows
from tests.services.publish.rest_catalog import ENDPOINTS, TOGETHER, served
from tests.services.publish.test_delta import SETTINGS, client, orders
from tests.support.clocks import ImpatientClock
from tests.support.stepped import Stepped

__all__ = ["client"]  # The fixture.


def gone(c: persist.Collection, time: int) -> None:
    """Take a row away at a time, and seal it."""
    c.write([((time, (f"s{time % 7}", time / 4)), time, -1)], seal=time + 1).result()


def test_a_table_follows_seals_in_maintenance_by_any_client(client: persist.Client) -> None:
    c = orders(client, 50)
    c.publish("delta", every="seal")
    gone(c, 1)
    client.maintain()
    assert [made.as_of for made in c.published()] == [1]
    gone(c, 2)
    with persist.open(client.url, settings=SETTINGS) as other:
        assert other.load("orders").upper.time == 3
        other.maintain()
    [made] = c.published()
    assert (made.as_of, made.version) == (2, 2)
    assert same_rows(by_polars(made.url), c) == 48
    client.maintain()
    assert [made.version for made in c.published()] == [2]
    c.publish("delta")
    gone(c, 3)
    client.maintain()
    assert [made.as_of for made in c.published()] == [2], "it does not follow any more"


def test_a_table_follows_keyframes(client: persist.Client) -> None:
    c = orders(client, 50)
    c.publish("delta", every="keyframe")
    for time in range(1, 4):
        gone(c, time)
    client.maintain()
    c.compact()
    client.maintain()
    [made] = c.published()
    assert made.as_of == max(keyframe.as_of for keyframe in c.handle.contents().keyframes) > 0
    assert same_rows(by_polars(made.url), c, made.as_of) == made.rows


def test_a_table_gets_a_version_after_a_span(tmp_path: Path) -> None:
    import time

    clock = ImpatientClock(time.time())
    with persist.open(tmp_path / "location", settings=SETTINGS, clock=clock) as client:
        c = orders(client, 50)
        c.publish("delta", every="10 minutes")
        gone(c, 1)
        client.maintain()
        assert [made.as_of for made in c.published()] == [0]
        clock.sleep(660)
        client.maintain()
        assert [made.as_of for made in c.published()] == [1]


@pytest.mark.parametrize("every", ["", "often", "0 minutes", "10 weeks", 5])
def test_nothing_to_follow_is_refused(client: persist.Client, every: Any) -> None:
    with pytest.raises(persist.InvalidUsage, match="is not a schedule"):
        orders(client, 1).publish("delta", every=every)


@pytest.mark.thorough(except_every=5)
@pytest.mark.parametrize("table", ["delta", "iceberg"])
@pytest.mark.parametrize("comes", ["an erasure", "another table", "a compaction", "a column"])
@pytest.mark.parametrize("is_early", [True, False])
def test_what_others_do_while_a_version_is_planned_lets_it_be_planned_again(
    table: Table, comes: str, is_early: bool, tmp_path: Path
) -> None:
    blob = FileBlob(tmp_path, fsync=False)
    stepped: Any = Stepped(blob)
    with persist.open(stepped, settings=SETTINGS) as client, persist.open(blob, settings=SETTINGS) as other:
        c = orders(client, 50)
        c.publish(table)
        for time in range(1, 4):
            gone(c, time)
        c.compact()
        gone(c, 4)

        def meanwhile() -> None:
            others = other.load("orders")
            if comes == "an erasure":
                others.erase([7], reason="request 17")
            elif comes == "another table":
                others.unpublish(table)
                others.publish(table, 2)
            elif comes == "a compaction":
                others.compact()
            else:
                others.evolve(add={"note": pa.string()})
            assert c.upper.time == 5, "the client learns of it, as it does from other threads of its own"

        left = [meanwhile]
        for operation in ("get", "list"):
            # Early: before it is read what the table shows; or else before rows are.
            where = {"delta": "_delta_log/", "iceberg": "metadata/"}[table] if is_early else "0"
            stepped.before(operation, f"part/{c.id}/{where}", lambda: left.pop()() if left else None)
        made = client.load("orders").publish(table)
        assert (made.as_of, made.rows) == (4, 46 - (comes == "an erasure"))
        assert not left
        assert not client.fsck().problems


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("table", ["delta", "iceberg"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_version_that_is_shown_after_its_table_was_given_up_is_taken_back(
    table: Table, dies: bool, tmp_path: Path
) -> None:
    """Whoever shows it does so, or dies first, and then the next one that is to have that name does so."""
    blob = FileBlob(tmp_path, fsync=False)
    stepped: Any = Stepped(blob)
    with persist.open(stepped, settings=SETTINGS) as client, persist.open(blob, settings=SETTINGS) as other:
        c = orders(client, 50)

        def die() -> None:
            raise KeyboardInterrupt

        folder = f"part/{c.id}/{'_delta_log/' if table == 'delta' else 'metadata/v'}"
        stepped.before("create", folder, lambda: other.load("orders").erase([7], reason="request 17"))
        if dies:
            stepped.after("create", folder, die)
            with pytest.raises(KeyboardInterrupt):
                c.publish(table)
        else:
            c.publish(table)
        assert stepped.is_done
        [made] = c.published() or [c.publish(table)]
        assert made.rows == 49
        assert same_rows((by_polars if table == "delta" else by_pyiceberg)(made.url), c) == 49
        gone(c, 1)
        made = c.publish(table)
        assert same_rows((by_polars if table == "delta" else by_pyiceberg)(made.url), c) == 48
        assert not client.fsck().problems


@pytest.mark.parametrize("table", ["delta", "iceberg"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_table_that_was_given_up_before_it_is_shown_is_not_left_to_readers(
    table: Table, version: int, tmp_path: Path
) -> None:
    """Who was asked to publish publishes anew then: what readers find is a table that the log has."""
    blob = FileBlob(tmp_path, fsync=False)
    stepped: Any = Stepped(blob)
    with persist.open(stepped, settings=SETTINGS) as client, persist.open(blob, settings=SETTINGS) as other:
        c = orders(client, 50)
        for time in range(1, version + 1):
            c.publish(table)
            gone(c, time)
        folder = f"part/{c.id}/{'_delta_log/' if table == 'delta' else 'metadata/v'}"
        given_up: list[str] = []

        def give_up() -> None:
            given_up.extend(made.url for made in other.load("orders").published())
            other.load("orders").unpublish(table)

        stepped.before("create", folder, give_up)
        made = c.publish(table)
        assert stepped.is_done
        assert given_up
        assert [(shown.version, shown.url) for shown in c.published()] == [(0, made.url)]
        assert same_rows((by_polars if table == "delta" else by_pyiceberg)(made.url), c) == 50 - version
        assert c.unpublish(table)
        with pytest.raises(
            Exception, match=r"(?i)no such|not found|failed to open|no files|not a delta|does not exist"
        ):
            (by_polars if table == "delta" else by_pyiceberg)(made.url)
        names = [entry.key for entry in blob.list(f"part/{c.id}/")]
        assert not [name for name in names if name.endswith((".json", "_last_checkpoint", "version-hint.text"))]


class Failing:
    """A catalog that is down for some calls."""

    def __init__(self, catalog: Any) -> None:
        self._catalog = catalog
        self.down: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self.down:
            raise ConnectionError("the catalog is down")
        return getattr(self._catalog, name)


@pytest.fixture
def catalog(tmp_path: Path) -> Failing:
    pytest.importorskip("sqlalchemy")
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    made = sql.SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    made.create_namespace("shop")
    return Failing(made)


def test_a_catalog_is_told_of_each_version(client: persist.Client, catalog: Failing) -> None:
    c = orders(client, 50)
    for time in range(1, 4):
        made = c.publish("iceberg", catalog=catalog, identifier="shop.orders")
        table = catalog.load_table("shop.orders")
        assert table.current_snapshot().summary["persist.as_of"] == str(made.as_of)
        assert same_rows(table.scan().to_arrow(), c) == 51 - time
        gone(c, time)
    c.evolve(rename={"status": "state"}, add={"note": str})
    c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    c = client.load("orders")
    assert same_rows(catalog.load_table("shop.orders").scan().to_arrow(), c) == 47
    assert not c.publish("iceberg", catalog=catalog, identifier="shop.orders").is_new
    assert client.fsck().is_clean


def test_a_catalog_that_is_down_in_the_middle_hears_of_it_from_the_next(
    client: persist.Client, catalog: Failing
) -> None:
    c = orders(client, 50)
    c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    gone(c, 1)
    catalog.down = {"commit_table"}
    with pytest.raises(persist.Unavailable, match=r"did not take version 1 .* down\. It is published"):
        c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    [made] = c.published()
    assert len(by_pyiceberg(made.url)) == 49
    gone(c, 2)
    with pytest.raises(persist.Unavailable, match="did not take version 1"):
        c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    assert [known.version for known in c.published()] == [1], "two versions are kept, so a third one waits"
    catalog.down = set()
    assert len(catalog.load_table("shop.orders").scan().to_arrow()) == 50, "the version before is whole"
    assert c.publish("iceberg", catalog=catalog, identifier="shop.orders").version == 2
    assert len(catalog.load_table("shop.orders").scan().to_arrow()) == 48


def test_a_catalog_gets_the_whole_change_of_a_version(client: persist.Client, catalog: Failing) -> None:
    c = orders(client, 50)
    asked: list[tuple[Any, Any]] = []
    commit = catalog._catalog.commit_table

    def note(table: Any, required: Any, changes: Any) -> Any:
        asked.append(([each.model_dump(mode="json", by_alias=True) for each in required], [*changes]))
        return commit(table, required, changes)

    catalog._catalog.commit_table = note
    c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    first = catalog.load_table("shop.orders").current_snapshot().snapshot_id
    assert asked == [], "it is registered with its metadata"
    gone(c, 1)
    c.evolve(rename={"status": "state"})
    c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    table = catalog.load_table("shop.orders")
    [(required, changes)] = asked
    [second] = table.metadata.snapshots
    assert required == [
        {"type": "assert-table-uuid", "uuid": str(table.metadata.table_uuid)},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": first},
    ]
    assert [each.action for each in changes] == [
        "add-schema", "set-current-schema", "add-snapshot", "set-snapshot-ref", "set-properties", "remove-snapshots",
    ]  # fmt: skip
    assert (changes[2].snapshot.parent_snapshot_id, changes[-1].snapshot_ids) == (first, [first])
    assert (changes[3].ref_name, changes[3].type, changes[3].snapshot_id) == ("main", "branch", second.snapshot_id)
    assert (changes[0].schema_.schema_id, changes[1].schema_id, table.metadata.current_schema_id) == (2, 2, 2)
    assert c.publish("iceberg", catalog=catalog, identifier="shop.orders").is_new is False
    assert len(asked) == 1, "it has this version"
    gone(client.load("orders"), 2)
    c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    assert [each.action for each in asked[1][1]] == [each.action for each in changes[2:]], "it has the schema"
    kept = [path.name for path in Path(client.url).rglob("v*.metadata.json")]
    assert sorted(kept) == [f"v{number}.metadata.json" for number in (1, 2, 3)], "the catalog may point to any"


def test_a_table_of_somebody_else_in_a_catalog_is_left_alone(client: persist.Client, catalog: Failing) -> None:
    c = orders(client, 5)
    catalog.create_table("shop.orders", c.snapshot().to_arrow().schema)
    with pytest.raises(persist.InvalidUsage, match=r"another table called 'shop.orders'"):
        c.publish("iceberg", catalog=catalog, identifier="shop.orders")
    with pytest.raises(persist.InvalidUsage, match="go together"):
        c.publish("iceberg", catalog=catalog)


def test_publish_and_unpublish_on_the_command_line(client: persist.Client, capsys: pytest.CaptureFixture[str]) -> None:
    place, c = client.url, orders(client, 50)
    gone(c, 1)
    client.close()
    assert main(["publish", place, "orders", "delta", "--as-of", "0", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["version"], made["as_of"], made["rows"]) == (0, 0, 50)
    assert main(["publish", place, "orders", "delta", "--every", "seal"]) == 0
    assert "version 1 as of 1: 1 file, 49 rows" in capsys.readouterr().out
    assert main(["publish", place, "orders", "hudi"]) == 2
    assert "not a format of a table" in capsys.readouterr().err
    assert main(["unpublish", place, "orders", "delta"]) == 0
    assert main(["unpublish", place, "orders"]) == 0
    assert "has no delta table" in capsys.readouterr().out


pytest.importorskip("pyiceberg.catalog.rest")
TABLES = {"orders": "shop.orders", "items": "shop.items"}


def shop(client: persist.Client) -> list[persist.Collection]:
    items = client.create_or_load("items", key={"id": int}, value={"name": str})
    items.write([((n, f"i{n}"), 0, 1) for n in range(20)], seal=1).result()
    return [orders(client, 50), items]


def change(client: persist.Client, time: int) -> None:
    """Take a row of each away, in one commit."""
    with client.multi_write() as multi:
        multi.write(client["orders"], [((time, (f"s{time}", time / 4)), time, -1)])
        multi.write(client["items"], [((time, f"i{time}"), time, -1)])
        for name in TABLES:
            multi.seal(client[name], time + 1)


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("together", [True, False])
def test_a_catalog_is_told_of_several_tables_at_once_if_it_can(client: persist.Client, together: bool) -> None:
    first, second = shop(client)
    with served([*ENDPOINTS, *[TOGETHER] * together]) as (catalog, its_client):
        for time in range(1, 4):
            made = client.publish(TABLES, catalog=its_client)
            assert [table.as_of for table in made] == [time - 1] * 2
            for c, name in zip((first, second), TABLES.values(), strict=True):
                assert same_rows(its_client.load_table(name).scan().to_arrow(), c, time - 1)
            change(client, time)
        one = [["shop.orders", "shop.items"]] * 2
        assert catalog.changes == (one if together else [[name] for _ in range(2) for name in TABLES.values()])
        assert not any(table.is_new for table in client.publish(TABLES, catalog=its_client, as_of=2))


def test_a_catalog_that_is_down_shows_all_tables_as_they_were_and_hears_of_them_later(client: persist.Client) -> None:
    first, second = shop(client)
    with served([*ENDPOINTS, TOGETHER]) as (catalog, its_client):
        client.publish(TABLES, catalog=its_client)
        change(client, 1)
        catalog.is_down = True
        for _ in range(2):  # The second time something newer is there, which waits until the catalog has heard of this.
            with pytest.raises(
                persist.Unavailable, match=r"did not take new versions of shop.orders, shop.items: .*503"
            ):
                client.publish(TABLES, catalog=its_client)
            assert [c.published()[0].version for c in (first, second)] == [1, 1]
            if first.upper.time == 2:
                change(client, 2)
        for c, name in zip((first, second), TABLES.values(), strict=True):
            assert same_rows(its_client.load_table(name).scan().to_arrow(), c, 0)
        catalog.is_down = False
        client.publish(TABLES, catalog=its_client)
        assert catalog.changes == [["shop.orders", "shop.items"]] * 2
        for c, name in zip((first, second), TABLES.values(), strict=True):
            assert same_rows(its_client.load_table(name).scan().to_arrow(), c, 2)


def test_tables_of_one_name_or_none_are_refused(client: persist.Client) -> None:
    shop(client)
    refused: list[dict[str, str]] = [{}, {"orders": "shop.t", "items": "shop.t"}]
    for tables in refused:
        with pytest.raises(persist.InvalidUsage, match="each table once"):
            client.publish(tables, catalog="c")
