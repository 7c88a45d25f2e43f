"""Credentials that expire: who asks for new ones, when, and that requests are signed with them."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ConnectTimeoutError, CredentialRetrievalError

from persist.blob.errors import Indeterminate, StoreMisconfigured, Unavailable
from persist.blob.stores.s3 import S3Blob
from tests.support.forks import forked_python
from tests.support.iam import Gate
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

ROLE = "arn:aws:iam::123456789012:role/writer"


class Role:
    """A session of boto3 that has the credentials of a role of moto's STS, new ones each time."""

    def __init__(self, endpoint_url: str) -> None:
        self.given: list[str] = []
        self.failing: Exception | None = None
        keys = {"aws_access_key_id": "user", "aws_secret_access_key": "secret"}
        self._sts = boto3.client("sts", endpoint_url=endpoint_url, region_name="us-east-1", **keys)

    def get_credentials(self) -> "Role":
        return self

    def get_frozen_credentials(self) -> Any:
        if self.failing is not None:
            raise self.failing
        token = self._sts.assume_role(RoleArn=ROLE, RoleSessionName="tests", DurationSeconds=900)["Credentials"]
        self.given.append(token["AccessKeyId"])
        values = {"access_key": token["AccessKeyId"], "secret_key": token["SecretAccessKey"]}
        return type("Frozen", (), {**values, "token": token["SessionToken"]})

    def close(self) -> None:
        self._sts.close()


def blob_of(role: Role, options: dict[str, Any], bucket: str) -> S3Blob:
    """Return a store that signs with what the role gives."""
    blob = S3Blob(bucket, "rotating", options)
    blob._place = replace(blob._place, session=role)
    return blob


def test_requests_of_many_threads_are_signed_with_one_token_while_it_lives(
    s3_options: dict[str, Any], bucket: str
) -> None:
    with closing(Gate(s3_options["endpoint_url"])) as gate, closing(Role(s3_options["endpoint_url"])) as role:
        options = {**s3_options, "endpoint_url": gate.url}
        with closing(blob_of(role, options, bucket)) as blob, ThreadPoolExecutor(4) as pool:
            assert blob.get("key") is None
            assert [*pool.map(lambda _: blob.create("key", b"value"), range(8))].count(True) == 1
            assert {*pool.map(blob.get, ["key"] * 8)} == {b"value"}
        assert len(role.given) == 1
        assert {call.role for call in gate.calls} == {*role.given}
        assert all(call.headers.get("x-amz-security-token") for call in gate.calls)


def test_a_token_whose_time_is_nearly_over_is_replaced_before_the_next_request(
    s3_options: dict[str, Any], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("persist.blob.stores.s3.CREDENTIALS_TTL", timedelta(minutes=4))
    with closing(Gate(s3_options["endpoint_url"])) as gate, closing(Role(s3_options["endpoint_url"])) as role:
        with closing(blob_of(role, {**s3_options, "endpoint_url": gate.url}, bucket)) as blob:
            for number in range(1000):  # obstore asks no more than ten times a second.
                assert blob.create(f"key/{number}", b"")
                assert gate.calls[-1].role == role.given[-1]
                if len(role.given) == 3:
                    return
        pytest.fail("no token was replaced")


def test_a_role_that_gives_nothing_any_more_fails_requests_before_they_are_sent(
    s3_options: dict[str, Any], bucket: str
) -> None:
    gone = CredentialRetrievalError(provider="sts", error_msg="the role is gone")
    away = ConnectTimeoutError(endpoint_url="http://sts")
    with closing(Role(s3_options["endpoint_url"])) as role, closing(blob_of(role, s3_options, bucket)) as blob:
        for role.failing, kind, text in (
            (gone, StoreMisconfigured, "the role is gone"),
            (away, Unavailable, "http://sts"),
        ):
            for call in (lambda: blob.get("key"), lambda: blob.create("other", b"")):
                with pytest.raises(kind, match=text):
                    call()
        role.failing = None
        assert blob.get("other") is None


def test_a_missing_file_of_credentials_is_not_an_absent_value() -> None:
    class Session:
        region_name = None

        def get_credentials(self) -> Any:
            raise FileNotFoundError(2, "there is none", "/web/token")

    class Empty(Session):
        def get_credentials(self) -> Any:
            return None

    keys = {"access_key_id": "identity", "secret_access_key": "secret"}
    with closing(S3Blob("bucket", "prefix", {"endpoint_url": "http://127.0.0.1:9", **keys})) as blob:
        blob._place = replace(blob._place, session=Session())
        for call in (lambda: blob.get("key"), lambda: blob.delete("key"), lambda: blob.create("key", b"")):
            with pytest.raises((Unavailable, Indeterminate), match="/web/token"):
                call()
        blob._place = replace(blob._place, session=Empty())
        with pytest.raises(StoreMisconfigured, match="no AWS credentials"):
            blob.get("key")


FORKED = """
import os, sys
from persist.blob.errors import InvalidUsage, PersistError
from persist.blob.stores.s3 import S3Blob
given = {"endpoint_url": "http://127.0.0.1:9", "region": "us-east-1", "access_key_id": "id", "secret_access_key": "s"}
def ask():
    try:
        S3Blob("bucket", "prefix", given).get("key")
    except PersistError as error:
        print(type(error).__name__, str(error)[-120:], flush=True)
ask()
if os.fork() == 0:
    ask()
    os._exit(0)
os.wait()
"""


@pytest.mark.thorough  # A new process signs with another one's credentials.
def test_a_forked_process_is_told_to_be_spawned() -> None:
    command = [*forked_python(), "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True)
    before, after = done.stdout.splitlines()
    assert before.startswith("Unavailable")
    assert after.startswith("InvalidUsage")
    assert "get_context('spawn')" in after
