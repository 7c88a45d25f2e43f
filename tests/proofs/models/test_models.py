"""Every state that the protocols of the log can come to, and the faults that are found if a step is left out."""

import re
from typing import Any

import pytest

from tests.proofs.models.committing import Committing
from tests.proofs.models.explorer import Explored, Model, Wrong, explore
from tests.proofs.models.leasing import Leasing
from tests.proofs.models.relaying import Relaying
from tests.proofs.models.taking_over import TakingOver
from tests.proofs.models.truncating import Truncating
from tests.proofs.models.uploading import Uploading

SMALL: dict[str, Model[Any]] = {
    "committing": Committing(2, 2),
    "truncating": Truncating(1, 2),
    "uploading": Uploading(2, 1),
    "taking over": TakingOver(1, 2, 1),
    "leasing": Leasing(2, 2),
    "relaying": Relaying(2),
}
LARGE: dict[str, Model[Any]] = {
    "committing": Committing(3, 2),
    "truncating": Truncating(2, 2),
    "uploading": Uploading(2, 2),
    "taking over, two makers": TakingOver(2, 1, 2),
    "taking over, two collectors": TakingOver(2, 2, 1),
    "leasing": Leasing(3, 3),
    "relaying": Relaying(3),
}


@pytest.mark.parametrize("name", SMALL)
def test_no_way_leads_to_a_wrong_state(name: str) -> None:
    explored = explore(SMALL[name])
    assert explored.ends
    assert explored.states > 500


@pytest.mark.thorough
@pytest.mark.costly("it visits up to 800,000 states")
@pytest.mark.parametrize("name", LARGE)
def test_no_way_of_three_clients_leads_to_a_wrong_state(name: str) -> None:
    explored = explore(LARGE[name])
    print(f"{name}: {explored.states:,} states, {explored.moves:,} moves")
    assert explored.ends


PLANTED: dict[str, tuple[Model[Any], str]] = {
    "a lost answer is taken for a no": (Committing(2, 1, "believe no answer"), "said not to have happened"),
    "commit ids are not compared": (Committing(2, 1, "compare nothing"), "twice"),
    "other bytes are offered after a lost answer": (Committing(2, 2, "new bytes"), "twice"),
    "the floor is not looked at after a create": (Truncating(1, 2, "no look after"), "acknowledged"),
    "a free slot is the end, however long ago it was read": (Truncating(1, 2, "no look before"), "acknowledged"),
    "the end was seen when the answer came": (Truncating(1, 2, "stamp late"), "acknowledged"),
    "records go that no old checkpoint stands for": (Truncating(1, 2, "age of records"), "acknowledged"),
    "void uploads may be named": (Uploading(1, 1, "never refuse"), "named and gone"),
    "what was listed before the declaration is deleted": (Uploading(1, 1, "list once"), "named and gone"),
    "collectors declare nothing": (TakingOver(2, 1, 1, "declare nothing"), "which are gone"),
    "nothing is read after the declaration": (TakingOver(2, 1, 1, "read no newer"), "which are gone"),
    "since passes claims": (Leasing(1, 1, "move since"), "holds time 0"),
    "nobody is waited for": (Leasing(1, 1, "wait for nobody"), "is gone"),
    "a state is planned from before the claim": (Leasing(1, 1, "plan first"), "is gone"),
    "no record ends a lease that is not waited for": (Leasing(2, 2, "say nothing"), "is gone"),
    "nothing is ruled out": (Relaying(2, "rule nothing out"), "twice"),
    "a refusal is handed out at once": (Relaying(2, "refuse at once"), "was refused, and the log has it"),
    "the server does not look what was ruled out": (Relaying(2, "read nothing"), "was refused, and the log has it"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    model, words = PLANTED[name]
    with pytest.raises(Wrong, match=re.escape(words)):
        explore(model)


def test_looking_back_does_not_help_where_records_go_in_any_order() -> None:
    with pytest.raises(Wrong, match="acknowledged"):
        explore(Truncating(1, 2, "age of records", looks_back=True))


class _Counting:
    """A model of one number, which anybody may raise; it is wrong from some number on."""

    def __init__(self, wrong_at: int, end: int) -> None:
        self._wrong_at, self._end = wrong_at, end

    def start(self) -> int:
        return 0

    def moves(self, state: int) -> list[tuple[str, int]]:
        return [(f"add {n}", state + n) for n in (1, 2) if state + n <= self._end]

    def wrong(self, state: int) -> list[str]:
        return ["too much"] if state == self._wrong_at else []

    def is_over(self, state: int) -> bool:
        return state == 10


def test_a_shortest_way_is_told() -> None:
    with pytest.raises(Wrong, match="too much") as caught:
        explore(_Counting(5, 10))
    assert len(caught.value.moves) == 3


def test_a_deadlock_is_told() -> None:
    with pytest.raises(Wrong, match="nobody can go on"):
        explore(_Counting(-1, 9))


def test_each_state_is_visited_once() -> None:
    assert explore(_Counting(-1, 10)) == Explored(states=11, moves=19, ends=(10,))


def test_a_model_that_is_too_large_is_told() -> None:
    with pytest.raises(MemoryError, match="more than 5 states"):
        explore(_Counting(-1, 10), states_max=5)
