"""What a text of obstore or boto3 means: which error, certain or not, and its words."""

from typing import Any

import pytest

from persist.blob.errors import Indeterminate, InvalidUsage, PersistError, StoreFull, Throttled, Unavailable
from persist.blob.errors import StoreMisconfigured as Wrong
from persist.blob.stores.object_errors import BODY_SHOWN_CHARACTERS, ForkedProcess, ObjectErrorMap

MAP = ObjectErrorMap("s3://b/p", "bucket 'b'", "Ask for rights.", ("s3cr3t", "abc"))
WHAT = {"get": "cannot get 'k' at s3://b/p: ", "set": "cannot set 'k' at s3://b/p: "}
DOUBT = "set of 'k' at s3://b/p got no clear answer: "
ADVICE: dict[str, str | tuple[str, ...]] = {
    "get": "Check that the store is up and reachable, then try again.",
    "set": ("That object is unchanged; try again after a pause.", "happened: read the key before trying again."),
}
FORKED = (
    "this process was forked from one that had used a store in the cloud, whose threads did not come along. Start it "
    "by spawn or forkserver: multiprocessing.get_context('spawn')."
)
NO_KEYS = "Give storage options access_key_id and secret_access_key, or profile, or set up credentials as for the aws"
NOT_OURS = "Correct the URL, the storage options or the bucket's set-up."
SET_UP = "Correct the URL or the storage options."
CONDITIONS = "The store must support conditional writes (If-None-Match): use one that does."
FULL = "Too many open files. Let this process open more files (ulimit -n), or close some, then try again. "
CONNECT = 'legacy::Error(Connect, ConnectError("tcp", Os { code: %d, message: "no route" }))'


def answer(status: int, code: str = "") -> Exception:
    """Return an error as obstore words an answer."""
    body = f"<Error><Code>{code}</Code><Message>why s3cr3t.</Message></Error>" if code else "a page."
    return Exception(f"Error performing it with status code: {status}: {body}\n\nDebug source:\n<Code>None</Code>")


def failure(structure: str, name: str = "GenericError", module: str = "obstore") -> Exception:
    """Return an error without an answer, of a class of this name."""
    kind: type[Exception] = type(name, (Exception,), {"__module__": module})
    return kind(f"sending abc failed.\n\nDebug source:\n{structure}")


@pytest.mark.parametrize(
    ("error", "read", "written", "text"),
    [
        (answer(503, "SlowDown"), Throttled, Throttled, "SlowDown: why ***"),
        (answer(429, "TooManyRequests"), Throttled, Throttled, "TooManyRequests: why ***"),
        (answer(503, "ServiceUnavailable"), Unavailable, Unavailable, "ServiceUnavailable: why ***"),
        (answer(400, "RequestTimeout"), Unavailable, Unavailable, "RequestTimeout: why ***"),
        (answer(409, "Odd"), Unavailable, Unavailable, "Odd: why ***"),
        (answer(429, "Odd"), Unavailable, Unavailable, "Odd: why ***"),
        (answer(429), Unavailable, Indeterminate, "HTTP 429 a page"),
        (answer(500, "Odd"), Unavailable, Indeterminate, "Odd: why ***"),
        (answer(299, "Odd"), Unavailable, Indeterminate, "Odd: why ***"),
        (answer(502), Unavailable, Indeterminate, "HTTP 502 a page"),
        (answer(300, "Odd"), Wrong, Wrong, f"Odd: why ***. {NOT_OURS}"),
        (answer(499, "Odd"), Wrong, Wrong, f"Odd: why ***. {NOT_OURS}"),
        (answer(400), Wrong, Indeterminate, f"HTTP 400 a page. {NOT_OURS}"),
        (answer(403, "AccessDenied"), Wrong, Wrong, "AccessDenied: why ***. Ask for rights."),
        (answer(403), Wrong, Indeterminate, "HTTP 403 a page. Ask for rights."),
        (answer(403, "ExpiredToken"), Wrong, Wrong, "why ***. Renew the credentials and open the location again."),
        (answer(404, "NoSuchBucket"), Wrong, Wrong, "bucket 'b' does not exist. Create it, or correct the URL, region"),
        (answer(501, "Odd"), Wrong, Wrong, f"Odd: why ***. {CONDITIONS}"),
        (answer(501), Wrong, Wrong, f"HTTP 501 a page. {CONDITIONS}"),
        (failure(CONNECT % 111), Unavailable, Unavailable, "sending abc failed. (no route)"),
        (failure(CONNECT % 24), StoreFull, StoreFull, f"{FULL}That object is unchanged. (sending abc failed. (no"),
        (failure("Os { code: 24"), StoreFull, Indeterminate, f"{FULL}That object is unchanged. (GenericError: sending"),
        (failure("x TimedOut IncompleteMessage"), Unavailable, Indeterminate, "abc failed. (TimedOut; IncompleteMess"),
        (failure(""), Unavailable, Indeterminate, "GenericError: sending abc failed"),
        (failure("", "ReadError", "botocore.x"), Unavailable, Unavailable, "ReadError: sending abc failed"),
        (failure("", "NoCredentialsError", "botocore.x"), Wrong, Wrong, f"sending abc failed). {NO_KEYS}"),
        (failure("", "ParamValidationError", "botocore.x"), Wrong, Wrong, f"sending abc failed. {SET_UP}"),
        (failure("", "InvalidEndpointError"), Wrong, Indeterminate, f"sending abc failed. {SET_UP}"),
        (failure("", "EndpointConnectionError"), Unavailable, Indeterminate, "EndpointConnectionError: sending abc"),
        (failure("InvalidCertificate(Old)"), Wrong, Indeterminate, f"abc failed. (InvalidCertificate(Old)). {SET_UP}"),
        (failure("UnknownIssuer"), Wrong, Indeterminate, f"sending abc failed. {SET_UP}"),
        (failure("redirect without LOCATION"), Wrong, Indeterminate, "bucket 'b' is in another region. Give the"),
        (failure("", "InvalidPathError"), Wrong, Indeterminate, "sending abc failed.. Move that object elsewhere"),
        (
            Exception("External AWS credential provider: TokenError: s3cr3t is late.\nmore"),
            *(Wrong, Wrong, f"no AWS credentials (TokenError: *** is late). {NO_KEYS}"),
        ),
        (
            Exception("External AWS credential provider: ReadTimeoutError: away.\nmore"),
            *(Unavailable, Unavailable, "ReadTimeoutError: away"),
        ),
        (ForkedProcess(), InvalidUsage, InvalidUsage, FORKED),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:60] if isinstance(value, Exception) else "",
)
def test_each_failure_has_its_error_by_what_is_certain(error: Exception, read: Any, written: Any, text: str) -> None:
    for action, kind in (("get", read), ("set", written)):
        ours: PersistError = (MAP.map_read_error if action == "get" else MAP.map_write_error)(action, "k", error)
        message = str(ours)
        assert type(ours) is kind
        assert message.startswith(DOUBT if kind is Indeterminate else WHAT[action])
        assert text in message or kind is Indeterminate
        assert message.endswith(ADVICE[action]) == (kind in (Unavailable, Throttled, Indeterminate))
        assert "s3cr3t" not in message
        assert getattr(ours, "timed_out", False) == ("TimedOut" in str(error))


def test_an_answer_is_read_from_the_text_before_the_structure() -> None:
    long = answer(502)
    long.args = (f"status code: 502 : {'x' * 400}\n\nDebug source:\n",)
    parsed = MAP.parse_answer(long)
    assert (parsed.status, parsed.code, parsed.text) == (502, "", f"HTTP 502 {'x' * BODY_SHOWN_CHARACTERS}")
    nothing = MAP.parse_answer(Exception("x\n\nDebug source:\nstatus code: 502"))
    assert (nothing.status, nothing.code, nothing.text) == (0, "", "")
    untold = MAP.parse_answer(Exception("status code: 404: <Code>Gone</Code>"))
    assert (untold.status, untold.code, untold.text) == (404, "Gone", "Gone: ")
    setup = MAP.map_setup_error(ValueError("no s3cr3t"))
    assert (type(setup), str(setup)) == (
        Wrong,
        "cannot use s3://b/p: ValueError: no ***. Correct the storage options.",
    )


def test_what_is_absent_done_or_done_in_part_is_told_apart() -> None:
    texts = [
        "status code: 404: <Code>NoSuchKey</Code>",
        "status code: 404: nothing",
        "status code: 404: <Code>NoSuchBucket</Code>",
        "status code: 403: <Code>NoSuchKey</Code>",
        "MissingEtag",
        "InvalidDeleteObjectsResponse `$value`",
        "InvalidDeleteObjectsResponse",
        "Server returned error response: <Key>",
        "Server returned error response: ",
        "<Key>",
        "DeleteObjects request failed for key a",
        "with s3cr3t",
    ]
    kinds = (MAP.is_absent, MAP.is_success, MAP.is_partial, lambda error: MAP.choose_cause(error) is not error)
    found = ["".join(str(int(is_kind(Exception(text)))) for is_kind in kinds) for text in texts]
    assert found == [
        *("1000", "1000", "0000", "0000", "0100", "0100"),
        *("0000", "0010", "0000", "0000", "0010", "0001"),
    ]
