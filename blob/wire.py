"""Calls of this library's server (`Client.serve`) over Arrow Flight."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight

# The errors of a call if there is no server, if it is not one of ours, or if it refuses.
CALL_FAILED = (pa.ArrowException, OSError, ValueError)
PIECE_BYTES = 128 << 10  # A server takes no message of more than twice as much.


def connect(url: str, certificate: str | bytes | None) -> flight.FlightClient:
    """Return a client that calls a server; nothing is sent yet."""
    pem = certificate.encode() if isinstance(certificate, str) else certificate
    return flight.FlightClient(url, **({} if pem is None else {"tls_root_certs": pem}))


def call_action(
    client: flight.FlightClient, token: str | None, what: str, body: bytes, timeout_s: float
) -> Iterator[bytes]:
    """Call a Flight action; yield the answers. Raises one of `CALL_FAILED`."""
    for result in client.do_action(flight.Action(what, body), _make_call_options(token, timeout_s)):
        yield result.body.to_pybytes()


def exchange_pieces(
    client: flight.FlightClient, token: str | None, command: bytes, body: bytes, timeout_s: float
) -> bytes:
    """Send a command and a body by Flight; return the answer. Raises one of `CALL_FAILED`."""
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, reader = client.do_exchange(descriptor, _make_call_options(token, timeout_s))
    with contextlib.suppress(*CALL_FAILED):  # The reader has the server's reason.
        for start in range(0, max(len(body), 1), PIECE_BYTES):
            writer.write_metadata(body[start : start + PIECE_BYTES])
        writer.done_writing()
    try:
        answer: bytes = reader.read_chunk().app_metadata.to_pybytes()
    except StopIteration as error:
        raise ValueError("it has no answer") from error
    finally:
        with contextlib.suppress(*CALL_FAILED):
            writer.close()
    return answer


def _make_call_options(token: str | None, timeout_s: float) -> flight.FlightCallOptions:
    """Return Flight's options with the token and the timeout."""
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(timeout=timeout_s, headers=headers)
