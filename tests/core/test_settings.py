"""What users may set is little, documented and checked; see `persist.core.settings`."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import persist
from persist.blob.errors import Throttled
from persist.core.settings import Settings, Tuning, open_storage
from tests.support.clocks import ImpatientClock
from tests.support.paths import ROOT
from tests.support.tuned import tuned

SETTINGS_MAX, FIELDS_MAX = 10, 20
PAGE = ROOT / "docs" / "run" / "operations.md"
ROW = re.compile(r"^\| `(\w+)`(?:, `(\w+)`)?( \(\*\))? \| ([^|]+) \|", re.MULTILINE)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "h": 3600, "days": 86400, "s": 1}
PUBLIC = [field.name for field in fields(Settings) if field.name != "tuning"]


def documented() -> dict[str, str]:
    """Return the defaults in the table of the page, by the name of the setting."""
    section = PAGE.read_text().partition("## Settings\n")[2].partition("\n## ")[0]
    rows: dict[str, str] = {}
    for first, second, _, default in ROW.findall(section):
        names = [name for name in (first, second) if name]
        defaults = default.split(", ") if second else [default]
        rows.update(zip(names, defaults, strict=True))
    return rows


def value_of(text: str) -> object:
    number, _, unit = text.partition(" ")
    words = {"True": True, "False": False, "None": None, '"by store"': "by store"}
    return words[text] if text in words else float(number) * UNITS[unit or "s"]


def test_users_have_few_settings() -> None:
    assert len(PUBLIC) <= SETTINGS_MAX
    assert len(fields(Settings)) + len(fields(Tuning)) <= FIELDS_MAX
    assert not {"Tuning", "Policy"} & {*persist.__all__}


def test_the_page_lists_each_setting_with_its_default() -> None:
    listed = documented()
    assert sorted(listed) == sorted(PUBLIC)
    assert {name: value_of(text) for name, text in listed.items()} == {n: getattr(Settings(), n) for n in PUBLIC}


NUMBERS = [name for name in PUBLIC if name not in ("background", "cache_folder")]
COUNTS = ["memory_budget", "cache_folder_bytes", "part_bytes", "merge_runs", "runs_max", "attempts_max"]


@pytest.mark.parametrize("value", [True, float("inf"), float("nan"), -1, "60"])
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_usable_number_is_refused(name: str, value: object) -> None:
    with pytest.raises(persist.InvalidUsage, match=rf"^{name}=.* is not allowed: give "):
        replace(Settings(), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", COUNTS)
def test_fractions_of_what_is_counted_are_refused(name: str) -> None:
    with pytest.raises(persist.InvalidUsage, match=rf"^{name}=20000000.5 is not allowed: give an integer"):
        tuned(**{name: 20_000_000.5})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"retry_s": 0}, "retry_s=0 is not allowed: give a number > 0.0"),
        ({"memory_budget": 1}, "memory_budget=1 is not allowed: give an integer >= 16777216"),
        ({"poll_s": "x"}, "poll_s='x' is not allowed: give a number or 'by store'"),
        ({"background": 1}, "background=1 is not allowed: give True or False, not int"),
        ({"retry_s": None}, "retry_s=None is not allowed: give a number, not None"),
        ({"cache_folder": 3}, "cache_folder=3 is not allowed: give a path, or None"),
        ({"attempts_max": 0}, "attempts_max=0 is not allowed: give an integer >= 1"),
        ({"retry_s": 10**400}, f"retry_s={10**400} is not allowed: give a number that 64 bits can hold"),
        ({"retry_s": float("inf")}, "retry_s=inf is not allowed: give a finite number"),
    ],
    ids=str,
)
def test_an_error_says_what_is_wrong_and_what_is_allowed(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(persist.InvalidUsage) as error:
        tuned(**wrong)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [
        ({"resolve": "never"}, "'seal' or 'background'"),
        ({"ties": 1}, "'last' or 'greatest'"),
        ({"tombstone": "c", "tombstone_value": 3}, "text or None, not int"),
    ],
    ids=str,
)
def test_a_keyed_declaration_is_checked_likewise(wrong: dict[str, Any], allowed: str) -> None:
    name, value = [*wrong.items()][-1]
    with pytest.raises(persist.InvalidUsage) as error:
        persist.Keyed(**wrong)
    assert str(error.value) == f"{name}={value!r} is not allowed: give {allowed}"


def test_whole_numbers_are_good_enough_for_durations() -> None:
    assert Settings(retry_s=60, poll_s=1, cache_folder=Path("x")).retry_s == 60


class Throttling(persist.MemoryBlob):
    """A store that refuses each request, because there are too many."""

    def get(self, key: str, range: tuple[int, int] | None = None) -> bytes | None:
        raise Throttled("slow down")


@pytest.mark.parametrize(("settings", "longest_s"), [(Settings(retry_s=8), 8), (Settings(), 300)])
def test_a_short_patience_holds_for_a_store_that_throttles(settings: Settings, longest_s: float) -> None:
    clock = ImpatientClock()
    with pytest.raises(Throttled):
        open_storage(Throttling(), settings=settings, clock=clock).blob.get("log/1")
    assert longest_s / 2 < clock.monotonic_s() < longest_s + 6


def test_a_value_of_the_policy_is_refused_with_the_call_that_changes_it() -> None:
    says = r"lease_s=3 is not a setting of one client: change it by client\.set_policy\(lease_s=3\)"
    with pytest.raises(persist.InvalidUsage, match=says):
        Settings(lease_s=3)  # type: ignore[call-arg]


def test_a_part_takes_at_most_a_quarter_of_the_budget() -> None:
    assert Settings().tuning.part_bytes == 64 << 20
    assert Settings(memory_budget=16 << 20).tuning.part_bytes == 4 << 20
