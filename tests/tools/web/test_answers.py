"""What the page's server answers, to whom, and how little of a collection it reads for that."""

import io
import json
import re
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import persist
from persist.services.serve.messages import is_loopback
from persist.tools.cli.main import main
from persist.tools.web.app import FILES, MEMORY_BUDGET, get_accepted_names, serve_page
from persist.tools.web.explorer import Explorer
from persist.tools.web.results import QUERIES_AT_ONCE
from persist.tools.web.slider import make_picture
from tests.support.forks import forked_python
from tests.tools.web.places import NASTY, START, add_views, fill, shown

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
    proxied = get_accepted_names("127.0.0.1", ["Data.example"])
    everywhere, named = get_accepted_names("0.0.0.0", []), get_accepted_names("box.example", [])
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


@pytest.mark.parametrize("path", [*FILES, "api/collections", "api/nothing", "../x"])
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
    for name in FILES:
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
    assert {who["message"] for who in told["who"]} == {"day 2"}
    assert {who["by"].split(":")[0] for who in told["who"]} == {socket.gethostname()}
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
        ("contents", {"name": "orders", "as_of": "<b>"}, 400, "is not a time"),
        ("contents", {"name": "orders", "as_of": "9" * 400}, 400, ""),
        ("contents", {"name": "orders", "as_of": "2026-01-01"}, 400, "timeline"),
        ("contents", {"name": "orders", "key": "x"}, 400, "is not a value of 'order_id'"),
        ("contents", {"name": "shop.items", "key": "north"}, 400, "is not a key"),
        ("contents", {"name": "orders", "offset": "1000000"}, 400, "search for a key"),
        ("contents", {"name": "orders", "offset": "-1"}, 400, "is not a number"),
        ("contents", {"name": "empty"}, 400, "nothing is sealed"),
        ("contents", {"name": "nobody"}, 404, "nobody"),
        ("contents", {}, 400, "lacks name"),
        ("changes", {"name": "orders", "from": "a", "until": "b"}, 400, "is not a time"),
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
        told = explorer.results.contents("large", "3", limit=20)
        assert len(told["rows"]) == 20
        assert client.metrics().store["get"].bytes < size / 2
        with pytest.raises(persist.InvalidUsage, match="at most"), pytest.MonkeyPatch.context() as patch:
            patch.setattr("persist.tools.web.explorer.UPDATES_READ_MAX", 1000)
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
    monkeypatch.setattr("persist.tools.web.slider.PARTS_DRAWN_MAX", 3)
    with persist.open(folder, mode="read") as client:
        drawn = make_picture(client.load("orders").handle.contents())
    assert len(drawn["history"]) + len(drawn["keyframes"]) == 3
    assert drawn["left_out"] > 0


def test_a_picture_begins_with_the_first_data_or_with_since(folder: Path, tmp_path: Path) -> None:
    with persist.open(folder, mode="read") as client:
        drawn = {name: make_picture(client.load(name).handle.contents()) for name in ("shop.items", "orders", "empty")}
    assert drawn["shop.items"]["begins"] == str(int(START.timestamp()))  # And not since, which is in 1970.
    assert drawn["orders"]["begins"] == "20"
    assert drawn["empty"]["begins"] is None
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        early = client.create_or_load("early", key={"k": pa.int64()})
        early.seal(5).result()
        assert make_picture(early.handle.contents())["begins"] == "0"
        early.write([((1, None), 9, 1)]).result()
        assert make_picture(early.handle.contents())["begins"] == "4"  # The latest time that can be read.
        early.seal(20).result()
        assert make_picture(early.handle.contents())["begins"] == "9"


def test_keys_that_have_no_bounds_span_the_picture(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        nested = client.create_or_load("nested", key={"k": pa.list_(pa.int64())})
        nested.write([(([1, 2], None), 0, 1)], seal=1).result()
        floats = client.create_or_load("floats", key={"x": pa.float64(), "d": pa.decimal128(5, 2)})
        decimals = pa.array(["1", "2", None]).cast(pa.decimal128(5, 2))
        floats.write(pa.table({"x": [float("nan"), -1.5, None], "d": decimals}), time=0).result()
        for name in ("nested", "floats"):
            [part] = make_picture(client.load(name).handle.contents())["history"]
            assert (part["low"], part["high"]) == (0, 1)


def test_views_are_told_with_what_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    with persist.open(tmp_path, mode="read") as client:
        assert Explorer(client).flows.lineage()["edges"] == [("orders", "nightly-report")]
    add_views(tmp_path)
    with persist.open(tmp_path, mode="read") as client:
        explorer = Explorer(client)
        told = explorer.flows.lineage()
        assert sorted(told["edges"]) == [("orders", "nightly-report"), ("orders", "paid"), ("paid", "total")]
        assert {node["name"]: (node["kind"], node["depth"]) for node in told["nodes"]} == {
            "orders": ("written", 0),
            "nightly-report": ("follower", 1),
            "paid": ("view", 1),
            "total": ("view", 2),
        }
        assert "FROM paid" in explorer.collection("total")["sql"]
        with persist.open(tmp_path, settings=persist.Settings(background=False)) as writer:
            writer.load("orders").seal(96).result()
        again = explorer.flows.lineage()
        assert {node["name"]: node["upper"] for node in again["nodes"]} == {
            "orders": "96", "nightly-report": "25", "paid": "80", "total": "80",
        }  # fmt: skip
        monkeypatch.setattr("persist.tools.web.flows.VIEWS_DRAWN_MAX", 1)
        told = explorer.flows.lineage()
        assert (told["edges"], told["not_drawn"]) == ([("orders", "paid")], 2)
        monkeypatch.setattr("persist.tools.web.flows.LINEAGE_MAX", 2)
        assert explorer.flows.lineage()["left_out"] == 4


def test_health_tells_lags_who_holds_history_and_what_refreshes_wrote(tmp_path: Path) -> None:
    fill(tmp_path)
    add_views(tmp_path)
    with persist.open(tmp_path, mode="read") as client:
        told = Explorer(client).flows.health()
    paid = next(view for view in told["views"] if view["view"] == "paid")
    assert (paid["upper"], paid["input"], paid["is_due"]) == ("80", "orders", False)
    assert (paid["wrote"]["commits"] >= 1, paid["wrote"]["rows"] > 0) == (True, True)
    [report] = [each for each in told["followers"] if each["follower"] == "nightly-report"]
    assert (report["collection"], report["time"], report["behind_s"]) == ("orders", "25", None)
    held = {(each["collection"], each["hold"]): (each["time"], each["keeps_back"]) for each in told["holds"]}
    assert held["orders", "nightly-report"] == ("25", False)
    assert held["orders", "view paid"][0] == "79"
    assert "persist compact" in {each["command"] for each in told["due"]}
    assert json.loads(json.dumps(told)) == told


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
        assert sorted(explorer.results.contents("plain", "1")["rows"]) == [["1", "5", None, "1"], ["2", "6", "x", "1"]]
        assert explorer.history("plain", "2")["updates"]["rows"] == [["2", "6", "x", "1", "1"]]
        assert (explorer.collection("plain")["version"], explorer.collection("users")["version"]) == (2, 1)
        assert sorted(explorer.results.contents("plain", "1", schema=1)["rows"]) == [["1", "5", "1"], ["2", "6", "1"]]
        assert explorer.results.contents("plain", "1", key="2", schema=1)["rows"] == [["2", "6", "1"]]
        assert explorer.changes("plain", "1", "2", schema=1)["rows"] == [["2", "6", "1", "1"]]
        with pytest.raises(persist.errors.SchemaMismatch, match="schema=9 is not a version"):
            explorer.results.contents("plain", "1", schema=9)
        assert [row[1] for row in explorer.results.contents("users", "1")["rows"]] == ["b"]
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

    command = [*forked_python(), "-m", "persist", "ui", str(folder), "--port", "0", "--json"]
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
        serve_page(client, "127.0.0.1", 0) as one,
        serve_page(client, "127.0.0.1", 0) as two,
    ):
        assert one.url.split("/")[3] != two.url.split("/")[3]
        assert len(one.url.split("/")[3]) >= 20


def test_a_difference_names_the_columns_and_who_changed_a_key_last(ask: Ask) -> None:
    told = ask("difference", name="orders", first="52", second="53")
    assert {tuple(columns) for columns in told["differ"] if columns} == {("status",)}
    assert [bool(columns) for columns in told["differ"]] == [row[3] == "update" for row in told["rows"]]
    assert {*told["times"]} == {"53"}
    assert {who["message"] for who in told["who"]} == {"day 5"}
    both = ask("difference", name="orders", first="42", second="53")
    assert {who["message"] for who in both["who"]} == {"day 4", "day 5"}
    assert {time for time, who in zip(both["times"], both["who"], strict=True) if who["message"] == "day 4"} == {"43"}
    moments = ask("difference", name="shop.items", first="2026-11-21T08:01:00Z", second="2026-11-21T08:02:00Z")
    assert [who["record"].isdigit() for who in moments["who"]] == [True]


def test_an_update_of_several_candidates_names_their_records_and_what_they_share(tmp_path: Path) -> None:
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        both = client.create_or_load("both", key={"k": pa.int64()})
        both.write([((1, None), 3, 1)], message="once").result()
        both.write([((2, None), 3, 1)], message="twice").result()
        both.write([((3, None), 4, 1)], seal=5, message="after").result()
        other = client.create_or_load("other", key={"k": pa.int64()})
        with client.multi_write(message="both at once") as multi:
            multi.write(both, [((4, None), 5, 1)])
            multi.write(other, [((4, None), 5, 1)])
        both.seal(6).result()
    with persist.open(tmp_path, mode="read") as client:
        records = Explorer(client).records
        shared, own, last, none = records.authors(client.load("both").id, [3, 4, 5, 99])
        assert shared is not None
        assert own is not None
        assert last is not None
        assert (shared["record"].startswith("one of "), shared["message"]) == (True, None)
        assert shared["by"] == own["by"]
        assert (own["message"], last["message"], none) == ("after", "both at once", None)


def test_contents_are_filtered_and_sorted(ask: Ask) -> None:
    told = ask(
        "contents", name="orders", as_of="53", where="status = 'paid' AND amount > 17", sort="amount", order="desc"
    )
    assert [row[2] for row in told["rows"]] == ["19.0"] * 5 + ["18.0"] * 5
    assert [row[0] for row in told["rows"][:5]] == sorted((row[0] for row in told["rows"][:5]), key=int)
    everything = ask("contents", name="orders", as_of="53", where="order_id < 160", limit="200")["rows"]
    by_amount = ask(
        "contents", name="orders", as_of="53", where="order_id < 160", sort="amount", limit="7", offset="3"
    )["rows"]
    assert by_amount == sorted(everything, key=lambda row: float(row[2]))[3:10]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("contents", name="orders", sort="colour")
    assert "is not a column" in json.load(refused.value)["error"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("contents", name="orders", where="colour = 1")
    assert "colour" in json.load(refused.value)["error"]


def test_sql_reads_everything_as_of_one_time(ask: Ask) -> None:
    count = "SELECT status, count(*) AS n, sum(amount) AS total FROM orders GROUP BY status"
    told = ask("sql", sql=count, sort="n", order="desc")
    assert told["columns"] == ["status", "n", "total"]
    assert told["rows"] == [["new", "180", "4910.0"], ["paid", "140", "1330.0"]]
    assert told["span"] == {"begins": "20", "ends": "79", "timeline": None}
    assert told["read"] == [{"table": "orders", "as_of": "79"}]
    assert ask("sql", sql=count, as_of="25")["rows"] != told["rows"]
    joined = 'SELECT count(*) FROM orders JOIN "shop.items" ON order_id = stock'
    assert ask("sql", sql=joined)["rows"] == [["6"]]
    assert ask("sql", sql=joined)["span"] is None  # Their times mean different things.
    assert ask("sql", sql="SELECT 1 AS one")["rows"] == [["1"]]
    many = ask("sql", sql="SELECT * FROM orders a, orders b")
    assert (len(many["rows"]), many["more"]) == (1000, True)


def test_a_query_over_time_is_asked_at_times_between_which_all_can_be_read(ask: Ask) -> None:
    told = ask("over-time", sql="SELECT status, count(*) AS n FROM orders GROUP BY status", points="5")
    assert told["columns"] == ["as of", "status", "n"]
    assert [*dict.fromkeys(row[0] for row in told["rows"])] == ["20", "34", "49", "64", "79"]
    assert {(row[1], row[2]) for row in told["rows"] if row[0] == "79"} == {("new", "180"), ("paid", "140")}
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("over-time", sql="SELECT 1 AS one")
    assert "no times in common" in json.load(refused.value)["error"]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("FROM read_csv('/etc/passwd')", "not a collection"),
        ("SELECT * FROM '/etc/passwd'", "collection"),
        ("SELECT * FROM read_parquet('https://127.0.0.1:1/x.parquet')", "collection"),
        ("INSTALL httpfs", "extensions of DuckDB"),
        ("SET enable_external_access = true", "persist chooses DuckDB's settings"),
        ("COPY (SELECT 1) TO '/tmp/x'", "the page only reads"),
        ("-- a table\nCREATE TABLE t (a INT)", "the page only reads"),
        ("ATTACH '/tmp/x.db'", "a client of its own"),
        ("SELECT 1; SELECT 2", "one query"),
        ("DELETE FROM orders", "only reads"),
        ("UPDATE orders SET amount = 1", "only reads"),
        ("SELECT getenv('HOME')", "getenv"),
        ("SELECT nothing FROM orders", "nothing"),
        (f"SELECT '{'x' * 7000}'", "characters"),
    ],
)
def test_a_query_reads_collections_and_nothing_else(ask: Ask, sql: str, says: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("sql", sql=sql)
    assert refused.value.code == 400
    assert says in json.load(refused.value)["error"]


def test_too_many_queries_at_once_wait_and_are_refused_and_told_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with persist.open(folder, mode="read") as client:
        results = Explorer(client).results
        waiting = [results.download("csv", sql="SELECT * FROM orders a, orders b") for _ in range(QUERIES_AT_ONCE)]
        with pytest.raises(persist.Unavailable, match="run already"), monkeypatch.context() as patched:
            patched.setattr("persist.tools.web.results.PATIENCE_S", 0.01)
            results.query("SELECT 1", None)
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(results.query, "SELECT 2 AS two", None)
            for each in waiting:
                each.content.close()  # type: ignore[attr-defined]
            assert asked.result()["rows"] == [["2"]]
        assert results.query("SELECT 1 AS one", None)["rows"] == [["1"]]


@pytest.mark.parametrize(
    "asked", [{"name": "orders", "where": "amount > 17"}, {"sql": "FROM orders WHERE amount > 17"}]
)
def test_rows_are_downloaded_as_files_that_others_read(url: str, folder: Path, asked: dict[str, str]) -> None:
    with persist.open(folder, mode="read") as client:
        whole = client.load("orders").snapshot(53, where="amount > 17").to_arrow().sort_by("order_id")
    for format, read in (("csv", pa.csv.read_csv), ("parquet", pq.read_table)):
        query = urllib.parse.urlencode({**asked, "as_of": "53", "format": format})
        with urllib.request.urlopen(f"{url}api/download?{query}") as answer:
            assert answer.headers["Content-Disposition"].startswith("attachment; filename=")
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            found = read(io.BytesIO(answer.read()))
        assert found.sort_by("order_id").cast(whole.schema).equals(whole)
    status, text = status_of(f"{url}api/download?name=orders&format=xls")
    assert (status, "use one of csv, parquet" in text) == (400, True)
    assert status_of(f"{url}api/download?name=orders&sql=FROM+orders")[0] == 400
    assert status_of(f"{url}api/download?name=nobody")[0] == 404


@pytest.mark.parametrize("timeline", [None, "s", "ms"])
def test_a_time_that_means_for_ever_has_no_place_in_a_picture(tmp_path: Path, timeline: Any) -> None:
    first = 10 if timeline is None else int(START.timestamp()) * (1000 if timeline == "ms" else 1)
    with persist.open(tmp_path, settings=persist.Settings(background=False)) as client:
        kept = client.create_or_load("kept", key={"k": pa.int64()}, timeline=timeline)
        kept.write([((1, None), first, 1)], seal=first + 5).result()
        kept.tag("begin", first)
        if timeline is None:
            kept.seal(2**63 - 2).result()
        else:
            kept.seal("2150-01-01T00:00:00Z", allow_future=True).result()
        explorer = Explorer(client)
        told = explorer.collection("kept")
        assert (told["for_ever"], told["picture"]["ends"]) == (True, str(first))
        assert explorer.results.query("FROM kept", None)["span"]["ends"] == str(first)
        assert [item["for_ever"] for item in explorer.collections()["items"]] == [True]
        assert told["kind"] == "written"
