"""Makes texts of rows, and a picture of a collection over time and key, for the page and for notebooks.

All values are texts, because JavaScript has no 64-bit integers, and no value may be taken for another type.

In the picture, keys are placed by rank among the bounds of all parts, from 0 to 1, because only their order means
something. A part whose bounds the log does not know spans all keys. If a collection has very many parts, only the
largest are drawn.

A notebook shows the page's picture with a slider over time, if the package anywidget is installed. This process reads
the data for the slider: 50 rows, and the first updates of one time. No other server is contacted, and stored values
appear as text.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import persist
from persist.codecs.part.part import Part
from persist.codecs.types.arrow_types import decode_scalar
from persist.codecs.types.objects import to_objects
from persist.codecs.types.schema import TIME_MAX, CollectionSchema
from persist.core.state_rules.contents import CollectionState
from persist.tools.reports.surveys import Facts

if TYPE_CHECKING:
    from persist.api.collection import Collection


def make_picture(contents: CollectionState) -> dict[str, Any]:
    """Return a collection's parts as boxes over time and key, its tags and its holds, as JSON."""
    schema = contents.schema
    drawn = [(None, part) for run in contents.history for part in contents.list_parts(run)]
    frames = [(frame.as_of, part) for frame in contents.keyframes for part in contents.list_parts(frame.parts)]
    chosen: list[tuple[int | None, Part]] = sorted([*drawn, *frames], key=lambda entry: -entry[1].rows)[
        :PARTS_DRAWN_MAX
    ]
    keys = [bound for _, part in chosen for bound in _get_key_bounds(part, schema)]
    ordered = sorted({_make_sort_key(key) for key in keys})
    last = max(1, len(ordered) - 1)
    rank = {key: index / last for index, key in enumerate(ordered)}
    chosen.sort(key=lambda entry: (entry[1].time_min if entry[0] is None else entry[0], entry[1].time_max))
    parts = [
        _make_box(as_of, part, [rank[_make_sort_key(b)] for b in _get_key_bounds(part, schema)])
        for as_of, part in chosen
    ]
    return {
        "begins": _get_picture_start(contents),
        "ends": _get_picture_end(contents),
        "history": [drawing for drawing in parts if "as_of" not in drawing],
        "keyframes": [drawing for drawing in parts if "as_of" in drawing],
        "left_out": len(drawn) + len(frames) - len(chosen),
        "tags": [
            {"name": name, "time": str(time)}
            for name, time in contents.tags.items()
            if not is_sentinel(time, contents.timeline)
        ],
        "holds": [
            {"name": None if hold.lease else name, "time": str(hold.time)}
            for name, hold in contents.holds.items()
            if not is_sentinel(hold.time, contents.timeline)  # Otherwise it needs the collection, and no time of it.
        ],
    }


def is_sentinel(time: int, timeline: str | None) -> bool:
    """Return whether a time means "never" or "for ever".

    It is a number of at least 2^62, or a moment in the year 2100 or later.
    """
    if timeline is None or time >= TIME_MAX - 1:
        return time >= _FAR
    return time // _PER_SECOND[timeline] >= _YEAR_2100


def get_common_span(all_facts: Sequence[Facts]) -> dict[str, Any] | None:
    """Return the times at which all collections are readable, or None."""
    timelines = {facts.contents.timeline for facts in all_facts}
    begins = [_get_picture_start(facts.contents) for facts in all_facts]
    ends = [_get_picture_end(facts.contents) for facts in all_facts]
    if len(timelines) != 1 or None in begins or None in ends:
        return None
    first, last = max(map(int, filter(None, begins))), min(map(int, filter(None, ends)))
    if first > last:
        return None
    return {"begins": str(first), "ends": str(last), "timeline": timelines.pop()}


def _get_picture_end(contents: CollectionState) -> str | None:
    """Return the picture's last time: the latest readable one, except sentinels."""
    latest, since, timeline = Facts(contents).latest, contents.since, contents.timeline
    if latest is None:
        return None
    if is_sentinel(latest, timeline):
        times = [time for part in contents.history_parts for time in (part.time_min, part.time_max)]
        latest = max((time for time in times if not is_sentinel(time, timeline)), default=since)
    return str(max(since, latest))


def _get_picture_start(contents: CollectionState) -> str | None:
    """Return the picture's first time: since or, if later, the first update.

    Before its first update a collection is empty: with moments, this may be fifty years.
    """
    since, latest = contents.since, Facts(contents).latest
    if latest is None:
        return None
    first = min((part.time_min for part in contents.history_parts), default=since)
    return str(max(since, min(first, latest)))


def _make_box(as_of: int | None, part: Part, bounds: list[float]) -> dict[str, Any]:
    """Return a part as a box: its times, its range of keys, and sizes."""
    low, high = bounds if bounds else (0.0, 1.0)
    drawing: dict[str, Any] = {
        "first": str(part.time_min),
        "last": str(part.time_max),
        "low": low,
        "high": high,
        "rows": part.rows,
        "bytes": part.bytes,
        "retracts": bool(part.negatives),
    }
    return drawing if as_of is None else {**drawing, "as_of": str(as_of)}


def _get_key_bounds(part: Part, schema: CollectionSchema) -> list[tuple[Any, ...]]:
    """Return the first and last key of a part; [] if unknown."""
    keys = part.keys
    if not keys:
        return []
    types = [schema.arrow.field(name).type for name in schema.key_names]
    return [
        tuple(_sort_value(decode_scalar(value, kind)) for value, kind in zip(key, types, strict=True))
        for key in (keys[0], keys[-1])
    ]


def _sort_value(value: pa.Scalar) -> Any:
    """Return a value that sorts as its type; moments as numbers."""
    return value.value if pa.types.is_temporal(value.type) and value.is_valid else value.as_py()


def _make_sort_key(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key that sorts as in collections, where NaN and then NULL are last."""
    return tuple(
        (2, 0) if value is None else (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)
        for value in key
    )


_FAR = 2**62
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEAR_2100 = 4_102_444_800  # Its first second.
PARTS_DRAWN_MAX = 1500
CELL_CHARS_MAX = 2000


def format_cells(table: pa.Table) -> dict[str, Any]:
    """Return the columns and rows of a table as texts; NULL as None."""
    columns = [[format_cell(value) for value in to_objects(column, " ")] for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(len(table))]
    return {"columns": table.column_names, "rows": rows}


def format_cell(value: object) -> str | None:
    """Return a value as text, cut if long."""
    if value is None:
        return None
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def take_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema, offset: int, count: int) -> pa.Table:
    """Return `count` rows of a stream after `offset`; read no more."""
    pieces: list[pa.RecordBatch] = []
    skip, remaining = offset, count
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        piece = batch.slice(skip, remaining)
        skip, remaining = 0, remaining - piece.num_rows
        pieces.append(piece)
        if not remaining:
            break
    return pa.Table.from_batches(pieces, schema)


def parse_key(text: str, schema: Any) -> pa.Table:
    """Parse a typed key into a table of one row.

    Several fields are divided by commas; text in a field stays as it is.
    """
    names = schema.key_names
    parts = [text] if len(names) == 1 else [part.strip() for part in text.split(",")]
    if len(parts) != len(names):
        raise persist.InvalidUsage(
            f"{text!r:.200} is not a key of this collection: give {', '.join(names)}, with commas between them"
        )
    columns = {}
    for name, part in zip(names, parts, strict=True):
        field_type = schema.arrow.field(name).type
        try:
            columns[name] = pa.array([part]).cast(field_type) if part != "NULL" else pa.nulls(1, field_type)
        except pa.ArrowException as error:
            raise persist.InvalidUsage(
                f"{part!r:.200} is not a value of {name!r}, which is of type {field_type}"
            ) from error
    return pa.table(columns)


ROWS = 50
EVERY_S_MIN = 0.2
SHOWN_EVERY_S = 2.0


def slider(collection: "Collection", as_of: int | str | None = None, *, every_s: float | None = None) -> Any:
    """Return a notebook widget with a slider over the collection's times.

    It needs the package anywidget (extra `notebook`). This process reads the rows on demand.

    Args:
        as_of: the time to begin with, as `persist read --as-of` takes it; the latest sealed one by default.
        every_s: read again at this interval while the widget is shown, and follow the latest time until the user
            chooses another one. None: the widget does not change until its `refresh()` is called.

    Raises:
        InvalidUsage: anywidget is not installed, or every_s is below `EVERY_S_MIN`.
    """
    if every_s is not None and (isinstance(every_s, bool) or not EVERY_S_MIN <= every_s < math.inf):
        raise persist.InvalidUsage(f"every_s={every_s!r:.50} is not a number of seconds: give {EVERY_S_MIN} or more")
    widget = _make_widget_class()(collection)
    widget.every_s = 0.0 if every_s is None else float(every_s)
    if as_of is not None:
        widget.at = str(as_of)
    return widget


def load_ipython_extension(ipython: Any) -> None:
    """Show collections in a notebook as sliders, after `%load_ext persist`."""
    _make_widget_class()
    shown_as, formatter = ipython.display_formatter.format, ipython.display_formatter.mimebundle_formatter

    def show(collection: "Collection", **asked: Any) -> Any:
        return shown_as(slider(collection, every_s=SHOWN_EVERY_S), **asked)

    formatter.for_type_by_name("persist.api.collection", "Collection", show)


@cache
def _make_widget_class() -> Any:
    """Return the class of the widget; raise InvalidUsage without anywidget."""
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
        every_s = traitlets.Float(0.0).tag(sync=True)

        def __init__(self, collection: "Collection") -> None:
            description, latest = _make_description(collection)
            super().__init__(told=description)
            self._collection = collection
            self.observe(self._handle_move, "at")
            self.on_msg(self._handle_message)
            if latest is not None:
                self.at = str(latest)

        def refresh(self) -> None:
            """Look again at what the collection has become; follow the latest time if that was shown."""
            previous = self.told.get("latest")
            self.told, latest = _make_description(self._collection)
            if latest is not None and self.at in ("", previous):
                self.at = str(latest)

        def _handle_message(self, _: object, message: Any, __: object) -> None:
            """Refresh because it is shown, and some time has passed."""
            if message == "refresh":
                try:
                    self.refresh()
                except persist.PersistError as error:
                    self.error = " ".join(str(error).split())

        def _handle_move(self, change: Any) -> None:
            try:
                rows_shown, changed = _read(self._collection, change["new"])
                self.shown, self.changed, self.error = rows_shown, changed, ""
            except persist.PersistError as error:
                self.error = " ".join(str(error).split())

    return Slider


def _make_description(collection: "Collection") -> tuple[dict[str, Any], int | None]:
    """Return what the widget shows of a collection, and its latest readable time."""
    facts = Facts(collection.handle.contents())
    since, upper, latest = (None if time is None else str(time) for time in (facts.since, facts.upper, facts.latest))
    description = {
        "name": facts.name,
        "since": since,
        "upper": upper,
        "latest": latest,
        "picture": make_picture(facts.contents),
    }
    return description, facts.latest


def _read(collection: "Collection", at: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a collection's first rows as of a time, and the first updates of that time."""
    with collection.snapshot(at, form="diff", timeout_s=0) as snapshot:
        time = snapshot.as_of
        rows = take_rows(snapshot.to_batches(), snapshot.schema, 0, ROWS)
    timeline = collection.timeline
    moment = None if timeline is None else timeline.to_text(time)
    facts = Facts(collection.handle.contents())
    rows_shown = {"as_of": str(time), "moment": moment, **format_cells(rows)}
    if facts.since is not None and time <= facts.since and time:
        return rows_shown, {}  # Changes at since are merged.
    with collection.changes(time, time + 1, times="int", timeout_s=0) as updates:
        return rows_shown, format_cells(take_rows(updates.to_batches(), updates.schema, 0, ROWS))
