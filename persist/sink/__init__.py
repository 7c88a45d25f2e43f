"""What commits the work of many tasks exactly once: uploads by tasks, and one record by whoever plans them.

Promises: nothing is visible before the record; a batch or a write that is run again, after whatever failed, adds
nothing; tasks that fail, are killed or run twice leave at most blobs that no record names; what is rejected for good
is deleted, and what may have landed is left. The room knows nothing of the engine that runs the tasks.
"""

from persist.sink.batches import (
    ATTEMPTS,
    Mark,
    Share,
    commit_batch,
    commit_keyed_batch,
    commit_large_batch,
    report_late,
)
from persist.sink.compaction_jobs import (
    Answer,
    Job,
    Look,
    TaskStore,
    answered,
    cut,
    encoded_bytes,
    grouped,
    result_bytes,
)
from persist.sink.keyed_work import KeyedWork, Stored, commit_events, commit_pended, commit_resolved, seal_done
from persist.sink.planned_write import (
    DigestSum,
    PlannedWrite,
    SinkOptions,
    Target,
    Uploads,
    digests_added,
    gathered,
    upload,
    writing,
)
from persist.sink.times import BatchTimes, LateFilter, check_late, check_one_of
