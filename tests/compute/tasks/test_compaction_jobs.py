"""How the work of a compaction is cut into jobs."""

import pyarrow as pa

from persist.codecs.part.stream import encode_parts
from persist.codecs.types.schema import CollectionSchema
from persist.compute.tasks.compaction_jobs import Job, group_neighbours, split_run
from persist.engine.compact import Rewrite
from persist.engine.read.planning.scan import Scan


def test_groups_are_of_neighbours_and_of_about_equal_size() -> None:
    sizes = [5, 1, 1, 1, 7, 3, 3, 3, 20, 1]
    groups = group_neighbours(range(10), sizes, 11)
    assert [each for group in groups for each in group] == [*range(10)]
    assert len(groups) == 4
    assert group_neighbours([1, 2], [0, 0], 100) == [[1, 2]]
    assert group_neighbours([], [], 100) == []


def test_no_job_makes_parts_of_what_history_touches_and_of_what_it_does_not() -> None:
    schema = CollectionSchema.of({"k": pa.int64()}, {"v": pa.int64()})
    rows = pa.table({"k": range(1000), "v": range(1000), "_time": [0] * 1000, "_diff": [1] * 1000})
    [(_, part)] = encode_parts(rows, schema)
    scan = Scan(schema, (), 1, 2, ("k", "v"), base=(part,))
    pieces = [Rewrite(scan, 1, is_quiet=is_quiet) for is_quiet in (False, True, True, False)]
    jobs = [job for job in split_run([7, *pieces], "c", 10**9, 10**9, 1) if isinstance(job, Job)]
    assert [[piece.is_quiet for piece in job.pieces] for job in jobs] == [[False], [True, True], [False]]
    assert split_run([7, *pieces], "c", 10**9, 10**9, 1)[0] == 7
