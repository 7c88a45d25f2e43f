"""Collections into files: each range of times is one file, which is never written twice, whoever dies when."""

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import persist
from persist.codecs.order.digest import hash_rows
from persist.connect.egress.files import FilesConfig, FilesSink
from persist.errors import SinkMoved, TargetUnavailable
from persist.tools.cli.main import main
from persist.tools.reports.health import report_health
from tests.support.servers.fixtures import make_bucket

ORDERS: dict[str, Any] = {"key": {"id": pa.int64()}, "value": {"status": pa.string()}}
Rows = list[dict[str, Any]]


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    made = client.create_or_load("orders", **ORDERS, keyed=persist.Keyed())
    made.upsert([(1, "new"), (2, "")], time=0, seal=1).result()
    return made


def config(folder: Path, *collections: str, **options: Any) -> dict[str, Any]:
    return {"sink": str(folder / "out"), "collections": [*collections], "name": "files", **options}


def sent(client: persist.Client, folder: Path, *collections: str, **options: Any) -> Any:
    return persist.egress(client, config(folder, *collections, **options), once=True)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").rglob("*") if path.is_file() and path.suffix != ".json")


def rows(folder: Path, name: str = "orders") -> Rows:
    """Return all that the files of a collection say, in the order of their names, contents first."""
    paths = sorted((folder / "out" / name).iterdir(), key=lambda path: (path.name[0] != "c", path.name))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def applied(changes: Rows) -> dict[int, str]:
    """Return the contents that changes by key come to."""
    found: dict[int, str] = {}
    for change in changes:
        assert (change["_change"] == "insert") == (change["id"] not in found)
        if change["_change"] == "delete":
            del found[change["id"]]
        else:
            found[change["id"]] = change["status"]
    return found


def test_contents_and_then_each_range_of_times_are_files(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    first = sent(client, tmp_path, "orders")
    assert (first.rows, first.commits) == (2, 1)
    orders.upsert([(1, "paid")], time=1, seal=2).result()
    orders.upsert([(2, None), (3, "new")], time=2, seal=5).result()
    assert sent(client, tmp_path, "orders").commits == 1
    orders.seal(9).result()
    assert sent(client, tmp_path, "orders").uppers == {"orders": 5}
    orders.upsert([(3, None)], time=9, seal=10).result()
    sent(client, tmp_path, "orders")
    assert files(tmp_path) == [
        "00000000000000000001-00000000000000000005.parquet",
        "00000000000000000005-00000000000000000010.parquet",
        "contents-00000000000000000000-000001.parquet",
    ]
    assert rows(tmp_path) == [
        {"id": 1, "status": "new", "_time": 0, "_change": "insert"},
        {"id": 2, "status": "", "_time": 0, "_change": "insert"},
        {"id": 1, "status": "paid", "_time": 1, "_change": "update"},
        {"id": 2, "status": None, "_time": 2, "_change": "delete"},
        {"id": 3, "status": "new", "_time": 2, "_change": "insert"},
        {"id": 3, "status": None, "_time": 9, "_change": "delete"},
    ]


def test_a_collection_that_comes_to_a_sink_leaves_the_others_where_they_are(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    assert sent(client, tmp_path, "orders").rows == 2
    others = client.create_or_load("others", **ORDERS, keyed=persist.Keyed())
    others.upsert([(7, "x")], time=0, seal=1).result()
    for time in (1, 2):
        orders.upsert([(1, str(time))], time=time, seal=time + 1).result()
        done = sent(client, tmp_path, "others", "orders")
        assert (done.rows, done.uppers) == (3 - time, {"others": 1, "orders": time + 1})
    assert (len(rows(tmp_path)), len(rows(tmp_path, "others"))) == (4, 1)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_collection_without_a_key_is_sent_as_updates(client: persist.Client, tmp_path: Path, form: str) -> None:
    lines = client.create_or_load("lines", key=None, value={"line": pa.string(), "n": pa.int64()})
    lines.write([((None, ("x", None)), 0, 2), ((None, ("", 1)), 1, 1)], seal=2).result()
    sent(client, tmp_path, "lines", format=form)
    lines.write([((None, ("x", None)), 2, -1)], seal=3).result()
    sent(client, tmp_path, "lines", format=form)
    changes, contents = sorted((tmp_path / "out" / "lines").iterdir())
    if form == "csv":
        options = pa_csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False)
        found = [pa_csv.read_csv(path, convert_options=options).to_pylist() for path in (contents, changes)]
    else:
        found = [[*map(json.loads, path.read_text().splitlines())] for path in (contents, changes)]
    assert sorted(found[0], key=lambda row: str(row["line"])) == [
        {"line": "", "n": 1, "_time": 1, "_diff": 1},
        {"line": "x", "n": None, "_time": 1, "_diff": 2},
    ]
    assert found[1] == [{"line": "x", "n": None, "_time": 2, "_diff": -1}]


class Dying(FilesSink):
    """A sink that dies before one of its writes, or after it."""

    left = 0

    @property
    def _blob(self) -> Any:
        return _DyingBlob(self, super()._blob)

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise TargetUnavailable("it died")


class _DyingBlob:
    def __init__(self, sink: Dying, inner: Any) -> None:
        self._sink = sink
        self._inner = inner

    def create(self, key: str, value: bytes) -> bool:
        self._sink.count()
        is_made: bool = self._inner.create(key, value)
        self._sink.count()
        return is_made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_whenever_it_dies_no_update_is_written_twice_or_left_out(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    model = {1: "new", 2: ""}
    time = deaths = 1
    for _ in range(2):
        for left in range(1, 30):
            key = time % 5
            orders.upsert([(key, None if key in model else str(time))], time=time, seal=time + 1).result()
            model = {k: v for k, v in model.items() if k != key} if key in model else {**model, key: str(time)}
            time += 1
            sink = Dying(FilesConfig(**config(tmp_path, "orders")))
            sink.left = left
            try:
                persist.egress(client, sink, once=True)
                break
            except TargetUnavailable:
                deaths += 1
    assert deaths > 8
    assert applied(rows(tmp_path)) == model
    assert len(files(tmp_path)) == len(set(files(tmp_path)))


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("keyed", [True, False])
def test_whenever_it_dies_within_a_step_of_several_files_it_goes_on_with_the_next_row(
    client: persist.Client, tmp_path: Path, keyed: bool
) -> None:
    """Each time changes 30 rows, more than a file has; meanwhile history is stored elsewise."""
    made = client.create_or_load("orders", **ORDERS if keyed else {"key": None, "value": {"id": int, "status": str}})
    made.seal(1).result()
    options = config(tmp_path, "orders", format="json", file_bytes=500)
    persist.egress(client, options, once=True)
    model: dict[tuple[int, str], int] = {}
    deaths = 0
    for time in range(1, 60):
        for at in range(0, 30, 10):  # In several parts, which are merged.
            new = [(key, f"{time}") for key in range(at + 9, at - 1, -1)]
            old = [(key, f"{time - 1}") for key, _ in new if (key, f"{time - 1}") in model]
            updates = [(row, 1) for row in new] + [(row, -1) for row in old]
            made.write([(row if keyed else (None, row), time, diff) for row, diff in updates]).result()
            for row, diff in updates:
                model[row] = model.get(row, 0) + diff
        made.seal(time + 1).result()
        sink = Dying(FilesConfig(**options))
        sink.left = time
        try:
            persist.egress(client, sink, once=True)
            break
        except TargetUnavailable:
            deaths += 1
        if time % 3 == 0:
            made.compact()
    assert deaths > 10
    paths = sorted((tmp_path / "out" / "orders").iterdir())
    assert sum(path.stem.count("-") == 2 for path in paths) > 10
    assert max(path.stat().st_size for path in paths) < 1500
    changes = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    assert [change["_time"] for change in changes] == sorted(change["_time"] for change in changes)
    if keyed:
        assert applied(changes) == {key: status for (key, status), diff in model.items() if diff}
        return
    found: dict[tuple[int, str], int] = {}
    for change in changes:
        row = (change["id"], change["status"])
        found[row] = found.get(row, 0) + change["_diff"]
    assert found == model


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize("keyed", [True, False])
def test_whenever_it_dies_while_contents_are_sent_each_row_is_sent_once(
    client: persist.Client, tmp_path: Path, keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile contents are stored elsewise, and other ones come."""
    monkeypatch.setattr(import_module("persist.connect.egress.feed"), "SLICE_BYTES", 3000)
    monkeypatch.setattr(import_module("persist.connect.egress.feed"), "CHUNK_BYTES", 5000)
    value = {"n": pa.int32(), "x": pa.float64(), "status": pa.string()}
    made = client.create_or_load(
        "orders", key={"id": pa.int64()} if keyed else None, value=value if keyed else {"id": pa.int64(), **value}
    )

    def write(first: int, diff: int, time: int) -> None:
        rows = [
            (key, -key, float("nan") if key % 5 == 0 else key / 2, None if key % 7 == 0 else "é" * (key % 9))
            for key in range(first, first + 60)
        ]
        made.write([((row[0], row[1:]) if keyed else (None, row), time, diff) for row in rows], seal=time + 1).result()

    for time in range(8):
        write(60 * time, 1, time)
    write(0, -1, 8)
    contents = dict.fromkeys(range(60, 480), 1)
    options = config(tmp_path, "orders", format="json", nan="null", file_bytes=500)
    deaths = 0
    while not any((tmp_path / "out").glob("orders/0*")):
        sink = Dying(FilesConfig(**options))
        sink.left = 2 + (deaths % 5 == 4)  # After the promise of a file, and then after the file.
        with pytest.raises(TargetUnavailable):
            persist.egress(client, sink, once=True)
        deaths += 1
        write(600 + 60 * deaths, 1, 8 + deaths)
        if deaths == 7:
            made.evolve(widen={"n": pa.float64()})
            made = client.load("orders")
        if deaths % 4 == 1:
            made.compact()
    assert deaths > 10
    paths = [path for path in (tmp_path / "out" / "orders").iterdir() if path.name.startswith("contents-")]
    assert len(paths) > 5
    assert {path.stem.count("-") for path in paths} == {2}, "each share of contents is one file"
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    found: dict[int, int] = {}
    for line in lines:
        found[line["id"]] = found.get(line["id"], 0) + line.get("_diff", 1)
        assert (line["n"], line["x"], line["status"]) == (
            -line["id"],
            None if line["id"] % 5 == 0 else line["id"] / 2,
            None if line["id"] % 7 == 0 else "é" * (line["id"] % 9),
        )
    assert found == contents


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_without_room_for_contents_without_a_key_is_told(
    client: persist.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = import_module("persist.connect.egress.feed")
    monkeypatch.setattr(feed, "SLICE_BYTES", 3000)
    monkeypatch.setattr(feed, "hash_rows", lambda *rows: hash_rows(*rows) & np.uint64(0xFC << 56))  # Some are 0.
    lines = client.create_or_load("lines", key=None, value={"line": pa.string()})
    lines.write([((None, f"{n:050}"), 0, 1) for n in range(1000)], seal=1).result()
    with monkeypatch.context() as full:
        full.setattr("tempfile.TemporaryFile", lambda **_: io.BufferedRandom(io.FileIO("/dev/full", "r+")))
        with pytest.raises(persist.InvalidUsage, match=r"sorted in a temporary file.*No space left.*TMPDIR"):
            sent(client, tmp_path, "lines")
    assert sent(client, tmp_path, "lines").rows == 1000


def test_a_step_that_a_put_back_location_does_not_have_any_more_is_told(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    sent(client, tmp_path, "orders", format="json")
    orders.upsert([(key, "x") for key in range(30)], time=1, seal=2).result()
    sink = Dying(FilesConfig(**config(tmp_path, "orders", format="json", file_bytes=500)))
    sink.left = 4
    with pytest.raises(TargetUnavailable):
        persist.egress(client, sink, once=True)
    promise = max((tmp_path / "out" / "_persist" / "files" / orders.id).iterdir())
    written = json.loads(promise.read_text())
    assert (written["rows"][0], written["goes_on"]) == (0, True)
    promise.write_text(json.dumps({**written, "rows": [0, 99]}))
    with pytest.raises(persist.InvalidUsage, match="of this step is not what was promised"):
        sent(client, tmp_path, "orders", format="json")


@pytest.mark.parametrize(("keep_s", "moves"), [(0, 3), (10**9, 1)])
def test_the_hold_follows_the_target_at_most_every_few_seconds(
    client: persist.Client,
    orders: persist.Collection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keep_s: int,
    moves: int,
) -> None:
    monkeypatch.setattr(import_module("persist.connect.egress.driver"), "KEEP_S", keep_s)
    sent(client, tmp_path, "orders")
    for time in range(1, 4):
        orders.upsert([(1, str(time))], time=time, seal=time + 1).result()
    seqno = client.seqno
    assert sent(client, tmp_path, "orders", batch_rows=1).commits == 3
    assert client.seqno - seqno == moves


def test_of_two_that_write_one_folder_one_is_told(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    sent(client, tmp_path, "orders")

    class Late(FilesSink):
        def take(self, step: Any) -> Any:
            orders.upsert([(3, "c")], time=2, seal=3).result()
            sent(client, tmp_path, "orders")  # The other one, which goes further.
            return super().take(step)

    orders.upsert([(3, "b")], time=1, seal=2).result()
    with pytest.raises(SinkMoved, match="another process sends 'orders' as 'files', and was first"):
        persist.egress(client, Late(FilesConfig(**config(tmp_path, "orders"))), once=True)
    assert applied(rows(tmp_path)) == {1: "new", 2: "", 3: "c"}


def test_a_folder_with_other_files_is_refused_and_one_begun_anew_must_be_empty(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    (tmp_path / "out" / "orders").mkdir(parents=True)
    (tmp_path / "out" / "orders" / "other.parquet").write_bytes(b"")
    with pytest.raises(persist.InvalidUsage, match=r"has 'orders/other\.parquet', which this sink has not made"):
        sent(client, tmp_path, "orders")
    (tmp_path / "out" / "orders" / "other.parquet").unlink()
    sent(client, tmp_path, "orders")
    assert [persist.egress(client, config(tmp_path, "orders"), drop=True).dropped for _ in range(2)] == [
        ("orders",),
        (),
    ]
    with pytest.raises(persist.InvalidUsage, match=r"which this sink has not made"):
        sent(client, tmp_path, "orders")


def test_new_columns_are_in_the_files_that_follow(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    sent(client, tmp_path, "orders")
    orders.evolve(add={"n": pa.int64()})
    orders.upsert([(1, ("paid", 7))], time=1, seal=2).result()
    sent(client, tmp_path, "orders")
    assert rows(tmp_path)[-1] == {"id": 1, "status": "paid", "n": 7, "_time": 1, "_change": "update"}


def test_the_command_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with persist.open(str(tmp_path / "location")) as client:
        client.create_or_load("orders", **ORDERS).write([((1, "a"), 0, 1)], seal=1).result()
    arguments = ["egress", str(tmp_path / "location"), str(tmp_path / "out"), "--collection", "orders", "--once"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"sent 1 row to {tmp_path / 'out'} in 1 transaction\n"
    assert rows(tmp_path) == [{"id": 1, "status": "a", "_time": 0, "_change": "insert"}]


def test_nan_is_refused_by_json_or_null(client: persist.Client, tmp_path: Path) -> None:
    made = client.create_or_load("numbers", key={"id": int}, value={"x": float, "y": pa.list_(pa.float64())})
    made.write([(1, (1.0, [None, 2.0])), (2, (None, [float("nan")]))], time=0, seal=1).result()
    with pytest.raises(persist.InvalidUsage, match=r"column 'y' has NaN or an infinity.*nan = \"null\""):
        sent(client, tmp_path, "numbers", format="json")
    sent(client, tmp_path, "numbers", format="json", nan="null")
    [path] = (tmp_path / "out" / "numbers").iterdir()
    assert [json.loads(line)["y"] for line in path.read_text().splitlines()] == [[None, 2.0], [None]]


@pytest.mark.parametrize("key", [float("nan"), float("inf")])
def test_keys_of_maps_that_json_cannot_hold_are_refused(client: persist.Client, tmp_path: Path, key: float) -> None:
    rates = client.create_or_load("rates", key={"id": int}, value={"by": pa.map_(pa.float64(), pa.string())})
    rates.write([(1, None), (2, [(key, "x"), (1.5, "y")])], time=0, seal=1).result()
    with pytest.raises(persist.InvalidUsage, match="column 'by' has NaN or an infinity"):
        sent(client, tmp_path, "rates", format="json")


def test_a_prefix_of_s3_is_a_sink_and_what_is_there_is_a_source(
    client: persist.Client, orders: persist.Collection, s3_options: dict[str, Any]
) -> None:
    bucket = make_bucket(s3_options)
    there = {"sink": f"s3://{bucket}/out", "collections": ["orders"], "storage_options": s3_options}
    persist.egress(client, there, once=True)
    orders.upsert([(1, "paid"), (3, "x")], time=1, seal=2).result()
    assert persist.egress(client, there, once=True).rows == 2
    options = {
        "key": s3_options["access_key_id"],
        "secret": s3_options["secret_access_key"],
        "client_kwargs": {"endpoint_url": s3_options["endpoint_url"], "region_name": s3_options["region"]},
    }
    store = fsspec.filesystem("s3", **options)
    [contents, changes] = sorted(store.find(f"{bucket}/out/orders"), reverse=True)
    found = [pq.read_table(store.open(path)).to_pylist() for path in (contents, changes)]
    assert [[(row["id"], row["_change"]) for row in each] for each in found] == [
        [(1, "insert"), (2, "insert")], [(1, "update"), (3, "insert")],
    ]  # fmt: skip
    store.pipe(f"{bucket}/in/a.csv", b"id,x\n1,2\n")
    source = {"source": f"s3://{bucket}/in/*.csv", "collection": "all", "storage_options": options}
    assert [persist.ingest(client, source, once=True).rows for _ in range(2)] == [1, 0]


def test_status_says_how_far_behind_a_sink_is(
    client: persist.Client, orders: persist.Collection, tmp_path: Path
) -> None:
    timed = client.create_or_load("timed", key={"id": int}, timeline="ms")
    timed.write([(1, None)], time="2026-01-01T00:00Z", seal="2026-01-01T01:00Z").result()
    sent(client, tmp_path, "orders", "timed")
    [fed] = report_health(client).sinks
    assert (fed.sink, fed.collections, fed.behind_s, fed.behind_bytes) == (
        str(tmp_path / "out"),
        ("orders", "timed"),
        0.0,
        0,
    )
    timed.write([(2, None)], time="2026-01-01T02:00Z", seal="2026-01-01T03:30Z").result()
    [fed] = report_health(client).sinks
    assert (fed.behind_s, fed.behind_bytes > 0) == (2.5 * 3600, True)
    persist.egress(client, config(tmp_path, "orders", "timed"), drop=True)
    assert report_health(client).sinks == ()


def test_a_value_that_a_format_cannot_hold_is_refused_by_its_column(client: persist.Client, tmp_path: Path) -> None:
    """And a moment that Python has not is sent."""
    far = pa.array([2**63 - 1], pa.timestamp("us"))
    client.write("t", pa.table({"id": [1], "at": far, "b": [b"\xff"]}), key=["id"], time=0, seal=1).result()
    with pytest.raises(
        persist.InvalidUsage, match=r"out cannot take the collection 't': the column 'at' has a date too"
    ):
        sent(client, tmp_path, "t", format="csv")
    sent(client, tmp_path, "t", format="json", name="again", sink=str(tmp_path / "json"))
    [path] = (tmp_path / "json" / "t").iterdir()
    [line] = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["at"], line["b"]) == ("294247-01-10T04:00:54.775807", "/w==")
