"""From a state and a time to rows: plans, scans, snapshots, changes, point reads and aggregates.

Promises: a plan names immutable parts, so reading it later gives the same rows; every blob is verified before one of
its rows is believed; memory is bounded by slices, not by the collection.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names
from persist.read.as_of_join import joined
from persist.read.changes import Changes, read_changes, with_moments
from persist.read.claimed_read import ClaimedRead, collected
from persist.read.difference import NewRows, differences
from persist.read.export_blobs import INCOMPLETE, SUCCESS
from persist.read.group_bounds import KeySamples
from persist.read.joint_listen import JointListen, JointProgress
from persist.read.keys_wanted import keys_alone, wanted_keys
from persist.read.listen import Listen, Progress
from persist.read.lookup import Lookup, Wanted
from persist.read.merging import (
    TOUCH_FRACTION,
    Form,
    Split,
    read_snapshot,
    read_touched,
    repeated,
    snapshot_slices,
    snapshot_tables,
    split,
)
from persist.read.part_caches import DecodedRows, PartCaches, PartIndexes
from persist.read.part_reader import PartReader, memory_within
from persist.read.plan import Explanation, changes_scan, explained, snapshot_scan
from persist.read.purging import Purging
from persist.read.records_counted import record_count
from persist.read.resolving import Folds, folded, machine_needed, resolved_updates, with_folded
from persist.read.result import BATCH_ROWS_MAX, required, rows_without_columns
from persist.read.scan import SLICES_MAX, Scan, narrowed_scan, negated
from persist.read.snapshot import Snapshot, check_request
from persist.read.spilled_rows import SpilledRows
from persist.read.stepping import AsyncSteps
from persist.read.unread import UnreadParts
from persist.read.upserts import UpsertEvents, Upserts
from persist.read.values_per_key import keys_with_less_than_none, keys_with_null, keys_with_several

if TYPE_CHECKING:
    from persist.read.arrow_dataset import ResultDataset
    from persist.read.where import parse_where

__all__ = [
    "BATCH_ROWS_MAX",
    "INCOMPLETE",
    "SLICES_MAX",
    "SUCCESS",
    "TOUCH_FRACTION",
    "AsyncSteps",
    "Changes",
    "ClaimedRead",
    "DecodedRows",
    "Explanation",
    "Folds",
    "Form",
    "JointListen",
    "JointProgress",
    "KeySamples",
    "Listen",
    "Lookup",
    "NewRows",
    "PartCaches",
    "PartIndexes",
    "PartReader",
    "Progress",
    "Purging",
    "ResultDataset",
    "Scan",
    "Snapshot",
    "SpilledRows",
    "Split",
    "UnreadParts",
    "UpsertEvents",
    "Upserts",
    "Wanted",
    "changes_scan",
    "check_request",
    "collected",
    "differences",
    "explained",
    "folded",
    "joined",
    "keys_alone",
    "keys_with_less_than_none",
    "keys_with_null",
    "keys_with_several",
    "machine_needed",
    "memory_within",
    "narrowed_scan",
    "negated",
    "parse_where",
    "read_changes",
    "read_snapshot",
    "read_touched",
    "record_count",
    "repeated",
    "required",
    "resolved_updates",
    "rows_without_columns",
    "snapshot_scan",
    "snapshot_slices",
    "snapshot_tables",
    "split",
    "wanted_keys",
    "with_folded",
    "with_moments",
]

__getattr__ = late_names(__name__, {"arrow_dataset": ["ResultDataset"], "where": ["parse_where"]})
