"""What is wrong with messages: for callers an error that names the first; inside, a reason without a place."""

from dataclasses import dataclass

from persist.blob import InvalidUsage


@dataclass(eq=False, repr=False)
class BadMessage(InvalidUsage):
    """A message of a stream is not what its envelope promises; no events were returned.

    Attributes:
        message: its number among those given, from 0.
        reason: what is wrong with it.
        count: how many messages of those given are bad.
    """

    message: int
    reason: str
    count: int

    def __str__(self) -> str:
        more = "" if self.count == 1 else f", and {self.count - 1} more are bad"
        return (
            f"message {self.message} cannot be read: {self.reason}{more}. Nothing was returned. Correct the messages "
            'or the schema; with on_error="collect" the others become events, and `rejected` holds these with reasons.'
        )


class Unreadable(ValueError):
    """Some message of a piece is bad. Never leaves this room: the piece is halved until the message is alone."""
