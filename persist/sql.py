"""Views: queries whose answers are collections that stay up to date; see `docs/use/views.md`.

Promise: a view's contents at a time are its query's result on its inputs at that time, by DuckDB's semantics. Its
definition is stored with it, and needs no DuckDB. Views that read each other move in one commit. Statements that change
collections, and queries that are answered once, are in `Client.sql`.
"""

from persist.compute.query import QueryLimits
from persist.compute.sql import (
    Change,
    InputBehind,
    UnboundedState,
    ViewsPlan,
    ViewsTogether,
    Wanted,
    answer,
    open_together,
    plan_views,
)

__all__ = [
    "Change",
    "InputBehind",
    "QueryLimits",
    "UnboundedState",
    "ViewsPlan",
    "ViewsTogether",
    "Wanted",
    "answer",
    "open_together",
    "plan_views",
]
