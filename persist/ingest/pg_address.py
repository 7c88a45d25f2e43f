"""Where a database of Postgres is: how to connect to it, and what may be said of it."""

import os
from typing import Any

from persist.errors import InvalidUsage, Unavailable
from persist.ingest.pg_types import SESSION
from persist.read import required
from persist.shown import without_secrets


class PgAddress:
    """A database by its URL.

    Attributes:
        name: what it is called in messages and logs: nothing secret is in it.
        library: psycopg2.
    """

    def __init__(self, url: str, application: str) -> None:
        """Take a URL, and what the server calls our connections."""
        self.library = required("psycopg2-binary>=2.9.10")
        self._application = application
        self._dsn = self._parsed(url)
        port = self._dsn.get("port", "5432")
        at = f"{self._dsn.get('host', '')}{'' if port == '5432' else f':{port}'}"
        self.name = f"postgres://{at}/{self._dsn.get('dbname', '')}"

    def connected(self, *, replication: bool = False) -> Any:
        """Return a connection, or one for replication.

        Raises:
            Unavailable: the server does not answer, or does not let this user in.
        """
        dsn = {**self._dsn, "application_name": self._application}
        dsn["options"] = f"{dsn.get('options', '')} {SESSION}".strip()
        host = dsn.get("host") or os.environ.get("PGHOST", "")
        is_near = host in ("", "localhost", "127.0.0.1", "::1") or host.startswith("/")
        if "sslmode" not in dsn and "PGSSLMODE" not in os.environ and not is_near:
            dsn["sslmode"] = "require"
        kind = {}
        if replication:
            from psycopg2.extras import LogicalReplicationConnection

            kind = {"connection_factory": LogicalReplicationConnection}
        try:
            return self.library.connect(**dsn, **kind)
        except self.library.OperationalError as error:
            raise self.unavailable(error) from None

    def is_lost(self, error: Any) -> bool:
        """Return whether an error means that the server does not answer, and not that it refuses.

        The library gives a server that ends while it sends changes neither a code nor a class of its own.
        """
        library = self.library
        if isinstance(error, (library.OperationalError, library.InterfaceError, Unavailable)):
            return True
        return bool(type(error) is library.DatabaseError and error.pgcode is None)

    def unavailable(self, error: Exception) -> Unavailable:
        """Return the error that says that the server does not answer; no password is in it."""
        text = without_secrets(one_line(error))
        if secret := self._dsn.get("password"):
            text = text.replace(secret, "***")
        return Unavailable(f"{self.name} does not answer: {text}")

    def _parsed(self, source: str) -> dict[str, Any]:
        dsn, reason = dict[str, Any](), ""
        try:
            dsn = dict(self.library.extensions.parse_dsn(source))
        except self.library.Error as error:
            reason = one_line(error)
        if source.partition("?")[0].count("@") > ("user" in dsn):  # A part of the password counts as something else.
            reason = "a password in it has %40 for @, %2F for /, and %25 for %"
        if reason:
            raise InvalidUsage(f"{without_secrets(source)} is no address of a database: {reason}")
        return dsn


def one_line(error: Exception) -> str:
    """Return what an error says, as one line."""
    return " ".join(str(error).split())
