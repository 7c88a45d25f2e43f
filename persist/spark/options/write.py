"""The options for writing to a collection: `DataFrame.write.format("persist")`."""

from collections.abc import Mapping
from dataclasses import dataclass

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.names import check_text
from persist.sink.planned_write import SinkOptions
from persist.spark.options.parsing import number, split_options

WRITE = {
    "collection": "name of the collection",
    "time": "time of every row, if the DataFrame has no column _time; when overwriting, of the difference",
    "seal": 'upper to seal to in the same commit: a time beyond all that is written, or "end" for complete for ever',
    "token": "names this write, so that doing it again does nothing",
}


@dataclass(frozen=True, kw_only=True)
class WriteOptions(SinkOptions):
    """What to write; time is None when the DataFrame has a column `_time`, or for overwriting at upper."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        """Check what Spark was given; raises as `ReadOptions.of`."""
        location, storage, options = split_options(given, WRITE, "writing")
        return cls(
            location=location,
            collection=options["collection"],
            time=number("time", options["time"], int, 0, TIME_MAX) if "time" in options else None,
            seal=_frontier(options.get("seal")),
            token=check_text("token", options["token"]) if "token" in options else None,
            storage=storage,
        )


def _frontier(seal: str | None) -> Antichain | None:
    if seal is None:
        return None
    return Antichain() if seal == "end" else Antichain(number("seal", seal, int, 0, TIME_MAX + 1))
