"""The settings of a session, with the time that its statements read."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping

from persist.services.serve.postgres.wire import Failure

SERVER_VERSION = "15.0"
DATABASES = ("latest", "persist", "postgres")  # The others are times.
_NO_SETTINGS = ("user", "database", "replication", "options")
AS_OF = "persist.as_of"
TIMEOUT = "statement_timeout"
# Settings with their values at the start and the possible ones; None if any is possible.
_SETTINGS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "server_version": (SERVER_VERSION, ()),
    "server_version_num": ("150000", ()),
    "server_encoding": ("UTF8", ()),
    "client_encoding": ("UTF8", ("UTF8", "UTF-8", "UNICODE", "SQL_ASCII")),
    "DateStyle": ("ISO, MDY", ("ISO", "ISO, MDY", "ISO, DMY", "ISO, YMD", "ISO,MDY")),
    "IntervalStyle": ("postgres", ("POSTGRES",)),
    "TimeZone": ("UTC", ("UTC", "GMT", "ETC/UTC", "+00:00", "0", "DEFAULT")),
    "integer_datetimes": ("on", ()),
    "standard_conforming_strings": ("on", ("ON",)),
    "is_superuser": ("off", ()),
    "session_authorization": ("", ()),
    "in_hot_standby": ("off", ()),
    "default_transaction_read_only": ("off", None),
    "application_name": ("", None),
    "transaction_isolation": ("repeatable read", None),
    "default_transaction_isolation": ("repeatable read", None),
    "transaction_read_only": ("off", None),
    "search_path": ("main", None),
    "extra_float_digits": ("1", None),
    "max_identifier_length": ("63", ()),
    "max_index_keys": ("32", ()),
    "bytea_output": ("hex", ("HEX",)),
    TIMEOUT: ("0", None),
    "row_security": ("off", None),
    "lc_collate": ("C", ()),
    "lc_monetary": ("C", None),
    "jit": ("off", None),
    AS_OF: ("", None),
}
_SENT = (
    "server_version", "server_encoding", "client_encoding", "DateStyle", "IntervalStyle", "TimeZone",
    "integer_datetimes", "is_superuser", "standard_conforming_strings", "session_authorization", "in_hot_standby",
    "default_transaction_read_only", "application_name",
)  # fmt: skip
_IGNORED = (
    "work_mem", "lock_timeout", "idle_in_transaction_session_timeout", "client_min_messages", "enable_seqscan",
    "synchronous_commit", "random_page_cost", "default_tablespace", "default_table_access_method", "xmloption",
    "check_function_bodies", "geqo", "idle_session_timeout", "max_parallel_workers_per_gather", "plan_cache_mode",
    "backslash_quote", "escape_string_warning", "timezone_abbreviations", "lc_messages", "lc_numeric", "lc_time",
    "ssl_renegotiation_limit",
)  # fmt: skip
_UNITS_S = {"us": 1e-6, "": 1e-3, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Settings:
    """The user, database, process id and settings of a session. `values`: the present settings, by name.

    `check_time`: raises Failure if a text is not a time.
    """

    def __init__(self, user: str, database: str, pid: int, check_time: Callable[[str], None]) -> None:
        self.user, self.database, self.pid = user, database, pid
        self._check_time = check_time
        self.values = {name: value for name, (value, _) in _SETTINGS.items()}
        self.values |= {"session_authorization": user, AS_OF: "" if database in (*DATABASES, user) else database}
        self._defaults: dict[str, str] = {}
        self._before: dict[str, tuple[str, bool]] = {}

    def begin(self, options: Mapping[str, str]) -> list[tuple[str, str]]:
        """Apply the settings of the first message; return the settings to send to the client."""
        chosen = [(name, value) for name, value in options.items() if name not in _NO_SETTINGS]
        for name, value in [*chosen, *parse_options(options.get("options", ""))]:
            self.set(name, value)
        self._defaults = dict(self.values)
        return [(name, self.values[name]) for name in _SENT]

    def set(self, name: str, value: str | None) -> tuple[str, str] | None:
        """Change a setting; return it if it is sent to the client.

        `value`: None for the value that it had at the start.
        """
        name = _canonical_name(name)
        if value is None or value.upper() == "DEFAULT":
            value = self._defaults.get(name, "")
        value = _unquote(value)
        default, allowed = _SETTINGS.get(name, ("", None))
        if name not in _SETTINGS and "." not in name and name not in _IGNORED:
            raise Failure("42704", f'there is no setting "{name}": {AS_OF} chooses the time that statements read')
        if allowed is not None and value.upper() not in (default.upper(), *allowed):
            possible = f"the values are {', '.join(allowed)}" if allowed else "it cannot be changed"
            raise Failure("22023", f'{name} = "{value}": {possible}', "Moments are sent in UTC, and texts in UTF8.")
        if name == TIMEOUT:
            _parse_timeout(value)
        if name == AS_OF and value.strip():
            self._check_time(value)
        if name.endswith("read_only"):
            value = "on" if value.lower() in ("on", "true", "yes", "1") else "off"
        if name.endswith("isolation"):
            value = "serializable" if value.lower() == "serializable" else "repeatable read"
        self.values[name] = default if allowed else value
        return (name, self.values[name]) if name in _SENT and self._defaults else None

    def reset(self) -> None:
        """Set all settings to their values at the start."""
        self.values.update(self._defaults)

    def find(self, words_of_name: str) -> tuple[str, str] | None:
        """Return the name and the value of a setting; None if it does not exist."""
        bare = " ".join(words_of_name.strip().strip('"').lower().split())
        name = _canonical_name(
            {"transaction isolation level": "transaction_isolation", "time zone": "TimeZone"}.get(bare, bare)
        )
        return (name, self.values[name]) if name in self.values else None

    def begin_block(self, sql: str) -> None:
        """Set the modes of a block, from its BEGIN and the defaults."""
        self.values["transaction_read_only"] = self.values["default_transaction_read_only"]
        self.values["transaction_isolation"] = self.values["default_transaction_isolation"]
        for name, value in _parse_modes(sql, "transaction"):
            self.set(name, value)

    def remember(self, name: str, *, is_local: bool) -> None:
        """Keep the value of a setting that a block changes; the end of the block may restore it."""
        name = _canonical_name(name)
        self._before.setdefault(name, (self.values.get(name, ""), is_local))

    def end_block(self, *, is_committed: bool) -> None:
        """Restore what the block has changed: all settings after a rollback, and local ones after a commit."""
        for name, (value, is_local) in self._before.items():
            if is_local or not is_committed:
                self.values[name] = value
        self._before.clear()
        self.begin_block("")

    @property
    def as_of(self) -> int | str | None:
        """The time that statements read; None for the latest one."""
        bare = self.values[AS_OF].strip().removeprefix("@")
        return None if not bare else int(bare) if bare.isdecimal() else bare

    def check_may_change(self, verb: str, *, may_write: bool, is_in_block: bool) -> None:
        """Raise Failure if a statement may not change collections."""
        if not may_write:
            raise Failure(
                "25006",
                f"cannot execute {verb} in a read-only session",
                "Start the server with --write, and connect with its write token if it has one.",
            )
        if self.as_of is not None:
            raise Failure("25006", f"{AS_OF} is set, and statements change only present contents: RESET {AS_OF} first")
        if self.values["transaction_read_only" if is_in_block else "default_transaction_read_only"] == "on":
            raise Failure("25006", f"cannot execute {verb} in a read-only transaction")

    @property
    def timeout_s(self) -> float:
        """How long a statement may take; 0 for no limit but the server's."""
        return _parse_timeout(self.values[TIMEOUT])


def _parse_timeout(value: str) -> float:
    """Return a timeout in seconds, from ms or text with a unit."""
    match = re.fullmatch(r"\s*(\d{1,10}(?:\.\d{1,10})?)\s*(us|ms|s|min|h|d|)\s*", value)
    if match is None:
        raise Failure("22023", f'{TIMEOUT} = "{value}": it is milliseconds, or a number with a unit, such as 5s')
    return min(float(match[1]) * _UNITS_S[match[2]], threading.TIMEOUT_MAX)


def _parse_modes(sql: str, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that transaction modes set, such as READ ONLY."""
    for word in re.findall(r"READ\s+(ONLY|WRITE)", sql, re.IGNORECASE):
        yield f"{prefix}_read_only", "on" if word.upper() == "ONLY" else "off"
    for level in re.findall(r"ISOLATION\s+LEVEL\s+(SERIALIZABLE|REPEATABLE|READ)", sql, re.IGNORECASE):
        yield f"{prefix}_isolation", level


def parse_set(sql: str) -> list[tuple[str, str | None]]:
    """Return the settings that a SET changes, with their values. Raises Failure if it is malformed."""
    bare = re.sub(
        r"^\s*SET\s+(?:SESSION\s+(?!CHARACTERISTICS|AUTHORIZATION)|LOCAL\s+)?", "", sql.strip(), flags=re.IGNORECASE
    )
    if match := re.fullmatch(r"TIME\s+ZONE\s+(.*)", bare, re.IGNORECASE | re.DOTALL):
        return [("TimeZone", match[1])]
    if match := re.fullmatch(r"NAMES\s+(.*)", bare, re.IGNORECASE | re.DOTALL):
        return [("client_encoding", match[1])]
    if match := re.match(r"(?:TRANSACTION|(SESSION\s+CHARACTERISTICS))\b", bare, re.IGNORECASE):
        return [*_parse_modes(bare, "default_transaction" if match[1] else "transaction")]
    if match := re.fullmatch(r"([\w.\"]+)\s*(?:=|(?<=\s)TO\b)\s*(.*)", bare, re.IGNORECASE | re.DOTALL):
        return [(match[1].replace('"', ""), match[2])]
    raise Failure("42601", "a setting is changed by SET name = value")


def parse_options(options: str) -> list[tuple[str, str]]:
    """Return the settings in the `options` of a first message: `-c name=value` or `--name=value`."""
    pairs = re.findall(r"(?:-c\s*|--)([\w.]+)=((?:\\.|\S)*)", options)
    return [(name, re.sub(r"\\(.)", r"\1", value)) for name, value in pairs]


def _canonical_name(name: str) -> str:
    """Return the usual spelling of a setting's name."""
    return next((setting for setting in _SETTINGS if setting.lower() == name.lower()), name.lower())


def _unquote(text: str) -> str:
    """Return the value of a setting without quotes and semicolon."""
    text = text.strip().rstrip(";").strip()
    return text[1:-1].replace("''", "'") if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
