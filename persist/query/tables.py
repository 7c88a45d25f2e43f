"""Collections as tables of a connection of DuckDB."""

from collections.abc import Sequence
from typing import Any

# What is run may be somebody else's text: it gets the collections, and none of what its user may read besides.
SEALED_OFF = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
DUCKDB = "duckdb>=2.0,<2.1"
MAIN = "main"  # The schema of names without a dot.


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def path_of(parts: Sequence[str]) -> str:
    """Return the name of a table in SQL, with that of its schema if there is one."""
    return ".".join(map(quoted, parts))


def collection_of(parts: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the collection that a table is; None if there is none. Case tells names apart only if it must."""
    wanted = ".".join(parts)
    alike = [wanted] if wanted in names else [name for name in names if name.lower() == wanted.lower()]
    return alike[0] if len(alike) == 1 else None


def register(connection: Any, parts: Sequence[str], dataset: Any) -> None:
    """Make a dataset a table of a connection: in a schema if it has two parts, and in a catalog if it has three."""
    name = path_of(parts) if len(parts) > 1 else parts[0]
    connection.register(name, dataset)
    if len(parts) > 2:
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(parts[0])}")
    if len(parts) > 1:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {path_of(parts[:-1])}")
        connection.execute(f"CREATE VIEW {path_of(parts)} AS FROM {quoted(name)}")


def why_refused(error: Exception) -> str:
    """Return DuckDB's reason, without the part of the text that it shows below it."""
    return str(error).partition("\n\nLINE ")[0].rstrip(" .!\n")
