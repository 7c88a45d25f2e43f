"""The errors of the library that need another process, or a store that fails, met from the command line.

The others are in `test_wording.py`. Some cannot be met from a command. A command opens a client of its own, in the mode
that it needs, and closes it last, so there is no ReadOnly and no ClientClosed. No command opens a location exclusively,
so an exclusive client locks it out (Locked), and never fences it off (WriterFenced). No command gives a codec, so there
is not a CodecMismatch.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.tools.cli import loading
from persist.tools.cli.main import main
from tests.support.forks import forked_python
from tests.support.stepped import WAIT_S
from tests.support.tuned import tuned
from tests.tools.cli.test_wording import PYTHON

AT_ONCE = tuned(background=False, grace_s=0, orphan_grace_s=0)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> persist.Client:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("k,v\n1,9\n")
    with persist.open("shop", settings=AT_ONCE, storage_options={"fsync": False}) as client:
        orders = client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.int64()})
        orders.write([(1, 5)], time=3, seal=5).result()
        notes = client.create_or_load("notes", key=persist.Utf8(), value=persist.Json())
        notes.write([(("a", {"x": 1}), 3, 1)], seal=5).result()
        return client


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line of an error, which speaks of commands and of no calls."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert not PYTHON.search(err)
    return err


def test_who_seals_while_a_command_overwrites_is_named_as_first(
    shop: persist.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows_of = loading.read_rows

    def sealed_meanwhile(*arguments: Any) -> pa.RecordBatchReader:
        reader = rows_of(*arguments)

        def batches() -> Iterator[pa.RecordBatch]:
            with persist.open("shop", settings=AT_ONCE, storage_options={"fsync": False}) as other:
                other.load("orders").seal(6).result()
            yield from reader

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    monkeypatch.setattr(loading, "read_rows", sealed_meanwhile)
    assert main(["overwrite", "shop", "orders", "rows.csv", "--time", "7"]) == 3
    said = told(capsys)
    assert "expected upper=5, and it is 6; nothing of this was applied" in said
    assert "then decide anew" in said


@pytest.mark.thorough
def test_a_read_whose_collection_was_destroyed_and_collected_ends_with_an_error(
    shop: persist.Client, tmp_path: Path
) -> None:
    # Decoded, the parts take more than the 64 MiB that a read fetches ahead: so some are left when the pipe is full.
    parts, rows, text = 20, 4000, "a longer text " * 80
    with persist.open("shop", settings=AT_ONCE, storage_options={"fsync": False}) as client:
        many = client.create_or_load("many", key={"k": pa.int64()}, value={"v": pa.string()})
        for part in range(parts):
            keys = range(part * rows, (part + 1) * rows)
            many.write(pa.table({"k": keys, "v": [f"{text}{k}" for k in keys]}), time=part)
        many.seal(parts).result()
        command = [*forked_python(), "-m", "persist", "read", "shop", "many", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
            assert reading.stdout is not None
            assert reading.stderr is not None
            first = os.read(reading.stdout.fileno(), 1)  # From now on the pipe is full, and the command waits.
            many.drop().result()
            client.gc()
            printed, said = reading.communicate(timeout=WAIT_S)
    assert reading.returncode == 3, said
    error = json.loads(said)
    assert error["error"] == "LeaseExpired"
    assert error["message"].startswith("the blob 'part/")
    assert error["message"].endswith("this read held no lease that kept it. Begin again: read or subscribe anew.")
    assert len((first + printed).splitlines()) < parts * rows


class _Mute(BaseHTTPRequestHandler):
    """A store without objects, that takes records and gives no answer."""

    protocol_version = "HTTP/1.1"
    NOTHING = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        is_list = "list-type" in self.path
        body = self.NOTHING if is_list else b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(200 if is_list else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.close_connection = True


@contextmanager
def mute_store() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Mute) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_commit_that_got_no_answer_may_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    with mute_store() as url:
        store = ["--store-timeout", "1", "--storage-option", f"endpoint_url={url}", "--storage-option", "region=x"]
        assert main(["create", "s3://b/p", "new", "--key", "k:int64", "--json", *store]) == 4
    said = json.loads(told(capsys))
    assert (said["error"], said["status"]) == ("Indeterminate", 4)
    assert "within 1 s" in said["message"]
    assert "may or may not be there. Read back before writing it again. persist log shows" in said["message"]


def test_a_store_that_only_reads_is_named_with_those_that_write(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "fsspec+memory://errors", "new", "--key", "k:int64", "--json"]) == 2
    said = json.loads(told(capsys))
    assert said["error"] == "ReadOnlyStore"
    assert "has no atomic create" in said["message"]
    assert "Write to a folder, s3://, gs:// or abfs:// instead." in said["message"]


def test_rows_for_codecs_are_given_as_they_are_stored_and_ask_for_no_codec(
    shop: persist.Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.csv").write_text('key,value\nb,"{""x"":2}"\n')
    assert main(["write", "shop", "notes", "notes.csv", "--time", "6", "--seal", "7", "--mode", "append"]) == 0
    with persist.open("shop", mode="read") as client:
        notes = client.create_or_load("notes", key=persist.Utf8(), value=persist.Json())
        assert sorted(notes.snapshot().rows()) == [("a", {"x": 1}), ("b", {"x": 2})]
