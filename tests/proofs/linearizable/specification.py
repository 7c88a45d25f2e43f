"""What a call does to a location, if calls come one after the other; it shares no code with the library.

A location has plain collections, of markers that each write has of its own, and keyed ones. A write without a time gets
the first time that is not sealed, and seals it. Writes that a server commits in one record share their time. A call is
a tuple:

    write   collection, marker, token or None       ok; once for each token
    both    marker                                  ok: into all plain collections, at one time
    late    collection, marker, time                ok, and seals the time; or refused: the upper
    seal    collection, upper                       ok; or refused: the upper
    upper   collection                              the upper
    rows    collection                              all markers, as often as they are there, in order; or refused: 0
    count   collection, time                        how many updates were there at a time; or refused: the upper
    upsert  collection, key, value or None          ok
    get     collection, key                         its value, if there is one; or refused: 0
"""

from typing import NamedTuple

Call = tuple[object, ...]
Answer = tuple[object, ...]
OK: Answer = ("ok",)


class Plain(NamedTuple):
    """A collection of markers."""

    upper: int = 0
    rows: tuple[tuple[int, int], ...] = ()  # Markers, and their times, in order.
    tokens: frozenset[str] = frozenset()

    def with_row(self, marker: int, time: int) -> "Plain":
        return Plain(time + 1, (*sorted((*self.rows, (marker, time))),), self.tokens)


class Keyed(NamedTuple):
    """A keyed collection."""

    values: tuple[tuple[int, int], ...] = ()
    is_begun: bool = False  # Whether any time is sealed.


State = tuple[tuple[str, Plain | Keyed], ...]


def start(plain: tuple[str, ...], keyed: tuple[str, ...]) -> State:
    """Return the state of a location with empty collections."""
    return (*((name, Plain()) for name in plain), *((name, Keyed()) for name in keyed))


def answered(state: State, call: Call) -> tuple[State, Answer]:
    """Return the state after a call, and its answer."""
    match call:
        case ("both", int(marker)):
            time = max(held.upper for _, held in state if isinstance(held, Plain))
            after = ((name, h.with_row(marker, time) if isinstance(h, Plain) else h) for name, h in state)
            return (*after,), OK
        case (_, str(name), *_):
            changed, answer = _answered(dict(state)[name], call)
            return (*((other, changed if other == name else held) for other, held in state),), answer
    raise AssertionError(call)


def sharing(state: State, call: Call) -> tuple[State, Answer] | None:
    """Return the state after a write without a time that shares the one before; None if it cannot."""
    names = {"write": (str(call[1]),), "both": [n for n, h in state if isinstance(h, Plain)]}.get(str(call[0]), ())
    held = dict(state)
    times = {h.upper - 1 for n in names if isinstance(h := held[n], Plain)}
    if len(times) != 1 or min(times) < 0 or answered(state, call)[0] == state:
        return None
    back = tuple((n, h._replace(upper=h.upper - 1) if n in names else h) for n, h in state)  # type: ignore[call-arg, union-attr]
    return answered(back, call)


def _answered(held: Plain | Keyed, call: Call) -> tuple[Plain | Keyed, Answer]:
    if isinstance(held, Keyed):
        match call:
            case ("get", _, int(key)):
                if not held.is_begun:
                    return held, ("refused", 0)
                return held, ("value", *(value for at, value in held.values if at == key))
            case ("upsert", _, int(key), value):
                values = {at: held_value for at, held_value in held.values if at != key}
                if value is not None:
                    values[key] = int(str(value))
                return Keyed((*sorted(values.items()),), is_begun=True), OK
        raise AssertionError(call)
    refused = ("refused", held.upper)
    match call:
        case ("write", _, int(marker), None):
            return held.with_row(marker, held.upper), OK
        case ("write", _, int(marker), str(token)):
            if token in held.tokens:
                return held, OK
            return held.with_row(marker, held.upper)._replace(tokens=held.tokens | {token}), OK
        case ("late", _, int(marker), int(time)):
            return (held, refused) if time < held.upper else (held.with_row(marker, time), OK)
        case ("seal", _, int(upper)):
            return (held, refused) if upper < held.upper else (held._replace(upper=upper), OK)
        case ("upper", _):
            return held, ("upper", held.upper)
        case ("rows", _):
            return held, refused if held.upper == 0 else ("rows", *(marker for marker, _ in held.rows))
        case ("count", _, int(time)):
            count = sum(at <= time for _, at in held.rows)
            return held, refused if time >= held.upper else ("count", count)
    raise AssertionError(call)
