"""A collection in a notebook: the page's picture with a slider over time, where the package anywidget is installed.

What the slider asks for is read by this process: 50 rows, and the first updates of one time. Nothing is asked of any
other server, and what is stored is shown as text.
"""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import persist
from persist.facts import Facts, time_of
from persist.web.shown import cells, first_rows, picture

if TYPE_CHECKING:
    from persist.collection import Collection

ROWS = 50


def slider(collection: "Collection", as_of: int | str | None = None) -> Any:
    """Return a widget for a notebook: the collection over time and key, and a slider for what it held at a time.

    It needs the package anywidget (extra `notebook`). What it shows is read by this process as it is asked for.

    Args:
        as_of: the time to begin with, as `persist read --as-of` takes it; the latest sealed one by default.

    Raises:
        InvalidUsage: anywidget is not installed.
    """
    widget = _widget()(collection)
    if as_of is not None:
        widget.at = str(as_of)
    return widget


@cache
def _widget() -> Any:
    """Return the class of the widget, which exists only where anywidget does."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise persist.InvalidUsage(
            "a slider needs the package anywidget, which is not installed: pip install 'anywidget>=0.9'"
        ) from error
    folder = files(__name__.rpartition(".")[0])

    class Slider(anywidget.AnyWidget):  # type: ignore[misc]
        """Shows what a collection holds as of `at`, a time as text."""

        _esm = "\n".join((folder / name).read_text(encoding="utf-8") for name in ("drawing.js", "notebook.js"))
        _css = (folder / "notebook.css").read_text(encoding="utf-8")
        told = traitlets.Dict().tag(sync=True)
        shown = traitlets.Dict().tag(sync=True)
        changed = traitlets.Dict().tag(sync=True)
        error = traitlets.Unicode("").tag(sync=True)
        at = traitlets.Unicode("").tag(sync=True)

        def __init__(self, collection: "Collection") -> None:
            told, latest = _told(collection)
            super().__init__(told=told)
            self._collection = collection
            self.observe(self._moved, "at")
            if latest is not None:
                self.at = str(latest)

        def refresh(self) -> None:
            """Look again at what the collection has become."""
            self.told, _ = _told(self._collection)

        def _moved(self, change: Any) -> None:
            try:
                shown, changed = _read(self._collection, change["new"])
                self.shown, self.changed, self.error = shown, changed, ""
            except persist.PersistError as error:
                self.error = " ".join(str(error).split())

    return Slider


def _told(collection: "Collection") -> tuple[dict[str, Any], int | None]:
    facts = Facts(collection.handle.contents())
    since, upper, latest = (None if time is None else str(time) for time in (facts.since, facts.upper, facts.latest))
    description = {
        "name": facts.name,
        "since": since,
        "upper": upper,
        "latest": latest,
        "picture": picture(facts.contents),
    }
    return description, facts.latest


def _read(collection: "Collection", at: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first rows as of a time, and the first updates of that time."""
    with collection.snapshot(time_of(at), form="diff", timeout_s=0) as snapshot:
        time = snapshot.as_of
        rows = first_rows(snapshot.to_batches(), snapshot.schema, 0, ROWS)
    timeline = collection.timeline
    moment = None if timeline is None else timeline.text_of(time)
    facts = Facts(collection.handle.contents())
    shown = {"as_of": str(time), "moment": moment, **cells(rows)}
    if facts.since is not None and time <= facts.since and time:
        return shown, {}  # What happened at since cannot be told apart any more.
    with collection.changes(time, time + 1, times="int", timeout_s=0) as updates:
        return shown, cells(first_rows(updates.to_batches(), updates.schema, 0, ROWS))
