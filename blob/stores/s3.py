"""A blob store in an S3 bucket, by boto3.

`create` is a PUT with `If-None-Match: *`. boto3 never retries here: it would repeat a PUT whose answer was lost,
and then take the 412 that its own first attempt caused for somebody else's win. Retries of all requests, and what
to do when S3 throttles, are in one place: `persist.blob.layers.retry`. What an error means for the caller is told by
`persist.blob.stores.s3_errors`.

Every PUT carries a CRC32 of its body, which S3 verifies before it stores anything, and boto3 again on a
whole GET.

One client per object; use from any number of threads, but not across `fork`: open the URL again in the
child.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints
from urllib.parse import quote

from msgspec import Meta

from persist.blob.errors import CorruptBlob, InvalidUsage, PersistError, StoreMisconfigured
from persist.blob.options import check_fields, read_options
from persist.blob.protocol import KEY_BYTES_MAX, BlobEntry, check_key, check_range, is_key
from persist.blob.stores.s3_errors import S3ErrorMap

S3_KEY_BYTES_MAX = 1024
CONNECTIONS_MAX = 64  # Sockets that are kept: enough for the threads of one client.
_NOT_IN_XML = frozenset("\ufffe\uffff")
_Text = Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """How to reach and use a bucket. What is None is left to boto3: environment, ~/.aws, instance role.

    Buckets of AWS are reached as hosts, and those of an `endpoint_url` by path, unless ~/.aws/config has another
    `addressing_style`.

    Attributes:
        endpoint_url: another server than AWS, such as `http://127.0.0.1:9000`.
        region: such as "eu-central-1".
        profile: a profile of ~/.aws/config.
        access_key_id, secret_access_key, session_token: credentials; never shown in messages.
        server_side_encryption: sent with every PUT.
        sse_kms_key_id: the KMS key to encrypt with.
        sse_customer_key: 32 bytes in base64 which S3 encrypts with and forgets ("SSE-C"), sent with every PUT and
            GET; who loses it loses the data. Instead of the two above; never shown in messages.
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
        scheme, separator, rest = (self.endpoint_url or "http://host").partition("://")
        if scheme not in ("http", "https") or not separator or not rest or "@" in rest:
            raise InvalidUsage(
                "storage option endpoint_url is not allowed: give http://host:port or https://host:port, "
                "without a user name or password"
            )

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> "S3Options":
        """Read options by name. InvalidUsage for an unknown name or a bad value."""
        return cls(**read_options(options, get_type_hints(cls, include_extras=True), "S3"))


class S3Blob:
    """The keys below `s3://bucket/prefix`. A value costs one request per call, a listing one per 1,000 keys.

    A value is one PUT, so at most 5 GB. The store must support conditional writes, as AWS S3 does.

    Args:
        bucket: its name.
        prefix: what keys start with, without a slash at either end; may be empty.
        options: see S3Options; a mapping is read as `S3Options.from_mapping` does.
        connect_timeout_s, read_timeout_s: how long to wait for a connection, and for the next bytes; then the request
            has failed.

    Raises:
        InvalidUsage: a prefix or option that is not allowed, or boto3 is not installed.
        StoreMisconfigured: a profile or region that does not exist. A bucket that does not exist and missing
            credentials show at the first request.
    """

    is_remote = True

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        options: S3Options | Mapping[str, Any] | None = None,
        *,
        connect_timeout_s: float = 3.0,
        read_timeout_s: float = 20.0,
    ) -> None:
        _check_place(bucket, prefix)
        self._bucket, self._prefix = bucket, prefix
        self._options = options if isinstance(options, S3Options) else S3Options.from_mapping(options or {})
        self._errors = S3ErrorMap(self.url, bucket, _secrets(self._options))
        self._client = self._connect(connect_timeout_s, read_timeout_s)
        self._with_get: dict[str, Any] = {}
        if (key := self._options.sse_customer_key) is not None:
            # boto3 encodes it again, and adds the checksum that S3 wants.
            self._with_get = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": base64.b64decode(key)}
        self._with_put: dict[str, Any] = {"ChecksumAlgorithm": "CRC32", **self._with_get}
        if self._options.server_side_encryption is not None:
            self._with_put["ServerSideEncryption"] = self._options.server_side_encryption
        if self._options.sse_kms_key_id is not None:
            self._with_put["SSEKMSKeyId"] = self._options.sse_kms_key_id

    def __repr__(self) -> str:
        return f"S3Blob({self.url!r}, {self._options!r})"

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        """Return the value at key or its bytes `[start, end)`; None when there is none."""
        where = self._where(key)
        if range is None:
            return self._get(key, where)
        start, end = check_range(range)
        # HTTP has no empty range, and whether the key exists must be found out all the same.
        value = self._get(key, {**where, "Range": f"bytes={start}-{max(start, end - 1)}"})
        return None if value is None else value[: end - start]

    def set(self, key: str, value: bytes) -> None:
        """Store value at key, replacing what was there."""
        where = self._where(key)
        try:
            self._client.put_object(**where, Body=value, **self._with_put)
        except Exception as error:
            raise self._errors.of_write("set", key, error) from self._errors.cause(error)

    def create(self, key: str, value: bytes) -> bool:
        """Store value at key if there is none; return whether this call stored it."""
        where = self._where(key)
        try:
            self._client.put_object(**where, Body=value, IfNoneMatch="*", **self._with_put)
        except Exception as error:
            # Some servers have a 304 for it, or codes of their own; and a 409 may be said of what is there for long.
            status = self._errors.status(error)
            if status in (304, 412) or (status == 409 and self._is_there(key, where)):
                return False
            raise self._errors.of_write("create", key, error) from self._errors.cause(error)
        return True

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[BlobEntry]:
        """Yield entries whose key starts with prefix, in key order, a page of 1,000 at a time."""
        base = self._full("")
        query: dict[str, Any] = {"Bucket": self._bucket, "Prefix": base + prefix}
        if start_after is not None:
            query["StartAfter"] = base + start_after
        while True:
            try:
                page = self._client.list_objects_v2(**query)
            except Exception as error:
                raise self._errors.of_read("list", prefix, error) from self._errors.cause(error)
            for entry in page.get("Contents", ()):
                key = entry["Key"].removeprefix(base)
                # Not so the empty objects that some tools make to stand for folders, nor what was not asked for.
                if entry["Key"].startswith(base + prefix) and is_key(key):
                    if start_after is not None and key <= start_after:
                        raise _out_of_order(self.url, key, start_after)
                    start_after = key
                    yield BlobEntry(key, entry["Size"], entry["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            query["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, key: str) -> None:
        """Remove key; a key that does not exist is no error."""
        where = self._where(key)
        try:
            self._client.delete_object(**where)
        except Exception as error:
            raise self._errors.of_write("delete", key, error) from self._errors.cause(error)

    def delete_page(self, keys: Sequence[str]) -> Mapping[str, PersistError]:
        """Remove up to 1,000 keys with one request; return those that may still be there, and why."""
        names = {self._full(check_key(key)): key for key in keys}
        # XML cannot say these two characters, which would spoil the request for all keys.
        unfit = [key for name, key in names.items() if not _NOT_IN_XML.isdisjoint(name)]
        objects = [{"Key": name} for name in names if _NOT_IN_XML.isdisjoint(name)]
        failed: dict[str, PersistError] = {}
        for key in unfit:
            self.delete(key)
        if not objects:
            return failed
        try:
            answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
        except Exception as error:
            raise self._errors.of_write("delete", keys[0], error) from self._errors.cause(error)
        for refusal in answer.get("Errors", ()):
            key = names.get(refusal.get("Key"), "")
            if key and refusal.get("Code") != "NoSuchKey":
                failed[key] = self._errors.of_deletion(key, refusal.get("Code", ""), refusal.get("Message", ""))
        return failed

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _get(self, key: str, query: Mapping[str, str]) -> bytes | None:
        try:
            answer = self._client.get_object(**query, **self._with_get)
            # `with` on the body itself gives the raw stream, which verifies neither length nor checksum.
            with closing(answer["Body"]) as body:
                value: bytes = body.read()
                return value
        except Exception as error:
            code = self._errors.code(error)
            if code == "NoSuchKey":
                return None
            if code == "InvalidRange":
                return b""  # The range begins at or beyond the end.
            if type(error).__name__ == "FlexibleChecksumError":
                raise CorruptBlob(
                    key, "S3 sent other bytes than those that its checksum was made of"
                ) from self._errors.cause(error)
            raise self._errors.of_read("get", key, error) from self._errors.cause(error)

    def _is_there(self, key: str, where: Mapping[str, str]) -> bool:
        """Return whether there is a value, as far as the store says."""
        try:
            return self._get(key, {**where, "Range": "bytes=0-0"}) is not None
        except PersistError:
            return False

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _where(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._full(check_key(key))}

    def _connect(self, connect_timeout_s: float, read_timeout_s: float) -> Any:
        """Return a client that never retries."""
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise InvalidUsage(
                f"{self.url} needs boto3, which is not installed: pip install 'boto3>=1.43.115'"
            ) from error
        options = self._options
        config = Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            max_pool_connections=CONNECTIONS_MAX,
            retries={"mode": "standard", "total_max_attempts": 1},
        )
        try:
            session = boto3.Session(
                aws_access_key_id=options.access_key_id,
                aws_secret_access_key=options.secret_access_key,
                aws_session_token=options.session_token,
                region_name=options.region,
                profile_name=options.profile,
            )
            return session.client("s3", endpoint_url=options.endpoint_url, config=config)
        except Exception as error:
            raise self._errors.of_setup(error) from self._errors.cause(error)


def _check_place(bucket: str, prefix: str) -> None:
    if not bucket.strip(".") or "/" in bucket or "@" in bucket:
        raise InvalidUsage(
            "the S3 bucket's name is missing or all dots, or has a '/' or '@' in it. Give the bucket alone; "
            "credentials go into the options access_key_id and secret_access_key."
        )
    if bucket.endswith("--x-s3"):
        raise StoreMisconfigured(
            f"bucket {bucket!r} is a directory bucket, which does not list keys in order. Use a general purpose bucket."
        )
    if prefix and not is_key(prefix):
        raise InvalidUsage(
            f"prefix {prefix[:80]!r} is not allowed: give segments joined by '/', none of them empty, "
            "'.' or '..', or longer than 200 bytes, without control characters"
        )
    longest = S3_KEY_BYTES_MAX - KEY_BYTES_MAX - 1
    if len(prefix.encode()) > longest:
        raise InvalidUsage(f"prefix {prefix[:40]!r}… is too long: at most {longest} bytes of UTF-8")


def _check_customer_key(key: str, encryption: str | None) -> None:
    try:
        length = len(base64.b64decode(key, validate=True))
    except ValueError:
        length = 0
    if length != 32:
        raise InvalidUsage("sse_customer_key is not 32 bytes in base64. Give one that is.")
    if encryption is not None:
        raise InvalidUsage(f"sse_customer_key and server_side_encryption={encryption!r} exclude each other")


def _secrets(options: S3Options) -> tuple[str, ...]:
    """Return what no text may show, as it is and as it stands in a URL."""
    given = (options.access_key_id, options.secret_access_key, options.session_token, options.sse_customer_key)
    return tuple(sorted({form for secret in given if secret for form in (secret, quote(secret, safe=""))}))


def _out_of_order(url: str, key: str, before: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"{url} lists {key[:80]!r} after {before[:80]!r}, and keys must come in the order of their bytes. Use a store "
        "that lists so, such as a general purpose bucket of S3."
    )
