"""One call of a Flight server: to connect, and to have an action done."""

import pyarrow as pa
import pyarrow.flight as flight

from persist.notify.address import Notify, parsed_address

# What a call may raise when the server is not there, not one of ours, or does not do what was asked.
CALL_FAILED = (pa.ArrowException, OSError, ValueError)


def said(error: BaseException) -> str:
    """Return what an error says, without the traceback of the server."""
    return str(error).split(" Detail: Python exception", 1)[0]


def connected(server: Notify) -> flight.FlightClient:
    """Return what calls a server; nothing is sent yet."""
    address, certificate = parsed_address(server.url), server.certificate
    pem = certificate.encode() if isinstance(certificate, str) else certificate
    return flight.FlightClient(address.url, **({} if pem is None else {"tls_root_certs": pem}))


def ask(client: flight.FlightClient, server: Notify, what: str, body: bytes, timeout_s: float) -> bytes:
    """Have one action done; return the answer. Raises one of `CALL_FAILED`."""
    headers = [] if server.token is None else [(b"authorization", f"Bearer {server.token}".encode())]
    options = flight.FlightCallOptions(timeout=timeout_s, headers=headers)
    for found in client.do_action(flight.Action(what, body), options):
        answer: bytes = found.body.to_pybytes()
        return answer
    raise ValueError(f"it has no answer to {what!r}")
