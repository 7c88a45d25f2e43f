"""The loop between a source and collections: what each commit holds, and what ends the loop."""

import itertools
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect import Batch, Change, Run, SourceMoved, Target
from persist.connect.ingest.driver import parse_config, parse_description
from persist.connect.ingest.files import FilesConfig
from persist.connect.ingest.source import SourceUnavailable
from persist.engine.location.moments import MOMENTS
from persist.errors import UpperMismatch


class Script:
    """A source of given batches; a function in place of one is called with the run."""

    name = "script"

    def __init__(self, targets: Sequence[Target], *batches: Any, moments: str | None = None) -> None:
        self._targets, self._batches, self.moments = targets, batches, moments
        self.was_durable: list[bool] = []

    def targets(self, client: persist.Client) -> Sequence[Target]:
        return self._targets

    def batches(self, run: Run) -> Generator[Batch]:
        for batch in self._batches:
            batch = batch(run) if callable(batch) else batch
            if batch is not None:
                yield batch
                self.was_durable.append(batch.is_durable)

    def close(self) -> None:
        self._targets = ()


T = Target("t", {"id": pa.int64()}, {"v": pa.string()}, True, None, "of t", {"mine": "1"})
U = Target("u", {}, {"n": pa.int32()})


def rows(*ids: int, **more: Any) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": ["x"] * len(ids), **more})


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int32())})


@pytest.fixture
def client() -> Iterator[persist.Client]:
    with persist.open("memory://driver") as opened:
        yield opened
        for name in opened.collections():
            opened.drop(name).result()


def test_collections_of_a_source_are_made_as_it_says_and_described_once(
    client: persist.Client, caplog: pytest.LogCaptureFixture
) -> None:
    source = Script([U, T], Batch((), 1, 0, [(0, 0)]), moments="m")
    done = persist.ingest(client, source, once=True)
    assert (done.source, done.rows, done.commits, done.uppers) == ("script", 0, 0, {"u": 1, "t": 1, "m": 1})
    assert source.was_durable == [True]
    assert source.targets(client) == ()  # It was closed.
    about = {name: client.load(name).about for name in ("t", "u", "m")}
    id_, mine = client.load("m").handle.id, {"ingest.source": "script"}
    assert {name: (found.comment, dict(found.properties)) for name, found in about.items()} == {
        "t": ("of t", mine | {"mine": "1", MOMENTS: id_}),
        "u": ("", mine | {MOMENTS: id_}),
        "m": (
            "at which moment each time of script was",
            {"ingest.source": "script", "ingest.collections": '["t","u"]'},
        ),
    }
    schemas = {name: client.load(name).schema for name in ("t", "u")}
    assert (schemas["t"].key_names, schemas["t"].value_names, schemas["t"].timeline) == (("id",), ("v",), None)
    assert (schemas["u"].key_names, schemas["u"].value_names, schemas["u"].timeline) == ((), ("n",), None)
    assert [client.load(name).handle.keyed is not None for name in ("t", "u")] == [True, False]
    records = client.history().num_rows
    client.load("t").describe("own").result()
    persist.ingest(client, Script([U, T], Batch((), 3, 0, [(1, 0), (2, 9)]), moments="m"), once=True)
    kinds = client.history()["operations"].to_pylist()[records:]
    assert (client.load("t").about.comment, [*itertools.chain(*kinds)].count("describe")) == ("own", 1)
    moments = client.load("m").snapshot().to_arrow().sort_by("time")
    assert moments.cast(pa.schema([("moment", pa.int64()), ("time", pa.int64())])).to_pylist() == [
        {"moment": 0, "time": 0}, {"moment": 1, "time": 1}, {"moment": 9, "time": 2},
    ]  # fmt: skip
    assert caplog.messages == []
    persist.ingest(client, Script([T], moments="m"), once=True)
    assert caplog.messages == [
        "script: these collections are not filled any more, because their tables are gone or not wanted: u. They stay "
        "as they are. If their tables come back, drop them first, and they are copied again"
    ]
    assert client.load("m").about.properties["ingest.collections"] == '["t"]'
    for targets, moments, text in [
        (
            [T],
            "t",
            "script: moments are stored in the collection 't', and a table gets that name, too: choose another ",
        ),
        ([Target("t", {}, {})], None, "the collection 't' is keyed, and the source gives updates: choose another coll"),
        ([Target("u", {}, {}, True)], None, "the collection 'u' is not keyed, and the source gives events by key: ch"),
    ]:
        with pytest.raises(persist.InvalidUsage) as caught:
            persist.ingest(client, Script(targets, moments=moments), once=True)
        assert str(caught.value)[: len(text)] == text


def test_a_commit_holds_rows_seals_properties_and_further_collections(client: persist.Client) -> None:
    counts: list[Any] = []
    source = Script(
        [T, U],
        Batch([Change("t", rows(1, 2), 0), Change("u", numbers(7), 3)], None, 3, properties={"u": {"p": "1"}}),
        Batch([Change("t", rows(2, _deleted=[True]), 5)], 6, 1, behind=10, since={"u": 4}),
        lambda run: counts.append((dict(run.uppers), run.behind, run.client.metrics().groups["ingest"])),
        Batch([Change("w", numbers(1), 6)], 7, 1, behind=10, targets=[Target("w", {}, {"n": pa.int32()}), U]),
        lambda run: counts.append((dict(run.uppers), run.behind)),
        Batch((), 7),
    )
    done = persist.ingest(client, source, once=True)
    assert (done.rows, done.commits, done.uppers) == (5, 3, {"t": 7, "u": 7, "w": 7})
    assert counts == [
        ({"t": 6, "u": 6}, 10, {"rows": 4, "commits": 2}), ({"t": 7, "u": 7, "w": 7}, 10),
    ]  # fmt: skip
    assert client.load("t").snapshot().to_pylist() == [{"id": 1, "v": "x"}]
    assert client.load("u").about.properties == {"ingest.source": "script", "p": "1"}
    assert client.load("t").about.properties["ingest.behind"] == "10"
    assert client.load("w").about.properties == {"ingest.source": "script"}
    assert [client.load(name).since.time for name in ("t", "u", "w")] == [0, 4, 0]
    assert ("ingest", "script") in {
        pair for entry in client.history()["metadata"].to_pylist() for pair in dict(entry or {}).items()
    }


def test_the_loop_goes_on_where_a_source_moved_and_ends_where_it_is_stopped(
    client: persist.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(error: Exception) -> Iterator[Change]:
        yield Change("t", rows(9), 0)
        raise error

    def script(*batches: Any) -> Script:
        return Script([T], *batches)

    for error in (SourceMoved("it moved"), SourceUnavailable("away")):
        source, stop = script(Batch(fail(error), 1, 1), Batch((), 9)), threading.Event()
        with pytest.raises(type(error), match=str(error)):
            persist.ingest(client, source, once=True)
        last: list[Any] = [lambda _, stop=stop: stop.set(), Batch([Change("t", rows(1), 0)], 1, 1), Batch((), 5)]
        source = script(Batch(fail(error), 1, 1), *last)
        done = persist.ingest(client, source, stop=stop)
        assert (done.rows, done.uppers, source.was_durable) == (1, {"t": 1}, [False])
        assert client.load("t").snapshot().to_pylist() == [{"id": 1, "v": "x"}]
        client.drop("t").result()
    assert caplog.messages == ["it moved", "away; it is tried again"]
    client.create_or_load("t", key={"id": pa.int64()}, value={"v": pa.string()}, keyed=persist.Keyed())

    def overtake(run: Run) -> Batch:
        client.load("t").seal(3)
        return Batch([Change("t", rows(1), 0)], 1, 1)

    with pytest.raises(UpperMismatch):
        persist.ingest(client, script(overtake), once=True)


def test_a_config_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    def find(config: Any, **options: Any) -> str:
        try:
            url, found, where = parse_description("source", config, options, "s3://b")
            parse_config(FilesConfig, found, where)
        except persist.InvalidUsage as error:
            return str(error)
        return url

    path = tmp_path / "orders.toml"
    path.write_text('source = "in"\ncollection = "orders"\n')
    here, names = f"the file {path}", ", ".join(FilesConfig.__struct_fields__)
    assert (find(str(path)), find(path, source="there"), find("in", collection="c")) == ("in", "there", "in")
    assert find(path, colection="x") == (
        f"{here}: there is no option 'colection' of this source, did you mean 'collection'? Options are {names}"
    )
    no_value = "the options: {}: there is no value 'x'; it is one of {}"
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, 'the options must name the source: source = "s3://b", or another URL'),
        ({"source": ""}, 'the options must name the source: source = "s3://b", or another URL'),
        ({"source": 7}, 'the options must name the source: source = "s3://b", or another URL'),
        ({"source": "in"}, "the options: they must say `collection`"),
        ({"poll_s": 0}, "the options: poll_s=0 must be above 0"),
        ({"settle_s": -0.5}, "the options: settle_s=-0.5 must be at least 0"),
        ({"collection": 7}, "the options: collection: Expected `str`, got `int`"),
        ({"key": "id"}, "the options: key: Expected a list, got `str`"),
        (
            {"format": "x"},
            'the options: format: there is no value \'x\'; it is one of "csv", "json", "parquet", "arrow"',
        ),
        ({"drift": "x"}, no_value.format("drift", '"refuse", "add", "ignore"')),
    ]
    for config, text in cases:
        more = {} if "source" in config or not config else {"source": "in", "collection": "c"}
        assert find({**more, **config}) == text
    assert find({"source": "in", "collection": "c", "poll_s": 0.1, "settle_s": 0}) == "in"
    path.write_bytes(b'source = "in"\ncollection = "c" #' + b"x" * ((1 << 20) - 32))
    assert (path.stat().st_size, find(path)) == (1 << 20, "in")
    with path.open("ab") as file:
        file.write(b"x")
    assert find(path) == f"{path} is longer than 1,048,576 bytes: it describes no source"
    path.write_text("source = \n")
    assert find(path).startswith(f"{path} is not TOML: ")
    path.write_bytes(b'source = "\xff"')
    assert find(path) == f"{here} cannot be read: it is not UTF-8"
    path.unlink()
    assert find(path) == f"{here} cannot be read: No such file or directory"
    with pytest.raises(persist.InvalidUsage, match=r"^the options key, drift go with a URL .*, and not with a Source"):
        persist.ingest("memory://none", Script([T]), key=["id"], drift="add")
