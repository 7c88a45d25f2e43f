"""Views begun anew: with a history of their own, computed from what their inputs hold by now, under the same names.

What a view holds at a time is what its definition gives on its inputs at that time (rule 19). Where the inputs have
other contents at times that are sealed, because something was erased from them (rule 23), the views that depend on them
are wrong at those times, and may hold what was erased. Their difference cannot be written, because it is of sealed
times. So one commit drops them all and creates them with the definitions that they had, and the next refresh computes
them from the earliest time that their inputs can still tell. In between they hold nothing, and never what is gone.

Comments, properties, retention, indexes and kept groups come along. A tag, or a hold with a name, is of a time of the
old history: who has one must decide what becomes of it before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from persist.engine import CollectionHandle, Engine
from persist.errors import InvalidUsage
from persist.index import indexes_of
from persist.index import steps_to_drop as steps_to_drop_indexes
from persist.log import Words, kinds
from persist.names import INDEX_HOLD, PUBLISHED_HOLD, VIEW_HOLD, owner_of_groups
from persist.sql.draft import Catalog, Draft, drafted, has_groups, steps_to_drop
from persist.sql.redefine import Dependent, dependent_of, dependents_of, in_order
from persist.state import Publication
from persist.write import Step


@dataclass(frozen=True, slots=True)
class ViewsAnew:
    """What lets views begin anew: submit the steps, with the names, as one commit, and refresh the views then.

    Attributes:
        views: by name, each after those that it reads, and whether it was ever refreshed.
        indexed: by name, the columns of each index of a view.
        published: by name, the tables that a view was published as.
    """

    steps: tuple[Step, ...]
    names: Mapping[str, str]
    views: Mapping[str, bool]
    indexed: Mapping[str, tuple[tuple[str, ...], ...]]
    published: Mapping[str, Mapping[str, Publication]]


def views_anew(engine: Engine, collections: Iterable[CollectionHandle]) -> ViewsAnew:
    """Return what lets all views that depend on some collections begin anew.

    Raises:
        InvalidUsage: a view has a tag or a named hold, or its query means nothing any more; the message names it.
    """
    ids = {view.id: view for handle in collections for view in dependents_of(engine, handle)}
    every = in_order([dependent_of(view) for view in ids.values() if not owner_of_groups(view.name)])
    for view in every:
        _check_untied(view)
    catalog, steps, names = Catalog(engine), list[Step](), dict[str, str]()
    indexed: dict[str, tuple[tuple[str, ...], ...]] = {}
    for view in reversed(every):
        catalog.remove(view.name)
        indexes = indexes_of(view.handle)
        schema = view.contents.schema
        indexed[view.name] = tuple(by for index in indexes if (by := index.columns_in(schema)) is not None)
        steps += [*steps_to_drop_indexes(view.handle, indexes), *steps_to_drop(view.handle, view.definition)]
        names |= {index.handle.id: index.handle.name for index in indexes} | {view.id: view.name}
        names |= {id_: catalog.by_id(id_).name for id_ in view.definition.inputs}
    made: dict[str, Draft] = {}
    for view in every:
        old, start = view.definition, _start(catalog, view, made)
        draft = drafted(catalog, view.name, old.sql, old.key, start, keeps_groups=has_groups(old))
        catalog.add(draft)
        made[view.id] = draft
        steps += [*draft.steps, *_also(view, draft)]
        names |= draft.names
    views = {view.name: view.contents.upper_times != (0,) for view in every}
    published = {view.name: view.contents.published for view in every if view.contents.published}
    return ViewsAnew(tuple(steps), names, views, indexed, published)


def _check_untied(view: Dependent) -> None:
    named = [hold for hold, held in view.contents.holds.items() if held.lease is None]
    holds = [hold for hold in named if not hold.startswith((VIEW_HOLD, INDEX_HOLD, PUBLISHED_HOLD))]
    if view.contents.tags or holds:
        tied = [f"the tag {tag!r}" for tag in view.contents.tags] + [f"the hold {hold!r}" for hold in holds]
        raise InvalidUsage(
            f"the view {view.name!r} must begin anew, because something is erased from what it reads, and "
            f"{', '.join(tied)} would keep its old history: drop tags with untag() and release holds first"
        )


def _start(catalog: Catalog, view: Dependent, made: Mapping[str, Draft]) -> int | None:
    """Return where a view begins: where it did, if its inputs can still tell that."""
    inputs = (made[id_].made if id_ in made else catalog.by_id(id_) for id_ in view.definition.inputs)
    sinces = (readable.since for readable in inputs if not owner_of_groups(readable.name))  # Groups have no past.
    start = view.definition.start
    return start if start > max(sinces, default=0) else None


def _also(view: Dependent, draft: Draft) -> Sequence[Step]:
    """Return what gives a new view what was said of the old one, and its retention."""
    about, id_, steps = view.contents.about, draft.made.id, list[Step]()
    old = dict(zip(map(str, view.contents.schema.ids), view.contents.schema.names, strict=True))
    new = dict(zip(draft.made.schema.names, map(str, draft.made.schema.ids), strict=True))
    columns = {new[old[column]]: said for column, said in about.columns.items() if old.get(column) in new}
    if about.comment or about.properties or columns:
        words = {column: Words(said.comment, {**said.properties}) for column, said in columns.items()}
        steps.append(kinds.Describe(id_, Words(about.comment or None, {**about.properties}), words))
    if view.contents.retention is not None:
        steps.append(kinds.SetRetention(id_, view.contents.retention))
    return steps
