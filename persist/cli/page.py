"""The command that serves the page."""

from typing import Annotated

import typer

from persist.cli.command import OK, command
from persist.cli.place import Place
from persist.cli.text import print_json, say, tell


@command
def ui(
    at: Place,
    host: Annotated[str, typer.Option(help="Where to listen; others can reach it if it is no loopback address.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", "-p", help="0 for any that is free.")] = 8420,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which it may be asked for, such as a proxy's; may be repeated."),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> int:
    """Serve a page to look at a location with: it only reads, and runs until it is interrupted."""
    from persist.notify import is_loopback
    from persist.web import MEMORY_BUDGET, served

    with at.reading(memory_budget=MEMORY_BUDGET) as client, served(client, host, port, None, allow_host or []) as page:
        if at.as_json:
            print_json({"url": page.url})
        else:
            say(f"{page.url}\nWhoever has this address can read {client.url}. Ctrl-C ends it.")
        if not is_loopback(host):
            tell("This address can be reached from other machines, and what it shows goes over the network as it is.")
        if open_:
            import webbrowser

            webbrowser.open(page.url)
        page.run()
    return OK
