"""What obstore is told of a bucket, and in what requests many keys are deleted."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from persist.blob.errors import Indeterminate
from persist.blob.stores.s3 import S3Blob

KEYS = {"access_key_id": "identity", "secret_access_key": "a/secret"}
CUSTOMER_KEY = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.mark.parametrize(
    ("options", "endpoint", "region", "more"),
    [
        ({}, "https://bucket.s3.amazonaws.com", "us-east-1", {}),
        ({"region": "eu-central-1"}, "https://bucket.s3.amazonaws.com", "eu-central-1", {}),
        ({"endpoint_url": "http://h:1", "region": "r"}, "http://h:1/bucket", "r", {}),
        ({"server_side_encryption": "AES256"}, "", "us-east-1", {"server_side_encryption": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k"},
            *("", "us-east-1", {"server_side_encryption": "aws:kms", "sse_kms_key_id": "k"}),
        ),
        (
            {"sse_customer_key": CUSTOMER_KEY},
            *("", "us-east-1", {"server_side_encryption": "sse-c", "sse_customer_key_base64": CUSTOMER_KEY}),
        ),
    ],
    ids=str,
)
def test_the_store_is_set_up_by_options_alone_and_never_retries(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    options: dict[str, str],
    endpoint: str,
    region: str,
    more: dict[str, str],
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    made = list[Any]()
    monkeypatch.setattr("obstore.store.S3Store", lambda bucket, **given: made.append((bucket, given)))
    blob = S3Blob("bucket", "at", {**KEYS, **options}, connect_timeout_s=1.0, read_timeout_s=2.0, attempt_s=4.0)
    is_for_pages = not more
    blob._choose_client(is_for_pages=is_for_pages)
    ((bucket, given),) = made
    assert (bucket, given["retry_config"]) == ("bucket", {"max_retries": 0})
    config = given["config"]
    assert config["endpoint"] == config["aws_endpoint_url_s3"]
    assert config["endpoint"] == endpoint or not endpoint
    assert {name: value for name, value in config.items() if "endpoint" not in name} == {
        "virtual_hosted_style_request": True,
        "region": region,
        "checksum_algorithm": "SHA256",
        "conditional_put": "etag",
        "disable_bulk_delete": not is_for_pages,
        "skip_signature": False,
        "unsigned_payload": False,
        "s3_express": False,
        **more,
    }
    seconds = {name: timedelta(seconds=s) for name, s in (("connect_timeout", 1), ("read_timeout", 2), ("timeout", 4))}
    assert given["client_options"] == {**seconds, "allow_http": True}
    credentials = given["credential_provider"]()
    assert (credentials["access_key_id"], credentials["secret_access_key"]) == ("identity", "a/secret")
    assert blob._errors.secrets == tuple(
        sorted(
            {
                "a/secret",
                "a%2Fsecret",
                "identity",
                *(CUSTOMER_KEY, f"{CUSTOMER_KEY[:-1]}%3D") * ("customer" in str(more)),
            }
        )
    )


def test_a_bundle_of_certificates_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "authorities").write_bytes(b"pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "authorities"))
    assert S3Blob("bucket", "a" * 123, KEYS)._place.client_options == {"root_certificate": b"pem"}


PARTIAL, LOST = Exception("DeleteObjects request failed for key a"), Exception("lost")
DONE = Exception("InvalidDeleteObjectsResponse `$value`")


@pytest.mark.parametrize(
    ("keys", "answers", "calls", "failed"),
    [
        (["a", "b"], [None], [["at/a", "at/b"]], {}),
        (["a", "\uffff", "b"], [None, None], ["at/\uffff", ["at/a", "at/b"]], {}),
        (["\ufffe"], [LOST], ["at/\ufffe"], {"\ufffe": Indeterminate}),
        (["a", "b"], [PARTIAL, None, LOST], [["at/a", "at/b"], "at/a", "at/b"], {"b": Indeterminate}),
        (["a", "b"], [DONE], [["at/a", "at/b"]], {}),
        (["a", "b"], [LOST], [["at/a", "at/b"]], Indeterminate),
    ],
)
def test_many_keys_are_one_request_and_refused_ones_are_tried_alone(
    keys: list[str], answers: list[Any], calls: list[Any], failed: Any
) -> None:
    blob, asked = S3Blob("bucket", "at", KEYS), list[Any]()

    def delete(client: Any, paths: Any) -> None:
        asked.append(paths)
        if (answer := answers.pop(0)) is not None:
            raise answer

    blob._choose_client = lambda *_, **__: None  # type: ignore[method-assign]
    blob._confirm_deletion = lambda key: None  # type: ignore[method-assign]
    blob._obstore = SimpleNamespace(delete=delete)
    if isinstance(failed, dict):
        assert {key: type(error) for key, error in blob.delete_page(keys).items()} == failed
    else:
        with pytest.raises(failed, match="'a'"):
            blob.delete_page(keys)
    assert sorted(map(str, asked)) == sorted(map(str, calls))
