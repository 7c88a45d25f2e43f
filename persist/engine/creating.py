"""Making a collection, or finding the one that has its name and its schema."""

import uuid

from persist.codecs import CollectionSchema
from persist.engine.engine import Engine
from persist.errors import CollectionExists, InvalidUsage
from persist.log.records import Create, KeyedForm, SetRetention
from persist.state.contents import CollectionState
from persist.state.schemas import reconciled
from persist.upsert.keyed import check_same
from persist.write.operations import Step


def created_or_loaded(
    engine: Engine,
    name: str,
    schema: CollectionSchema,
    form: KeyedForm | None = None,
    retention: int | None = None,
) -> tuple[CollectionState, CollectionSchema]:
    """Return the collection of a name, which is created if there is none, and its schema with the codecs given.

    Args:
        name: any, those that are the library's own, too.
        form: how it resolves events, if it is keyed.
        retention: in times, of one that is made; one that is there must have the same, if it is given.

    Raises: as `Client.create_or_load`.
    """
    while True:
        state = engine.follower.refresh()
        id_ = state.ids.get(name)
        contents = engine.follower.load(id_) if id_ is not None else None
        if contents is not None:
            if retention not in (None, contents.retention):
                raise InvalidUsage(
                    f"collection {name!r} has the retention {contents.retention}, in times, and {retention} was "
                    "given: leave it out, or change it with retain()"
                )
            both = reconciled(schema, contents, name)
            check_same(form, contents.keyed, name)
            return contents, both
        id_ = uuid.uuid4().hex
        steps: list[Step] = [Create(id_, name, schema.to_json(), form)]
        steps += [] if retention is None else [SetRetention(id_, retention)]
        try:
            engine.submit("create_or_load", steps, {id_: name}).result()
        except CollectionExists:
            continue  # Another client created it in between: load that one.
