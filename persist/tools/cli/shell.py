"""The command sql: runs one query or statement, or a shell for many, with history and completion.

On a terminal, the shell edits lines by the standard library's readline; otherwise it reads lines from a file or a pipe.
One client stays open for all queries, and each query reads what is newest then. A statement ends with a semicolon that
is neither quoted nor in a comment; a line that begins with a dot is a command of the shell.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import persist
from persist.core.rendering import format_count
from persist.tools.cli.command import OK, Terminated, command
from persist.tools.cli.place import Place, report_done
from persist.tools.cli.read_commands import Format, Limit, Output
from persist.tools.cli.text import escape_text, format_error, print_remark, print_text
from persist.tools.reports.times import make_time_format, parse_write_time

HISTORY_MAX = 1000  # Lines of the shell that are kept for the next one.
WORDS = ("exit", "quit", "help")  # Alone on a line, these are the commands of the shell without their dot.
PROMPT, MORE = "persist> ", "    ...> "
KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "AS",
    "AND", "OR", "NOT", "IN", "IS NULL", "LIKE", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END", "DISTINCT",
    "UNION ALL", "EXCEPT", "INTERSECT", "WITH", "VALUES", "INSERT INTO", "UPDATE", "SET", "DELETE FROM", "MERGE INTO",
    "DESC", "CAST(", "count(", "sum(", "min(", "max(", "avg(",
)  # fmt: skip
HELP = """A query or a statement ends with a semicolon, and may take several lines.

.help              this
.tables [PREFIX]   the collections, or those whose names begin like this
.schema NAME       the columns of a collection
.as-of [TIME]      read all as of a time, a moment or a tag; alone, the latest again
.format [NAME]     table, csv or json; without a name, the one that is set
.exit              the end; so is Ctrl-D. Ctrl-C gives up what was typed so far"""
# Text in which a semicolon does not end a statement; the last three patterns are not closed yet.
_PIECE = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*(?:\n|$)|/\*.*?\*/|\$(\w*)\$.*?\$\1\$"""
    r"""|['"].*|/\*.*|\$\w*\$.*|[^;]|;""",
    re.DOTALL,
)


@command
def sql(
    at: Place,
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="A query of DuckDB; collections are its tables. Without one: a shell."),
    ] = None,
    as_of: Annotated[
        list[str] | None,
        typer.Option(
            "--as-of", metavar="[NAME=]TIME", help="The time to read all collections at, or NAME; may be repeated."
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", "-t", metavar="TIME", help="The time of the changes; else that of the commit."),
    ] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Let the query read files and URLs, too, with your rights: read_csv, …")
    ] = False,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
) -> int:
    """Query collections with DuckDB as of one point of the log, or change one: UPDATE, INSERT, …

    Without a query, it is a shell, or runs the statements from standard input.
    """
    from persist.compute.query import classify_statement
    from persist.tools.cli.row_output import choose_format

    times: dict[str, Any] = {}
    for option in as_of or ():
        name, _, text = option.rpartition("=")
        times[name] = text
    row_format = choose_format(format, output, at.as_json)
    if query is None and (time is not None or output is not None):
        raise persist.InvalidUsage("--time and --output go with a query: a shell writes to the screen")
    if query is not None and classify_statement(query) is not None:
        if as_of or limit is not None or format or output:
            raise persist.InvalidUsage("a statement returns no rows, so it takes only the options --time and --files")
        _run_change(at, query, time, files=files)
        return OK
    if query is not None and time is not None:
        raise persist.InvalidUsage("--time is the time of a change: use --as-of to query an earlier time")
    with at.open_reader() as client:
        shell = Shell(at, client, row_format, limit, times, files)
        if query is None:
            return _run_interactively(shell) if sys.stdin.isatty() else _run_piped(shell)
        shell.ask(query, output)
    return OK


def _run_change(at: Place, statement: str, time: str | None, *, files: bool) -> None:
    """Run a statement that changes something; print what it did."""
    from persist.api.definitions import run_statement

    with at.open_writer() as client:
        when = None if time is None else parse_write_time(time)
        done = run_statement(client, statement, when, variables={} if files else None)
        rows = format_count(done["rows"], "row")
        if "file" in done:
            line = f"wrote {rows} to {done['file']}"
        elif "statement" in done:
            line = f"{done['statement']} {done['collection']}" + (f": {rows}" if done["rows"] else "")
        else:
            line = f"changed {rows} of {done['collection']}"
            if done["time"] is not None:
                line += f" at {make_time_format(client.load(done['collection']))(done['time'])}"
        report_done(at, done, line)


@dataclass
class Shell:
    """An interactive session that runs queries and statements."""

    at: Place
    client: "persist.Client"
    format: str
    limit: int | None = None
    times: dict[str, Any] = field(default_factory=dict)
    files: bool = False

    def ask(self, query: str, output: str | None = None) -> None:
        """Run a query and print its rows, or write them to a file."""
        from persist.tools.cli.row_output import write_rows

        with self.client.sql(query, as_of=self.times, files=self.files) as result:
            write_rows(result.schema, result.to_batches(), self.format, output, self.limit, in_order=True)

    def run(self, text: str) -> bool:
        """Run a query, statement or shell command; return False to end."""
        from persist.compute.query import classify_statement

        if text.startswith("."):
            return self._command(*text.removesuffix(";").split(None, 1))
        if classify_statement(text) is not None:
            _run_change(self.at, text, None, files=self.files)
        elif text:
            self.ask(text)
        return True

    def _command(self, name: str, argument: str = "") -> bool:
        """Run a command of the shell, such as .help; return False to end."""
        argument = argument.strip()
        if name in (".exit", ".quit"):
            return False
        if name == ".help":
            print_text(HELP)
        elif name == ".tables":
            for collection in self.client.collections(argument):
                print_text(collection)
        elif name == ".schema":
            schema = self.client.load(argument.strip('"')).schema
            for column in schema.columns:
                print_text(f"{column}: {schema.arrow.field(column).type}")
        elif name == ".as-of":
            self.times = {"": argument} if argument else {}
            print_remark(f"as of {argument}" if argument else "as of the latest")
        elif name == ".format":
            if argument and argument not in ("table", "csv", "json"):
                raise persist.InvalidUsage(f"{argument!r} is not a format of the shell: use table, csv or json")
            self.format = argument or self.format
            print_text(self.format)
        else:
            raise persist.InvalidUsage(f"{name} is not a command of the shell: .help lists them")
        return True

    def words(self, before: str) -> list[str]:
        """Return the words that may complete the input: keywords, collections and their columns."""
        names = self.client.collections()
        columns: list[str] = []
        for name in names:
            if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", before):
                with suppress(persist.PersistError):
                    columns += self.client.load(name).schema.names
        return [*map(quote_if_needed, (*names, *dict.fromkeys(columns))), *KEYWORDS]


def quote_if_needed(name: str) -> str:
    """Return a name for use in a query, quoted if necessary."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else '"' + name.replace('"', '""') + '"'


def split_statements(text: str) -> tuple[list[str], str]:
    """Return complete statements without semicolons, and the remaining text."""
    statements, begin = [], 0
    for piece in _PIECE.finditer(text):
        if piece[0] == ";":
            statements.append(text[begin : piece.start()].strip())
            begin = piece.end()
    return [statement for statement in statements if statement], text[begin:]


class StatementReader:
    """Collects lines until they make statements. `pending` is the unfinished text."""

    def __init__(self) -> None:
        self.pending = ""

    @property
    def is_empty(self) -> bool:
        """Whether only spaces and comments are pending."""
        return all(piece[0].isspace() or piece[0].startswith("--") for piece in _PIECE.finditer(self.pending))

    def feed_line(self, line: str) -> list[str]:
        """Return the statements, or the shell command, that a line completes."""
        if self.is_empty and line.lstrip().startswith("."):
            return [line.strip()]
        if self.is_empty and (word := line.strip().removesuffix(";")) in WORDS:
            return [f".{word}"]
        ended, self.pending = split_statements(f"{self.pending}{line}\n")
        return ended


def _run_piped(shell: Shell) -> int:
    """Run the statements from standard input, until the first failure; return the exit status."""
    lines = StatementReader()
    for line in sys.stdin:
        if not all(map(shell.run, lines.feed_line(line.rstrip("\n")))):
            return OK
    if not lines.is_empty:
        shell.run(lines.pending.strip())
    return OK


def _run_interactively(shell: Shell) -> int:
    """Read and run statements until the end of input; an error does not end the session."""
    print_remark("A query ends with a semicolon; .help says more.")
    lines = StatementReader()
    with _edit_lines(shell, lines) as remember:
        while True:
            try:
                line = input(PROMPT if lines.is_empty else MORE)
            except (EOFError, Terminated):
                print_text("")
                return OK
            except KeyboardInterrupt:
                print_text("")
                lines.pending = ""
                continue
            remember()
            try:
                if not all(map(shell.run, lines.feed_line(line))):
                    return OK
            except Terminated:
                return OK
            except KeyboardInterrupt:
                print_remark("persist: interrupted")
            except persist.PersistError as error:
                print_remark(f"persist: {escape_text(format_error(error), lines=True)}")


@contextmanager
def _edit_lines(shell: Shell, lines: StatementReader) -> Iterator[Callable[[], None]]:
    """Enable line editing and completion; yield a function that saves the history."""
    try:
        import readline
    except ImportError:
        yield lambda: None
        return
    history = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "persist" / "sql_history"
    completions: list[str] = []

    def complete(text: str, number: int) -> str | None:
        if number == 0:
            with suppress(persist.PersistError):
                completions[:] = find_matching(shell.words(lines.pending + readline.get_line_buffer()), text)
        return completions[number] if number < len(completions) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>;")
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
    readline.set_history_length(HISTORY_MAX)
    with suppress(OSError):
        readline.read_history_file(history)

    def remember() -> None:  # After each line, because a terminal may be closed at any time.
        with suppress(OSError):  # A home that cannot be written to.
            history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            readline.write_history_file(history)
            history.chmod(0o600)

    try:
        yield remember
    finally:
        readline.set_completer(None)


def find_matching(words: list[str], text: str) -> list[str]:
    """Return the words that begin with a text, ignoring case; after a quote, only names."""
    if text.startswith('"'):
        named = [word if word.startswith('"') else f'"{word}"' for word in words if word not in KEYWORDS]
        return [name for name in named if name.lower().startswith(text.lower())]
    lower = text == text.lower() != text.upper()
    spelled = [word.lower() if lower and word in KEYWORDS else word for word in words]
    return [word for word in spelled if word.lower().removeprefix('"').startswith(text.lower())]
