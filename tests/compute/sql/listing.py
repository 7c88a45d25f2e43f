"""The list of functions in `docs/use/views-sql.md`, made from what DuckDB has and what views translate.

`python -m tests.compute.sql.listing` writes it anew.
"""

import textwrap

import duckdb

from persist.compute.sql.adapt_expression import AGGREGATES, FUNCTIONS, OF_LISTS, WINDOWS
from persist.compute.sql.by_duckdb import is_definite
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "views-sql.md"
HEAD = "## Functions\n"
_INTERNAL = ("__", "collate_", "icu_collate_")


def listed() -> str:
    """Return the section: which functions of this DuckDB views have, and which they refuse."""
    scalars, aggregates = _names("scalar"), _names("aggregate")
    words = {name for name in FUNCTIONS if name.isidentifier()}
    by_duckdb = {name for name in scalars - words if is_definite(name)}
    supported = {*AGGREGATES, *OF_LISTS} - {"count_star", "sum_no_overflow"}
    windows = set(WINDOWS.values()) - {"aggregate"}
    return (
        "\n".join(
            [
                HEAD,
                f"Every function of DuckDB {duckdb.__version__} works in a view, except the refused ones below. "
                f"Views compute {len(words)} scalar functions, {len(supported)} aggregates and {len(windows)} window "
                f"functions, and DuckDB computes {len(by_duckdb)} scalar functions.",
                "",
                *_paragraph("**Refused aggregates**", aggregates - {*AGGREGATES, *OF_LISTS}),
                *_paragraph("**Refused scalar functions**", scalars - words - by_duckdb),
            ]
        ).rstrip("\n")
        + "\n"
    )


def _names(kind: str) -> set[str]:
    with duckdb.connect(":memory:") as connection:
        asked = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = ?"
        found = {str(row[0]) for row in connection.execute(asked, [kind]).fetchall()}
    return {name for name in found if name.isidentifier() and not name.startswith(_INTERNAL)}


def _paragraph(title: str, names: set[str]) -> list[str]:
    text = f"{title} ({len(names)}): {', '.join(f'`{name}`' for name in sorted(names))}."
    return [*textwrap.wrap(text, 175, break_long_words=False, break_on_hyphens=False), ""]


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, _ = text.partition(HEAD)
    PAGE.write_text(before.rstrip("\n") + "\n\n" + listed(), encoding="utf-8")


if __name__ == "__main__":
    main()
