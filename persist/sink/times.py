"""What the times of a batch are, and what is sealed after it.

Rows without times all get the upper of the moment, which is sealed with them. With times of their own they seal

    "max"          to beyond the largest time of the batch
    "watermark"    up to the largest time minus a delay
    "none"         nothing; somebody else seals
"""

from dataclasses import dataclass
from typing import Literal, cast

from persist.errors import InvalidUsage

Seal = Literal["max", "none", "watermark"]
Late = Literal["error", "drop"]


@dataclass(frozen=True)
class BatchTimes:
    """What the times of a batch are, and what is sealed after it.

    Attributes:
        is_plain: whether rows come without times, so that all of a batch get one.
        delay: of the watermark.
    """

    is_plain: bool
    seal: Seal = "max"
    delay: int = 0
    late: Late = "error"

    @classmethod
    def of(cls, is_plain: bool, seal: str | None, watermark: int | None, late: str | None) -> "BatchTimes":
        """Check what was asked for.

        Raises:
            InvalidUsage: it contradicts itself.
        """
        if is_plain and (given := [n for n, v in (("seal", seal), ("watermark", watermark), ("late", late)) if v]):
            raise InvalidUsage(
                f"{', '.join(given)} goes with rows that have times, and these get one for each batch, which is sealed "
                "with it. Leave it out, or give the rows times: a column _time, or the option timeColumn."
            )
        if seal is not None and watermark is not None:
            raise InvalidUsage("seal and watermark both say what is sealed after a batch: give one of them")
        check_one_of("seal", seal, ("max", "none"))
        check_one_of("late", late, ("error", "drop"))
        how = "watermark" if watermark is not None else seal or "max"
        return cls(is_plain, cast(Seal, how), watermark or 0, cast(Late, late or "error"))


def check_one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    """Raise InvalidUsage if a value was given that is none of those allowed."""
    if value is not None and value not in allowed:
        raise InvalidUsage(f"{name}={value!r} is none of {', '.join(map(repr, allowed))}")
