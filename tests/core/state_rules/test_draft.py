"""What a draft remembers of one operation must not let a later one of the same group pass."""

import pyarrow as pa
import pytest

from persist.codecs.types.schema import CollectionSchema
from persist.core.log import kinds
from persist.core.state_rules.collection_rules import PlannedAppend
from persist.core.state_rules.draft import Draft
from persist.core.state_rules.state import State
from persist.errors import UpdateNotBeyondUpper

ID = "0" * 32
SCHEMA = CollectionSchema.of({"k": pa.int64()}, None)


def draft_sealed_to(upper: int) -> Draft:
    draft = Draft(State())
    draft.extend([kinds.Create(ID, "c", SCHEMA.to_json()), kinds.Seal(ID, (upper,))])
    return draft


def test_a_valid_append_lets_no_earlier_one_of_its_group_pass() -> None:
    draft = draft_sealed_to(5)
    assert draft.extend([PlannedAppend(ID, 7)])
    assert draft.extend([PlannedAppend(ID, 5)])
    with pytest.raises(UpdateNotBeyondUpper):
        draft.extend([PlannedAppend(ID, 4)])
    with pytest.raises(UpdateNotBeyondUpper):
        draft.extend([PlannedAppend(ID, 7), PlannedAppend(ID, 4)])


def test_a_seal_between_appends_of_a_group_counts_for_those_after_it() -> None:
    draft = draft_sealed_to(5)
    assert draft.extend([PlannedAppend(ID, 5)])
    assert draft.extend([kinds.Seal(ID, (6,))])
    with pytest.raises(UpdateNotBeyondUpper):
        draft.extend([PlannedAppend(ID, 5)])
    assert draft.extend([PlannedAppend(ID, 6)])
