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
    start    the time at which the view begins: before it there are no answers

A relation is stored as its `kind` and those of its members that are no defaults; each of its expressions as one of

    { kind: "column", index }
    { kind: "constant", type, value }            value as text; without it, NULL
    { kind: "call", function, type, arguments, at }
"""

from functools import partial
from typing import Any

import msgspec

from persist.errors import IncompatibleVersion
from persist.expression import SQL, Call, Lit, Place, Term, sql_call
from persist.sql.algebra import Node
from persist.sql.types import constant, kind_of, text_of, to_arrow

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
    start: int = 0

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


def to_json(value: Any) -> Any:
    """Return a plan, or a part of one, as it is stored."""
    match value:
        case Place(index):
            return {"kind": "column", "index": index}
        case Lit(scalar):
            text = text_of(scalar)
            return {"kind": "constant", "type": kind_of(scalar.type)} | ({} if text is None else {"value": text})
        case Call(function, arguments, (kind,), at):
            stored: dict[str, Any] = {"kind": "call", "function": function.removeprefix(SQL), "type": kind_of(kind)}
            stored |= {"arguments": [*map(to_json, arguments)]} if arguments else {}
            return stored | ({} if at is None else {"at": at})
        case tuple():
            return [*map(to_json, value)]
        case msgspec.Struct():
            config = value.__struct_config__
            names = [field.name for field in msgspec.structs.fields(value) if _is_given(value, field)]
            tag = {} if config.tag is None else {config.tag_field: config.tag}
            return tag | dict(zip(names, map(to_json, [getattr(value, name) for name in names]), strict=True))
    return value


def _is_given(value: msgspec.Struct, field: msgspec.structs.FieldInfo) -> bool:
    return field.required or getattr(value, field.name) != field.default


def term_of_json(wanted: type, stored: dict[str, Any]) -> Term:
    """Return the term that was stored; for msgspec, which asks for a type that it does not know.

    Raises:
        ValueError: it is none.
    """
    assert wanted is Term
    match stored:
        case {"kind": "column", "index": int(index), **rest} if not rest:
            return Place(index)
        case {"kind": "constant", "type": str(kind), **rest} if {*rest} <= {"value"}:
            return constant(kind, rest.get("value"))
        case {"kind": "call", "function": str(function), "type": str(kind), **rest} if {*rest} <= {"arguments", "at"}:
            # One call of Python for each level, so that deep terms can be read.
            arguments = map(partial(term_of_json, Term), rest.get("arguments", ()))
            return sql_call(function, to_arrow(kind), *arguments, at=rest.get("at"))
    raise ValueError(f"{stored!r:.200} is no expression of a plan")
