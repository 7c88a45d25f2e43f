"""How a location is opened."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from persist.blob import Clock, InvalidUsage, SystemClock
from persist.read import PartCaches
from persist.settings import Settings

Mode = Literal["shared", "exclusive", "read"]


@dataclass(frozen=True)
class OpenOptions:
    """What `persist.open` was asked for; its fields are explained there.

    Attributes:
        caches: what another client of the same location has left of parts, to go on with; None for empty ones.

    Raises:
        InvalidUsage: an option does not fit, by itself or with the mode.
    """

    mode: Mode = "shared"
    reentrance_id: str | None = None
    force: bool = False
    seqno: int | None = None
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=SystemClock)
    caches: PartCaches | None = None

    def __post_init__(self) -> None:
        mode, id_, seqno = self.mode, self.reentrance_id, self.seqno
        if mode not in get_args(Mode):
            raise InvalidUsage(f'mode={mode!r} is not a mode of a client: use "shared", "exclusive" or "read"')
        if mode != "exclusive" and (id_ is not None or self.force):
            raise InvalidUsage(f'reentrance_id and force are for mode="exclusive", and this is mode={mode!r}')
        if id_ is not None and not (isinstance(id_, str) and 0 < len(id_) <= 200 and id_.isprintable()):
            raise InvalidUsage(f"reentrance_id={id_!r} is not a text of 1 to 200 printable characters")
        if seqno is not None and (mode != "read" or isinstance(seqno, bool) or not isinstance(seqno, int) or seqno < 0):
            raise InvalidUsage(f'seqno={seqno!r} with mode={mode!r}: give a number of at least 0, and mode="read"')
        if not isinstance(self.settings, Settings):
            raise InvalidUsage(f"settings={self.settings!r} is not a Settings: use persist.Settings(lease_s=…)")
