"""The Postgres protocol: psql, drivers, and tools for reports query the collections of a location, and may change them.

Promises: a statement reads all collections at one point of the log. A block of BEGIN … COMMIT is one commit, or none. A
value that its Postgres type cannot hold is refused, never rounded. A slow, silent or hostile client takes one thread
and bounded memory, and does not disturb others.
"""

from persist.services.serve.postgres.backend import Backend
from persist.services.serve.postgres.server import PostgresServer

__all__ = ["Backend", "PostgresServer"]
