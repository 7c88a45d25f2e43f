"""The table of the kinds of records has everything for each of them."""

from typing import Any

import pytest

from persist.core.log import kinds
from persist.core.log.fields import LocationMutation
from persist.core.log.kinds import KINDS
from persist.core.state_rules.collection_rules import RULES
from persist.core.state_rules.location import LOCATION_RULES

ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@ALL
def test_every_kind_has_one_rule(kind: Any) -> None:
    """`Create`, `Clone` and `Destroy` are about whether there are contents at all, and `State` sees to that."""
    rules = LOCATION_RULES if issubclass(kind, LocationMutation) else RULES
    assert (kind in rules) != (kind in (kinds.Create, kinds.Clone, kinds.Destroy))
    assert (kind in RULES) + (kind in LOCATION_RULES) == (kind in rules)


@ALL
def test_every_kind_has_words_for_people(kind: Any) -> None:
    assert hasattr(kind, "in_words") != ("describe" in vars(kind))


def test_no_rule_is_for_a_kind_that_is_not_in_the_table() -> None:
    assert {*LOCATION_RULES} <= {*KINDS.values()}
    assert {rule for rule in RULES if hasattr(rule, "is_sent")} <= {*KINDS.values()}
