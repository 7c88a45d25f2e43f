"""The options for writing to a collection: `DataFrame.write.format("persist")`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from persist.antichain import Antichain
from persist.codecs import TIME_MAX
from persist.spark.options import number, split_options

WRITE = {
    "collection": "name of the collection",
    "time": "time of every row, if the DataFrame has no column _time",
    "seal": 'upper to seal to in the same commit: a time, or "end" for complete for ever',
}


@dataclass(frozen=True)
class WriteOptions:
    """What to write; time is None when the DataFrame has a column `_time`."""

    location: str
    collection: str
    time: int | None = None
    seal: Antichain | None = None
    storage: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        """Check what Spark was given; raises as `ReadOptions.of`."""
        location, storage, options = split_options(given, WRITE, "writing")
        seal = options.get("seal")
        upper = Antichain() if seal == "end" else None
        if seal is not None and upper is None:
            upper = Antichain(number("seal", seal, int, 0, TIME_MAX + 1))
        return cls(
            location=location,
            collection=options["collection"],
            time=number("time", options["time"], int, 0, TIME_MAX) if "time" in options else None,
            seal=upper,
            storage=storage,
        )
