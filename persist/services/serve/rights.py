"""Rights at a server: one table of endpoints, and the tokens that grant them.

    caller                                READ   COMMIT                        STORE
    anybody, if the server has no token   yes    yes                           no
    the token                             yes    if there is no write token    no
    the write token                       yes    yes                           yes
    anybody else                          no     no                            no

An endpoint that is not in the table is not served. `commits=True` and `store=True` decide whether there is anything
behind the endpoints of the last two columns.
"""

import hmac
from collections.abc import Iterable
from enum import Enum


class Right(Enum):
    """The rights that endpoints require."""

    READ = "read"
    COMMIT = "have the server commit"
    STORE = "write to the store and delete from it"


RIGHTS = {
    "metrics": Right.READ,
    "iceberg": Right.READ,
    "GetFlightInfo": Right.READ,
    "GetSchema": Right.READ,
    "DoGet": Right.READ,
    "DoPut": Right.READ,  # The parameters of a query.
    "ListActions": Right.READ,
    "DoAction": Right.READ,
    "DoAction/wait": Right.READ,
    "DoAction/leave": Right.READ,
    "DoAction/committed": Right.READ,  # A hint.
    "DoAction/commits": Right.COMMIT,
    "DoAction/blob.get": Right.READ,
    "DoAction/blob.list": Right.READ,
    "DoAction/blob.delete": Right.STORE,
    "DoAction/CreatePreparedStatement": Right.READ,
    "DoAction/ClosePreparedStatement": Right.READ,
    "DoAction/CancelFlightInfo": Right.READ,
    "DoAction/CancelQuery": Right.READ,
    "DoAction/CloseSession": Right.READ,
    "DoExchange": Right.READ,
    "DoExchange/commit": Right.COMMIT,
    "DoExchange/put": Right.STORE,
}


class NotAllowed(Exception):
    """A caller lacks the right to use an endpoint."""


class Tokens:
    """The tokens of a server. If `token` is None, everybody may read; `write_token` also allows writing."""

    def __init__(self, token: str | None = None, write_token: str | None = None) -> None:
        reads = {Right.READ} if write_token is not None else {Right.READ, Right.COMMIT}
        self._rights = {token: reads, write_token: {*Right}}
        self._rights_of_all = reads if token is None else set[Right]()

    @property
    def are_needed(self) -> bool:
        """Whether every call needs a token."""
        return not self._rights_of_all

    def find_rights(self, headers: Iterable[tuple[str, str | bytes]]) -> set[Right]:
        """Return the rights of a call, from the token in its headers."""
        sent = [value for name, value in headers if name.lower() == "authorization"]
        first = sent[0] if len(sent) == 1 else b""
        first = first.encode() if isinstance(first, str) else first
        tokens = [(f"Bearer {token}".encode(), rights) for token, rights in self._rights.items() if token is not None]
        granted = [rights for expected, rights in tokens if hmac.compare_digest(first, expected)]
        return self._rights_of_all.union(*granted)

    def check(self, endpoint: str, headers: Iterable[tuple[str, str | bytes]]) -> None:
        """Check that a call may use an endpoint.

        Raises:
            NotAllowed: it may not.
            ValueError: the endpoint does not exist.
        """
        if endpoint not in RIGHTS:
            raise ValueError(f"there is no {endpoint[:200]!r}")
        if RIGHTS[endpoint] not in self.find_rights(headers):
            raise NotAllowed(
                'this token only allows reading: open the location with mode="read", or give the write token'
            )
