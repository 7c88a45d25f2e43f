"""What every call of a collection stands on: its handle, its frontiers, and what is shown of it."""

from contextlib import suppress

from persist.antichain import Antichain
from persist.codecs import TIME_MAX, CollectionSchema
from persist.engine import CollectionHandle, about_collection
from persist.errors import PersistError
from persist.shown import html_table
from persist.state import Unsealed, unsealed
from persist.timeline import Moment, Timeline


class CollectionBase:
    """One collection: what it is made of, how far it is, and what it says of itself where it is printed."""

    def __init__(self, handle: CollectionHandle) -> None:
        self.handle = handle
        self.id = handle.id
        self.schema: CollectionSchema = handle.schema

    @property
    def name(self) -> str:
        """What it is called, as far as this client knows."""
        return self.handle.name

    @property
    def timeline(self) -> Timeline | None:
        """What times are, if they are moments: it turns moments into times, and back."""
        return self.handle.timeline

    @property
    def upper(self) -> Antichain:
        """The seal frontier: no more updates will come at times not beyond it. Cost: one GET."""
        return self.handle.contents().upper

    @property
    def since(self) -> Antichain:
        """The compaction frontier: the first time that can still be read. Cost: one GET."""
        return self.handle.contents().since

    @property
    def unsealed(self) -> Unsealed | None:
        """What was written at times that are not sealed, so that nobody can read it yet; None if nothing. One GET."""
        return unsealed(self.handle.contents())

    def as_time(self, what: str, given: int | Moment) -> int:
        """Return a number as it is, and of a moment the last time not after it; what says in errors what it is.

        Raises:
            InvalidUsage: it is neither, or a moment and the collection has no timeline.
        """
        return self.handle.as_time(what, given)

    def as_bound(self, what: str, given: int | Moment, *, most: int = TIME_MAX) -> int:
        """Like `as_time`, with the first time that is not before a moment: the bound of an interval."""
        return self.handle.as_bound(what, given, most=most)

    def __eq__(self, other: object) -> bool:
        """Tell whether both are handles on the same collection of the same location, whichever clients they are of."""
        if not isinstance(other, CollectionBase):
            return NotImplemented
        return (self.id, self.handle.engine.place) == (other.id, other.handle.engine.place)

    def __hash__(self) -> int:
        return hash((self.id, self.handle.engine.place))

    def _repr_html_(self) -> str:
        """Say what this client knows of the collection, without asking the store for news."""
        told = [("location", self.handle.engine.url)]
        with suppress(PersistError):
            contents = self.handle.known()
            about, schema = about_collection(contents), contents.schema
            told += [("comment", about.comment)] if about.comment else []
            told += [*about.properties.items()]
            told += [("since", str(contents.since)), ("upper", str(contents.upper)), ("schema", f"{schema.version}")]
            for name in schema.names:
                role = "key " if name in schema.key_names else ""
                comment = f": {about.columns[name].comment}" if name in about.columns else ""
                told.append((f"{role}{name}", f"{schema.arrow.field(name).type}{comment}"))
        return html_table(f"Collection {self.name}", told)

    def __repr__(self) -> str:
        """Say what this client knows of the collection, without asking the store for news."""
        told = ""
        with suppress(PersistError):
            contents = self.handle.known()
            hidden = unsealed(contents)
            upper = contents.upper.time
            before = upper if self.timeline is None or upper is None else self.timeline.text_of(upper)
            sealed = f"sealed before {before}" if upper else "nothing sealed"
            if contents.upper.is_empty:
                sealed = "complete for ever"
            told = f", {sealed}" + (f", {hidden} not sealed" if hidden is not None else "")
        return f"<Collection {self.name!r} at {self.handle.engine.url}{told}>"
