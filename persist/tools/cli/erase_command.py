"""The command that erases records from all times, and searches for traces of them."""

from dataclasses import asdict
from typing import Annotated

import typer

import persist
from persist.core.rendering import format_moment
from persist.tools.cli.command import OK, PROBLEMS, Name, Yes, command, confirm
from persist.tools.cli.place import Place, report_done
from persist.tools.cli.read_commands import Format, Where
from persist.tools.cli.text import print_json, print_remark, print_text
from persist.tools.cli.write_commands import Keys, check_format, read_keys


@command
def erase(
    at: Place,
    collection: Name,
    where: Where = None,
    keys: Keys = None,
    reason: Annotated[str | None, typer.Option(help="Why; the log keeps it, so name nobody.")] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A text that no object may contain; may be repeated.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Erase nothing: print what is left, or a receipt.")] = False,
    format: Format = None,
    yes: Yes = False,
) -> int:
    """Erase records from all times, also from clones and views. This is final, so a prompt comes first."""
    check_format(keys, format)
    if verify:
        if reason is not None or yes:
            raise persist.InvalidUsage("--verify erases nothing: erase first, and leave --reason and --yes out here")
        return _verify_traces(at, collection, where, keys, text or [], format)
    if text:
        raise persist.InvalidUsage("--text goes with --verify, which looks for it")
    if (where is None) == (keys is None):
        raise persist.InvalidUsage("say what to erase: --where CONDITION, or --keys FILE")
    if reason is None:
        raise persist.InvalidUsage('say why, without naming anybody: --reason "request 17"')
    from persist.services.erase import find_mentions, format_mentions, select_records

    with at.open_writer() as client:
        loaded = client.load(collection)
        key_rows = None if keys is None else read_keys(loaded, keys, format)
        select_records(loaded.handle, key_rows, where)  # A mistake is reported before the question.
        what = f"those of {keys}" if where is None else f"where {where}"
        if not yes and (places := find_mentions(loaded.handle, key_rows, where)):
            print_remark(f"{format_mentions(places)}.")
        if not yes:
            confirm(f"Erase records of {collection!r}, {what}, from all times, for good?", "nothing was erased")
        report = loaded.erase(key_rows, where=where, reason=reason)
        report_done(at, asdict(report), str(report))
    return OK


def _verify_traces(
    at: Place, collection: str, where: str | None, keys: str | None, texts: list[str], format: str | None
) -> int:
    """Print which erased values are still stored, or a receipt; return the exit status."""
    with at.open_reader() as client:
        loaded = client.load(collection)
        key_rows = None if keys is None else read_keys(loaded, keys, format)
        traces = loaded.traces(key_rows, where=where, texts=texts)
        if traces.is_gone:
            print_json(traces.receipt())
            return OK
        if at.as_json:
            print_json(
                {
                    "left": [
                        {**asdict(trace), "until": None if trace.until is None else format_moment(trace.until)}
                        for trace in traces.found
                    ]
                }
            )
        else:
            print_text(str(traces))
    return PROBLEMS
