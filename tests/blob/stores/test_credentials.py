"""Credentials that expire: who asks for new ones, when, and that requests are signed with them."""

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import boto3
import pytest
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

from persist.blob.errors import StoreMisconfigured
from persist.blob.stores.s3 import RENEW_EVERY_S, Credentials, S3Blob
from tests.support.forks import forked_python
from tests.support.iam import Gate
from tests.support.paths import ROOT
from tests.support.stepped import WAIT_S

LIFE_S = 900.0
ROLE = "arn:aws:iam::123456789012:role/writer"


class Role:
    """A role of moto's STS whose tokens live for a quarter of an hour of a clock that a test sets."""

    def __init__(self, endpoint_url: str) -> None:
        self.now_s = 0.0
        self.given: list[str] = []
        self.expires_s = 0.0
        self.fails = False
        keys = {"aws_access_key_id": "user", "aws_secret_access_key": "secret"}
        self._sts = boto3.client("sts", endpoint_url=endpoint_url, region_name="us-east-1", **keys)

    def refresh_needed(self, within_s: float) -> bool:
        return not self.given or self.expires_s - self.now_s <= within_s

    def get_frozen_credentials(self) -> Any:
        if self.fails:
            raise CredentialRetrievalError(provider="sts", error_msg="the role is gone")
        token = self._sts.assume_role(RoleArn=ROLE, RoleSessionName="tests", DurationSeconds=int(LIFE_S))["Credentials"]
        self.given.append(token["AccessKeyId"])
        self.expires_s = self.now_s + LIFE_S
        values = {"access_key": token["AccessKeyId"], "secret_key": token["SecretAccessKey"]}
        return type("Frozen", (), {**values, "token": token["SessionToken"]})

    def close(self) -> None:
        self._sts.close()


def blob_of(role: Role, options: dict[str, Any], bucket: str) -> S3Blob:
    """Return a store that signs with what the role gives."""
    blob = S3Blob(bucket, "rotating", options)
    blob._credentials = Credentials(lambda: role, lambda: role.now_s)
    return blob


def test_an_hour_of_requests_is_signed_with_tokens_that_have_not_expired(
    s3_options: dict[str, Any], bucket: str
) -> None:
    with closing(Gate(s3_options["endpoint_url"])) as gate, closing(Role(s3_options["endpoint_url"])) as role:
        options = {**s3_options, "endpoint_url": gate.url}
        with closing(blob_of(role, options, bucket)) as blob, ThreadPoolExecutor(4) as pool:
            for minute in range(60):
                role.now_s = minute * 60.0
                key = f"key/{minute}"
                assert [*pool.map(lambda _, key=key: blob.create(key, b"value"), range(2))].count(True) == 1
                assert blob.get(key) == b"value"
                assert role.expires_s > role.now_s
                assert gate.calls[-1].role == role.given[-1]
        assert len(role.given) == 6, "each was used until five minutes before its end"
        assert {call.role for call in gate.calls} == set(role.given)
        assert all(call.headers.get("x-amz-security-token") for call in gate.calls)


def test_many_threads_ask_for_one_token(s3_options: dict[str, Any]) -> None:
    with closing(Role(s3_options["endpoint_url"])) as role:
        credentials = Credentials(lambda: role, lambda: role.now_s)
        start = threading.Barrier(8)

        def ask(_: int) -> str:
            start.wait()
            return str(credentials.current()["access_key_id"])

        for now_s in (0.0, LIFE_S + 1):
            role.now_s = now_s
            with ThreadPoolExecutor(8) as pool:
                assert {*pool.map(ask, range(8))} == {role.given[-1]}
        assert len(role.given) == 2


def test_tokens_that_live_shorter_than_the_margin_are_not_asked_for_at_each_request(
    s3_options: dict[str, Any],
) -> None:
    with closing(Role(s3_options["endpoint_url"])) as role:
        credentials = Credentials(lambda: role, lambda: role.now_s)
        for number in range(60):
            role.now_s = float(number)
            credentials.current()
            role.expires_s = role.now_s + 100.0
        assert len(role.given) == 1 + 59 // RENEW_EVERY_S


def test_a_role_that_gives_nothing_any_more_fails_requests_before_they_are_sent(
    s3_options: dict[str, Any], bucket: str
) -> None:
    with closing(Role(s3_options["endpoint_url"])) as role, closing(blob_of(role, s3_options, bucket)) as blob:
        blob.set("key", b"value")
        role.now_s, role.fails = LIFE_S + 1, True
        for call in (lambda: blob.get("key"), lambda: blob.create("other", b"")):
            with pytest.raises(StoreMisconfigured, match="the role is gone"):
                call()
        role.fails = False
        assert blob.get("other") is None


def test_boto3_tells_when_its_credentials_expire() -> None:
    assert hasattr(RefreshableCredentials, "refresh_needed")


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


def test_a_forked_process_is_told_to_be_spawned() -> None:
    command = [*forked_python(), "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True)
    before, after = done.stdout.splitlines()
    assert before.startswith("Unavailable")
    assert after.startswith("InvalidUsage")
    assert "get_context('spawn')" in after
