"""What the client of a server makes of its answers, without a server."""

import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from persist.blob.errors import Indeterminate, PersistError, ReadOnlyStore, StoreMisconfigured, Throttled, Unavailable
from persist.blob.protocol import LIST_PAGE_ENTRIES, BlobEntry
from persist.blob.served import SERVED_DELETE_KEYS, SERVED_PUT_BYTES_MAX, BlobHead, BlobPage, ServedBlob

Fits = type("Fits", (bytes,), {"__len__": lambda _: SERVED_PUT_BYTES_MAX, "__getitem__": lambda *_: b""})


class Scripted:
    """A Flight client that gives answers from a list, raises errors in it, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.calls = [*answers], list[Any]()

    def do_action(self, action: flight.Action, options: Any) -> Iterator[Any]:
        self.calls.append((action.type, msgspec.json.decode(action.body.to_pybytes())))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        for piece in answer if isinstance(answer, tuple) else (answer,):
            body = piece if isinstance(piece, bytes) else msgspec.json.encode(piece)
            yield SimpleNamespace(body=pa.py_buffer(body))

    def do_exchange(self, descriptor: flight.FlightDescriptor, options: Any) -> Any:
        self.calls.append(("put", msgspec.json.decode(descriptor.command)))
        answer, sent = self.answers.pop(0), list[bytes]()
        self.calls.append(sent)

        def read() -> Any:
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(app_metadata=pa.py_buffer(msgspec.json.encode(answer)))

        nothing = SimpleNamespace(done_writing=lambda: None, close=lambda: None, write_metadata=sent.append)
        return nothing, SimpleNamespace(read_chunk=read)


def served(*answers: Any) -> tuple[ServedBlob, Scripted]:
    blob, client = ServedBlob("grpc://host:1", token="t"), Scripted(*answers)
    blob._client = client
    return blob, client


FULL = {"kind": "Throttled", "text": "slow down"}
ODD = {"kind": "Unheard", "text": "of a newer server"}


@pytest.mark.parametrize(
    ("answer", "read", "written", "text"),
    [
        (
            flight.FlightUnauthenticatedError("no. gRPC client debug context: x"),
            *[StoreMisconfigured] * 2,
            "client: no.",
        ),
        (
            flight.FlightUnauthorizedError("no. Detail: x"),
            *[ReadOnlyStore] * 2,
            "grpc://host:1 refuses this client: no",
        ),
        (pa.ArrowInvalid("odd"), *[StoreMisconfigured] * 2, "does not serve a location to this client: odd"),
        (flight.FlightTimedOutError("late"), Unavailable, Indeterminate, "grpc://host:1 did not answer: late"),
        (flight.FlightUnavailableError("away"), Unavailable, Indeterminate, "grpc://host:1 did not answer: away"),
        (OSError(), Unavailable, Indeterminate, "grpc://host:1 did not answer: OSError"),
        (StopIteration(), Unavailable, Indeterminate, "grpc://host:1 did not answer: "),
        (BlobHead(failure=FULL), Throttled, Throttled, "slow down"),
        (BlobHead(failure=ODD), Unavailable, Unavailable, "of a newer server"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_failed_call_has_the_error_of_the_server_or_of_the_line(
    answer: Any, read: Any, written: Any, text: str
) -> None:
    page = BlobPage([], answer.failure) if isinstance(answer, BlobHead) else answer
    calls: list[tuple[Any, Any, Callable[[ServedBlob], object]]] = [
        (() if isinstance(answer, StopIteration) else answer, read, lambda blob: blob.get("k")),
        (answer, written, lambda blob: blob.set("k", b"")),
        (answer, written, lambda blob: blob.create("k", b"")),
    ]
    if not isinstance(answer, StopIteration):
        calls += [(page, read, lambda blob: [*blob.list("")]), (answer, written, lambda blob: blob.delete("k"))]
    for given, kind, call in calls:
        blob, _ = served(given)
        with pytest.raises(PersistError) as raised:
            call(blob)
        assert type(raised.value) is kind
        assert text in str(raised.value)
        assert "gRPC" not in str(raised.value)
        assert "Detail" not in str(raised.value)
        assert getattr(raised.value, "timed_out", False) == isinstance(answer, flight.FlightTimedOutError)


def test_values_are_whole_and_requests_say_what_they_need() -> None:
    blob, client = served(*[(BlobHead(True, 5), b"val", b"ue")] * 3, BlobHead(), (BlobHead(True, 0),))
    assert (blob.get("k"), blob.get("k", (1, 6)), blob.get_at_most("k", 9)) == (b"value",) * 3
    assert (blob.get("k"), blob.get("k")) == (None, b"")
    asked = [(None, None), ([1, 6], None), (None, 9), (None, None), (None, None)]
    assert client.calls == [("blob.get", {"key": "k", "range": cut, "most": most}) for cut, most in asked]
    for said in (4, 6):
        blob, _ = served((BlobHead(True, said), b"value"))
        with pytest.raises(Unavailable, match=f"gave 5 bytes of 'k', and said {said}"):
            blob.get("k")


def test_large_values_are_sent_in_pieces_and_those_without_room_not_at_all() -> None:
    pieces = 128 << 10
    blob, client = served(*[BlobHead(True), BlobHead(False)] * 2, BlobHead(True))
    assert [blob.create("k", bytes(size)) for size in (0, pieces, pieces + 1)] == [True, False, True]
    assert [[len(piece) for piece in sent] for sent in client.calls[1::2]] == [[0], [pieces], [pieces, 1]]
    blob.set("k", b"value")
    blob.set("k", Fits())
    assert client.calls[-4] == ("put", {"put": "k", "bytes": 5, "is_new": False})
    assert client.calls[0] == ("put", {"put": "k", "bytes": 0, "is_new": True})


def test_a_listing_goes_on_while_pages_are_full_and_many_keys_are_deleted_in_parts() -> None:
    entries = [(f"{number:04d}", number, 0.5) for number in range(LIST_PAGE_ENTRIES + 1)]
    blob, client = served(BlobPage(entries[:-1]), BlobPage(entries[-1:]), BlobPage(entries[:-1]), BlobPage([]))
    assert [*blob.list("0", "-")] == [BlobEntry(*entry) for entry in entries]
    assert len([*blob.list("")]) == LIST_PAGE_ENTRIES
    starts = [("0", "-"), ("0", "0999"), ("", None), ("", "0999")]
    assert client.calls == [("blob.list", {"prefix": prefix, "start_after": start}) for prefix, start in starts]
    keys = [f"{number}" for number in range(2 * SERVED_DELETE_KEYS + 1)]
    blob, client = served(BlobHead(failed={"3": FULL}), BlobHead(), BlobHead(failed={"400": ODD}))
    failed = blob.delete_page(keys)
    assert {key: type(error) for key, error in failed.items()} == {"3": Throttled, "400": Unavailable}
    assert [len(asked["keys"]) for _, asked in client.calls] == [SERVED_DELETE_KEYS, SERVED_DELETE_KEYS, 1]
    blob, client = served(BlobHead(failed={"k": FULL}))
    with pytest.raises(Throttled):
        blob.delete("k")


def test_a_copy_has_the_options_but_no_connection() -> None:
    blob = ServedBlob("grpc://host:1", token="t", certificate="c", timeout_s=7.0)
    blob._client = Scripted()  # It could not be pickled.
    copy = pickle.loads(pickle.dumps(blob))
    assert vars(copy) == {**vars(blob), "_client": None}
    closed, errors = list[int](), iter([OSError("gone")])

    def close() -> None:
        closed.append(1)
        raise next(errors)

    blob._client = SimpleNamespace(close=close)
    blob.close()
    blob.close()
    assert closed == [1]
