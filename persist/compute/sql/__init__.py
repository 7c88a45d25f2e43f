"""Views: queries whose answers are collections that are kept up to date; see `docs/use/views.md`.

Promise to those above: what a view holds at a time is what its query gives on its inputs at that time, by DuckDB's
semantics; its definition is stored with it, and needs no DuckDB; views that read each other move in one commit.
Statements that change collections, and queries that are answered once, are in `persist.compute.query`.
"""

from persist.compute.sql.apply import Change, ViewsPlan, Wanted, plan_views
from persist.compute.sql.creating import made_view
from persist.compute.sql.definition import Definition, InputBehind, Start
from persist.compute.sql.lower import answer
from persist.compute.sql.reasons import UnboundedState
from persist.compute.sql.redefine import dependents_of, views_anew
from persist.compute.sql.view import (
    LiveView,
    OnView,
    ViewsTogether,
    given_options,
    live_of,
    live_view,
    open_together,
)

__all__ = [
    "Change",
    "InputBehind",
    "UnboundedState",
    "ViewsPlan",
    "ViewsTogether",
    "Wanted",
    "answer",
    "open_together",
    "plan_views",
]
