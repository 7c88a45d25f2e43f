"""Flowing out: collections and views into databases, topics and files, each change exactly once.

Promises: what a sink got and how far it has come are one transaction of the target, so that nothing is lost or sent
twice, whoever is killed when; whoever reads the target sees whole times only, of all collections of the sink; a
permanent hold keeps history that was not sent yet; memory is bounded by a slice. No password is in a message or a log.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names

if TYPE_CHECKING:
    from persist.egress.driver import Egressed, egress
    from persist.egress.files import CsvRows, JsonLines, row_writer
    from persist.egress.sink import SINK, Leaving, Piece, Reached, Sink, Standing

_SINK = ("SINK", "Leaving", "Piece", "Reached", "Sink", "Standing")
_FILES = ("CsvRows", "JsonLines", "row_writer")
__all__ = ["Egressed", "egress", *_FILES, *_SINK]
__getattr__ = late_names(__name__, {"driver": ("Egressed", "egress"), "files": _FILES, "sink": _SINK})
