"""One call of a Flight server: to connect, to have an action done, and to ask for something long in pieces."""

import contextlib

import pyarrow as pa
import pyarrow.flight as flight

from persist.notify.address import Notify, parsed_address

# What a call may raise when the server is not there, not one of ours, or does not do what was asked.
CALL_FAILED = (pa.ArrowException, OSError, ValueError)
PIECE_BYTES = 128 << 10  # A server takes no message of more than twice as much.


def connected(server: Notify) -> flight.FlightClient:
    """Return what calls a server; nothing is sent yet."""
    address, certificate = parsed_address(server.url), server.certificate
    pem = certificate.encode() if isinstance(certificate, str) else certificate
    return flight.FlightClient(address.url, **({} if pem is None else {"tls_root_certs": pem}))


def ask(client: flight.FlightClient, server: Notify, what: str, body: bytes, timeout_s: float) -> bytes:
    """Have one action done; return the answer. Raises one of `CALL_FAILED`."""
    for found in client.do_action(flight.Action(what, body), _options(server, timeout_s)):
        answer: bytes = found.body.to_pybytes()
        return answer
    raise ValueError(f"it has no answer to {what!r}")


def ask_in_pieces(client: flight.FlightClient, server: Notify, command: bytes, body: bytes, timeout_s: float) -> bytes:
    """Send body after a command; return the answer. Raises one of `CALL_FAILED`."""
    descriptor = flight.FlightDescriptor.for_command(command)
    writer, reader = client.do_exchange(descriptor, _options(server, timeout_s))
    with contextlib.suppress(*CALL_FAILED):  # The reader says why a server takes no more.
        for start in range(0, len(body), PIECE_BYTES):
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


def _options(server: Notify, timeout_s: float) -> flight.FlightCallOptions:
    headers = [] if server.token is None else [(b"authorization", f"Bearer {server.token}".encode())]
    return flight.FlightCallOptions(timeout=timeout_s, headers=headers)
