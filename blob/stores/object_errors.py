"""Maps errors of obstore and boto3: the caller's mistake, nothing happened, or the outcome is unknown.

A write is Unavailable only if no connection was made, or if the store itself answered with an error code that means
that it stored nothing. A 5xx, a dropped connection, a timeout, or an answer of a proxy (which has no such code) leaves
the outcome open: Indeterminate.

obstore's classes of errors distinguish objects that exist already. They have no status and no error code of the store:
409 and 412 have one class, and 400, 416, 429 and all 5xx have another. The text has both: a message with the status and
body of the answer, then what Rust prints of its structures. This is the one place that reads it. If the text is not
understood, a write may have happened. boto3 provides credentials; the names of its classes show what its errors mean,
and obstore's text has them.
"""

import os
import re
from dataclasses import dataclass, field
from typing import ClassVar

from persist.blob.errors import (
    FULL,
    Indeterminate,
    InvalidUsage,
    PersistError,
    StoreFull,
    StoreMisconfigured,
    Throttled,
    Unavailable,
    find_exceeded_limit,
    redact,
)

BODY_SHOWN_CHARACTERS = 300
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_NO_CONNECTION = re.compile(r"legacy::Error\(\s*Connect\b")
_OS_CODE = re.compile(r"Os \{\s*code: (\d+)")
_NO_TOKEN = re.compile(r"External AWS credential provider: ((\w+): [^\n]*)")  # The request was not sent.
_REASON = re.compile(r'message: "([^"]*)"|(TimedOut|IncompleteMessage|dns error|InvalidCertificate\([^)]*\))')

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
# Names of boto3's errors that a correction of the set-up mends; the others may pass.
_NO_CREDENTIALS = re.compile("Credential|Token|SSO|Login")
_BAD_SETUP = re.compile("Validation|Parameter|Region|Profile|Config|Endpoint(?!Connection)")
_ADVICE = {
    "NoSuchBucket": "Create it, or correct the URL, region or endpoint.",
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
class Answer:
    """The answer of a server.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        code: the store's error code, such as "SlowDown"; '' without one.
        text: the part to show in messages.
    """

    status: int
    code: str
    text: str


class ForkedProcess(Exception):
    """obstore is unusable: this process was forked from one that used it."""


@dataclass(frozen=True, slots=True)
class ObjectErrorMap:
    """Turns exceptions of obstore or boto3 into ours, whose messages name the store and never a secret.

    Attributes:
        place: the name of the bucket or container in messages, such as "bucket 'mine'".
        rights: advice for denied access.
    """

    url: str
    place: str
    rights: str
    secrets: tuple[str, ...] = field(repr=False)

    not_ours: ClassVar[str] = "Correct the URL, the storage options or the bucket's set-up."

    def parse_answer(self, error: Exception) -> Answer:
        """Return the server's answer, from the text of an error."""
        printed, _, _ = str(error).partition("\n\nDebug source")
        status = _STATUS.search(printed)
        if status is None:
            return Answer(0, "", "")
        code, message = _CODE.search(printed), _MESSAGE.search(printed)
        body = printed[status.end() :].strip(" :")[:BODY_SHOWN_CHARACTERS]
        text = f"{code[1]}: {message[1] if message else ''}" if code else f"HTTP {status[1]} {body}"
        return Answer(int(status[1]), code[1] if code else "", text)

    def is_absent(self, error: Exception) -> bool:
        """Return whether the server reported that the object is missing but the bucket exists."""
        answer = self.parse_answer(error)  # A missing file of credentials has the same class, and no status.
        return answer.status == 404 and answer.code != "NoSuchBucket"

    def is_success(self, error: Exception) -> bool:
        """Return whether the server reported success that obstore did not understand."""
        return "MissingEtag" in (text := str(error)) or ("InvalidDeleteObjectsResponse" in text and "`$value`" in text)

    def map_setup_error(self, error: Exception) -> PersistError:
        """Return the error to raise when no client can be made."""
        return StoreMisconfigured(f"cannot use {self.url}: {self._format_error(error)}. Correct the storage options.")

    def map_read_error(self, action: str, key: str, error: Exception) -> PersistError:
        """Return the error to raise for a get or list that failed."""
        what = f"cannot {action} {key!r} at {self.url}"
        return self._find_misconfiguration(what, error) or self._make_unavailable(
            what, error, "Check that the store is up and reachable, then try again."
        )

    def map_write_error(self, action: str, key: str, error: Exception) -> PersistError:
        """Return the error to raise for a set, create or delete that failed, and was sent once."""
        what = f"cannot {action} {key!r} at {self.url}"
        if self._had_no_effect(error):
            return self._find_misconfiguration(what, error) or self._make_unavailable(
                what, error, "That object is unchanged; try again after a pause."
            )
        doubt = Indeterminate(
            f"{action} of {key!r} at {self.url} got no clear answer: {self._format_error(error)}. It may or may not "
            "have happened: read the key before trying again."
        )
        doubt.timed_out = _has_timed_out(error)
        return doubt

    def is_partial(self, error: Exception) -> bool:
        """Return whether a bulk deletion failed for some objects only."""
        text = str(error)
        is_answer = "Server returned error response: " in text and "<Key>" in text
        return is_answer or "DeleteObjects request failed for key " in text

    def choose_cause(self, error: Exception) -> Exception | None:
        """Return an error to use as the cause of our error; None if its text would show a secret."""
        return error if redact(text := str(error), self.secrets) == text else None

    def _make_unavailable(self, what: str, error: Exception, advice: str) -> Unavailable:
        """Return the error for a call that did nothing."""
        if limit := _find_local_limit(error):
            return StoreFull(
                f"{what}: {limit}, then try again. That object is unchanged. ({self._format_error(error)})"
            )
        text = f"{what}: {self._format_error(error)}. {advice}"
        failure = Throttled(text) if self.parse_answer(error).code in _THROTTLED else Unavailable(text)
        failure.timed_out = _has_timed_out(error)
        return failure

    def _had_no_effect(self, error: Exception) -> bool:
        """Return whether a failed write certainly changed nothing."""
        is_unsigned = type(error).__module__.partition(".")[0] == "botocore"  # It sends nothing to the store.
        if is_unsigned or isinstance(error, ForkedProcess) or _NO_CONNECTION.search(str(error)):
            return True
        if _NO_TOKEN.search(str(error)):
            return True
        answer = self.parse_answer(error)
        if answer.status == 501:
            return True  # The store or a proxy cannot do this.
        return bool(answer.code) and (answer.code in _REFUSED_FOR_NOW or 300 <= answer.status < 500)

    def _find_misconfiguration(self, what: str, error: Exception) -> InvalidUsage | None:
        """Return the error of a mistake; None if a retry may succeed."""
        if isinstance(error, ForkedProcess):
            return InvalidUsage(
                f"{what}: this process was forked from one that had used a store in the cloud, whose threads did not "
                "come along. Start it by spawn or forkserver: multiprocessing.get_context('spawn')."
            )
        answer = self.parse_answer(error)
        code, status = answer.code, answer.status
        if code == "NoSuchBucket":
            return StoreMisconfigured(f"{what}: {self.place} does not exist. {_ADVICE[code]}")
        no_token = _NO_TOKEN.search(str(error))
        name = no_token[2] if no_token else type(error).__name__
        if _NO_CREDENTIALS.search(name):
            return StoreMisconfigured(
                f"{what}: no AWS credentials ({self._format_error(error)}). Give storage options access_key_id and "
                "secret_access_key, or profile, or set up credentials as for the aws command."
            )
        text = str(error)
        if _BAD_SETUP.search(name) or "InvalidCertificate" in text or "UnknownIssuer" in text:
            return StoreMisconfigured(f"{what}: {self._format_error(error)}. Correct the URL or the storage options.")
        if "redirect without LOCATION" in text:
            return StoreMisconfigured(f"{what}: {self.place} is in another region. Give the storage option region.")
        if name == "InvalidPathError":
            return StoreMisconfigured(
                f"{what}: {text.partition(chr(10))[0]}. Move that object elsewhere, or keep the location below a "
                "prefix of its own."
            )
        if code in _REFUSED_FOR_NOW or status in (409, 429) or not (300 <= status < 500 or status == 501):
            return None
        advice = _ADVICE.get("NotImplemented" if status == 501 else code, self.not_ours)
        if status == 403 and code not in _ADVICE:
            advice = self.rights
        return StoreMisconfigured(f"{what}: {self._format_error(error)}. {advice}")

    def _format_error(self, error: Exception) -> str:
        """Return an error's text without secrets, shortened."""
        if answer := self.parse_answer(error).text:
            return redact(answer, self.secrets).rstrip(".")
        if no_token := _NO_TOKEN.search(str(error)):
            return redact(no_token[1], self.secrets).rstrip(".")
        message, _, structure = str(error).partition("\n\nDebug source")
        reasons = [named or plain for named, plain in _REASON.findall(structure)]
        text = f"{message.strip()} ({'; '.join(reasons)})" if reasons else f"{type(error).__name__}: {message.strip()}"
        return redact(text, self.secrets).rstrip(".")


def _has_timed_out(error: Exception) -> bool:
    """Return whether obstore reports a timeout."""
    return "TimedOut" in str(error)


def _find_local_limit(error: Exception) -> str | None:
    """Return this machine's limit that a request exceeded, with advice; or None."""
    for code in _OS_CODE.findall(str(error)):
        if int(code) in FULL:
            return f"{os.strerror(int(code))}. {FULL[int(code)]}"
    return find_exceeded_limit(error)
