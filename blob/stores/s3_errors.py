"""What an error of boto3 means: the caller's mistake, nothing happened, or the outcome is unknown.

A write is Unavailable only if S3 said itself that it stored nothing (an answer with an S3 error code that
means so) or if no connection came about. A 5xx, a dropped connection, a timeout, or an answer by something
in between (which has no S3 error code) leaves the outcome open: Indeterminate. So does any error of a
request that boto3 sent again all the same (it follows a bucket to its region), because the attempt before the
last may have been the one that landed.
"""

from dataclasses import dataclass, field
from typing import Any

from persist.blob.errors import (
    Indeterminate,
    PersistError,
    StoreFull,
    StoreMisconfigured,
    Throttled,
    Unavailable,
    limit_behind,
)

# S3 refused before doing anything because requests come too fast.
_THROTTLED = {
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "BandwidthLimitExceeded",
}
# S3 refused before doing anything, and the same request may succeed later.
_REFUSED_FOR_NOW = {
    *_THROTTLED,
    "ConditionalRequestConflict",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
}
_TIMED_OUT = ("ReadTimeoutError", "ConnectTimeoutError")
_NO_CONNECTION = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError")
_NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "NoAuthTokenError",
    "TokenRetrievalError",
    "SSOError",
    "LoginError",
    "UnknownCredentialError",
)
_BAD_SETUP = (
    "ValidationError",
    "ParamValidationError",
    "BaseEndpointResolverError",
    "NoRegionError",
    "InvalidRegionError",
    "ProfileNotFound",
    "ConfigParseError",
    "ConfigNotFound",
    "EndpointProviderError",
)
_ADVICE = {
    "NoSuchBucket": "Create the bucket, or correct the URL, region or endpoint.",
    "AccessDenied": (
        "Grant these credentials s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket (without the "
        "last, S3 answers so for a key that does not exist, too)."
    ),
    "NotImplemented": "The store must support conditional writes (If-None-Match): use one that does.",
    "RequestTimeTooSkewed": "Set this machine's clock.",
    "InvalidRequest": (
        "If the storage options ask for encryption: some servers, such as Ceph RGW, do that over https:// only, or not "
        "at all. Leave those options out, or correct the URL or the bucket's set-up."
    ),
    "InvalidAccessKeyId": "Correct the credentials.",
    "SignatureDoesNotMatch": "Correct the credentials.",
    "ExpiredToken": "Renew the credentials and open the location again.",
    "InvalidObjectState": "The object was moved to an archive storage class: restore it.",
}


@dataclass(frozen=True, slots=True)
class S3ErrorMap:
    """Turns an exception of boto3 into one of ours, whose message names the store and never a secret."""

    url: str
    bucket: str
    secrets: tuple[str, ...] = field(repr=False)

    def code(self, error: Exception) -> str:
        """Return the S3 error code of an answer, '' for any other exception."""
        return str(_response(error).get("Error", {}).get("Code", ""))

    def status(self, error: Exception) -> int:
        """Return the HTTP status of an answer, 0 for any other exception."""
        return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

    def of_setup(self, error: Exception) -> PersistError:
        """Return what to raise when no client can be made."""
        return StoreMisconfigured(f"cannot use {self.url}: {self._text(error)}. Correct the storage options.")

    def of_read(self, action: str, key: str, error: Exception) -> PersistError:
        """Return what to raise for a get or list that failed."""
        what = f"cannot {action} {key!r} at {self.url}"
        return self._misconfigured(what, error) or self._unavailable(
            what, error, "Check that the store is up and reachable, then try again."
        )

    def of_write(self, action: str, key: str, error: Exception) -> PersistError:
        """Return what to raise for a set, create or delete that failed, and was sent once."""
        what = f"cannot {action} {key!r} at {self.url}"
        if self._did_nothing(error):
            return self._misconfigured(what, error) or self._unavailable(
                what, error, "Nothing was changed; try again after a pause."
            )
        doubt = Indeterminate(
            f"{action} of {key!r} at {self.url} got no clear answer: {self._text(error)}. It may or may not "
            "have happened: read the key before trying again."
        )
        doubt.timed_out = _is_a(error, _TIMED_OUT)
        return doubt

    def of_deletion(self, key: str, code: str, message: str) -> PersistError:
        """Return what became of one key of many that were to be deleted by one request."""
        what = f"cannot delete {key!r} at {self.url}: {self._redacted(f'{code}: {message}'.rstrip('.'))}"
        if code in _THROTTLED:
            return Throttled(f"{what}. Try again after a pause.")
        if code in _ADVICE:
            return StoreMisconfigured(f"{what}. {_ADVICE[code]}")
        return Unavailable(f"{what}. Try again after a pause.")

    def cause(self, error: Exception) -> Exception | None:
        """Return error as the cause of what is raised instead; None when its text would show a secret."""
        return error if self._redacted(text := str(error)) == text else None

    def _unavailable(self, what: str, error: Exception, advice: str) -> Unavailable:
        if limit := limit_behind(error):
            return StoreFull(f"{what}: {limit}, then try again. Nothing was changed. ({self._text(error)})")
        text = f"{what}: {self._text(error)}. {advice}"
        failure = Throttled(text) if self.code(error) in _THROTTLED else Unavailable(text)
        failure.timed_out = _is_a(error, _TIMED_OUT)
        return failure

    def _did_nothing(self, error: Exception) -> bool:
        if _is_a(error, (*_NO_CREDENTIALS, *_BAD_SETUP, *_NO_CONNECTION)) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        metadata = _response(error).get("ResponseMetadata", {})
        if not metadata or metadata.get("RetryAttempts", 0):
            return False
        code, status = self.code(error), self.status(error)
        if status == 501:
            return True  # Whoever says so, S3 or a proxy, does not know how to do it.
        answered_by_s3 = bool(code) and not code.isdigit()
        return answered_by_s3 and (code in _REFUSED_FOR_NOW or 300 <= status < 500)

    def _misconfigured(self, what: str, error: Exception) -> StoreMisconfigured | None:
        """Return the error for the caller's mistakes, None for all that may pass."""
        code, status = self.code(error), self.status(error)
        if code == "NoSuchBucket":
            return StoreMisconfigured(f"{what}: bucket {self.bucket!r} does not exist. {_ADVICE[code]}")
        if _is_a(error, _NO_CREDENTIALS):
            return StoreMisconfigured(
                f"{what}: no AWS credentials ({self._text(error)}). Give storage options access_key_id and "
                "secret_access_key, or profile, or set up credentials as for the aws command."
            )
        if _is_a(error, _BAD_SETUP) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return StoreMisconfigured(f"{what}: {self._text(error)}. Correct the URL or the storage options.")
        if code in _REFUSED_FOR_NOW or status in (409, 429) or not (300 <= status < 500 or status == 501):
            return None
        advice = _ADVICE.get(
            "NotImplemented" if status == 501 else code, "Correct the URL, the storage options or the bucket's set-up."
        )
        return StoreMisconfigured(f"{what}: {self._text(error)}. {advice}")

    def _text(self, error: Exception) -> str:
        answer = _response(error).get("Error", {})
        text = f"{type(error).__name__}: {error}"
        if answer:
            text = f"{answer.get('Code')}: {answer.get('Message')}"
        return self._redacted(text).rstrip(".")

    def _redacted(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def _response(error: Exception) -> dict[str, dict[str, Any]]:
    response = getattr(error, "response", None)
    return response if isinstance(response, dict) else {}


def _is_a(error: Exception, names: tuple[str, ...]) -> bool:
    """Tell by class name, so that this module does not import botocore."""
    return any(cls.__name__ in names for cls in type(error).__mro__)
