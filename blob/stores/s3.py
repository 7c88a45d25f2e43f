"""A blob store in an S3 bucket: obstore moves the bytes, boto3 finds the bucket's address and the credentials.

boto3 makes no request to S3. It reads the environment, ~/.aws and the roles of the machine as the `aws` command does,
and renews a role's credentials before they expire. obstore uses them for five minutes (`obstore.auth.boto3`), then
fetches them from boto3 again, which only returns credentials that live for another ten minutes.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import quote

from msgspec import Meta

from persist.blob.errors import InvalidUsage, PersistError, StoreMisconfigured
from persist.blob.options import check_fields, read_options
from persist.blob.protocol import check_key, delete_one_by_one
from persist.blob.stores.object_errors import ObjectErrorMap
from persist.blob.stores.objects import (
    ATTEMPT_S,
    CONNECT_TIMEOUT_S,
    READ_TIMEOUT_S,
    ObjectBlob,
    make_missing_packages_error,
)

CREDENTIALS_TTL = timedelta(minutes=10)  # obstore fetches them again when five minutes of it remain.
RIGHTS = (
    "Grant these credentials s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket (without the "
    "last, S3 answers so for a key that does not exist, too)."
)
_NOT_IN_XML = frozenset("\ufffe\uffff")
_Text = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """How to reach and use a bucket. boto3 chooses every option that is None: environment, ~/.aws, instance role.

    Buckets of AWS have host names, and those of an `endpoint_url` have paths, unless ~/.aws/config sets another
    `addressing_style`.

    Attributes:
        endpoint_url: another server than AWS, such as `http://127.0.0.1:9000`.
        region: such as "eu-central-1".
        profile: a profile of ~/.aws/config.
        access_key_id, secret_access_key, session_token: credentials; never shown in messages.
        server_side_encryption: sent with every PUT.
        sse_kms_key_id: the KMS key to encrypt with.
        sse_customer_key: 32 bytes in base64 which S3 encrypts with and forgets ("SSE-C"), sent with every PUT and
            GET; without it, the data is lost. Instead of the two options above; never shown in messages.
    """

    endpoint_url: _Text | None = None
    region: _Text | None = None
    profile: _Text | None = None
    access_key_id: _Text | None = field(default=None, repr=False)
    secret_access_key: _Text | None = field(default=None, repr=False)
    session_token: _Text | None = field(default=None, repr=False)
    server_side_encryption: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = None
    sse_kms_key_id: _Text | None = None
    sse_customer_key: _Text | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sse_kms_key_id and not (self.server_side_encryption or "").startswith("aws:kms"):
            raise InvalidUsage('sse_kms_key_id is given without server_side_encryption="aws:kms". Give both or none.')
        if self.sse_customer_key is not None:
            _check_customer_key(self.sse_customer_key, self.server_side_encryption)
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise InvalidUsage("access_key_id and secret_access_key belong together. Give both or none.")
        scheme, separator, host = (self.endpoint_url or "http://host").partition("://")
        if scheme not in ("http", "https") or not separator or not host or "@" in host:
            raise InvalidUsage(
                "storage option endpoint_url is not allowed: give http://host:port or https://host:port, "
                "without a user name or password"
            )

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> "S3Options":
        """Read options by name. InvalidUsage for an unknown name or a bad value."""
        return cls(**read_options(options, get_type_hints(cls, include_extras=True), "S3"))


class S3Blob(ObjectBlob):
    """The keys below `s3://bucket/prefix`. The store must support conditional writes, as AWS S3 does.

    Args:
        bucket: its name.
        prefix: the beginning of all keys, without a slash at either end; may be empty.
        options: see S3Options; a mapping is read as `S3Options.from_mapping` does.
        connect_timeout_s, read_timeout_s: how long to wait for a connection, and for the next bytes; then the request
            has failed.
        attempt_s: how long a request may take with its whole answer.

    Raises:
        InvalidUsage: a prefix or option that is not allowed, or obstore or boto3 is not installed.
        StoreMisconfigured: a profile or region that does not exist. A bucket that does not exist and missing
            credentials show at the first request.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: S3Options | Mapping[str, Any] | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        attempt_s: float = ATTEMPT_S,
    ) -> None:
        _check_bucket(bucket)
        self._bucket = bucket
        self._options = options if isinstance(options, S3Options) else S3Options.from_mapping(options or {})
        url = f"s3://{bucket}/{prefix}".rstrip("/")
        errors = ObjectErrorMap(url, f"bucket {bucket!r}", RIGHTS, _list_secrets(self._options))
        super().__init__(url, prefix, errors, connect_timeout_s, read_timeout_s, attempt_s)
        try:
            self._place = _find_bucket(bucket, self._options)
        except ImportError as error:
            raise make_missing_packages_error(self.url) from error
        except Exception as error:
            raise self._errors.map_setup_error(error) from self._errors.choose_cause(error)

    def __repr__(self) -> str:
        return f"S3Blob({self.url!r}, {self._options!r})"

    def delete_page(self, keys: Sequence[str]) -> Mapping[str, PersistError]:
        """Remove up to 1,000 keys with one request; return the keys that may remain, and why.

        obstore names only one of the refused keys. So if there are some, each key is deleted by itself.
        """
        # XML cannot express these two characters, which would spoil the request for all keys.
        alone = [key for key in keys if not _NOT_IN_XML.isdisjoint(self._base + check_key(key))]
        together = [key for key in keys if key not in alone]
        failed = delete_one_by_one(self, alone)
        try:
            if together:
                self._obstore.delete(self._choose_client(is_for_pages=True), [self._base + key for key in together])
        except Exception as error:
            if self._errors.is_partial(error):
                return {**failed, **delete_one_by_one(self, together)}
            if not self._errors.is_success(error):
                raise self._errors.map_write_error("delete", keys[0], error) from self._errors.choose_cause(error)
            self._confirm_deletion(keys[0])
        return failed

    def _connect(self, client_options: dict[str, Any], is_for_pages: bool) -> Any:
        """Return obstore's S3 store with the bucket's address and credentials."""
        options, encryption = self._options, self._options.server_side_encryption
        config = {
            "server_side_encryption": "sse-c" if options.sse_customer_key else encryption,
            "sse_kms_key_id": options.sse_kms_key_id,
            "sse_customer_key_base64": options.sse_customer_key,
        }
        return self._obstore.store.S3Store(
            self._bucket,
            config={
                **self._place.config,
                **{name: value for name, value in config.items() if value is not None},
                "checksum_algorithm": "SHA256",
                "conditional_put": "etag",
                "disable_bulk_delete": not is_for_pages,
                "skip_signature": False,  # The environment must not configure obstore past boto3.
                "unsigned_payload": False,
                "s3_express": False,
            },
            client_options={**client_options, **self._place.client_options},
            retry_config={"max_retries": 0},
            credential_provider=self._place.make_credential_provider(),
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """How to reach a bucket: settings for obstore, and boto3's session."""

    config: Mapping[str, Any]
    client_options: Mapping[str, Any]
    session: Any

    def make_credential_provider(self) -> Any:
        """Return obstore's source of credentials; raise NoCredentialsError without any."""
        from botocore.exceptions import NoCredentialsError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            return Boto3CredentialProvider(self.session, ttl=CREDENTIALS_TTL)
        except ValueError as error:
            raise NoCredentialsError from error


def _find_bucket(bucket: str, options: S3Options) -> _Place:
    """Find a bucket's address and credentials by boto3 and its settings."""
    import boto3
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    core = botocore.session.Session(profile=options.profile)
    session = boto3.Session(
        aws_access_key_id=options.access_key_id,
        aws_secret_access_key=options.secret_access_key,
        aws_session_token=options.session_token,
        region_name=options.region,
        botocore_session=core,
    )
    client = session.client("s3", endpoint_url=options.endpoint_url, config=Config(signature_version=UNSIGNED))
    try:
        url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"})
        region = client.meta.region_name
    finally:
        client.close()
    endpoint = url.partition("?")[0].removesuffix("/key")
    config = {
        # It has the bucket already, in the host or in the path.
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "virtual_hosted_style_request": True,
        "region": "us-east-1" if region in (None, "aws-global") else region,
    }
    certificates = core.get_config_variable("ca_bundle")
    client_options = {"root_certificate": Path(certificates).read_bytes()} if certificates else {}
    return _Place(config, client_options, session)


def _check_bucket(bucket: str) -> None:
    """Raise an error for the name of an unusable bucket."""
    if not bucket.strip(".") or "/" in bucket or "@" in bucket:
        raise InvalidUsage(
            "the S3 bucket's name is missing or all dots, or has a '/' or '@' in it. Give the bucket alone; "
            "credentials go into the options access_key_id and secret_access_key."
        )
    if bucket.endswith("--x-s3"):
        raise StoreMisconfigured(
            f"bucket {bucket!r} is a directory bucket, which does not list keys in order. Use a general purpose bucket."
        )


def _check_customer_key(key: str, encryption: str | None) -> None:
    """Raise InvalidUsage for an invalid key of SSE-C."""
    try:
        length = len(base64.b64decode(key, validate=True))
    except ValueError:
        length = 0
    if length != 32:
        raise InvalidUsage("sse_customer_key is not 32 bytes in base64. Give one that is.")
    if encryption is not None:
        raise InvalidUsage(f"sse_customer_key and server_side_encryption={encryption!r} exclude each other")


def _list_secrets(options: S3Options) -> tuple[str, ...]:
    """Return the texts that must not appear in messages, plain and quoted for URLs."""
    secrets = (options.access_key_id, options.secret_access_key, options.session_token, options.sse_customer_key)
    return tuple(sorted({form for secret in secrets if secret for form in (secret, quote(secret, safe=""))}))
