"""Records of the log, as a person reads them."""

from contextlib import suppress

import msgspec

import persist
from persist.facts import hold_for_people, names_by_id, times_of
from persist.log import Create, Mutation, Record, SetHold, TimeText, read_record


def records_before(
    client: "persist.Client", before: int | None, last: int, collection: str | None
) -> tuple[list[Record], bool]:
    """Return the last records before a seqno, in order, and whether older ones are gone. Cost: a GET for each.

    Args:
        collection: the id of the only one of interest.
    """
    seqno = client.seqno if before is None else min(before - 1, client.seqno)
    found: list[Record] = []
    while seqno >= 0 and len(found) < last:
        record = read_record(client.engine.blob, seqno)
        if record is None:
            return found[::-1], True
        if collection is None or any(mutation.collection == collection for mutation in record.mutations):
            found.append(record)
        seqno -= 1
    return found[::-1], False


class Told:
    """What records speak of, as people know it: collections by their names, and times by their moments.

    A name is the present one: records bear ids. Cost: a GET for each collection that is spoken of, once.
    """

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._names = names_by_id(client)
        self._times: dict[str, TimeText] = {}

    def sentences(self, record: Record) -> list[str]:
        """Return what a record did, a sentence each."""
        return [self._sentence(mutation) for mutation in record.mutations]

    def _sentence(self, mutation: Mutation) -> str:
        if not (id_ := mutation.collection):
            return mutation.sentence("", str)
        known = mutation.name if isinstance(mutation, Create) else self._names.get(id_)
        name = f"a collection that is gone ({id_[:8]})" if known is None else repr(known)
        if isinstance(mutation, SetHold):
            mutation = msgspec.structs.replace(mutation, hold=hold_for_people(mutation.hold, self._names))
        return mutation.sentence(name, self._times_of(id_))

    def _times_of(self, id_: str) -> TimeText:
        if id_ not in self._times:
            self._times[id_] = str  # Of one that is gone, or goes meanwhile.
            if id_ in self._names:
                with suppress(persist.CollectionNotFound):
                    self._times[id_] = times_of(self._client.load(self._names[id_]))
        return self._times[id_]
