"""What a store behind fsspec does with servers that lie, and with values and options that do not fit."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import persist
from persist.blob.errors import InvalidUsage, StoreMisconfigured
from persist.blob.stores.fsspec import S3_PUT_BYTES_MAX, FsspecBlob
from tests.support.clocks import ImpatientClock
from tests.support.servers.hostile_s3 import MISREAD, HostileS3, Lie, hostile_s3, swapped


def s3fs_options(s3_options: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "key": s3_options["access_key_id"],
        "secret": s3_options["secret_access_key"],
        "client_kwargs": {"endpoint_url": s3_options["endpoint_url"], "region_name": s3_options["region"]},
        **more,
    }


@pytest.fixture
def hostile() -> Iterator[HostileS3]:
    with hostile_s3() as server:
        yield server


def lying(server: HostileS3) -> FsspecBlob:
    options = {"endpoint_url": server.lying_url, "region": "us-east-1", "access_key_id": "k", "secret_access_key": "s"}
    return FsspecBlob("s3://bucket/prefix", s3fs_options(options))


class Vast(bytes):
    """A value of more bytes than it takes."""

    def __len__(self) -> int:
        return S3_PUT_BYTES_MAX


def test_a_value_too_large_for_one_put_is_refused(hostile: HostileS3) -> None:
    with pytest.raises(InvalidUsage, match=r"'vast' .* 5,368,709,120 bytes.* one PUT.*Nothing was written"):
        lying(hostile).create("vast", Vast())
    assert not hostile.requests


@pytest.mark.parametrize("lie", swapped("PUT", 412, (501, "NotImplemented"), (501, "")), ids=lambda lie: lie.name)
def test_a_store_without_conditional_writes_is_refused_at_once(hostile: HostileS3, lie: Lie) -> None:
    clock = ImpatientClock()
    with persist.open(lying(hostile), clock=clock, settings=persist.Settings(background=False)) as client:
        hostile.lie = Lie(lie.name, {"if-match": "*"}, "PUT", 412, lie.told, lie.code)  # Nor is it stored.
        with pytest.raises(StoreMisconfigured, match=r"fsspec\+s3://bucket/prefix.*conditional writes"):
            client.create_or_load("orders", key={"k": pa.int64()})
    assert clock.monotonic_s() < 1.0


def test_an_s3fs_store_that_overwrites_is_refused_before_the_first_acknowledgement(hostile: HostileS3) -> None:
    hostile.lie = MISREAD[0]
    with (
        persist.open(lying(hostile), settings=persist.Settings(background=False)) as client,
        pytest.raises(StoreMisconfigured, match=r"fsspec\+s3://bucket/prefix overwrites"),
    ):
        client.create_or_load("orders", key={"k": pa.int64()})


def test_options_that_do_not_fit_are_named_without_their_values() -> None:
    with pytest.raises(InvalidUsage, match="github file system with storage options token, username") as raised:
        FsspecBlob("github://path", {"username": "me", "token": "hunter2"})

    assert "hunter2" not in str(raised.value)
