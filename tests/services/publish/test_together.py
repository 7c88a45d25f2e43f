"""Several collections in one transaction of a catalog that can, and table by table in others."""

import pytest

import persist
from tests.services.publish.readers import same_rows
from tests.services.publish.rest_catalog import ENDPOINTS, TOGETHER, served
from tests.services.publish.test_delta import client, orders

__all__ = ["client"]  # The fixture.
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
