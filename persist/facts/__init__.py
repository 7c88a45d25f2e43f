"""What a location says of itself, for people: the commands and the page ask for the same and show it differently.

Promises: no data is read; nothing is printed, and nothing written.
"""

from typing import TYPE_CHECKING

from persist.facts.times import time_of, times_of, written_time_of
from persist.late_names import late_names

if TYPE_CHECKING:
    from persist.facts.costs import LIST_PRICES, Prices, costs_of
    from persist.facts.health import Health, health_of, waiting_blobs
    from persist.facts.surveys import (
        Facts,
        KnownFacts,
        Portrait,
        hold_for_people,
        monthly_dollars,
        names_by_id,
        portrait,
        survey,
    )

_SURVEYS = ("Facts", "KnownFacts", "Portrait", "hold_for_people", "monthly_dollars", "names_by_id")
_HEALTH = ("Health", "health_of", "waiting_blobs")
_COSTS = ("LIST_PRICES", "Prices", "costs_of")
__getattr__ = late_names(__name__, {"costs": _COSTS, "surveys": [*_SURVEYS, "portrait", "survey"], "health": _HEALTH})
