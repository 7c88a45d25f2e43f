"""Nothing leaks and nothing escapes: credentials, signed URLs, encryption, keys outside the prefix, modes of files."""

import base64
import logging
import os
import stat
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from persist.blob.errors import InvalidUsage, PersistError, StoreMisconfigured
from persist.blob.layers.cache import CachedBlob
from persist.blob.layers.metered import MeteredBlob
from persist.blob.layers.retry import RetryBlob
from persist.blob.protocol import Blob, delete_all
from persist.blob.stores.file import FileBlob
from persist.blob.stores.fsspec import FsspecBlob
from persist.blob.stores.s3 import S3Blob, S3Options
from persist.blob.url import open_blob
from persist.core.log.keys import is_immutable
from tests.support.clocks import ImpatientClock
from tests.support.servers.fake_s3 import CHECKSUM, FakeS3, Trouble, fake_s3

CUSTOMER_KEY = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
SECRETS = {
    "access_key_id": "AKIDRECOGNISABLE",
    "secret_access_key": "a/recognisable+secret",
    "session_token": "recognisable.session.token==",
    "sse_customer_key": CUSTOMER_KEY,
}
FORMS = [*SECRETS.values(), "a%2Frecognisable%2Bsecret", "X-Amz-Signature", "Credential="]


def client_of(server: FakeS3, read_timeout_s: float = 20.0, **options: Any) -> S3Blob:
    given = {"endpoint_url": server.url, "region": "us-east-1", **SECRETS, **options}
    return S3Blob("bucket", "prefix", given, read_timeout_s=read_timeout_s)


def calls_of(blob: Blob) -> list[Callable[[], object]]:
    return [
        lambda: blob.create("part/1", b"value"),
        lambda: blob.set("part/1", b"value"),
        lambda: blob.get("part/1"),
        lambda: blob.delete("part/1"),
        lambda: list(blob.list("part/")),
        lambda: delete_all(blob, ["part/1"]),
    ]


def everything_shown(error: BaseException) -> list[str]:
    """Return all that a log or a debugger shows of an error: itself, and what is printed of what led to it."""
    return [str(error), repr(error), repr(error.args), "".join(traceback.format_exception(error))]


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("trouble", Trouble)
def test_no_error_log_line_or_repr_shows_a_credential(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="persist")
    shown: list[str] = []
    with fake_s3(*[trouble] * 100) as server:
        server.echo = f"you sent {SECRETS['secret_access_key']} and {SECRETS['session_token']}"
        store = client_of(server, read_timeout_s=0.1)
        retried = RetryBlob(MeteredBlob(store), 3, attempts_max=2, throttled_s=3, clock=ImpatientClock())
        blob = CachedBlob(retried, is_immutable=is_immutable)
        for each in (store, blob):
            for call in calls_of(each):
                with pytest.raises(PersistError) as raised:
                    call()
                shown += everything_shown(raised.value)
                assert "s3://bucket/prefix" in str(raised.value)
        shown += [repr(blob), str(blob), blob.url, repr(vars(store)), repr(store._options), repr(store._errors)]
        store.close()
    shown += [record.getMessage() for record in caplog.records if record.name.startswith("persist")]
    for text in shown:
        assert not [form for form in FORMS if form in text], text


def test_a_credential_of_one_letter_does_not_garble_messages() -> None:
    with fake_s3(*[Trouble.DENIED] * 9) as server:
        options = {"endpoint_url": server.url, "region": "us-east-1", "access_key_id": "e", "secret_access_key": "s"}
        with closing(S3Blob("bucket", options=options)) as blob, pytest.raises(PersistError) as raised:
            blob.get("part/1")
    assert "*" not in str(raised.value)


def test_a_key_that_s3_refuses_to_delete_is_named_without_what_the_server_repeats() -> None:
    with fake_s3() as server:
        server.echo = SECRETS["session_token"]
        server.undeletable = {"/bucket/prefix/part/1": "AccessDenied"}
        blob = client_of(server)
        with pytest.raises(PersistError, match=r"\*\*\*") as raised:
            delete_all(blob, ["part/1"])
        for text in everything_shown(raised.value):
            assert not [form for form in FORMS if form in text], text
        blob.close()


def test_fsspec_errors_do_not_repeat_options_that_sound_secret() -> None:
    options = {
        "key": SECRETS["access_key_id"],
        "secret": SECRETS["secret_access_key"],
        "client_kwargs": {"aws_session_token": SECRETS["session_token"]},
        "config_kwargs": {"retries": {"total_max_attempts": 1}},
    }
    with fake_s3(*[Trouble.DENIED] * 50) as server:
        server.echo = " ".join(SECRETS.values())
        options["endpoint_url"] = server.url
        blob = FsspecBlob("s3://bucket/prefix", options)
        shown = []
        for call in calls_of(blob)[:5]:
            with pytest.raises(PersistError) as raised:
                call()
            shown += everything_shown(raised.value)
    assert any("made up ***" in text for text in shown)
    for text in shown:
        assert not [form for form in FORMS if form in text and form != CUSTOMER_KEY], text


@pytest.mark.parametrize("url", ["https://host/path?X-Amz-Signature=recognisable", "http://host/?sig=recognisable"])
def test_a_signed_url_is_no_location_and_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidUsage, match="has a query") as raised:
        open_blob(url)
    assert "recognisable" not in "".join(everything_shown(raised.value))


ENCRYPTIONS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"server_side_encryption": "AES256"}, {"": "AES256"}),
    ({"server_side_encryption": "aws:kms"}, {"": "aws:kms"}),
    ({"server_side_encryption": "aws:kms", "sse_kms_key_id": "key-id"}, {"": "aws:kms", "-aws-kms-key-id": "key-id"}),
    ({"server_side_encryption": "aws:kms:dsse", "sse_kms_key_id": "k"}, {"": "aws:kms:dsse", "-aws-kms-key-id": "k"}),
    ({"sse_customer_key": CUSTOMER_KEY}, {"-customer-algorithm": "AES256", "-customer-key": CUSTOMER_KEY}),
]


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize(("options", "sent"), ENCRYPTIONS)
@pytest.mark.parametrize("size", [0, 5, 20 << 20])
def test_encryption_goes_with_every_put(options: dict[str, Any], sent: dict[str, str], size: int) -> None:
    value = bytes(size)
    with fake_s3() as server:
        blob = client_of(server, **{"sse_customer_key": None, **options})
        assert blob.create("a", value)
        assert not blob.create("a", value)
        blob.set("b", value)
        assert blob.get("b") == value
        blob.close()
        puts = [headers for method, headers in server.requests if method == "PUT"]
        (get,) = [headers for method, headers in server.requests if method == "GET"]
        assert len(puts) == 3 == len(server.requests) - 1, "no value is sent in several requests"
    start = "x-amz-server-side-encryption"
    expected = {f"{start}{rest}": value for rest, value in sent.items()}
    for headers in puts:
        found = {name: value for name, value in headers.items() if name.startswith(start) and "md5" not in name}
        assert found == expected
        assert headers[CHECKSUM]
    needed_to_read = {name: value for name, value in expected.items() if "customer" in name}
    assert {
        name: value for name, value in get.items() if name.startswith(start) and "md5" not in name
    } == needed_to_read


def test_the_options_reach_the_store_by_its_url() -> None:
    with fake_s3() as server:
        options = {"endpoint_url": server.url, "region": "us-east-1", **SECRETS}
        blob = open_blob("s3://bucket/prefix", options)
        blob.set("key", b"")
        assert server.requests[0][1]["x-amz-server-side-encryption-customer-key"] == CUSTOMER_KEY
        blob.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sse_customer_key": "c2hvcnQ="}, "not 32 bytes in base64"),
        ({"sse_customer_key": "not base64!"}, "not 32 bytes in base64"),
        ({"sse_customer_key": CUSTOMER_KEY, "server_side_encryption": "AES256"}, "exclude each other"),
    ],
)
def test_encryption_that_makes_no_sense_is_refused_without_showing_the_key(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidUsage, match=says) as raised:
        S3Options(**options)
    assert not [text for text in everything_shown(raised.value) if options.get("sse_customer_key", "-none-") in text]


FOREIGN = [
    "other/part/1",
    "prefix-of-another/part/1",
    "prefix",
    "prefix/",
    "prefix/part/",
    "prefix/list/1",
    "part/1",
    "/etc/passwd",
    "",
]


def test_a_listing_yields_no_key_outside_the_prefix_whatever_the_server_says() -> None:
    with fake_s3() as server:
        blob = client_of(server)
        server.listings.extend([[*FOREIGN, "prefix/part/1"], ["prefix/part/2", *FOREIGN]])
        assert [entry.key for entry in blob.list("part/")] == ["part/1", "part/2"]
        blob.close()


@pytest.mark.parametrize("name", ["prefix//part/1", "prefix/part/../../../etc/passwd", "prefix/part/./1"])
def test_an_object_whose_name_is_no_path_ends_a_listing_and_is_named(name: str) -> None:
    with fake_s3() as server:
        blob = client_of(server)
        server.listings.extend([["prefix/part/1", name]])
        with pytest.raises(StoreMisconfigured, match=f"{name}.*Move that object"):
            list(blob.list("part/"))
        blob.close()


def test_a_listing_out_of_order_or_that_goes_round_is_refused() -> None:
    with fake_s3() as server:
        blob = client_of(server)
        for pages in ([["prefix/b", "prefix/a"]], [["prefix/a", "prefix/b"]] * 100):
            server.listings.clear()
            server.listings.extend(pages)
            with pytest.raises(StoreMisconfigured, match="must come in the order of their bytes"):
                list(blob.list(""))
        server.listings.extend([["prefix/a"]])
        with pytest.raises(StoreMisconfigured, match="'a' after 'a'"):
            list(blob.list("", "a"))
        blob.close()


ESCAPES = ["../outside", "a/../../outside", "/etc/passwd", "a//b", "./a", "a/.", "..", "a\0b", "a\r\nHost: b", "\ud800"]


@pytest.mark.thorough(except_every=3)
@pytest.mark.parametrize("key", ESCAPES)
@pytest.mark.parametrize("kind", ["folder", "s3", "cached"])
def test_a_key_that_could_escape_is_refused_by_every_call_before_anything_is_sent(
    key: str, kind: str, tmp_path: Path
) -> None:
    with fake_s3() as server:
        if kind == "folder":
            blob: Blob = FileBlob(tmp_path / "location")
        elif kind == "s3":
            blob = client_of(server)
        else:
            blob = CachedBlob(client_of(server), folder=tmp_path / "cache", is_immutable=lambda key: True)
        calls: list[Callable[[], object]] = [
            lambda: blob.create(key, b""),
            lambda: blob.set(key, b""),
            lambda: blob.get(key),
            lambda: blob.get(key, (0, 1)),
            lambda: blob.delete(key),
            lambda: delete_all(blob, ["fine", key]),
        ]
        for call in calls:
            with pytest.raises(InvalidUsage, match="is not allowed"):
                call()
        assert server.requests == []
        blob.close()
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_outside_is_not_listed_by_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"")
    blob = FileBlob(tmp_path / "location")
    blob.set("key", b"")
    for prefix in ("../", "..", "/", "a/../../", str(tmp_path) + "/"):
        assert list(blob.list(prefix)) == []


def modes_in(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_folder_has_the_modes_it_is_told_to_have_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        open_blob(tmp_path / "alone").set("log/1", b"")
        shared = open_blob(tmp_path / "shared", {"file_mode": "0660", "folder_mode": "2770"})
        shared.create("log/1", b"")
        shared.set("log/1", b"again")
    finally:
        os.umask(before)
    assert modes_in(tmp_path / "alone") == {".": 0o700, "log": 0o700, "log/1": 0o600}
    assert modes_in(tmp_path / "shared") == {".": 0o2770, "log": 0o2770, "log/1": 0o660}
