"""Statements of Postgres clients as text: split at semicolons, classified by their first words, with parameters.

Quoted text, `$$` texts and comments are skipped. Parameters are written into the text as constants, so
DuckDB converts a text without a type to what it is compared with, as Postgres does.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from persist.services.serve.postgres import values
from persist.services.serve.postgres.parameters import make_exact_numeric
from persist.services.serve.postgres.wire import Column, Failure

# Text without an end reaches to the end of the statement, so no character is looked at twice.
_SKIPPED = (
    r"(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*+(?:'|\Z)|'(?:[^']|'')*+(?:'|\Z)"
    r'|"(?:[^"]|"")*+(?:"|\Z)'
    r"|(?<![\w$])\$(?P<dollar>[A-Za-z_]*)\$.*?(?:\$(?P=dollar)\$|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)"
)
_TOKENS = re.compile(
    r"(?P<hex>'\\x[0-9a-fA-F]*+')\s*::\s*bytea\b"
    r"|\bCAST\s*\(\s*(?P<cast>\$\d+)\s+AS\s+(?:numeric|decimal)\s*\)"
    rf"|{_SKIPPED}|(?<![\w$])(?P<parameter>\$\d+)(?P<numeric>\s*::\s*(?:numeric|decimal)\b(?!\s*[(\[]))?|(?P<semicolon>;)",
    re.DOTALL | re.IGNORECASE,
)
_SPACE = re.compile(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]+")
PARAMETERS_MAX = 65_535
TEXT_CHARS_MAX = 32 << 20  # With the parameters.
SQL_CHARS_MAX = 4 << 20

READS = frozenset(
    ["SELECT", "WITH", "VALUES", "FROM", "TABLE", "SHOW", "DESCRIBE", "DESC", "SUMMARIZE", "PIVOT", "UNPIVOT"]
)
WRITES = frozenset(["INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE"])
DEFINES = frozenset(["CREATE", "DROP", "ALTER", "COMMENT", "REFRESH"])


def split_statements(sql: str) -> list[str]:
    """Return the statements of a text without semicolons, and without empty statements."""
    parts, start = list[str](), 0
    for match in _TOKENS.finditer(sql):
        if match["semicolon"]:
            parts.append(sql[start : match.start()])
            start = match.end()
    return [part for part in [*parts, sql[start:]] if _strip(part)]


def _strip(sql: str) -> str:
    """Return a statement without spaces and comments before it."""
    match = _SPACE.match(sql)
    return sql[match.end() if match else 0 :].rstrip()


def list_first_words(sql: str) -> list[str]:
    """Return the first words of a statement, in upper case."""
    bare = _strip(sql).lstrip("( \n\t")
    first_words, at = list[str](), 0
    while len(first_words) < 4 and (match := _WORD.match(bare, at)):
        first_words.append(match[0].upper())
        space = _SPACE.match(bare, match.end())
        at = space.end() if space else match.end()
    return first_words


def is_empty(sql: str) -> bool:
    """Return whether a statement is nothing but spaces and comments."""
    return not _strip(sql)


def count_parameters(sql: str) -> int:
    """Return the highest number of a parameter. Raises Failure if there are too many."""
    parameters = ((match["parameter"] or match["cast"]) for match in _TOKENS.finditer(sql))
    numbers = [int(parameter[1:]) for parameter in parameters if parameter]
    highest = max(numbers, default=0)
    if highest > PARAMETERS_MAX:
        raise Failure("54000", f"${highest}: a statement has at most {PARAMETERS_MAX:,} parameters")
    return highest


def insert_parameters(sql: str, constants: Sequence[str]) -> str:
    """Return a statement with constants in place of its parameters. Raises Failure if one is missing."""

    size = 0

    def substitute(match: re.Match[str]) -> str:
        nonlocal size
        if match["hex"]:
            return f"from_hex({match['hex'].replace(chr(92) + 'x', '', 1)})"
        parameter = match["parameter"] or match["cast"]
        if not parameter:
            return match[0]
        number = int(parameter[1:])
        if not 1 <= number <= len(constants):
            raise Failure("42P02", f"there is no parameter ${number}")
        constant = constants[number - 1]
        size += len(constant)
        if size > TEXT_CHARS_MAX:
            raise Failure("54000", f"a statement with its parameters has {TEXT_CHARS_MAX:,} characters at most")
        # DuckDB's NUMERIC has three digits behind the point, and Postgres's NUMERIC has all digits.
        constant = make_exact_numeric(constant) if match["numeric"] or match["cast"] else constant
        # Spaces and brackets keep a constant apart from what is around it: a minus before -5 would begin a comment.
        return f" {constant} " if constant.startswith("'") else f" ({constant}) "

    return _TOKENS.sub(substitute, sql)


_COMPARED = re.compile(
    r"""(?P<column>(?<![\w."])[\w."]++)\s*(?:=|<>|!=|<=|>=|<|>|(?:NOT\s+)?(?:I?LIKE|IN\s*\(|BETWEEN))\s*(?:\$\d+\s*(?:,|AND)\s*)*\$(?P<after>\d+)
    |\$(?P<before>\d+)\s*(?:=|<>|!=|<=|>=|<|>)\s*(?P<other>[\w."]++)
    |\b(?:LIMIT|OFFSET)\s+\$(?P<count>\d+)
    |\$(?P<cast>\d+)\s*::\s*(?P<type>\w+)
    |\bCAST\s*\(\s*\$(?P<call>\d+)\s+AS\s+(?P<name>\w+)""",
    re.IGNORECASE | re.VERBOSE,
)
_INSERTED = re.compile(
    r"INSERT\s+INTO\s+(?P<table>[\w.\"]+)\s*(?:\((?P<columns>[^()]*)\))?\s*VALUES\s*(?P<rows>\(.*)",
    re.IGNORECASE | re.DOTALL,
)


def infer_parameter_types(sql: str, declared: Sequence[int], tables: Mapping[str, Sequence[Column]]) -> list[int]:
    """Return the types of parameters: as declared, or inferred from the compared column, else text.

    `declared` has oids, 0 for those without a type, and perhaps not for all; `tables` has columns by table.
    """
    types = [*declared, *[0] * (count_parameters(sql) - len(declared))]
    names = {name: oid for oid, (sql_name, pg_name, _, _) in values.TYPES.items() for name in (sql_name, pg_name)}
    names |= {"varchar": values.TEXT, "int": values.INT4, "float": values.FLOAT8, "double": values.FLOAT8}

    def find_oid(name: str) -> int | None:
        oids = {column.oid for columns in tables.values() for column in columns if column.name.lower() == name.lower()}
        return oids.pop() if len(oids) == 1 else None

    def decide(number: str, oid: int | None) -> None:
        at = int(number) - 1
        if oid is not None and at < len(types) and not types[at]:
            types[at] = oid

    bare = _TOKENS.sub(_blank_text, sql)
    for match in _COMPARED.finditer(bare):
        if match["cast"] or match["call"]:
            decide(match["cast"] or match["call"], names.get((match["type"] or match["name"]).lower()))
        elif match["count"]:
            decide(match["count"], values.INT8)
        else:
            column = (match["column"] or match["other"]).rpartition(".")[2].strip('"')
            decide(match["after"] or match["before"], find_oid(column))
    if inserted := _INSERTED.search(bare):
        table = {name.lower(): columns for name, columns in tables.items()}
        columns = table.get(inserted["table"].replace('"', "").lower().removeprefix("main."), ())
        if inserted["columns"] is not None:
            by_name = {column.name.lower(): column for column in columns}
            names_there = [name.strip().strip('"').lower() for name in inserted["columns"].split(",")]
            columns = [by_name.get(name, Column(name, values.TEXT)) for name in names_there]
        for row in re.findall(r"\(([^()]*)\)", inserted["rows"]):
            for column, value in zip(columns, row.split(","), strict=False):
                if number := re.fullmatch(r"\s*\$(\d+)\s*", value):
                    decide(number[1], column.oid)
    return [oid or values.TEXT for oid in types]


def _blank_text(match: re.Match[str]) -> str:
    """Return an empty text for a quoted one, and other matches unchanged."""
    is_name = match["parameter"] or match["cast"] or match[0][:1] == '"'
    return match[0] if is_name else "''"


@dataclass(frozen=True)
class Copy:
    """A `COPY … TO STDOUT`: its query, and the form of its rows. `form`: `text`, `csv` or `binary`."""

    query: str
    form: str = "text"
    separator: str = "\t"
    null: str = "\\N"
    header: bool = False


_COPY = re.compile(
    r"COPY\s*(?:\((?P<query>.*)\)|(?P<table>[\w.\"]+)\s*(?:\((?P<columns>[^()]*)\))?)\s*TO\s+STDOUT\b(?P<options>.*)",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(
    r"\s*(?P<name>FORMAT|DELIMITERS?|NULL|HEADER|ENCODING|CSV|BINARY|TEXT|\w+)(?:\s+AS\b)?"
    r"\s*(?P<value>'(?:[^']|'')*'|(?<=\s)(?!CSV|HEADER|DELIMITER|NULL|ENCODING)\w+)?\s*(?:,|(?=\s|$))",
    re.IGNORECASE,
)


def parse_copy(sql: str) -> Copy:
    """Parse a COPY."""
    match = _COPY.fullmatch(_strip(sql))
    if match is None:
        raise Failure(
            "0A000",
            "only COPY … TO STDOUT is served",
            "Write with INSERT, or with `persist write` and `persist ingest`, which read files.",
        )
    query = match["query"] or f"SELECT {match['columns'] or '*'} FROM {match['table']}"
    options = dict(_parse_copy_options(match["options"].strip()))
    form = options.pop("format", "text").lower()
    if form not in ("text", "csv", "binary"):
        raise Failure("22023", f"COPY has no format {form!r}: text, csv and binary are the formats")
    if form == "binary" and options:
        raise Failure("42601", f"COPY in format binary has no option {next(iter(options))}")
    separator = options.pop("delimiter", "," if form == "csv" else "\t")
    null = options.pop("null", "" if form == "csv" else "\\N")
    header = options.pop("header", "false").lower() in ("", "true", "on", "1")
    if options.pop("encoding", "UTF8").upper().replace("-", "") != "UTF8":
        raise Failure("0A000", "COPY writes UTF8 only")
    if options:
        raise Failure("0A000", f"COPY has no option {next(iter(options))} here")
    is_delimiter = len(separator.encode()) == 1 and separator not in '\n\r\\".' and not separator.isalnum()
    if not is_delimiter or any(mark in null for mark in "\n\r" + separator):
        raise Failure(
            "22023", "the DELIMITER of COPY is one character, such as | or a tab, which NULL does not contain"
        )
    return Copy(query, form, separator, null, header)


def _parse_copy_options(text: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a COPY, in the form `(FORMAT csv, HEADER)` or the older `CSV HEADER`."""
    bare, at = re.sub(r"^WITH\b\s*", "", text, flags=re.IGNORECASE).strip(), 0
    bare = bare[1:-1] if bare.startswith("(") and bare.endswith(")") else bare
    while bare[at:].strip():
        match = _OPTION.match(bare, at)
        if match is None:
            raise Failure("42601", f"the options of COPY are not understood at {bare[at:].strip()[:40]!r}")
        at = match.end()
        name = match["name"].lower()
        yield ("format", name) if name in ("csv", "binary") else (name, _unquote(match["value"] or ""))


def _unquote(text: str) -> str:
    """Return a text without its single quotes."""
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


@dataclass(frozen=True)
class Subscribe:
    """A parsed SUBSCRIBE: a collection, and the times and rows to send.

    Attributes:
        as_of: the time after which updates come; None for the latest one.
        up_to: the time before which updates come; None for all.
        snapshot: whether the contents come first.
        progress: whether each advance of the upper is a row.
    """

    name: str
    as_of: str | None = None
    up_to: str | None = None
    snapshot: bool = True
    progress: bool = False


_TIME = r"(?:'(?P<{0}_text>[^']*)'|(?P<{0}_number>\d+))"
_SUBSCRIBE = re.compile(
    r"SUBSCRIBE\s+(?:TO\s+)?(?P<name>[\w.\"$-]+)"
    rf"(?:\s+(?:VERSION\s+|TIMESTAMP\s+)?AS\s+OF\s+{_TIME.format('from')})?(?:\s+UP\s+TO\s+{_TIME.format('to')})?"
    r"(?:\s+WITH\s*\((?P<options>[^()]*)\))?",
    re.IGNORECASE,
)


def parse_subscribe(sql: str) -> Subscribe:
    """Parse a SUBSCRIBE. Raises Failure if it is malformed."""
    match = _SUBSCRIBE.fullmatch(_strip(sql))
    if match is None:
        raise Failure(
            "42601",
            "a subscription is SUBSCRIBE TO collection [AS OF time] [UP TO time] [WITH (SNAPSHOT = false, PROGRESS)]",
        )
    flags = {"snapshot": True, "progress": False}
    for option in filter(None, map(str.strip, (match["options"] or "").split(","))):
        name, _, value = re.sub(r"\s*=\s*|\s+", " ", option).partition(" ")
        if name.lower() not in flags or value.lower() not in ("", "true", "false", "on", "off"):
            raise Failure("22023", f"SUBSCRIBE has no option {option!r}: SNAPSHOT and PROGRESS are its options")
        flags[name.lower()] = value.lower() in ("", "true", "on")
    as_of, up_to = match["from_text"] or match["from_number"], match["to_text"] or match["to_number"]
    name = ".".join(
        part[1:-1].replace('""', '"') if part.startswith('"') else part for part in match["name"].split(".")
    )
    return Subscribe(name, as_of, up_to, **flags)


_DECLARE = re.compile(
    r"DECLARE\s+(?P<name>\"[^\"]+\"|\w+)\s+(?P<binary>BINARY\s+)?(?:(?:IN)?SENSITIVE\s+|ASENSITIVE\s+)?(?:NO\s+SCROLL\s+)?"
    r"CURSOR\s+(?:WITHOUT\s+HOLD\s+)?FOR\s+(?P<query>.*)",
    re.IGNORECASE | re.DOTALL,
)
_FETCH = re.compile(
    r"(?P<verb>FETCH|MOVE)\s+(?:NEXT\s+|FORWARD\s+)?(?:(?P<count>ALL|\d+)\s+)?(?:FROM\s+|IN\s+)?(?P<name>\"[^\"]+\"|\w+)",
    re.IGNORECASE,
)
REFUSED = {
    "LISTEN": ("there are no notifications here", "SUBSCRIBE TO a collection streams its changes."),
    "NOTIFY": ("there are no notifications here", "Write to a collection, and SUBSCRIBE TO it."),
    "PREPARE": ("PREPARE is not served", "Drivers prepare statements by the protocol."),
    "EXECUTE": ("EXECUTE is not served", "Drivers prepare statements by the protocol."),
    "LOCK": ("there are no locks here", "A block that meets another's change fails with 40001: run it again."),
}


def parse_declare(sql: str) -> tuple[str, str, bool]:
    """Return the name and the query of a DECLARE, and whether its rows are binary. Raises Failure for other text."""
    match = _DECLARE.fullmatch(_strip(sql))
    if match is None:
        raise Failure("42601", "a cursor is made by DECLARE name CURSOR FOR query")
    return match["name"].strip('"'), match["query"], match["binary"] is not None


def parse_fetch(sql: str) -> tuple[str, str, int | None]:
    """Return the verb of a FETCH or MOVE, its cursor, and how many rows it takes, None for all."""
    match = _FETCH.fullmatch(_strip(sql))
    if match is None:
        raise Failure("0A000", "cursors are read forward: FETCH [FORWARD] count FROM name, or FETCH ALL FROM name")
    count = (match["count"] or "1").upper()
    return match["verb"].upper(), match["name"], None if count == "ALL" else int(count)


def check_chain(sql: str) -> None:
    """Raise Failure if a COMMIT or ROLLBACK has AND CHAIN."""
    if re.search(r"\bAND\s+CHAIN\b", sql, re.IGNORECASE):
        raise Failure("0A000", "AND CHAIN is not served: say BEGIN again")


def check_length(sql: str) -> None:
    """Raise Failure if a statement is too long."""
    if len(sql) > SQL_CHARS_MAX:
        raise Failure("54000", f"the statement has {len(sql):,} characters, and at most {SQL_CHARS_MAX:,} are read")


def refuse(session: object, sql: str) -> NoReturn:
    """Raise Failure for a statement that is not served."""
    raise Failure("0A000", *REFUSED[list_first_words(sql)[0]])
