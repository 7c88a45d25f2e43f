"""What the times of a batch are, and what is sealed after it.

Rows without times all get the upper of the moment, which is sealed with them. With times of their own they seal

    "max"          to beyond the largest time of the batch
    "watermark"    up to the largest time minus a delay
    "none"         nothing; somebody else seals
"""

from dataclasses import dataclass
from typing import Literal, cast

from persist.errors import InvalidUsage
from persist.names import check_text

Seal = Literal["max", "none", "watermark"]
Late = Literal["error", "drop", "collect"]


@dataclass(frozen=True)
class BatchTimes:
    """What the times of a batch are, and what is sealed after it.

    Attributes:
        is_plain: whether rows come without times, so that all of a batch get one.
        delay: of the watermark.
        late_collection: where late events go, if they are collected.
    """

    is_plain: bool
    seal: Seal = "max"
    delay: int = 0
    late: Late = "error"
    late_collection: str | None = None

    @classmethod
    def of(
        cls,
        is_plain: bool,
        seal: str | None,
        watermark: int | None,
        late: str | None,
        late_collection: str | None = None,
        *,
        is_keyed: bool = False,
    ) -> "BatchTimes":
        """Check what was asked for.

        Args:
            is_keyed: the rows are events of a keyed collection, of which some may be late without times, too.

        Raises:
            InvalidUsage: it contradicts itself.
        """
        of_times = (("seal", seal), ("watermark", watermark), ("late", None if is_keyed else late))
        if is_plain and (given := [name for name, value in of_times if value]):
            raise InvalidUsage(
                f"{', '.join(given)} goes with rows that have times, and these get one for each batch, which is sealed "
                "with it. Leave it out, or give the rows times: a column _time, or the option timeColumn."
            )
        if seal is not None and watermark is not None:
            raise InvalidUsage("seal and watermark both say what is sealed after a batch: give one of them")
        check_one_of("seal", seal, ("max", "none"))
        check_late(late, late_collection, is_keyed=is_keyed)
        how = "watermark" if watermark is not None else seal or "max"
        return cls(is_plain, cast(Seal, how), watermark or 0, cast(Late, late or "error"), late_collection)


def check_late(late: str | None, late_collection: str | None, *, is_keyed: bool) -> None:
    """Raise InvalidUsage if what becomes of late events or updates is said in a way that contradicts itself."""
    check_one_of("late", late, ("error", "drop", "collect"))
    if late == "collect" and not is_keyed:
        raise InvalidUsage(
            'late="collect" goes with events for a keyed collection; late updates of others can be dropped, by '
            'late="drop", or end the query'
        )
    if (late == "collect") != (late_collection is not None):
        raise InvalidUsage(
            f"late={late!r} and the late collection {late_collection!r} go together: to collect late events, give both "
            'late="collect" and the name of a collection for them'
        )
    if late_collection is not None:
        check_text("the late collection", late_collection)


def check_one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Raise InvalidUsage if a value was given that is none of those allowed."""
    if value is not None and value not in allowed:
        raise InvalidUsage(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}")
