"""A location as an Iceberg catalog: for pyiceberg, every collection is a table, at all times that it requests."""

import http.client
import json
import os
import random
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import BadRequestError, NoSuchTableError, UnauthorizedError

import persist
from persist.core.errors import AsOfNotSealed, Superseded
from persist.core.log import kinds
from persist.core.log.framing import FORMAT_MIN
from persist.services.publish import IcebergCatalog
from persist.services.publish.catalog import NotListed, to_identifier
from persist.services.serve.iceberg import BODY_BYTES_MAX, serve_catalog
from persist.tools.cli.main import main
from tests.services.publish.readers import CONNECTED_DUCKDB
from tests.services.publish.test_delta import SETTINGS
from tests.support.clocks import ImpatientClock
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S


@pytest.fixture
def client(tmp_path: Path) -> Iterator[persist.Client]:
    with persist.open(tmp_path / "a location + é (1)", settings=SETTINGS) as client:
        yield client


@pytest.fixture
def url(client: persist.Client) -> Iterator[str]:
    with serve_catalog(client, "127.0.0.1:0", token=None, insecure=False, publish_interval_s=0.0) as url:
        yield url


@pytest.fixture
def catalog(url: str) -> Catalog:
    return load_catalog("persist", type="rest", uri=url)


def orders(client: persist.Client, name: str = "orders") -> persist.Collection:
    collection = client.create_or_load(name, key={"id": int}, value={"status": str})
    collection.write([((n, "new"), 0, 1) for n in range(100)], seal=1).result()
    return collection


def rows_of(table: Any, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.scan(**options).to_arrow().to_pylist())


def snapshot_rows(collection: persist.Collection, as_of: int) -> list[tuple[Any, ...]]:
    with collection.snapshot(as_of) as snapshot:
        table = snapshot.to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def call(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, dict(answer.headers), json.loads(data) if data else None
    finally:
        connection.close()


def test_namespaces_are_the_parts_before_the_last_dot(client: persist.Client, catalog: Catalog, url: str) -> None:
    names = ["orders", "shop.items", "shop.eu.items", "main.orders", "a b.ü+(1)", "odd."]
    for name in names:
        orders(client, name)
    assert catalog.list_namespaces() == [("a b",), ("main",), ("shop",)]
    assert catalog.list_namespaces("shop") == [("shop", "eu")]
    assert catalog.list_tables("main") == [("main", "main.orders"), ("main", "odd."), ("main", "orders")]
    assert catalog.list_tables(("shop", "eu")) == [("shop", "eu", "items")]
    assert len({to_identifier(name) for name in names}) == len(names)
    for name in names:
        space, table = to_identifier(name)
        assert len(rows_of(catalog.load_table((*space, table)))) == 100
        assert catalog.table_exists((*space, table))
    assert catalog.namespace_exists("main")
    assert not catalog.namespace_exists("none")
    page = call(url, "GET", "/v1/namespaces/main/tables?pageSize=2")[2]
    rest = call(url, "GET", f"/v1/namespaces/main/tables?pageSize=2&pageToken={page['next-page-token']}")[2]
    assert [len(page["identifiers"]), len(rest["identifiers"]), rest["next-page-token"]] == [2, 1, None]


def test_each_load_shows_the_newest_sealed_time(client: persist.Client, catalog: Catalog) -> None:
    c = client.create_or_load("orders", key={"id": int}, value={"status": str})
    assert rows_of(catalog.load_table("main.orders")) == [], "nothing is sealed, so the table has no snapshot"
    c = orders(client)
    first = catalog.load_table("main.orders")
    c.write([((1, "new"), 1, -1), ((1, "paid"), 1, 1)], seal=2).result()
    second = catalog.load_table("main.orders")
    assert [rows_of(first), rows_of(second)] == [snapshot_rows(c, 0), snapshot_rows(c, 1)]
    assert second.current_snapshot().summary["persist.as_of"] == "1"
    assert first.metadata.table_uuid == second.metadata.table_uuid


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("planning", ["client", "server"])
def test_tags_and_requested_times_equal_their_snapshots(client: persist.Client, url: str, planning: str) -> None:
    random_ = random.Random(7)
    c = orders(client)
    catalog = load_catalog("persist", type="rest", uri=url, **{"scan-planning-mode": planning})
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for time in range(1, 7):
        held = dict(snapshot_rows(c, time - 1))
        keys = random_.sample(range(120), 20)
        changes = [((k, held[k]), time, -1) for k in keys if k in held]
        changes += [((k, f"at {time}"), time, 1) for k in keys if random_.random() < 0.7]
        c.write(changes, seal=time + 1).result()
        if random_.random() < 0.5:
            c.compact()
        expected[time] = snapshot_rows(c, time)
        if time % 2:
            c.tag(f"tag {time}", time)
        catalog.load_table("main.orders")
    c.compact()
    client.gc()
    table = catalog.load_table("main.orders")
    assert rows_of(table) == expected[max(expected)]
    for time, rows in expected.items():
        at = table.snapshot_by_name(f"tag {time}")
        assert (at is not None) == bool(time % 2)
        if at is not None:
            assert rows_of(table, snapshot_id=at.snapshot_id) == rows
        assert rows_of(catalog.load_table(f"main.orders@{time}")) == rows
    assert client.fsck(deep=True).is_clean


def test_a_plan_of_the_server_has_the_files_that_may_match(client: persist.Client, url: str) -> None:
    c = orders(client)
    catalog = load_catalog("persist", type="rest", uri=url, **{"scan-planning-mode": "server"})
    c.write([((n, "new"), 1, 1) for n in range(1000, 1100)], seal=2).result()
    c.write([((3, "new"), 2, -1)], seal=3).result()
    table = catalog.load_table("main.orders")
    assert rows_of(table, row_filter="id < 5") == [(0, "new"), (1, "new"), (2, "new"), (4, "new")]
    assert [*table.scan(row_filter="id > 5000").plan_files()] == []
    status, _, answer = call(url, "POST", "/v1/namespaces/main/tables/orders/plan", b'{"snapshot-id": 1}')
    assert (status, answer["error"]["type"]) == (400, "BadRequestException")
    for body in (b"[]", b"{", b'{"filter": {"type": "no"}}', b'{"start-snapshot-id": 1, "end-snapshot-id": 2}'):
        assert call(url, "POST", "/v1/namespaces/main/tables/orders/plan", body)[0] == 400, body
    hostile = (
        "[" * 100_000,
        json.dumps({"filter": {"type": "starts-with", "term": "id", "value": "5"}}),
        json.dumps({"filter": {"type": "eq", "term": "nothing", "value": 5}}),
        json.dumps({"filter": {"type": "eq", "term": "id", "value": float("inf")}}),
        '{"filter": {"type": "eq", "term": "id", "value": 1e400}}',
        '{"filter": {"type": "eq", "term": "status", "value": "\\ud800"}}',
        '{"filter":' + '{"type":"not","child":' * 2000 + "true" + "}" * 2001,
    )
    for text in hostile:
        assert call(url, "POST", "/v1/namespaces/main/tables/orders/plan", text.encode())[0] == 400, text[:60]


def test_times_that_are_moments_are_found_by_timestamp(client: persist.Client, catalog: Catalog) -> None:
    c = client.create_or_load("days", key={"id": int}, timeline="s")
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    for at, day in enumerate(days):
        c.write([((at, None), day, 1)], seal=day.replace(hour=1)).result()
    c.tag("first", days[0])
    catalog.load_table("main.days@2026-01-02")
    table = catalog.load_table("main.days")
    for at, day in enumerate(days):
        found = table.snapshot_as_of_timestamp(int(day.replace(hour=12).timestamp() * 1000))
        assert found is not None
        assert len(rows_of(table, snapshot_id=found.snapshot_id)) == at + 1


def test_a_pin_goes_with_its_tag_and_a_requested_time_after_a_day(client: persist.Client, catalog: Catalog) -> None:
    c = orders(client)
    c.tag("start", 0)
    c.write([((1, "new"), 1, -1)], seal=2).result()
    c.write([((2, "new"), 2, -1)], seal=3).result()
    catalog.load_table("main.orders")
    catalog.load_table("main.orders@1")
    assert [*c.handle.contents().pins] == [0, 1]
    c.untag("start").result()
    catalog.load_table("main.orders")
    assert [*c.handle.contents().pins] == [1]
    assert c.published()[0].table == "iceberg"
    assert len(c.published()) == 1
    until_ms = int(c.handle.contents().pins[1].options["until_ms"])
    assert until_ms > client.engine.clock.wall_ms()
    assert c.unpublish("iceberg")
    assert c.handle.contents().published == {}
    client.gc()
    assert client.fsck(deep=True).is_clean


def test_a_tag_that_goes_meanwhile_is_not_pinned(client: persist.Client) -> None:
    c = orders(client)
    c.tag("start", 0)
    c.write([((1, "new"), 1, -1)], seal=2).result()
    c.publish("iceberg")
    tagged = c.handle.contents()
    c.untag("start").result()
    c.allow_compaction(1).result()
    c.compact()
    assert not IcebergCatalog(client, 0.0)._pin(c.handle, tagged, None).pins


def test_a_pin_takes_no_ids_of_new_rows(client: persist.Client) -> None:
    c = orders(client)
    c.tag("start", 0)
    c.write([((1, "new"), 1, -1)], seal=2).result()
    with serve_catalog(client, "127.0.0.1:0", token=None, insecure=False, format_version=3) as url:
        pin, newest = call(url, "GET", "/v1/namespaces/main/tables/orders")[2]["metadata"]["snapshots"]
    assert (pin["summary"]["persist.as_of"], pin["first-row-id"], pin["added-rows"]) == ("0", 0, 0)
    assert newest["added-rows"] >= 99


def test_an_erasure_takes_pins_and_the_next_load_shows_what_stays(client: persist.Client, catalog: Catalog) -> None:
    c = orders(client)
    c.tag("start", 0)
    c.write([((1, "new"), 1, -1)], seal=2).result()
    catalog.load_table("main.orders")
    c.erase(where="id = 7", reason="asked for")
    table = catalog.load_table("main.orders")
    assert (7, "new") not in rows_of(table)
    assert len(rows_of(table)) == 98
    at = table.snapshot_by_name("start")
    assert at is None or (7, "new") not in rows_of(table, snapshot_id=at.snapshot_id)


def test_a_record_of_a_pin_needs_format_11_and_others_do_not() -> None:
    pin, table = (kinds.Publish("a" * 32, name, "b" * 32, 0, 17) for name in ("iceberg@17", "iceberg"))
    assert (pin.format_needed, table.format_needed) == (11, FORMAT_MIN)


def test_a_requested_time_is_served_within_the_interval_of_publications(client: persist.Client) -> None:
    c = orders(client)
    with serve_catalog(client, "127.0.0.1:0", token=None, insecure=False, publish_interval_s=1e6) as url:
        catalog = load_catalog("persist", type="rest", uri=url)
        assert len(rows_of(catalog.load_table("main.orders"))) == 100
        for time in (1, 2):
            c.write([((time, "new"), time, -1)], seal=time + 1).result()
        assert len(rows_of(catalog.load_table("main.orders"))) == 100, (
            "a load within the interval shows the last version"
        )
        assert rows_of(catalog.load_table("main.orders@1")) == snapshot_rows(c, 1)
        assert rows_of(catalog.load_table("main.orders@latest")) == snapshot_rows(c, 2)


def test_times_are_pinned_within_bounds_and_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.services.publish.catalog.REQUESTED_MAX", 2)
    monkeypatch.setattr("persist.services.publish.catalog.PINS_MAX", 4)
    clock = ImpatientClock()
    with persist.open(tmp_path, settings=SETTINGS, clock=clock) as client:
        c, catalog = orders(client), IcebergCatalog(client, 0.0)

        def load(table: str = "orders") -> list[int]:
            catalog.load(("main",), table)
            return sorted(c.handle.contents().pins)

        for time in range(1, 10):
            c.write([((time, "new"), time, -1)], seal=time + 1).result()
        with monkeypatch.context() as patch:
            patch.setattr("persist.services.publish.catalog.PINNING_S", -1.0)
            c.tag("nine", 9)
            c.tag("two", 2)
            assert load() == [], "another load pins it"
        c.untag("two").result()
        assert load("orders@0") == [0]
        assert load("orders@1") == [0, 1]
        assert load("orders@0") == [0, 1], "it is pinned already"
        until_ms = clock.wall_ms() + 24 * 3600 * 1000
        assert [pin.options["until_ms"] for pin in c.handle.contents().pins.values()] == [f"{until_ms}"] * 2
        full = r"^2 of 2 requested times of 'orders', and {} of 4 times in all, are pinned already: read one of these$"
        with pytest.raises(persist.InvalidUsage, match=full.format(2)):
            load("orders@2")
        for time in (3, 4, 5, 6):
            c.tag(f"at {time}", time)
        assert load() == [0, 1, 5, 6], "tags of the newest times"
        assert load("orders@9") == load("orders@5") == [0, 1, 5, 6]
        monkeypatch.setattr("persist.services.publish.catalog.REQUESTED_MAX", 3)
        with pytest.raises(persist.InvalidUsage, match=full.format(4).replace("of 2 r", "of 3 r")):
            load("orders@2")
        with pytest.raises(AsOfNotSealed):
            load("orders@10")
        clock.sleep((until_ms - clock.wall_ms()) / 1000)
        assert load("orders@0") == [0, 1, 5, 6], "until then, and no longer"
        clock.sleep(0.01)
        assert load("orders@0") == [0, 4, 5, 6], "what is asked for stays"
        c.untag("at 5").result()
        assert load() == [3, 4, 6]
        assert [(table.table, table.as_of) for table in c.published()] == [("iceberg", 9)]
        assert c.unpublish("iceberg")
        assert c.handle.contents().published == {}
        assert client.fsck(deep=True).is_clean


def test_requested_times_leave_room_for_tags(
    client: persist.Client, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.services.publish.catalog.REQUESTED_MAX", 2)
    c = orders(client)
    for time in range(1, 6):
        c.write([((time, "new"), time, -1)], seal=time + 1).result()
    for time in (0, 1):
        catalog.load_table(f"main.orders@{time}")
    with pytest.raises(BadRequestError, match=r"2 of 2 requested times of .* are pinned already"):
        catalog.load_table("main.orders@2")
    c.tag("three", 3)
    at = catalog.load_table("main.orders").snapshot_by_name("three")
    assert at is not None
    assert at.summary["persist.as_of"] == "3"


def test_a_table_that_cannot_be_published_is_listed_with_the_reason(client: persist.Client, catalog: Catalog) -> None:
    client.create_or_load("wide", key={"id": pa.uint64()})
    assert catalog.list_tables("main") == [("main", "wide")]
    assert "uint64" in catalog.load_namespace_properties("main")["persist.unavailable.wide"]
    with pytest.raises(BadRequestError, match="uint64"):
        catalog.load_table("main.wide")


def test_what_is_not_there_and_what_writes_is_refused_by_the_protocols_errors(
    client: persist.Client, catalog: Catalog, url: str
) -> None:
    orders(client)
    for name in ("main.none", "none.orders", "main.orders@zz", "main.."):
        with pytest.raises((NoSuchTableError, BadRequestError)):
            catalog.load_table(name)
    table = "/v1/namespaces/main/tables/orders"
    for method, path in (
        ("POST", "/v1/namespaces"),
        ("POST", "/v1/namespaces/main/tables"),
        ("DELETE", table),
        ("POST", table),
        ("DELETE", "/v1/namespaces/main"),
        ("POST", "/v1/tables/rename"),
        ("POST", "/v1/transactions/commit"),
    ):
        status, _, answer = call(url, method, path, b"{}")
        assert (status, answer["error"]["type"]) == (406, "UnsupportedOperationException"), (method, path)
    for path in ("/v1/namespaces/main/tables/..%2f..%2fetc%2fpasswd", "/v1/namespaces/../../etc", "/v2", "/"):
        assert call(url, "GET", path)[0] == 404, path
    for query in ("pageSize=0", "pageSize=x", "pageToken=-1", f"pageToken={'9' * 100}"):
        assert call(url, "GET", f"/v1/namespaces/main/tables?{query}")[0] == 400, query
    assert call(url, "POST", f"{table}/metrics", b"x" * (BODY_BYTES_MAX + 1))[0] == 413
    assert call(url, "POST", f"{table}/metrics", b"{}")[0] == 204
    assert call(url, "GET", "/v1/config", Host="evil.example")[0] == 403
    for foreign in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert call(url, "GET", f"{table}@0", **foreign)[0] == 403  # type: ignore[arg-type]
    assert client.load("orders").published() == []
    assert client.collections() == ["orders"]


def test_what_cannot_be_served_is_refused_with_its_reason(client: persist.Client, monkeypatch: Any) -> None:
    c, catalog, main = orders(client), IcebergCatalog(client, 0.0), ("main",)
    c.publish("delta")
    with pytest.raises(persist.InvalidUsage, match=r"^the table has no such snapshot any more: load the table again$"):
        catalog.plan(main, "orders", {})
    c.write([((1, "new"), 1, -1)], seal=2).result()
    newest = catalog.load(main, "orders").metadata["current-snapshot-id"]
    assert catalog.plan(main, "orders", {"snapshot-id": newest}) == catalog.plan(main, "orders@1", {})
    for name, request in (("orders@0", {}), ("orders", {"snapshot-id": newest + 1})):
        with pytest.raises(persist.InvalidUsage, match="no such snapshot any more"):
            catalog.plan(main, name, request)
    pinned = catalog.load(main, "orders@0").metadata["current-snapshot-id"]
    plans = [catalog.plan(main, "orders", {"snapshot-id": pinned}), catalog.plan(main, "orders@0", {})]
    assert plans[0] == plans[1] != catalog.plan(main, "orders", {})
    for request in ({"start-snapshot-id": 1}, {"end-snapshot-id": 1}, {"start-snapshot-id": 1, "end-snapshot-id": 2}):
        with pytest.raises(persist.InvalidUsage, match=r"^(plans of the changes|the request for a plan is malformed)"):
            catalog.plan(main, "orders", request)
    request = {"filter": {"type": "lt", "term": "id", "value": 5}}
    size = len(json.dumps(request["filter"]))
    monkeypatch.setattr("persist.services.publish.catalog.RESIDUAL_BYTES_MAX", size)
    assert len(catalog.plan(main, "orders", request)["file-scan-tasks"]) == 1
    monkeypatch.setattr("persist.services.publish.catalog.RESIDUAL_BYTES_MAX", size - 1)
    with pytest.raises(persist.InvalidUsage, match=r"^the filter is too long for so many files: plan the scan in the"):
        catalog.plan(main, "orders", request)
    assert len(catalog.plan(main, "orders", {})["file-scan-tasks"]) == 1
    with pytest.raises(NotListed, match=r"^there is no table 'main\.none'$"):
        catalog.check(main, "none")
    with pytest.raises(NotListed, match=r"^there is no namespace 'a\.b'$"):
        catalog.tables(("a", "b"))
    catalog.check(main, "orders@7")
    monkeypatch.setattr("persist.services.publish.catalog.LOCK_S", 0.01)
    with catalog._slots["orders"].lock, pytest.raises(Superseded, match="'orders' is being published: load it again"):
        catalog.load(main, "orders")
    assert catalog.load(main, "orders").metadata["current-snapshot-id"] == newest


def test_an_unchanged_table_answers_304(client: persist.Client, url: str) -> None:
    c = orders(client)
    table = "/v1/namespaces/main/tables/orders"
    tag = call(url, "GET", table)[1]["etag"]
    assert call(url, "GET", table, If_None_Match=tag)[::2] == (304, None)
    c.write([((1, "new"), 1, -1)], seal=2).result()
    status, headers, _ = call(url, "GET", table, If_None_Match=tag)
    assert status == 200
    assert headers["etag"] != tag


def test_a_token_is_required_where_there_is_one(client: persist.Client) -> None:
    orders(client)
    secrets = {"s3.access-key-id": "id of a reader"}
    with serve_catalog(client, "127.0.0.1:0", token="secret", insecure=False, properties=secrets) as url:
        for sent in ("", "Bearer wrong", "secret"):
            assert call(url, "GET", "/v1/config", Authorization=sent)[0] == 401
        with pytest.raises(UnauthorizedError):
            load_catalog("x", type="rest", uri=url, token="wrong").list_namespaces()
        by_token = load_catalog("x", type="rest", uri=url, token="secret")
        table = by_token.load_table("main.orders")
        assert len(rows_of(table)) == 100
        assert table.config["s3.access-key-id"] == "id of a reader"
        given = call(url, "GET", "/v1/namespaces/main/tables/orders/credentials", Authorization="Bearer secret")[2]
        assert given["storage-credentials"][0]["config"] == secrets
        form = f"grant_type=client_credentials&client_secret={quote('secret')}".encode()
        assert call(url, "POST", "/v1/oauth/tokens", form)[2]["access_token"] == "secret"
        assert call(url, "POST", "/v1/oauth/tokens", form + b"x")[0] == 401
        assert call(url, "POST", "/v1/oauth/tokens", b"grant_type=password")[0] == 400


def test_a_transaction_that_began_before_the_publication_finds_it(client: persist.Client, catalog: Catalog) -> None:
    c = orders(client)
    c.tag("first", 0)
    c.write([((1, "new"), 1, -1), ((1, "paid"), 1, 1)], seal=2).result()
    began_ms = int(datetime.now(UTC).timestamp() * 1000)
    found = catalog.load_table("main.orders").snapshot_as_of_timestamp(began_ms)
    assert found is not None
    assert found.summary is not None
    assert found.summary["persist.as_of"] == "1"


ATTACHED = """
attach = "ATTACH '' AS shop (TYPE iceberg, ENDPOINT '{}', AUTHORIZATION_TYPE 'none', DEFAULT_SCHEMA 'main')"
connection.execute(attach.format(sys.argv[1]))
print(json.dumps([connection.execute(query).fetchall() for query in sys.argv[2:]]))
"""


@pytest.mark.outside
@pytest.mark.skipif("PERSIST_DUCKDB_PYTHON" not in os.environ, reason="scripts/outside installs a DuckDB with iceberg")
@pytest.mark.parametrize("format_version", [2, 3])
def test_duckdb_attaches_the_catalog(client: persist.Client, format_version: int) -> None:
    c = orders(client)
    c.tag("first", 0)
    c.write([((1, "new"), 1, -1), ((1, "paid"), 1, 1)], seal=2).result()
    at = 'SELECT status FROM shop.main."{}" WHERE id = 1'
    queries = [at.format("orders"), at.format("orders@0"), "SELECT count(*) FROM shop.main.orders"]
    with serve_catalog(client, "127.0.0.1:0", token=None, insecure=False, format_version=format_version) as url:
        command = [os.environ["PERSIST_DUCKDB_PYTHON"], "-c", CONNECTED_DUCKDB + ATTACHED, url, *queries]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[["paid"]], [["new"]], [[100]]]


def test_an_address_that_others_reach_needs_a_token(client: persist.Client) -> None:
    for address in ("0.0.0.0:0", "nowhere", "127.0.0.1"):
        with (
            pytest.raises(persist.InvalidUsage, match="--iceberg"),
            serve_catalog(client, address, token=None, insecure=False),
        ):
            pass


def test_the_command_line_serves_a_catalog_with_properties(
    client: persist.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders(client)
    client.close()
    file = tmp_path / "properties.json"
    file.write_text('{"s3.region": "here"}')
    command = [*forked_python(), "-m", "persist", "serve", client.url, "--json", "--iceberg", "127.0.0.1:0"]
    server = subprocess.Popen([*command, "--iceberg-properties", str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["iceberg"]
        table = load_catalog("shop", type="rest", uri=url).load_table("main.orders")
        assert (len(rows_of(table)), table.config["s3.region"]) == (100, "here")
    finally:
        server.terminate()
        server.communicate()
    file.write_text("[1]")
    assert main(["serve", client.url, "--iceberg", "127.0.0.1:0", "--iceberg-properties", str(file)]) != 0
    assert "is not an object of texts" in capsys.readouterr().err
