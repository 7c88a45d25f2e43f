"""What a view is: the text of its query, and the plan that it was bound to. It is stored with the collection.

    definition = { version, sql, inputs, reads, columns, key, plan, number, since, earlier }

Fields:
    version  of this form; a newer one is refused
    sql      the query as it was written, for people
    inputs   the ids of all collections that the view depends on, by way of other views, too
    reads    the collections that the plan scans: name and id
    columns  name and type (`persist.sql.types`) of each
    key      the columns that are the key of the collection
    plan     a relation (`persist.sql.algebra`)
    number   of the definitions of this view, the first is 1
    since    the time from which on the view holds what this definition gives; 0 for all times
    earlier  the definitions before it, of which the last EARLIER_KEPT are known: text and since
"""

from typing import Any

import msgspec

from persist.errors import IncompatibleVersion
from persist.sql.algebra import Node, term_of_json, to_json

VERSION = 1


EARLIER_KEPT = 100


class Earlier(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A definition that a view had: its text, and the time from which on it held."""

    sql: str
    since: int


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module's docstring."""

    version: int
    sql: str
    inputs: tuple[str, ...]
    reads: dict[str, str]
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    plan: Node
    number: int = 1
    since: int = 0
    earlier: tuple[Earlier, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what is stored."""
        plain = msgspec.structs.replace(self, plan=None)
        return {**msgspec.to_builtins(plain), "plan": to_json(self.plan)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Definition":
        """Return the definition that was stored.

        Raises:
            IncompatibleVersion: it is of a later version.
        """
        if stored.get("version") != VERSION:
            raise IncompatibleVersion("the definition of a view", stored.get("version", 0), VERSION)
        return msgspec.convert(stored, cls, dec_hook=term_of_json)
