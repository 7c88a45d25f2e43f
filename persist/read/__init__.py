"""From a state and a time to rows: plans, scans, snapshots, changes, point reads and aggregates.

Promises: a plan names immutable parts, so reading it later gives the same rows; every blob is verified before one of
its rows is believed; memory is bounded by slices, not by the collection.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names
from persist.read.following.changes import (
    CHANGE,
    OLD,
    Changes,
    ChangesForm,
    Transitions,
    UpsertEvents,
    Upserts,
    check_changes_form,
    joined_changes,
    read_changes,
    slices_by_time,
    with_moments,
)
from persist.read.following.listen import JointListen, JointProgress, Listen, Piece, Progress, Steps
from persist.read.keyed.over_time import joined, keys_with_less_than_none, keys_with_null, keys_with_several
from persist.read.keyed.replacing import KeyReplacement, check_one_row_per_key, repeated_keys
from persist.read.keyed.resolving import Folds, Purging, machine_needed, resolved_updates
from persist.read.lookups.lookup import Lookup, Wanted
from persist.read.lookups.part_rows import places_of
from persist.read.lookups.wanted_keys import wanted_keys
from persist.read.results.result import BATCH_ROWS_MAX, ArrowResult, required
from persist.read.results.snapshot import Snapshot, checked_filter
from persist.read.scanning.caches import PartCaches, SpilledRows
from persist.read.scanning.merging import (
    TOUCH_FRACTION,
    Form,
    NewRows,
    Split,
    differences,
    read_snapshot,
    read_touched,
    repeated,
    snapshot_tables,
)
from persist.read.scanning.plan import Explanation, UnreadParts, changes_scan, record_count, snapshot_scan
from persist.read.scanning.reader import ClaimedRead, PartReader, collected, memory_within
from persist.read.scanning.scan import SLICES_MAX, Scan, narrowed_scan, negated, rows_without_columns

if TYPE_CHECKING:
    from persist.read.results.dataset import ResultDataset


__getattr__ = late_names(__name__, {"results.dataset": ["ResultDataset"]})
