"""What the page's server answers, to whom, and how little of a collection it reads for that."""

import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import persist
from persist.cli.main import main
from persist.notify import is_loopback
from persist.web import MEMORY_BUDGET, served
from persist.web.app import names_of
from persist.web.explorer import Explorer
from persist.web.shown import picture
from tests.web.places import NASTY, START, add_views, fill, shown

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("web") / "shop"
    fill(made)
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with shown(folder, "the-token") as url:
        yield url
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.fixture
def ask(url: str) -> Ask:
    def asked(question: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{url}api/{question}?{urllib.parse.urlencode(parameters)}") as answer:
            return json.load(answer)

    return asked


def status_of(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    "path", ["", "page.js", "the-toke/", "the-token2/", "/the-token/", "%00/", "the-tok%C3%A9n/api/collections"]
)
def test_without_the_token_nothing_is_answered(url: str, path: str) -> None:
    status, text = status_of(url.removesuffix("the-token/") + path)
    assert status == 403
    assert "orders" not in text


def status_by_name(url: str, host: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host})) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8420", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.7", "[", ""],
)
def test_who_comes_by_another_name_gets_nothing_though_the_token_is_right(url: str, host: str) -> None:
    for path in ("", "page.js", "api/collections", "api/events"):
        status, text = status_by_name(url + path, host)
        assert status == 403
        assert "orders" not in text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.8.8.8:80", "[::1]:8420"])
def test_this_machine_is_asked_by_any_of_its_names(url: str, host: str) -> None:
    assert status_by_name(url, host)[0] == 200


def test_a_proxy_is_allowed_by_its_name_and_all_addresses_where_all_are_listened_at() -> None:
    proxied = names_of("127.0.0.1", ["Data.example"])
    everywhere, named = names_of("0.0.0.0", []), names_of("box.example", [])
    assert proxied.has("data.example:443")
    assert not proxied.has("10.0.0.7")
    assert everywhere.has("10.0.0.7:8420")
    assert everywhere.has("[fe80::1]:8420")
    assert not everywhere.has("evil.example")
    assert named.has("BOX.example.:8420")
    assert not named.has("10.0.0.7")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_reading_is_answered(url: str, method: str) -> None:
    assert status_of(f"{url}api/collections", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    ["", "page.js", "drawing.js", "graphs.js", "moments.js", "page.css", "api/collections", "api/nothing", "../x"],
)
def test_every_answer_forbids_what_the_page_does_not_need(url: str, path: str) -> None:
    try:
        headers = urllib.request.urlopen(url + path).headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_itself_has_no_code_in_it_and_names_no_other_server(url: str) -> None:
    for name in ("", "page.js", "drawing.js", "graphs.js", "moments.js", "page.css"):
        text = urllib.request.urlopen(url + name).read().decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        assert "innerHTML" not in text
        assert "style=" not in text
        assert re.search(r"<[^>]*\son\w+=", text) is None


def test_collections_are_listed_in_pages_and_found(ask: Ask) -> None:
    told = ask("collections", limit="2")
    assert (told["total"], [item["name"] for item in told["items"]]) == (4, ["<i>strange<i>", "empty"])
    assert [item["name"] for item in ask("collections", limit="2", offset="2")["items"]] == ["orders", "shop.items"]
    [item] = ask("collections", search="ITEM")["items"]
    assert (item["name"], item["rows"], item["upper_moment"]) == ("shop.items", 6, "2026-11-21T08:05:01Z")
    assert item["lag_s"] is not None
    assert ask("collections", search="nothing")["items"] == []


def test_one_collection_is_drawn_over_time_and_key(ask: Ask) -> None:
    told = ask("collection", name="orders")
    assert (told["since"], told["upper"], told["latest"]) == ("20", "80", "79")
    assert "sealing to 96" in told["unsealed"]
    drawn = told["picture"]
    assert drawn["holds"] == [{"name": "nightly-report", "time": "25"}]
    assert [frame["as_of"] for frame in drawn["keyframes"]] == ["39", "59"]
    for part in (*drawn["history"], *drawn["keyframes"]):
        assert 0 <= part["low"] <= part["high"] <= 1
    assert any(part["retracts"] for part in drawn["history"])


def test_contents_come_in_pages_and_by_key(ask: Ask) -> None:
    told = ask("contents", name="orders", as_of="53", limit="3", offset="1")
    assert told["columns"] == ["order_id", "status", "amount", "_diff"]
    assert [row[0] for row in told["rows"]] == ["1", "2", "3"]
    assert ask("contents", name="orders", as_of="53", key="165")["rows"] == [["165", "paid", "5.0", "1"]]
    assert ask("contents", name="orders", as_of="52", key="165")["rows"] == [["165", "new", "5.0", "1"]]
    latest = ask("contents", name="shop.items", key="north, 1")
    assert len(latest["rows"]) == 6
    assert latest["moment"] == "2026-11-21T08:05:00Z"
    assert len(ask("contents", name="shop.items", as_of="2026-11-21T08:02:30Z")["rows"]) == 3


def test_changes_histories_and_differences_are_those_of_the_collection(ask: Ask) -> None:
    changed = ask("changes", **{"name": "orders", "from": "53", "until": "54"})
    assert len(changed["rows"]) == 40
    assert not changed["compacted"]
    whole = ask("changes", **{"name": "orders", "from": "0", "until": "999"})
    assert (whole["from"], whole["compacted"]) == ("21", True)
    at_since = ask("changes", **{"name": "orders", "from": "20", "until": "21"})
    assert (at_since["rows"], at_since["compacted"]) == ([], True)
    told = ask("history", name="orders", key="45")
    assert [row[1] for row in told["before"]["rows"]] == ["new"]
    assert [(row[1], row[3]) for row in told["updates"]["rows"]] == [("new", "23"), ("paid", "23")]
    assert [(row[1], row[3], row[4]) for row in ask("history", name="orders", key="165")["updates"]["rows"]] == [
        ("new", "40", "1"),
        ("new", "53", "-1"),
        ("paid", "53", "1"),
    ]
    there = ask("difference", name="orders", first="52", second="53")
    back = ask("difference", name="orders", first="53", second="52")
    assert there["total"] == back["total"] == 20
    assert ask("plan", name="orders", as_of="53")["keyframe"] == "59"
    assert sum(ask("commits")["counts"]) > 20


@pytest.mark.parametrize(
    ("question", "parameters", "status", "says"),
    [
        ("contents", {"name": "orders", "as_of": "5"}, 400, "before since"),
        ("contents", {"name": "orders", "as_of": "80"}, 400, "not before upper"),
        ("contents", {"name": "orders", "as_of": "<b>"}, 400, "is no time"),
        ("contents", {"name": "orders", "as_of": "9" * 400}, 400, ""),
        ("contents", {"name": "orders", "as_of": "2026-01-01"}, 400, "timeline"),
        ("contents", {"name": "orders", "key": "x"}, 400, "is no value of 'order_id'"),
        ("contents", {"name": "shop.items", "key": "north"}, 400, "is no key"),
        ("contents", {"name": "orders", "offset": "1000000"}, 400, "search for a key"),
        ("contents", {"name": "orders", "offset": "-1"}, 400, "is no number"),
        ("contents", {"name": "empty"}, 400, "nothing is sealed"),
        ("contents", {"name": "nobody"}, 404, "nobody"),
        ("contents", {}, 400, "lacks name"),
        ("changes", {"name": "orders", "from": "a", "until": "b"}, 400, "is no time"),
        ("difference", {"name": "orders", "first": "30", "second": "99"}, 400, "100"),
        ("frobnicate", {}, 404, "nothing at this address"),
    ],
)
def test_what_cannot_be_answered_says_why(
    url: str, question: str, parameters: dict[str, str], status: int, says: str
) -> None:
    found, text = status_of(f"{url}api/{question}?{urllib.parse.urlencode(parameters)}")
    assert found == status, text
    assert says in json.loads(text)["error"]


def test_a_value_stays_text(ask: Ask) -> None:
    assert ask("contents", name="<i>strange<i>")["rows"] == [[NASTY, "1"]]


def test_listeners_hear_of_new_records(tmp_path: Path) -> None:
    fill(tmp_path)
    with shown(tmp_path) as url, urllib.request.urlopen(f"{url}api/events") as events:
        first = json.loads(events.readline().removeprefix(b"data: "))["seqno"]
        with persist.open(tmp_path) as client:
            client.load("orders").seal(90).result()
        lines = iter(events.readline, b"")
        told = (json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: "))
        assert next(each for each in told if each["seqno"] > first)


def test_a_page_of_a_large_collection_reads_little_of_it(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        made = client.create_or_load("large", key={"k": pa.int64()}, value={"v": pa.int64()})
        rows, values = 300_000, np.random.default_rng(1)
        for n in range(4):
            table = pa.table({"k": range(n * rows, (n + 1) * rows), "v": values.integers(2**60, size=rows)})
            made.write(table, time=n).result()
        made.seal(4).result()
        size = sum(part.bytes for part in made.handle.contents().parts)
    with persist.open(tmp_path, mode="read", settings=persist.Settings(memory_budget=MEMORY_BUDGET)) as client:
        explorer = Explorer(client)
        told = explorer.contents("large", "3", limit=20)
        assert len(told["rows"]) == 20
        assert client.metrics().store["get"].bytes < size / 2
        with pytest.raises(persist.InvalidUsage, match="at most"), pytest.MonkeyPatch.context() as patch:
            patch.setattr("persist.web.explorer.UPDATES_READ_MAX", 1000)
            explorer.changes("large", "0", "4")


def test_a_list_of_many_collections_reads_the_states_of_one_page(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        for n in range(300):
            client.create_or_load(f"c{n:03}", key={"k": pa.int64()})
    with persist.open(tmp_path, mode="read") as client:
        explorer = Explorer(client)
        before = client.metrics().store["get"].requests
        told = explorer.collections(offset=100, limit=50)
        assert (told["total"], told["items"][0]["name"], len(told["items"])) == (300, "c100", 50)
        assert client.metrics().store["get"].requests - before <= 60


def test_a_picture_of_very_many_parts_shows_the_largest(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("persist.web.shown.PARTS_DRAWN_MAX", 3)
    with persist.open(folder, mode="read") as client:
        drawn = picture(client.load("orders").handle.contents())
    assert len(drawn["history"]) + len(drawn["keyframes"]) == 3
    assert drawn["left_out"] > 0


def test_a_picture_begins_with_the_first_data_or_with_since(folder: Path, tmp_path: Path) -> None:
    with persist.open(folder, mode="read") as client:
        drawn = {name: picture(client.load(name).handle.contents()) for name in ("shop.items", "orders", "empty")}
    assert drawn["shop.items"]["begins"] == str(int(START.timestamp()))  # And not since, which is in 1970.
    assert drawn["orders"]["begins"] == "20"
    assert drawn["empty"]["begins"] is None
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        early = client.create_or_load("early", key={"k": pa.int64()})
        early.seal(5).result()
        assert picture(early.handle.contents())["begins"] == "0"
        early.write([((1, None), 9, 1)]).result()
        assert picture(early.handle.contents())["begins"] == "4"  # The latest time that can be read.
        early.seal(20).result()
        assert picture(early.handle.contents())["begins"] == "9"


def test_keys_that_have_no_bounds_span_the_picture(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        nested = client.create_or_load("nested", key={"k": pa.list_(pa.int64())})
        nested.write([(([1, 2], None), 0, 1)], seal=1).result()
        floats = client.create_or_load("floats", key={"x": pa.float64(), "d": pa.decimal128(5, 2)})
        decimals = pa.array(["1", "2", None]).cast(pa.decimal128(5, 2))
        floats.write(pa.table({"x": [float("nan"), -1.5, None], "d": decimals}), time=0).result()
        for name in ("nested", "floats"):
            [part] = picture(client.load(name).handle.contents())["history"]
            assert (part["low"], part["high"]) == (0, 1)


def test_views_are_told_with_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    with persist.open(tmp_path, mode="read") as client:
        assert Explorer(client).lineage()["edges"] == []
    add_views(tmp_path)
    with persist.open(tmp_path, mode="read") as client:
        explorer = Explorer(client)
        told = explorer.lineage()
        assert sorted(told["edges"]) == [("orders", "paid"), ("paid", "total")]
        assert {node["name"]: node["depth"] for node in told["nodes"]} == {"orders": 0, "paid": 1, "total": 2}
        assert "FROM paid" in explorer.collection("total")["sql"]
        with persist.open(tmp_path, settings=persist.Settings(background=False)) as writer:
            writer.load("orders").seal(96).result()
        again = explorer.lineage()
        assert {node["name"]: node["upper"] for node in again["nodes"]} == {"orders": "96", "paid": "80", "total": "80"}
        monkeypatch.setattr("persist.web.explorer.VIEWS_DRAWN_MAX", 1)
        told = explorer.lineage()
        assert (told["edges"], told["not_drawn"]) == ([("orders", "paid")], 1)
        monkeypatch.setattr("persist.web.explorer.LINEAGE_MAX", 2)
        assert explorer.lineage()["left_out"] == 4


def test_what_has_evolved_and_what_is_keyed_is_shown_like_all_else(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        plain = client.create_or_load("plain", key={"k": pa.int64()}, value={"v": pa.int32()})
        plain.write([((1, 5), 0, 1)], seal=1).result()
        plain.evolve(add={"note": pa.string()}, widen={"v": pa.int64()})
        plain.write([((2, (6, "x")), 1, 1)], seal=2).result()
        users = client.create_or_load("users", key={"k": pa.int64()}, value={"v": pa.string()}, keyed=persist.Keyed())
        users.upsert([(1, "a", 0), (1, "b", 1)], seal=2).result()
        users.upsert([(1, "c", 5)]).result()
    with persist.open(tmp_path, mode="read") as client:
        explorer = Explorer(client)
        assert sorted(explorer.contents("plain", "1")["rows"]) == [["1", "5", None, "1"], ["2", "6", "x", "1"]]
        assert explorer.history("plain", "2")["updates"]["rows"] == [["2", "6", "x", "1", "1"]]
        assert (explorer.collection("plain")["version"], explorer.collection("users")["version"]) == (2, 1)
        assert sorted(explorer.contents("plain", "1", schema=1)["rows"]) == [["1", "5", "1"], ["2", "6", "1"]]
        assert explorer.contents("plain", "1", key="2", schema=1)["rows"] == [["2", "6", "1"]]
        assert explorer.changes("plain", "1", "2", schema=1)["rows"] == [["2", "6", "1", "1"]]
        with pytest.raises(persist.errors.SchemaMismatch, match="schema=9 is no version"):
            explorer.contents("plain", "1", schema=9)
        assert [row[1] for row in explorer.contents("users", "1")["rows"]] == ["b"]
        for name in ("plain", "users"):
            assert explorer.collection(name)["picture"]["history"]
            assert explorer.difference(name, "0", "1")["total"] >= 1


def test_a_port_in_use_is_one_line_that_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["ui", str(folder), "--port", str(taken.getsockname()[1])]) == 2
    err = capsys.readouterr().err
    assert "Choose another port" in err
    assert err.count("\n") == 1
    assert main(["ui", str(folder), "--port", "70000"]) == 2
    assert main(["ui", str(folder), "--host", "no such host"]) == 2
    assert main(["ui", str(folder / "nothing")]) == 2


def test_the_command_prints_an_address_that_answers_and_ends_when_interrupted(folder: Path) -> None:
    import signal

    command = [sys.executable, "-m", "persist", "ui", str(folder), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        assert url.startswith("http://127.0.0.1:")
        assert status_of(url)[0] == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode in (0, 130)
    assert "Traceback" not in err


def test_only_loopback_addresses_are_taken_for_that(folder: Path) -> None:
    hosts = {"127.0.0.1": True, "::1": True, "localhost": True, "0.0.0.0": False, "example": False}
    assert {host: is_loopback(host) for host in hosts} == hosts
    with (
        persist.open(folder, mode="read") as client,
        served(client, "127.0.0.1", 0) as one,
        served(client, "127.0.0.1", 0) as two,
    ):
        assert one.url.split("/")[3] != two.url.split("/")[3]
        assert len(one.url.split("/")[3]) >= 20
