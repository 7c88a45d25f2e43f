"""Definitions of views in a folder, as `persist apply` reads them: a file of SQL for each."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import persist

if TYPE_CHECKING:
    from persist.sql import Wanted

FILES_MAX = 10_000
BYTES_MAX = 1 << 20  # Of one query.
_KEY = re.compile(r"\s*--[ \t]*key[ \t]*:[ \t]*(.*)")


def definitions_in(folder: str) -> "dict[str, Wanted]":
    """Return the definitions in a folder and those below it, by the names of the views.

    Raises:
        InvalidUsage: there is none, two of them are of one view, or a file holds no text.
        NotADirectoryError, FileNotFoundError: there is no such folder.
    """
    root = Path(folder).expanduser()
    if not root.exists():
        raise FileNotFoundError(2, "there is no such folder", folder)
    if not root.is_dir():
        raise NotADirectoryError(20, "this is no folder of queries", folder)
    files = sorted(each for each in root.rglob("*.sql") if each.is_file() and not each.name.startswith("."))
    if not 0 < len(files) <= FILES_MAX:
        raise persist.InvalidUsage(f"{folder} holds {len(files):,} files NAME.sql: 1 to {FILES_MAX:,} are allowed")
    found: dict[str, Wanted] = {}
    for file in files:
        name = ".".join([*file.relative_to(root).parent.parts, file.stem])
        if name in found:
            raise persist.InvalidUsage(f"{folder} defines the view {name!r} twice, the second time in {file}")
        found[name] = _definition(file)
    return found


def _definition(file: Path) -> "Wanted":
    from persist.sql import Wanted

    if file.stat().st_size > BYTES_MAX:
        raise persist.InvalidUsage(f"{file} is larger than {BYTES_MAX:,} bytes: that is no query")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise persist.InvalidUsage(f"{file} is no text in UTF-8: {error.reason} at byte {error.start}") from error
    sql = text.strip().removesuffix(";").rstrip()
    if not sql:
        raise persist.InvalidUsage(f"{file} is empty: it holds no query")
    told = _KEY.match(text)
    key = None if told is None else tuple(each.strip() for each in told[1].split(",") if each.strip())
    if key == ():
        raise persist.InvalidUsage(f"{file} says `-- key:` and names no column")
    return Wanted(sql, key)
