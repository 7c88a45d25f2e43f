"""What commands ask of the library, and make of its answers: by stand-ins for what takes long or has no end."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.connect.egress.driver import Egressed
from persist.connect.ingest.driver import Ingested
from persist.engine.upkeep.garbage import GarbageReport
from persist.tools.cli import copy_commands, data_commands, doctor, name_commands, row_output, upkeep_commands
from persist.tools.cli.main import main
from persist.tools.cli.place import Place
from persist.tools.cli.portrait import read_last_records
from persist.tools.reports import health as reports
from persist.tools.reports.health import (
    ClientActivity,
    DueWork,
    Health,
    Lag,
    LastFailure,
    SinceBlocker,
    SinkHealth,
    SourceHealth,
    ViewLag,
    WaitingBlobs,
)

Printed = pytest.CaptureFixture[str]


def throw(error: BaseException) -> Any:
    raise error


def note(calls: list[Any], call: Any, result: Any) -> Any:
    calls.append(call)
    return result


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Open no location, end at once what has no end, and note how the location was opened."""
    ways: list[Any] = []
    client: Any = SimpleNamespace(url="mem://x", gc=lambda **_: GarbageReport())

    @contextmanager
    def open_(place: Place, **options: Any) -> Iterator[Any]:
        ways.append(options)
        yield client

    @contextmanager
    def never() -> Iterator[threading.Event]:
        stop = threading.Event()
        stop.set()
        yield stop

    for way in ("open_reader", "open_writer"):
        monkeypatch.setattr(Place, way, lambda place, way=way, **more: open_(place, way=way, **more))
    for module in (data_commands, upkeep_commands):
        monkeypatch.setattr(module, "catch_sigterm", never)
    ways.append(client)
    return ways


def lines_of(capsys: Printed, *arguments: str, status: int = 0) -> list[str]:
    assert main([arguments[0], "shop", *arguments[1:]]) == status
    return [line.rstrip() for line in "".join(capsys.readouterr()).splitlines()]


NO_LIMITS = {"postgres": None, "iceberg": None, "token": None, "insecure": False, "write": False, "commits": False} | {
    "store": False, "write_token": None, "sql": False, "iceberg_properties": None, "format_version": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "way", "asked", "printed"),
    [
        ([], {"way": "open_reader"}, {}, ["grpc://a serves mem://x. Ctrl-C ends it."]),
        (["--commits"], {"way": "open_writer", "background": True}, {"commits": True, "write_token": "w"},
         ["grpc://a serves mem://x, and commits to it. Ctrl-C ends it."]),
        (["--store", "--sql", "--insecure"], {"way": "open_reader"},
         {"store": True, "sql": True, "insecure": True, "write_token": "w"},
         ["grpc://a serves mem://x, and its store, in SQL, too. Ctrl-C ends it."]),
        (["--write", "--postgres", "5432"], {"way": "open_writer", "background": True},
         {"write": True, "write_token": "w", "postgres": "127.0.0.1:5432"},
         ["grpc://a serves mem://x. Ctrl-C ends it.", "Postgres clients connect to postgres://p"]),
        (["--iceberg", "host:1", "--format-version", "3", "--postgres", "h:1"],
         {"way": "open_writer", "background": True}, {"iceberg": "host:1", "format_version": 3, "postgres": "h:1"},
         ["grpc://a serves mem://x. Ctrl-C ends it.", "Postgres clients connect to postgres://p",
          "The Iceberg catalog is at http://i"]),
    ],
)  # fmt: skip
def test_a_server_is_asked_for_what_the_options_say(
    options: list[str], way: dict[str, Any], asked: dict[str, Any], printed: list[str],
    opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Printed,
) -> None:  # fmt: skip
    calls: list[Any] = []

    @contextmanager
    def running() -> Iterator[None]:
        yield

    def serve(flight: str, **more: Any) -> Any:
        calls.append((flight, more))
        server: Any = running()
        server.url, server.postgres_url, server.iceberg_url = "grpc://a", "postgres://p", "http://i"
        return server

    opened[0].serve = serve
    monkeypatch.setenv("PERSIST_SERVE_WRITE_TOKEN", "w")
    monkeypatch.delenv("PERSIST_SERVE_TOKEN", raising=False)
    assert lines_of(capsys, "serve", *options) == printed
    assert (opened[1:], calls) == ([way], [("grpc://127.0.0.1:0", {**NO_LIMITS, **asked})])
    monkeypatch.setenv("PERSIST_SERVE_TOKEN", "t")
    lines_of(capsys, "serve", "--flight", "grpc://b", "--sql", "--sql-memory", "64", "--sql-timeout", "2")
    limits = calls[-1][1]["sql"]
    assert (calls[-1][0], calls[-1][1]["token"], limits.memory_bytes, limits.timeout_s) == (
        "grpc://b",
        "t",
        64 << 20,
        2,
    )


@pytest.mark.parametrize(
    ("text", "says"), [("[", "cannot be read"), ("[1]", "is not an object"), ('{"a": 1}', "is not an")]
)
def test_properties_of_readers_are_texts(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(persist.InvalidUsage, match=says):
        data_commands._read_properties(tmp_path / "p.json")
    (tmp_path / "p.json").write_text('{"a": "1"}')
    assert data_commands._read_properties(tmp_path / "p.json") == {"a": "1"}
    missing = pytest.raises(persist.InvalidUsage, match="need the package odd, which is not installed")
    with missing, data_commands._explain_missing_packages():
        raise ImportError("no odd", name="odd")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_page_is_told_and_opened(
    host: str, opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    seen: list[Any] = []

    @contextmanager
    def page(client: Any, *more: Any) -> Iterator[Any]:
        seen.append(more)
        yield SimpleNamespace(url="http://page", run=lambda: seen.append("run"))

    monkeypatch.setattr("persist.tools.web.app.serve_page", page)
    monkeypatch.setattr("webbrowser.open", seen.append)
    warned = ["This address can be reached from other machines, and what it shows goes over the network as it is."]
    printed = ["http://page", "Whoever has this address can read mem://x. Ctrl-C ends it."]
    assert lines_of(capsys, "ui", "--host", host) == printed + warned * (host != "127.0.0.1")
    assert lines_of(capsys, "ui", "--open", "--json", "--port", "0", "--allow-host", "h") == ['{"url": "http://page"}']
    assert seen == [(host, 8420, None, []), "run", ("127.0.0.1", 0, None, ["h"]), "http://page", "run"]


def test_rows_that_came_and_went_are_told(opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    calls: list[Any] = []
    for commits in (1, 0):
        ingested, egressed = Ingested("in", 1, commits, {"c": 5}), Egressed("out", 2, commits, {"c": 5}, ("c",))

        def answer(result: Any) -> Callable[..., Any]:
            return lambda client, what, *, stop, **more: note(calls, (what, more), result)

        monkeypatch.setattr(persist, "ingest", answer(ingested))
        monkeypatch.setattr(persist, "egress", answer(egressed))
        new = commits == 1
        assert lines_of(capsys, "ingest", "s.toml", "--once", "--collection", "c", "-k", "a") == [
            "took in 1 row from in in 1 commit" if new else "nothing is new at in"
        ]
        assert lines_of(capsys, "ingest", "s.toml", "--json") == [
            f'{{"source": "in", "rows": 1, "commits": {commits}, "uppers": {{"c": 5}}}}'
        ]
        assert lines_of(capsys, "egress", "s.toml") == [
            "sent 2 rows to out in 1 transaction" if new else "nothing is new for out"
        ]
        assert lines_of(capsys, "egress", "s.toml", "--drop", "--collection", "c") == ["gave up 1 hold of out"]
    assert calls[:4] == calls[4:]
    assert calls[:4] == [
        ("s.toml", {"once": True, "collection": "c", "key": ["a"]}),
        ("s.toml", {"once": False}),
        ("s.toml", {"once": False, "drop": False}),
        ("s.toml", {"once": False, "drop": True, "collections": ["c"]}),
    ]
    way = {"way": "open_writer", "background": True}
    assert opened[1:5] == [{**way, "may_be_new": True}, {**way, "may_be_new": True}, way, way]


def test_maintenance_does_all_of_it_and_tells_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Any] = []

    def client_of(due: list[str], refreshed: Any, compacted: Any, garbage: GarbageReport) -> Any:
        monkeypatch.setattr(
            reports, "report_health", lambda client: SimpleNamespace(due=[DueWork(w, "", 1, ()) for w in due])
        )
        monkeypatch.setattr(name_commands, "refresh_together", lambda client, room: refreshed())

        def sweep(destroys: bool) -> Any:
            swept.append(destroys)
            return compacted()

        writer = SimpleNamespace(compaction=SimpleNamespace(sweep=sweep))
        return SimpleNamespace(gc=lambda: garbage, engine=SimpleNamespace(writer=lambda why: writer))

    none, one = GarbageReport(), GarbageReport(directories=1)
    refresh = ["refresh views"]
    assert upkeep_commands.maintain_once(client_of([], lambda: throw(AssertionError()), lambda: 0, none)) == {}
    counts = {"views refreshed": 2, "collections compacted": 3, "blobs deleted": 1}
    assert (
        upkeep_commands.maintain_once(client_of(refresh, lambda: ["a", "b"], lambda: 3, one), is_repeated=True)
        == counts
    )
    assert swept == [True, False]
    for refreshed, compacted, says in (
        (lambda: throw(persist.Conflict("first")), lambda: throw(persist.Conflict("second")), "first"),
        (lambda: ["a"], lambda: throw(persist.Conflict("second")), "second"),
    ):
        with pytest.raises(persist.Conflict, match=says):
            upkeep_commands.maintain_once(client_of(refresh, refreshed, compacted, one))
    assert len(swept) == 4


def test_repeated_maintenance_goes_on_after_a_failure(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    turns: Iterator[Any] = iter(())
    waits, asked = iter([False, False, True]), list[Any]()

    def turn(client: Any, is_repeated: bool) -> Any:
        asked.append(is_repeated)
        return throw(done) if isinstance(done := next(turns), Exception) else done

    @contextmanager
    def some() -> Iterator[Any]:
        yield SimpleNamespace(wait=lambda seconds: note(asked, seconds, next(waits)))

    monkeypatch.setattr(upkeep_commands, "maintain_once", turn)
    monkeypatch.setattr(upkeep_commands, "catch_sigterm", some)
    turns = iter([persist.Conflict("a\nb"), {}, {"views refreshed": 1234, "blobs deleted": 0}])
    assert lines_of(capsys, "maintain", "--every", "0.5") == ["views refreshed 1,234", "persist: a b"]
    assert (asked, opened[1]) == ([True, 0.5] * 3, {"way": "open_writer", "background": True})
    turns = iter([{}, persist.Conflict("a")])
    assert lines_of(capsys, "maintain") == ["nothing is due"]
    assert (asked[6:], opened[2]) == ([False], {"way": "open_writer", "background": False})
    assert lines_of(capsys, "maintain", status=3) == ["persist: a"]


def test_garbage_is_told_as_deleted_or_as_what_would_be(opened: list[Any], capsys: Printed) -> None:
    opened[0].gc = lambda dry_run: GarbageReport(parts=1, bytes=1234)
    assert lines_of(capsys, "gc") == ["deleted 1 part: 1,234 bytes"]
    assert lines_of(capsys, "gc", "--dry-run") == ["would delete 1 part: 1,234 bytes"]


def test_measures_and_findings_are_printed(opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    measures = {"rows": 1000, "write_s": 0.5, "write_rows_per_s": 2000.4, "read_s": 0.25, "read_rows_per_s": 4000.0} | {
        "commits": 20, "commit_median_s": 0.0123, "commit_max_s": 0.05, "lookup_100_keys_s": 0.002,
    }  # fmt: skip
    monkeypatch.setattr(upkeep_commands, "measure", lambda client: measures)
    assert lines_of(capsys, "bench") == [
        "what             how much       took          that is",
        "write and seal   1,000 rows  0.500 s     2,000 rows/s",
        "read             1,000 rows  0.250 s     4,000 rows/s",
        "commit of a row  20 commits  12.3 ms  50.0 ms at most",
        "look-up          100 keys     2.0 ms",
    ]
    fine, wrong = doctor.Finding("a", "ok", "all is well"), doctor.Finding("b", "wrong", "odd", "Mend it.")
    for check in ("_check_java", "_check_workers"):
        monkeypatch.setattr(doctor, check, lambda place: [])
    for found, status in (([fine], 0), ([fine, wrong], 1), ([doctor.Finding("b", "warning", "odd")], 0)):
        monkeypatch.setattr(doctor, "_check_python", lambda place, found=found: found)
        monkeypatch.setattr(doctor, "_check_location", lambda place, may_write: [])
        lines = lines_of(capsys, "doctor", status=status)
    assert lines == ["warning   b: odd"]
    monkeypatch.setattr(doctor, "_check_python", lambda place: [fine, wrong])
    assert lines_of(capsys, "doctor", status=1) == [
        "ok        a: all is well",
        "wrong     b: odd",
        "          Mend it.",
    ]


HEALTH = Health(
    *("shop", 1234, 1, None, 14, 2000, 3000, None, 2),
    (Lag("c", None, None, None, 0), Lag("d", 5, "then", 60.0, 1234), Lag("e", 0, "1970", -1.0, 0)),
    (ViewLag("v", 5, None, "c", 6, None, 60.0, True), ViewLag("w", 5, None, None, 6, None, None, True),
     ViewLag("x", 5, None, "c", 6, None, 60.0, False, LastFailure("t1", "me", "odd"))),
    (SourceHealth("s", ("c", "d"), 0.0, None, LastFailure("t2", "me", "even")), SourceHealth("u", (), None, 1234)),
    (SinkHealth("k", "h", ("c",), None, 0, LastFailure("t3", "me", "none")), SinkHealth("l", "h", (), 60.0, 1234)),
    (SinceBlocker("c", "h", None, 5, None, None, None), SinceBlocker("d", "h", "me", 5, "then", 1234, None)),
    (WaitingBlobs("c", "x", 1, None, "t", "soon", "the next gc"), WaitingBlobs("d", "x", 1, 1234, "t", "u", "v")),
    (DueWork("refresh views", "persist refresh", 1234, ("v", "w")),),
    tuple(ClientActivity(f"p{n}", None if n else "1.0", "writes", None if n else "t4") for n in range(10)),
)  # fmt: skip
SHOWN = """shop at record 1,234 which is gone; the log has 1 record
bytes: 2,000 live, 3,000 of earlier times, more than was counted waiting to be deleted
2 collections with unbounded history: persist retain bounds it

collections upper behind unsealed
c for ever - -
d then 1 min 1234
e 0 ahead -

views upper behind its input
v 5 1 min c
w 5 yes -
x 5 - c

sources collections behind bytes
s 2 ahead -
u 0 - 1,234

sinks collections behind bytes
k 1 - 0
l 0 1 min 1,234

failed last error
x t1 odd
s t2 even
k t3 none

history kept back of by since else
c h 5 for ever
d h of me then 1,234

waits to be deleted bytes until for
c ? soon the next gc
d 1,234 u v

due command of such as
refresh views persist refresh 1234 v, w

clients release wrote last does
p0 1.0 t4 writes
p1 ? - writes
p2 ? - writes
p3 ? - writes
p4 ? - writes
p5 ? - writes
p6 ? - writes
p7 ? - writes
… and 2 more: --json has them
"""


def test_the_health_of_a_location_is_shown_section_by_section(
    opened: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.setattr(reports, "report_health", lambda client: HEALTH)
    assert [" ".join(line.split()) for line in lines_of(capsys, "status")] == SHOWN.splitlines()
    [line] = lines_of(capsys, "status", "--json")
    assert line == json.dumps(asdict(HEALTH))
    assert lines_of(capsys, "status", "--watch", "--json", status=2)


def test_numbers_stand_right_and_texts_alone_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(row_output, "print_table", lambda head, rows, right, texts: seen.append((right, texts)))
    types = [pa.int8(), pa.string(), pa.float32(), pa.timestamp("s"), pa.bool_()]
    schema = pa.schema([(str(kind), kind) for kind in types])
    row_output.write_rows(schema, [], "table", None, None)
    assert seen == [([0, 2], [1, 4])]


@pytest.mark.parametrize(
    ("target", "location", "given", "options"),
    [
        ("s3://t", "s3://a", None, {"a": "1"}),
        ("s3://t", "s3://a", ["b=2"], {"fsync": False, "region": "x", "b": "2"}),
        ("gs://t", "s3://a", None, {}),
        ("s3://t", "shop", None, {"fsync": False, "region": "x"}),
        ("kept", "shop", None, {"fsync": False}),
        ("file://kept", "s3://a", None, {"fsync": False}),
    ],
)
def test_the_options_of_a_target_are_its_own_or_those_of_a_like_store(
    target: str, location: str, given: list[str] | None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_STORAGE_OPTIONS", '{"fsync": false, "region": "x"}')
    place = Place(location, ("a=1",))
    expected = {**options, "fsync": False, "region": "x"} if options == {"a": "1"} else options
    assert copy_commands._read_target_options(place, target, given) == expected


def test_definitions_are_bounded_in_number_and_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n-- key: a, b ,\n--start:1\n-- key: c\nSELECT 1 AS a, 2 AS b ;\n"
    (tmp_path / "v.sql").write_text("\ufeff" + text, encoding="utf-8")
    monkeypatch.setattr(name_commands, "FILES_MAX", 1)
    monkeypatch.setattr(name_commands, "BYTES_MAX", len(text) + 3)
    [(name, wanted)] = name_commands.load_definitions(str(tmp_path)).items()
    assert (name, wanted.key, wanted.start) == ("v", ("a", "b"), "1")
    assert wanted.sql == text.strip().removesuffix(";").rstrip()
    for limit, value, says in (("BYTES_MAX", len(text) + 2, "is larger than"), ("FILES_MAX", 0, "holds 1 files")):
        with monkeypatch.context() as patched, pytest.raises(persist.InvalidUsage, match=says):
            patched.setattr(name_commands, limit, value)
            name_commands.load_definitions(str(tmp_path))
    (tmp_path / "v.sql").write_bytes(b"SELECT '\xff'")
    with pytest.raises(persist.InvalidUsage, match="is not text in UTF-8: invalid start byte at byte 8"):
        name_commands.load_definitions(str(tmp_path))


def test_the_last_records_are_read_back_to_what_is_gone(client: persist.Client) -> None:
    for name in "abab":
        client.create_or_load(name, key={"k": int}).write([(1, None)]).result()
    id_ = client["a"].id
    seqnos = [
        [record.seqno for record in read_last_records(client, last, id)[0]]
        for last, id in ((2, None), (99, id_), (1, id_))
    ]
    own = [n for n, record in enumerate(client.history().to_pylist()) if "a" in record["collections"]]
    assert seqnos == [[client.seqno - 1, client.seqno], own, own[-1:]]
    assert read_last_records(client, 99, None)[1] is False
    client.engine.blob.delete(f"log/{1:020d}")
    records, is_cut = read_last_records(client, 99, None)
    assert ([record.seqno for record in records], is_cut) == ([*range(2, client.seqno + 1)], True)
