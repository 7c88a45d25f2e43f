"""Views: queries whose answers are collections that are kept up to date; see `docs/use/views.md`.

Promise: a view's contents at a time are its query's result on its inputs at that time, by DuckDB's semantics. Its
definition is stored with it, and needs no DuckDB. Views that read each other move in one commit. Statements that change
collections, and queries that are answered once, are in `persist.compute.query`.

A query passes through these forms:

    text                what users write; the definition keeps it for them
    DuckDB's JSON       parsed, to find the tables (`duck`), and bound, with names and types resolved (`adapt`)
    relation            what the view means, without DuckDB (`algebra`). It is stored. `rewrite` and `order` turn it
                        into an equivalent relation, because an outer join or a subquery is still one node there
    plan of operators   what refreshes run, as programs in Python do (`lower`, `persist.compute.dataflow.plan`). It is
                        stored too (`stored`), so that a refresh neither rewrites nor lowers
    running operators   the plan with its state (`persist.compute.dataflow.running`)

Columns keep their names from the relation on (`rows`). The program of several views is their plans as one (`graph`).
"""

from persist.compute.sql.apply import Change, ViewsPlan, Wanted, plan_views
from persist.compute.sql.creating import UnboundedState, load_or_create_view
from persist.compute.sql.definition import Definition, InputBehind, Start
from persist.compute.sql.lower import answer
from persist.compute.sql.redefine import load_dependents, recreate_views
from persist.compute.sql.view import (
    LiveView,
    OnView,
    ViewsTogether,
    collect_options,
    load_live_view,
    load_view_by_name,
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
