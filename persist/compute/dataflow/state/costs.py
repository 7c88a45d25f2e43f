"""The numbers of rows at which operators change their algorithm."""

from dataclasses import dataclass, fields

from persist.blob.errors import InvalidUsage


@dataclass(frozen=True, slots=True)
class Costs:
    """Thresholds, in rows, at which operators change their algorithm. Results never depend on them.

    Attributes:
        cells: how many pairs of a record and a time of change a reduction processes together.
        piece_rows: how many rows are shaped or reduced at once; some 60 MiB of updates of sums of floats.
        large_rows: groups of fewer rows are always read as a whole.
        change_rows: a change of a ranked group costs as much as reading so many rows.
        ranked_at_once: at most so many groups are ranked in one step, because ranking costs more than reading.
        ranked_rows: the most rows of all ranked groups of a reduction; the least recently used group is dropped first.
        block_rows: the rows of a block of ranked records; a block with twice as many is split.
        window_rows: rows of a long stretch of a partition that are computed together.
        frame_rows: rows of frames that are processed together; a larger frame is processed alone.
        catch_up_updates: the least number of updates that a step takes while it catches up with old history.
        first_build_rows: if the sources of a new view have so many rows, DuckDB computes its first contents.
    """

    cells: int = 1 << 22
    piece_rows: int = 1 << 17
    large_rows: int = 1024
    change_rows: int = 512
    ranked_at_once: int = 16
    ranked_rows: int = 1 << 25
    block_rows: int = 1024
    window_rows: int = 1 << 17
    frame_rows: int = 1 << 21
    catch_up_updates: int = 1 << 17
    first_build_rows: int = 200_000

    def __post_init__(self) -> None:
        for cost in fields(self):
            value = getattr(self, cost.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidUsage(f"costs: {cost.name}={value!r} is not a number of rows: give a whole one from 0 on")


USUAL = Costs()
