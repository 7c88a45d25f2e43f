"""Making a collection keyed that was written by updates so far: what must be true of it, looked up in what it holds.

It must have one value per key at every time that can be told apart, because events that come later retract what their
key holds, and that is one row. The commit is refused if anything was added after the look.
"""

from itertools import islice
from typing import Any

from persist.codecs import CollectionSchema
from persist.engine.collection_handle import CollectionHandle
from persist.errors import InvalidUsage, NotOneValue
from persist.log import KeyedForm
from persist.read import keys_with_less_than_none, keys_with_null, keys_with_several
from persist.state import CollectionState, ExpectNothingBeyondUpper
from persist.upsert import Keyed, form_of, machine_of

KEYS_NAMED = 10


def declared(keyed: Any, schema: CollectionSchema) -> KeyedForm:
    """Return the declaration that a user gives for a collection, after checking that it fits its schema to be."""
    if not isinstance(keyed, Keyed):
        raise InvalidUsage(f"keyed={keyed!r} is no declaration: give persist.Keyed(...)")
    return form_of(keyed, schema)


def checked(
    handle: CollectionHandle, contents: CollectionState, keyed: Keyed, form: KeyedForm
) -> ExpectNothingBeyondUpper:
    """Check that a collection has one value per key; return the condition under which that stays true.

    Raises:
        NotOneValue: some keys have several, or are NULL; the first ten are named.
    """
    machine = machine_of(form, keyed.machine, handle.name)
    reader = handle.engine.reader()
    if nulls := [*islice(keys_with_null(contents, reader), KEYS_NAMED)]:
        raise NotOneValue(handle.name, nulls, are_null=True)
    for keys_with in (keys_with_several, keys_with_less_than_none):
        if machine is not None and not machine.has_one_value:
            break
        if several := [*islice(keys_with(contents, reader), KEYS_NAMED)]:
            raise NotOneValue(handle.name, several, are_null=False)
    return ExpectNothingBeyondUpper(handle.id, contents.upper_times)
