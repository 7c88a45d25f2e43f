"""What a view is: the text of its query, and the plan that it was bound to. It is stored with the collection.

    definition = { version, sql, inputs, columns, key, plan }

Fields:
    version  of this form; a newer one is refused
    sql      the query as it was written, for people
    inputs   the ids of all collections that the view depends on, by way of other views, too
    reads    the collections that the plan scans: name and id
    columns  name and type (`persist.sql.types`) of each
    key      the columns that are the key of the collection
    plan     a relation (`persist.sql.algebra`)
"""

from typing import Any

import msgspec

from persist.errors import IncompatibleVersion
from persist.sql.algebra import Node

VERSION = 1


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module's docstring."""

    version: int
    sql: str
    inputs: tuple[str, ...]
    reads: dict[str, str]
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    plan: Node

    def to_json(self) -> dict[str, Any]:
        """Return what is stored."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Definition":
        """Return the definition that was stored.

        Raises:
            IncompatibleVersion: it is of a later version.
        """
        if stored.get("version") != VERSION:
            raise IncompatibleVersion("the definition of a view", stored.get("version", 0), VERSION)
        return msgspec.convert(stored, cls)
