"""Declares commands: functions whose first argument is a `Place`, with options as Typer declares them.

The options that all commands share (the location, options of its store, JSON) are added here, once. Modules with
commands import nothing that is slow to load: a command imports what it needs when it runs, so help and completion
appear at once.
"""

import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from persist.tools.cli.place import Place
from persist.tools.cli.text import print_remark

OK, PROBLEMS, MISTAKE, CONFLICT, UNAVAILABLE, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143

EXIT_CODES = """Exit status: 0 all is well; 1 problems are left in the location; 2 a mistake in the call; 3 somebody
else was first; 4 the store does not answer, or the disk; 130 interrupted; 143 ended by SIGTERM."""


class Terminated(KeyboardInterrupt):
    """The process got SIGTERM. The command ends as if interrupted, and releases files and leases."""


def terminate(*_: object) -> None:
    """Raise Terminated at the first SIGTERM; later ones are ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


# People read a list of forty commands from its top, so the first steps of a new user come first. A command that no
# section names would not be found by a newcomer: a test holds the sections against all commands.
SECTIONS = {
    "Write": ("create", "write", "upsert", "overwrite", "delete", "seal", "ingest", "egress"),
    "Look": ("ls", "status", "show", "read", "changes", "diff", "tail", "wait", "sql", "log", "ui"),
    "Derive": ("view", "refresh", "apply"),
    "Name, and keep readable": ("tag", "tags", "untag", "hold", "holds", "release"),
    "Change": ("evolve", "index", "rename", "clone", "restore", "drop", "erase"),
    "Exchange": ("export", "publish", "unpublish", "serve"),
    "Copy": ("backup", "copy", "verify"),
    "Maintain": ("maintain", "retain", "compact", "gc", "fsck", "policy", "upgrade", "cost", "doctor", "bench"),
}


class SectionedGroup(TyperGroup):
    """A Typer group that lists commands in the order of `SECTIONS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the sections."""
        named = [name for names in SECTIONS.values() for name in names]
        return sorted(super().list_commands(ctx), key=lambda name: named.index(name) if name in named else len(named))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each section, equally wide."""
        width = max(map(len, self.commands))
        whole = 10_000  # Sentences are wrapped, and not cut.
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:{width}}", self.commands[name].get_short_help_str(whole)) for name in names]
                )


METAVARS_OF_TIMES = {"TIME", "[NAME=]TIME", "START", "UNTIL", "FIRST", "SECOND", "AS_OF"}
TIMES = """A time is a number, or, on a timeline, a moment such as 2026-11-21T12:00Z, "now", "yesterday" or "-1d", a day
ago. What is read may also be named by "latest" or by a tag."""


class TimesCommand(TyperCommand):
    """A command whose arguments may be spans such as -1d."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments; spans such as `-1d` are not taken for options."""
        unparsed = super().parse_args(ctx, [f" {text}" if _is_span(text) else text for text in args])
        ctx.params = {name: value[1:] if _has_blank(value) else value for name, value in ctx.params.items()}
        return unparsed


def _is_span(text: str) -> bool:
    """Return whether a text is a span such as -1d, which looks like an option."""
    if not text.startswith("-") or not text[1:].lstrip()[:1].isdigit():
        return False
    from persist.core.names import AGO  # Here: help comes at once without it.

    return AGO.fullmatch(text) is not None


def _has_blank(value: Any) -> bool:
    """Return whether a value is a span with the protecting blank in front."""
    return isinstance(value, str) and value.startswith(" ") and _is_span(value[1:])


app = typer.Typer(
    name="persist",
    cls=SectionedGroup,
    help=f"Definite, time-varying collections on object storage.\n\n{EXIT_CODES}",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(version("persist-collections"))
        raise typer.Exit


@app.callback()
def _handle_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Declare the options before a command, such as --version."""


Location = Annotated[
    str, typer.Argument(metavar="LOCATION", help="A folder, s3://bucket/prefix, or any other URL of persist.open.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: an object, or one on each line for rows.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="For the store, such as endpoint_url or region; may be repeated. Other users see it: no secrets here.",
    ),
]
OptionsFile = Annotated[
    str | None,
    typer.Option(
        "--storage-options-file",
        metavar="FILE",
        help="A JSON object of such options that only its owner can read; PERSIST_STORAGE_OPTIONS may hold one, too.",
    ),
]
StoreTimeout = Annotated[
    float | None,
    typer.Option(
        "--store-timeout",
        min=0.01,
        metavar="SECONDS",
        help="How long to try if the store does not answer; 60 by default.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Log long work as it ends; PERSIST_LOG sets more, such as debug,json.")
]
Name = Annotated[str, typer.Argument(metavar="COLLECTION", help="The name of the collection.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def close_output() -> None:
    """Redirect standard output, so that a closed pipe raises no error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Declined(Exception):
    """The user did not confirm a command; the text names what is unchanged."""


def confirm(question: str, otherwise: str) -> None:
    """Ask a yes-or-no question; raise Declined unless the answer is yes."""
    if not sys.stdin.isatty():
        print_remark(f"persist: {question} Nobody can be asked here: say --yes")
        raise Declined(otherwise)
    if not typer.confirm(question):
        raise Declined(otherwise)


@contextmanager
def catch_sigterm() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets, so that the current commit is finished first."""
    stop = threading.Event()
    previous: Any = None
    with suppress(ValueError):  # Only the main thread can listen to signals; tests call this in others.
        previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def command(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Register a function as a command: its docstring is the help, its result the exit status."""
    parameters = [*inspect.signature(function).parameters.values()][1:]
    hints = get_type_hints(function, include_extras=True)
    kinds: dict[str, Any] = {"location": Location}
    kinds |= {parameter.name: hints[parameter.name] for parameter in parameters}
    kinds |= {"as_json": Json, "storage_option": Options, "storage_options_file": OptionsFile}
    kinds |= {"store_timeout": StoreTimeout, "verbose": Verbose}
    defaults = {parameter.name: parameter.default for parameter in parameters}
    defaults |= {"as_json": False, "storage_option": None, "storage_options_file": None, "store_timeout": None}
    defaults["verbose"] = False

    def run(
        location: str,
        as_json: bool = False,
        storage_option: list[str] | None = None,
        storage_options_file: str | None = None,
        store_timeout: float | None = None,
        verbose: bool = False,
        **asked: Any,
    ) -> int | None:
        place = Place(location, tuple(storage_option or ()), storage_options_file, as_json, store_timeout)
        from persist.core.progress import progress  # Here, because it loads what the help of a command does without.
        from persist.tools.cli.logs import log_to_stderr

        try:
            with log_to_stderr(verbose), progress():
                return function(place, **asked)
        except BrokenPipeError:  # The reader of the output has seen enough; Click would exit with 1.
            close_output()
            return OK
        except Declined as declined:
            print_remark(f"persist: {declined}")
            return MISTAKE
        except Terminated:  # Typer would make 130 of it.
            print_remark("persist: ended by SIGTERM")
            return TERMINATED

    run.__doc__ = inspect.getdoc(function)
    run.__annotations__ = kinds
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, inspect.Parameter.empty),
                annotation=kind,
            )
            for name, kind in kinds.items()
        ]
    )
    metavars = {getattr(info, "metavar", None) for kind in kinds.values() for info in get_args(kind)[1:]}
    epilog = TIMES if metavars & METAVARS_OF_TIMES else None
    app.command(function.__name__.removesuffix("_").replace("_", "-"), cls=TimesCommand, epilog=epilog)(run)
    return function
