"""Rows of a file that do not fit."""

from dataclasses import dataclass, field

REASONS_MAX = 10


@dataclass
class Misfits:
    """The rows that do not fit: how many, and the first reasons with their places."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, count: int, reasons: list[str]) -> None:
        """Count some more, with the reasons of the first of them."""
        self.count += count
        self.reasons += reasons[: REASONS_MAX - len(self.reasons)]

    def __str__(self) -> str:
        more = self.count - len(self.reasons)
        return "\n".join([*self.reasons, *([f"and {more:,} more"] if more > 0 else [])])
