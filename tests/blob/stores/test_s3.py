"""What S3 can answer, and what it means: the outcome known, unknown, or the caller's mistake."""

import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from persist.blob.errors import Indeterminate, InvalidUsage, StoreMisconfigured, Throttled, Unavailable
from persist.blob.stores.s3 import S3Blob
from persist.blob.url import open_blob
from tests.support.forks import forked_python
from tests.support.paths import ROOT
from tests.support.servers.fake_s3 import FakeS3, Trouble, fake_s3
from tests.support.servers.fixtures import put_object
from tests.support.stepped import wait_until

SECRETS = {
    "access_key_id": "AKIDTHATISASECRET",
    "secret_access_key": "a/secret+key",
    "session_token": "a.session.token==",
}


def client_of(server: FakeS3, read_timeout_s: float = 20.0, **options: Any) -> S3Blob:
    given = {"endpoint_url": server.url, "region": "us-east-1", **SECRETS, **options}
    return S3Blob("bucket", "prefix", given, read_timeout_s=read_timeout_s)


@pytest.mark.parametrize("trouble", [Trouble.SLOW_DOWN, Trouble.CONFLICT])
def test_a_create_that_s3_refused_did_not_happen(trouble: Trouble) -> None:
    with fake_s3(trouble) as server:
        blob = client_of(server)
        with pytest.raises(Unavailable, match=rf"create 'key' at s3://bucket/prefix: {trouble.code}.*try again"):
            blob.create("key", b"mine")
        # A conflict may also be said of what exists, so the key is looked at.
        looks = ["GET"] if trouble is Trouble.CONFLICT else []
        assert [method for method, _ in server.requests] == ["PUT", *looks]
        assert blob.create("key", b"mine")
        blob.close()


@pytest.mark.parametrize(
    "trouble",
    [
        Trouble.DROPPED_BEFORE,
        Trouble.DROPPED_AFTER,
        Trouble.SILENCE_AFTER,
        Trouble.ERROR_BEFORE,
        Trouble.ERROR_AFTER,
        Trouble.PROXY_ERROR_AFTER,
    ],
)
def test_a_create_without_a_clear_answer_is_indeterminate_and_sent_once(trouble: Trouble) -> None:
    with fake_s3(trouble) as server:
        hasty = client_of(server, read_timeout_s=0.3 if trouble is Trouble.SILENCE_AFTER else 20.0)
        with pytest.raises(Indeterminate, match=r"create of 'key' at s3://bucket/prefix .* read the key"):
            hasty.create("key", b"mine")
        wait_until(
            lambda: bool(server.objects) or not trouble.is_applied
        )  # A busy machine may do it after the client gave up.
        assert len(server.requests) == 1
        hasty.close()
        blob = client_of(server)
        assert blob.get("key") == (b"mine" if trouble.is_applied else None)
        assert blob.create("key", b"another's") is not trouble.is_applied
        blob.close()


def test_no_connection_means_that_nothing_happened() -> None:
    with fake_s3() as server:
        pass
    blob = client_of(server)
    calls: list[Callable[[], object]] = [
        lambda: blob.create("key", b""),
        lambda: blob.set("key", b""),
        lambda: blob.delete("key"),
        lambda: blob.get("key"),
        lambda: list(blob.list("")),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match=r"s3://bucket/prefix"):
            call()
    blob.close()


@pytest.mark.parametrize("trouble", [Trouble.SLOW_DOWN, Trouble.ERROR_BEFORE])
def test_every_request_is_sent_once(trouble: Trouble) -> None:
    with fake_s3() as server:
        blob = client_of(server)
        calls: list[Callable[[], object]] = [
            lambda: blob.create("key", b"value"),
            lambda: blob.set("key", b"value"),
            lambda: blob.get("key"),
            lambda: blob.delete("key"),
            lambda: list(blob.list("")),
        ]
        for call in calls:
            server.troubles.append(trouble)
            with pytest.raises((Unavailable, Indeterminate)):
                call()
        assert [method for method, _ in server.requests] == ["PUT", "PUT", "GET", "DELETE", "GET"]
        blob.close()


def test_slow_down_is_told_apart_from_other_refusals() -> None:
    with fake_s3() as server:
        blob = client_of(server)
        for kind, trouble in ((Throttled, Trouble.SLOW_DOWN), (Unavailable, Trouble.CONFLICT)):
            server.troubles.append(trouble)
            with pytest.raises(Unavailable) as refused:
                blob.create("key", b"value")
            assert type(refused.value) is kind
        for kind, trouble in ((Throttled, Trouble.SLOW_DOWN), (Unavailable, Trouble.ERROR_BEFORE)):
            server.troubles.append(trouble)
            with pytest.raises(Unavailable) as refused:
                blob.get("key")
            assert type(refused.value) is kind
        blob.close()


def test_an_attempt_without_an_answer_in_time_says_so() -> None:
    with fake_s3(*[Trouble.SILENCE_AFTER] * 2, Trouble.DROPPED_AFTER) as server:
        blob = client_of(server, read_timeout_s=0.2)
        with pytest.raises(Indeterminate) as doubtful:
            blob.create("key", b"value")
        with pytest.raises(Unavailable) as refused:
            blob.get("key")
        assert doubtful.value.timed_out
        assert refused.value.timed_out
        blob.close()
        patient = client_of(server)
        with pytest.raises(Unavailable) as refused:
            patient.get("key")
        assert not refused.value.timed_out
        patient.close()


class LoginPage(BaseHTTPRequestHandler):
    """A proxy that answers everything with a page, and success."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        page = b"<html>Sign in to the network</html>"
        self.send_response(200)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    do_PUT = do_DELETE = do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def test_a_page_of_a_proxy_is_no_object_and_stores_nothing() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), LoginPage) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        options = {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "region": "us-east-1"}
        with closing(S3Blob("box", options={**options, "access_key_id": "a", "secret_access_key": "b"})) as blob:
            with pytest.raises(
                StoreMisconfigured, match=r"page of type text/html.*begins '<html>Sign in.*sign in\. Open"
            ):
                blob.get("log/1")
            for read in (lambda: blob.get("log/1", (0, 3)), lambda: [*blob.list("log/")], lambda: [*blob.list("")]):
                with pytest.raises(StoreMisconfigured, match="page of type text/html"):
                    read()
            for delete in (lambda: blob.delete("log/1"), lambda: blob.delete_page(["log/1", "log/2"])):
                with pytest.raises(Indeterminate, match="delete of 'log/1' at s3://box got"):
                    delete()
            for write in (lambda: blob.create("log/1", b"value"), lambda: blob.set("log/1", b"value")):
                with pytest.raises(Indeterminate, match=r"an answer without an ETag, and .* page of type text/html"):
                    write()
        server.shutdown()


class Tagless(LoginPage):
    """A store that tells no ETag of what it has stored, and stores all that does not begin with "lost"."""

    values: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers["content-length"]))
        if not value.startswith(b"lost"):
            self.values[self.path] = value
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        value = self.values[self.path]
        self.send_response(200)
        found = {"ETag": '"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Content-Length": str(len(value))}
        for name, text in found.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(value)


def test_an_answer_without_an_etag_counts_if_the_value_is_there() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Tagless) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        options = {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "region": "us-east-1"}
        with closing(S3Blob("box", options={**options, "access_key_id": "a", "secret_access_key": "b"})) as blob:
            assert blob.create("k", b"value")
            blob.set("k", b"other")
            with pytest.raises(Indeterminate, match="something else is there"):
                blob.set("k", b"lost")
        server.shutdown()


def test_access_denied_names_the_operation_and_the_bucket() -> None:
    with fake_s3(*[Trouble.DENIED] * 5) as server:
        blob = client_of(server)
        calls: dict[str, Callable[[], object]] = {
            "create 'key'": lambda: blob.create("key", b""),
            "set 'key'": lambda: blob.set("key", b""),
            "delete 'key'": lambda: blob.delete("key"),
            "get 'key'": lambda: blob.get("key"),
            "list 'log/'": lambda: list(blob.list("log/")),
        }
        for name, call in calls.items():
            with pytest.raises(StoreMisconfigured, match=rf"cannot {name} at s3://bucket/prefix: AccessDenied.*Grant"):
                call()
        blob.close()


def test_a_server_that_does_not_encrypt_is_told_apart_from_a_wrong_url() -> None:
    with fake_s3(Trouble.INVALID) as server:
        blob = client_of(server, server_side_encryption="AES256")
        with pytest.raises(StoreMisconfigured, match=r"InvalidRequest.*ask for encryption.*https"):
            blob.create("key", b"")
        blob.close()


def test_every_put_has_a_checksum_that_the_server_can_verify() -> None:
    with fake_s3() as server:
        blob = client_of(server)
        blob.set("key", b"value")
        assert b64decode(server.requests[0][1]["x-amz-checksum-sha256"]) == sha256(b"value").digest()
        assert server.requests[0][1]["x-amz-content-sha256"] == sha256(b"value").hexdigest(), "is signed, too"
        blob.close()


def test_a_bucket_that_does_not_exist_is_named(s3_options: dict[str, Any]) -> None:
    blob = S3Blob("no-such-bucket", "prefix", s3_options)
    calls: list[Callable[[], object]] = [
        lambda: blob.get("key"),
        lambda: blob.set("key", b""),
        lambda: blob.create("key", b""),
        lambda: list(blob.list("")),
        lambda: blob.delete("key"),
    ]
    for call in calls:
        with pytest.raises(StoreMisconfigured, match="bucket 'no-such-bucket' does not exist"):
            call()
    blob.close()


def test_missing_credentials_are_named_at_the_first_request(tmp_path: Path) -> None:
    program = (
        "from persist.blob.url import open_blob\n"
        "from persist.blob.errors import StoreMisconfigured\n"
        "blob = open_blob('s3://bucket', {'region': 'us-east-1', 'endpoint_url': 'http://127.0.0.1:9'})\n"
        "calls = (lambda: blob.create('key', b''), lambda: blob.get('key'), lambda: list(blob.list('')))\n"
        "for call in calls:\n"
        "    try:\n"
        "        call()\n"
        "    except StoreMisconfigured as error:\n"
        "        print(error)\n"
    )
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [*forked_python(), "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done
    assert all("no AWS credentials" in line and "access_key_id" in line and "s3://bucket" in line for line in lines)


def test_a_profile_that_does_not_exist_is_named() -> None:
    with pytest.raises(StoreMisconfigured, match="no-such-profile"):
        S3Blob("bucket", "", {"profile": "no-such-profile"})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"regoin": "x"}, "'regoin' is not an option of S3; it takes: access_key_id, .*region"),
        ({"read_timeout_s": 10}, "'read_timeout_s' is not an option of S3"),
        ({"region": ""}, "'region' of S3.*text of length >= 1"),
        ({"server_side_encryption": "rot13"}, "'AES256' or 'aws:kms' or 'aws:kms:dsse'"),
        ({"sse_kms_key_id": "k"}, "server_side_encryption"),
        ({"access_key_id": "a"}, "belong together"),
        ({"endpoint_url": "localhost:9000"}, "http://host:port"),
        ({"endpoint_url": "http://me:pass@host"}, "without a user name"),
    ],
)
def test_an_option_that_is_unknown_or_wrong_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidUsage, match=says):
        S3Blob("bucket", "prefix", options)


def test_a_url_may_be_of_s3a_and_end_in_a_slash(s3_options: dict[str, Any], bucket: str) -> None:
    blob = open_blob(f"s3a://{bucket}/texts/", s3_options)
    assert blob.create("key", b"value")
    assert blob.get("key") == b"value"
    assert blob.url == f"s3://{bucket}/texts"
    blob.close()


@pytest.mark.parametrize(("style", "asked"), [("auto", "//localhost:1/bucket/"), ("virtual", "//bucket.localhost:1/")])
def test_buckets_of_an_endpoint_are_reached_by_path_unless_the_profile_has_another_style(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str, asked: str
) -> None:
    config = tmp_path / "config"
    config.write_text(f"[profile mine]\ns3 =\n    addressing_style = {style}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    options = {"endpoint_url": "http://localhost:1", "region": "us-east-1", "profile": "mine"}
    keys = {"access_key_id": "ACCESSKEY", "secret_access_key": "SECRETKEY"}
    blob = S3Blob("bucket", "", {**options, **keys})
    with pytest.raises(Unavailable, match=asked):
        blob.get("key")
    blob.close()


@pytest.mark.parametrize(
    ("bucket_name", "prefix", "says"),
    [
        ("", "prefix", "bucket"),
        ("...", "", "all dots"),
        ("a/b", "", "has a '/'"),
        ("user:pass@bucket", "", "access_key_id"),
        ("mine--use1-az4--x-s3", "", "general purpose"),
        ("bucket", "a//b", "prefix 'a//b' is not allowed"),
        ("bucket", "a/../b", "is not allowed"),
        ("bucket", "é" * 62, "at most 123 bytes"),
    ],
)
def test_a_bucket_or_prefix_that_cannot_work_is_refused(bucket_name: str, prefix: str, says: str) -> None:
    with pytest.raises(InvalidUsage, match=says):
        S3Blob(bucket_name, prefix, SECRETS)


def test_boto3_that_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InvalidUsage, match=r"'boto3>="):
        S3Blob("bucket", "prefix")


def test_a_listing_asks_for_a_page_when_it_gets_there(
    s3_options: dict[str, Any], bucket: str, crowd_in_bucket: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, pages = crowd_in_bucket
    monkeypatch.setattr("persist.blob.stores.objects.LIST_PAGE_ENTRIES", len(pages) * 2 // 3)
    blob = S3Blob(bucket, prefix, s3_options)
    listing = blob.list("")
    first = next(listing)
    blob.set("zz/later", b"")
    assert [entry.key for entry in listing][-1] == "zz/later"
    assert first.key == "pag/e"
    blob.delete("zz/later")
    blob.close()


def test_objects_that_are_not_keys_are_left_out_of_listings(s3_options: dict[str, Any], bucket: str) -> None:
    outer = S3Blob(bucket, "", s3_options)
    outer.set("folders-of-others/place/a/key", b"")
    put_object(s3_options, bucket, "folders-of-others/place/a/")
    inner = S3Blob(bucket, "folders-of-others/place", s3_options)
    inner.set("empty", b"")
    assert [entry.key for entry in inner.list("")] == ["a/key", "empty"]
    inner.close()
    outer.close()


OUT_OF_FILES = """
import os, resource, sys
from persist.blob.stores.fsspec import FsspecBlob
from persist.blob.errors import PersistError
from persist.blob.stores.s3 import S3Blob
kind, url = sys.argv[1], "http://127.0.0.1:9"
if kind == "s3":
    given = {"endpoint_url": url, "region": "us-east-1", "access_key_id": "id", "secret_access_key": "secret"}
    blob = S3Blob("bucket", "prefix", given)
else:
    client = {"endpoint_url": url, "region_name": "us-east-1"}
    once = {"retries": {"total_max_attempts": 1}}
    given = {"key": "id", "secret": "secret", "client_kwargs": client, "config_kwargs": once}
    blob = FsspecBlob("s3://bucket/prefix", given)
try:
    blob.get("key")  # Nobody listens there. What is loaded for a request has been loaded now.
except PersistError:
    pass
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for name, *given in (("create", "key", b""), ("get", "key"), ("list", ""), ("delete", "key")):
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        pass
    try:
        list(getattr(blob, name)(*given) or ())
        print("done")
    except PersistError as error:
        print(type(error).__name__, error)
os._exit(0)  # Its threads cannot be ended in good order without files.
"""


@pytest.mark.thorough(except_every=2)
@pytest.mark.parametrize(
    ("kind", "names"),
    [("s3", ["StoreFull"] * 4), ("fsspec", ["Indeterminate", "StoreFull", "StoreFull", "Indeterminate"])],
)
def test_a_process_without_files_left_for_connections_is_told_so(kind: str, names: list[str]) -> None:
    command = [sys.executable, "-W", "ignore", "-c", OUT_OF_FILES, kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == names
    for line in lines:
        assert "Too many open files" in line
        assert "ulimit -n" in line
