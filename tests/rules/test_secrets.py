"""Secrets that are planted wherever a person can put one are found nowhere afterwards.

Each way in (a URL, an option, a file, the environment) gets a secret of its own. It is tried, mostly against a server
that refuses; then every error, text, log line, output of a command and byte of the location is searched for it.
`tests/rules/test_security.py` does the same for S3 that works.
"""

import faulthandler
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import persist
from persist.blob.protocol import Blob, MemoryBlob
from persist.tools.cli.dispatch import run

PLANTED = "pl4nted/S3cret+x%="
FORMS = (PLANTED, quote(PLANTED, safe=""), quote(PLANTED))
QUIET = persist.Settings(background=False, retry_s=0.01)
NOWHERE = "127.0.0.1:1"
SECRET = quote(PLANTED, safe="")

Way = Callable[[Path, str], object]


def file_with(text: str, folder: Path) -> str:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def ingested(source: str, **more: Any) -> Way:
    return lambda folder, location: persist.ingest(location, source, once=True, **more)


def sent(sink: str) -> Way:
    return lambda folder, location: persist.egress(location, {"sink": sink, "collections": ["orders"]}, once=True)


def opened(url: str, **options: str) -> Way:
    return lambda folder, location: persist.open(url, mode="read", storage_options=options, settings=QUIET)


WAYS: dict[str, Way] = {
    "postgres in a URL": ingested(f"postgres://u:{SECRET}@{NOWHERE}/db", publication="p"),
    "postgres in a query": ingested(f"postgres://u@{NOWHERE}/db?password={SECRET}", publication="p"),
    "postgres that is misspelt": ingested(f"postgers://u:{SECRET}@{NOWHERE}/db"),
    "mysql in a URL": ingested(f"mysql://u:{SECRET}@{NOWHERE}/db"),
    "mysql in a query": ingested(f"mysql://u@{NOWHERE}/db?password={SECRET}"),
    "kafka in a URL": ingested(f"kafka://u:{SECRET}@{NOWHERE}/topic"),
    "kafka without a topic": ingested(f"kafka://u:{SECRET}@{NOWHERE}"),
    "out to postgres": sent(f"postgres://u:{SECRET}@{NOWHERE}/db"),
    "out to kafka": sent(f"kafka://u:{SECRET}@{NOWHERE}/topic"),
    "S3 in a URL": opened(f"s3://key:{SECRET}@bucket/x"),
    "S3 in options": opened("s3://bucket/x", secret_access_key=PLANTED, endpoint_url=f"http://{NOWHERE}"),
    "S3's session": opened(
        "s3://bucket/x",
        access_key_id="k",
        secret_access_key="s",
        session_token=PLANTED,
        endpoint_url=f"http://{NOWHERE}",
    ),
    "an S3 option that is misspelt": opened("s3://bucket/x", secret_acces_key=PLANTED),
    "a shared access signature in a URL": opened(f"abfs://c@a.blob.core.windows.net/x?sv=1&sig={SECRET}"),
    "a shared access signature in options": opened("abfs://c/x", account_name="a", sas_token=f"sig={SECRET}"),
    "a connection string": opened("abfs://c/x", connection_string=f"AccountName=a;AccountKey={PLANTED}"),
    "a server in a URL": lambda folder, location: persist.open(f"grpc://u:{SECRET}@{NOWHERE}"),
    "the token of a server": lambda folder, location: persist.open(
        location, settings=QUIET, notify=persist.Notify(f"grpc://{NOWHERE}", token=PLANTED * 2)
    ),
    "an unknown scheme": opened(f"what://u:{SECRET}@{NOWHERE}/x"),
}
COMMANDS: dict[str, list[str]] = {
    "ingest": ["ingest", "{location}", f"postgres://u:{SECRET}@{NOWHERE}/db", "--once"],
    "an option": ["ls", "s3://bucket/x", "--storage-option", f"secret_acces_key={PLANTED}"],
    "a URL": ["ls", f"s3://key:{SECRET}@bucket/x"],
    "a backup": ["backup", "{location}", f"s3://key:{SECRET}@bucket/x"],
    "a file of options": ["ls", "s3://bucket/x", "--storage-options-file", "{file}"],
}


def leaks(text: str) -> list[str]:
    return [form for form in FORMS if form in text]


def all_that_is_stored(location: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in location.rglob("*") if path.is_file())


@pytest.fixture
def location(tmp_path: Path) -> Path:
    with persist.open(tmp_path / "shop", settings=QUIET) as client:
        client.create_or_load("orders", key={"k": int}, value={"v": str}).write([(1, "x")]).result()
    return tmp_path / "shop"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_planted_secret_is_in_no_error_crash_report_log_or_object(
    way: Way, location: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        try:
            made = way(tmp_path, str(location))
            texts += [repr(made), str(made)]
            if isinstance(made, persist.Client):
                texts += [repr(made.metrics()), made.url, repr(made.engine.blob)]
                made.close()
        except (persist.PersistError, ImportError, OSError) as error:
            sys.excepthook(type(error), error, error.__traceback__)  # What is printed where nobody catches it.
            faulthandler.dump_traceback()
            texts += ["".join(traceback.format_exception(error)), repr(error), str(error)]
    assert texts, "it was tried"
    texts += [str(each.message) for each in warned]
    texts += [
        record.getMessage() + str(record.exc_text) for record in caplog.records if record.name.startswith("persist")
    ]
    texts += [*capfd.readouterr(), all_that_is_stored(location)]
    with persist.open(location, mode="read") as client:
        texts.append(str(client.history().to_pylist()))
    for text in texts:
        assert not leaks(text), text[:2000]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
@pytest.mark.parametrize("as_json", [False, True])
def test_a_planted_secret_is_in_no_output_of_a_command(
    command: list[str], as_json: bool, location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = file_with(json.dumps({"secret_acces_key": PLANTED}), tmp_path)
    given = [text.replace("{location}", str(location)).replace("{file}", file) for text in command]
    assert run([*given, *(["--json"] if as_json else [])]) != 0
    assert run(["status", str(location), "--json"]) == 0
    told = capsys.readouterr()
    assert not leaks(told.out), told.out
    assert not leaks(told.err), told.err
    assert not leaks(all_that_is_stored(location))


def test_the_search_finds_a_secret_that_is_there() -> None:
    blob: Blob = MemoryBlob()
    with persist.open(blob, settings=QUIET) as client:
        client.describe(f"postgres://u:{SECRET}@host/db").result()
    texts = [(blob.get(entry.key) or b"").decode("latin-1") for entry in blob.list("")]
    assert any(map(leaks, texts))
