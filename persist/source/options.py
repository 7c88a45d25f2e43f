"""What a query follows, and from where on, whoever runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What to follow, and from where on: one of as_of and lower is set. A time may be "latest", or a timestamp.

    Attributes:
        as_of: begin with the contents as of this time.
        lower: begin without contents, with the updates at this time and later.
        columns: those wanted; None for all.
        upserts: follow a keyed collection, tombstones among its rows, to make events by key of it.
        hold: the name of the permanent hold, "none" for no hold, None to have a name drawn.
        slices: into how many slices a micro-batch is cut, at most; None for what fits into memory.
        wait_s: how long as_of may stay unsealed; None for no limit.
        storage: options of the store.
    """

    location: str
    collection: str
    as_of: int | str | None = "latest"
    lower: int | str | None = None
    columns: tuple[str, ...] | None = None
    upserts: bool = False
    hold: str | None = None
    slices: int | None = None
    wait_s: float | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)
