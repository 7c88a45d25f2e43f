"""A location in memory whose calls overlap as a seed decides, and which has a fault if that is wanted."""

import math
import random
from collections import deque

from tests.proofs.linearizable.drawn import KEYED, PLAIN, drawn_calls
from tests.proofs.linearizable.search import Done
from tests.proofs.linearizable.specification import OK, Answer, Call, Plain, State, answered, start

FAULTS = (
    "an acknowledged write is lost",
    "a read is of a while ago",
    "a token counts for nothing",
    "what is late is taken",
    "a commit is torn",
    "it is acknowledged before it is there",
    "what is refused happens",
    "upper goes back",
    "the greatest event wins",
    "each client sees its own writes alone",
    "a doubt is told as a refusal",
)
WRITES = ("write", "both", "late", "seal", "upsert")


class Toy:
    """A location with a fault, or with none."""

    def __init__(self, fault: str, chance: random.Random) -> None:
        self._fault = fault
        self._chance = chance
        self.state = self._empty = start(PLAIN, KEYED)
        self._past = deque([self.state], maxlen=3)
        self._own: dict[int, State] = {}
        self._later: list[Call] = []

    def happens(self, client: int, call: Call) -> Answer:
        """Do what a call does; return what it is answered."""
        is_met = self._chance.random() < 0.4
        kind, fault = call[0], self._fault
        if kind not in WRITES:
            if fault == "each client sees its own writes alone":
                return answered(self._own.get(client, self._empty), call)[1]
            of = self._past[0] if fault == "a read is of a while ago" and is_met else self.state
            return answered(of, call)[1]
        if fault == "an acknowledged write is lost" and is_met and kind != "seal":
            return OK
        if fault == "it is acknowledged before it is there" and is_met and kind in ("write", "both"):
            self._later.append(call)
            return OK
        after, answer = answered(self.state, self._as_faulty(call))
        if fault == "upper goes back" and kind == "seal" and answer != OK:
            held = dict(self.state)[str(call[1])]
            assert isinstance(held, Plain)
            after = tuple((n, held._replace(upper=call[2]) if n == call[1] else h) for n, h in self.state)  # type: ignore[arg-type]
            answer = OK
        if fault == "what is refused happens" and kind == "late" and answer != OK:
            after = answered(self.state, ("write", call[1], call[2], None))[0]
        self._past.append(after)
        self.state = after
        self._own[client] = answered(self._own.get(client, self._empty), call)[0]
        return answer

    def _as_faulty(self, call: Call) -> Call:
        match self._fault, call:
            case "a token counts for nothing", ("write", name, marker, str()):
                return ("write", name, marker, None)
            case "what is late is taken", ("late", str(name), marker, int()):
                return ("write", name, marker, None)
            case "a commit is torn", ("both", marker):
                self._later.append(("write", PLAIN[1], marker, None))
                return ("write", PLAIN[0], marker, None)
            case "the greatest event wins", ("upsert", name, int(key), value):
                values = dict(dict(self.state)[str(name)].values)  # type: ignore[union-attr]
                kept = values.get(key)
                return ("upsert", name, key, kept if kept is not None and (value is None or kept > value) else value)
        return call

    def goes_on(self) -> None:
        """Do what was put off, one thing after the other."""
        if self._later and self._chance.random() < 0.1:
            self.state = answered(self.state, self._later.pop(0))[0]


def toy_history(seed: int, fault: str = "", clients: int = 3, calls: int = 6) -> list[Done]:
    """Return what clients called and were answered; some answers are lost."""
    chance = random.Random(seed)
    toy, history = Toy(fault, chance), []
    left = [deque(each) for each in drawn_calls(seed, clients, calls)]
    under_way: dict[int, tuple[Call, float, list[Answer]]] = {}
    moment = 0.0
    while any(left) or under_way:
        moment += 1
        toy.goes_on()
        client = chance.choice([n for n in range(clients) if left[n] or n in under_way])
        if client not in under_way:
            under_way[client] = (left[client].popleft(), moment, [])
            continue
        call, began, answers = under_way[client]
        if not answers:
            answers.append(toy.happens(client, call))
            continue
        del under_way[client]
        answer: Answer | None = answers[0]
        if chance.random() < 0.1:
            answer = None
            if fault == "a doubt is told as a refusal" and call[0] == "late":
                answer = ("refused", 12)
        history.append(Done(client, call, began, math.inf if answer is None else moment, answer))
    return history
