"""One word for one idea: what commands and Spark's options are called is what Python calls it."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import persist
from persist.api.client import Client
from persist.api.collection import Collection
from persist.api.view import View
from persist.core.log.fields import Policy
from persist.services import backup
from persist.tools.cli import dispatch
from persist.tools.cli.command import app
from tests.support.console import matches, run_page
from tests.support.paths import ROOT

assert dispatch.COMMANDS  # Its import declares the commands.
COMMANDS: dict[str, Any] = typer.main.get_command(dispatch.app).commands  # type: ignore[attr-defined]

# Of every command, and of no call: where the location is, how to reach it, and how to show the answer.
OF_ALL = {"location", "storage_option", "storage_options_file", "store_timeout", "as_json", "verbose", "help"}
LIMITED = {"format", "output", "limit"}  # Calls return rows, and their callers do the rest.
ROWS_IN = {"file", "format", "ignore", "skip_bad"}  # Calls take frames.

# The calls that a command makes, and what it has of its own.
CALLS: dict[str, tuple[list[Callable[..., Any]], set[str]]] = {
    "apply": ([], {"folder", "dry_run", "prune", "yes"}),
    "backup": ([backup.backup], set()),
    "bench": ([], set()),
    "changes": ([Collection.changes], LIMITED),
    "clone": ([Client.clone], {"name"}),  # Its `target`.
    "compact": ([Collection.compact, Collection.allow_compaction, persist.Settings], {"collections", "yes"}),
    "copy": ([backup.copy], set()),
    "cost": ([], {"prices"}),
    "create": ([Client.create_or_load, persist.Keyed], {"format"}),
    "delete": ([Collection.delete], {"format", "ignore"}),
    "diff": ([Collection.diff], LIMITED),
    "doctor": ([], {"no_write"}),
    "drop": ([Collection.drop], {"yes"}),
    "egress": ([persist.egress], set()),
    "erase": ([Collection.erase, Collection.traces], {"format", "verify", "yes"}),
    "evolve": ([Collection.evolve, persist.Keyed], set()),
    "index": ([Collection.index, Collection.drop_index], {"drop"}),
    "export": ([Collection.snapshot], {"target"}),
    "fsck": ([Client.fsck], {"shallow"}),  # Its `deep=False`.
    "gc": ([Client.gc], set()),
    "hold": ([Collection.hold], set()),
    "holds": ([], {"collections", "watch"}),
    "ingest": ([persist.ingest], {"key", "publication", "tables", "exclude", "as_text"}),
    "log": ([Client.history], set()),
    "ls": ([Client.collections], {"watch"}),
    "maintain": ([], {"every"}),
    "overwrite": ([Collection.overwrite], ROWS_IN),
    "publish": ([Collection.publish], set()),
    "read": ([Collection.snapshot], LIMITED),
    "refresh": ([Client.view], {"views"}),
    "release": ([], {"hold", "yes"}),
    "rename": ([Collection.rename], set()),
    "retain": ([Collection.retain], {"yes"}),
    "restore": ([Collection.restore], set()),
    "seal": ([Collection.seal], {"for_ever"}),
    "serve": ([Client.serve], {"metrics", "sql_memory", "sql_timeout"}),  # The last two make its `sql`.
    "show": ([], set()),
    "status": ([], {"watch"}),
    "sql": ([Client.sql], LIMITED),
    "tag": ([Collection.tag], set()),
    "tags": ([], set()),
    "tail": ([Collection.subscribe, Collection.changes, Client.follow], {"format"}),
    "ui": ([], {"host", "port", "allow_host", "open_"}),
    "unpublish": ([Collection.unpublish], set()),
    "untag": ([Collection.untag], set()),
    "policy": ([Client.set_policy, Policy], {"yes"}),
    "upgrade": ([Client.upgrade], set()),
    "upsert": ([Collection.upsert], ROWS_IN | {"time_column"}),
    "verify": ([backup.verify], {"target_option"}),  # Its `against_options`.
    "view": ([Client.create_view, View.redefine], {"query", "redefine"}),
    "wait": ([Collection.changes], set()),
    "write": ([Client.write, Collection.write], ROWS_IN | {"time_column", "no_key"}),
}

# The calls that do what a use of Spark's format does, and the options that only Spark needs.
SPARK: dict[str, tuple[list[Callable[..., Any]], set[str]]] = {
    "read": ([persist.open, Collection.snapshot, Collection.changes], {"collection", "partitions"}),
    "stream": (
        [Collection.subscribe, Collection.changes],
        {"collection", "partitions", "hold", "max_updates_per_trigger", "max_times_per_trigger"},
    ),
    "write": (
        [persist.Client.write, Collection.write, Collection.upsert, Collection.overwrite, persist.open],
        {"collection", "late_collection"},
    ),
    "streaming write": (
        [Collection.write, Collection.upsert, persist.open],
        {"collection", "late_collection", "watermark", "first_batch"},
    ),
}


def words_of(calls: list[Callable[..., Any]]) -> Iterator[str]:
    """Yield what calls take; an option that may be repeated may have the singular, and seconds go without saying."""
    for call in calls:
        for name in inspect.signature(call).parameters:
            yield from (name, name.removesuffix("_s"), name.removesuffix("s"))


@pytest.mark.parametrize("name", sorted({*COMMANDS, *CALLS}))
def test_the_options_of_a_command_are_the_parameters_of_the_calls_that_it_makes(name: str) -> None:
    calls, own = CALLS[name]
    given = {parameter.name for parameter in COMMANDS[name].params} - OF_ALL
    known = {*words_of(calls), "collection"}
    assert given - known == own & given, "options that no call has"
    assert own <= given, "these are gone: take them out of the table"
    for parameter in COMMANDS[name].params:
        long = [option for option in parameter.opts if option.startswith("--")]
        if parameter.param_type_name == "option" and parameter.name != "as_json":
            assert long == ["--" + parameter.name.removesuffix("_").replace("_", "-")]


def test_spark_s_options_are_the_parameters_of_the_calls_that_do_the_same() -> None:
    options = pytest.importorskip("persist.connect.spark.options").OPTIONS
    for use, (calls, own) in SPARK.items():
        given = {option.name for option in options if use in option.uses}
        assert given - {*words_of(calls)} == own, use


def test_each_option_of_a_command_says_what_it_does() -> None:
    silent = {(name, parameter.name) for name in COMMANDS for parameter in COMMANDS[name].params if not parameter.help}
    assert not silent


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_that_takes_a_time_has_the_words_for_times(name: str) -> None:
    command = COMMANDS[name]
    metavars = {getattr(parameter, "metavar", None) for parameter in command.params}
    takes_time = bool(metavars & {"TIME", "[NAME=]TIME", "START", "UNTIL", "FIRST", "SECOND", "AS_OF"})
    text = command.get_help(typer.Context(command, info_name=name))
    assert [word in text for word in ('"now"', '"yesterday"', '"-1d"', '"latest"')] == [takes_time] * 4


PAGE = ROOT / "docs" / "use" / "command-line.md"
FILES = {
    "orders.csv": "order_id,status,amount\n1,new,9.5\n2,new,3.0\n3,paid,12.0\n",
    "report.sql": "SELECT max(amount) AS most FROM orders;\nSELECT count(*) AS n FROM orders;\n",
    "late.csv": "order_id,status,amount\n4,new,seven\n5,new\n",
    "views/counts.sql": "-- key: status\nSELECT status, count(*) AS n FROM orders GROUP BY status\n",
    "day2.csv": "order_id,status,amount\n1,paid,9.5\n3,paid,12.0\n",
}


def test_every_command_of_the_page_prints_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "views").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    assert run_page(PAGE, capsys) >= 15


def test_what_a_page_expects_can_differ() -> None:
    assert matches(["a  b", "…", "x … z"], ["a b", "1", "2", "x y z"])
    assert not matches(["a", "…"], ["b"])
    assert not matches(["a"], ["a", "b"])


def test_every_command_is_on_a_page() -> None:
    assert dispatch.COMMANDS
    pages = PAGE.read_text() + (ROOT / "docs" / "run" / "operations.md").read_text()
    names = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert [name for name in names if not re.search(rf"persist {name}\b", pages)] == []
