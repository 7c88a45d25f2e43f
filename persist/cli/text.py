"""Text for a terminal: what is stored is shown, never interpreted.

A name or a value may hold anything: escapes that move the cursor or set a window's title, characters that turn the
direction of writing, or markup. Whatever does not print is shown as an escape, as in Python.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

CELL_CHARS_MAX = 120  # Of a table on a terminal; a longer value is cut, and says so by an ellipsis.


def shown(text: str, *, lines: bool = False) -> str:
    """Return text with everything that does not print as an escape; with lines, line ends stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or (lines and c == "\n") else _escape(c) for c in text)


def cell(value: object) -> str:
    """Return a value as one cell of a table on a terminal."""
    if value is None:
        return "NULL"
    text = shown(value if isinstance(value, str) else str(value))
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def say(text: str) -> None:
    """Print lines of text for people."""
    print(shown(text, lines=True))


def tell(text: str) -> None:
    """Print a remark beside the output."""
    print(shown(text, lines=True), file=sys.stderr)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document, in ASCII, so that nothing in it reaches a terminal as it is."""
    import json

    print(json.dumps(value, default=str))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


_OPTION = re.compile(
    r"^(form|schema|late|resolve|diff|tombstone|order_by|ties|token|time|seal|columns|timeline|key|drop|reorder|rename|widen|"
    r"late_bound|keyed)=(?=['\"\[{(\d-])"
)

_PHRASES = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        # Times and frontiers.
        (r"Give files=True to let", "Say --files to let"),
        (r"Antichain\((\d+)\)", r"\1"),
        (r"from Antichain\(\) to (\S+)\. Ask for a frontier at or beyond .*", r"to \1: it is complete for ever."),
        (r"=Antichain\(\)", " for ever"),
        (r"\bas_of[= ](?=['\d])", "time "),
        (r"Read at as_of >= (\d+)", r"Read at time \1 or later"),
        (
            r", or wait for it with timeout_s=\.",
            ", or wait until somebody does (--timeout SECONDS, where a command has that option).",
        ),
        (r"write, then seal\(upper\) makes times before upper readable", "write, then persist seal makes it readable"),
        (r"Say allow_future=True if", "Say --allow-future if"),
        (r"finish and seal\(([^)]+)\),", r"finish and seal to \1,"),
        (
            r"changes\((\d+), (\d+)\) is backwards: .*",
            r"START \1 and UNTIL \2 are backwards: give the earlier one first",
        ),
        (r'Give a number, or create one with timeline="us"', "Give a number, or create one with --timeline us"),
        (
            r'Moments are times in a collection with a timeline="us", say',
            "Moments need a collection with --timeline us",
        ),
        (r'create one with timeline="us", say;', "create one with --timeline us, say;"),
        (r"which maintenance does, or compact\(\)", "which persist compact does"),
        (r"Call compact\(\), then evolve\(\) again", "Use persist compact, then persist evolve again"),
        # Names of collections, holds, tags, views.
        (r"This client only reads: load one that is there\.", "Check the name, or make it with persist create."),
        (r"\bCreate it with create_or_load\.", "Check the name, or make it with persist create."),
        (r"exists already\. Load it with create_or_load\.", "exists already. Choose another name."),
        (r"\bMake it with hold\(time, name=.*\)\.", "persist hold makes one."),
        (r"\bMake one with tag\(.*, time\)\.", "persist tag makes one."),
        (
            r"^the tag (.+) was expected to be not there, and is at (.+); it was left as it is\.",
            r"there is a tag \1 already, at \2, and it was left there.",
        ),
        (r"To move a tag that exists, give move=True\.", "To move it, say --move."),
        (r"written by its users\. Load it with load\(\)", "written by its users. persist read shows what it holds"),
        (r"or give it this one with redefine\(\)", "or give it this one with --redefine"),
        (
            r"definition: give it another one with redefine\(\)",
            "definition: give it another with persist view --redefine",
        ),
        # Keyed collections and events.
        (
            r"Use upsert\(\), transition\(\), overwrite\(\) or delete\(\), and seal\(\)\.",
            "Use persist upsert, persist overwrite or persist delete, and persist seal.",
        ),
        (r"Create one with tombstone=\.", "Create one with --tombstone COLUMN."),
        (r'have them collected with late="collect"', "have them collected with --late collect"),
        (
            r"have them forgotten: allow_compaction\(\), then compact\(\)",
            "have them forgotten: see docs/how-to.md, erasure",
        ),
        (r"Write upserts\(\) into", "From Python, write upserts() into"),
        (r"which does not upsert: use transition\(\)", "which does not upsert: use transition() from Python"),
        (r"open it with create_or_load\(\.\.\., keyed=Keyed\(machine=\.\.\.\)\)", "do that from Python"),
        # What is read and written.
        (r'Ask for form="diff" to see multiplicities', "See multiplicities with persist read --form diff"),
        (r'Ask for form="diff"\.', "See multiplicities with persist read --form diff."),
        (r"leave it out with columns=,", "leave it out with --columns,"),
        (r"to seal without rows, call seal\(\)", "to seal without rows, use persist seal"),
        (
            r"give a pyarrow type, such as pa\.int64\(\) or pa\.string\(\), its name, .*or datetime",
            "give the name of a type of Arrow, such as int64, float64, string, date32 or timestamp[us,tz=UTC]",
        ),
        (r"\bwrite changes\(\) into a plain collection", "write its changes into a plain collection"),
        # The location and its upkeep.
        (
            r"Read (it )?back (before writing it again|before trying again|first)\.",
            "See with persist log whether it is there, before you give the command again.",
        ),
        (
            r'open with mode="exclusive" and its reentrance_id, or with force=True\.',
            'take it over from Python: persist.open(…, mode="exclusive", force=True).',
        ),
        (r"Begin again: take a new snapshot, or subscribe anew\.", "Begin again: give the command once more."),
        (
            r"give token=, or insecure=True if that is meant",
            "set PERSIST_SERVE_TOKEN, or say --insecure if that is meant",
        ),
        (r"run with repair, which makes it again", "persist fsck --repair makes it again"),
        (r"repair, or client\.gc\(\), deletes it", "persist fsck --repair, or persist gc, deletes it"),
        (r"client\.gc\(\) deletes it", "persist gc deletes it"),
        (r"dry_run=True goes with repair=True", "--dry-run goes with --repair"),
        (r"set_aside=True goes with repair=True", "--set-aside goes with --repair"),
        (r"Settings\(memory_budget=(\d+)\)", r"--memory-budget \1"),
        (r"Keyed\((resolve|ties)=('.*?')\)", r"--\1 \2"),
        (r"memory_budget=(\d+) cannot hold", r"a memory budget of \1 bytes cannot hold"),
        (r"open with persist\.Settings\(memory_budget=(\d+)\) or more", r"from Python, allow memory_budget=\1 or more"),
    )
)


def worded(text: str) -> str:
    """Return the message of an error of the library as the command line says it."""
    text = _OPTION.sub(lambda option: f"--{option[1].replace('_', '-')} ", text)
    for pattern, said in _PHRASES:
        text = pattern.sub(said, text)
    return text
