"""One client's copy of the state: opened from a checkpoint, kept up to date by reading the log.

Promises: a copy is always the state at some seqno, never a mixture; it knows how old it may be; a checkpoint holds
nothing that cannot be derived from the log before it.
"""

from persist.replica.checkpoint import (
    INTERVAL,
    Checkpoint,
    StoredCheckpoint,
    beyond_the_log,
    checkpoint_due,
    checkpoint_of,
    checkpoint_state,
    directory_blobs,
    load_base,
    load_contents,
    read_checkpoint,
    stored_checkpoint,
    stored_checkpoints,
    write_checkpoint,
)
from persist.replica.directory import Directory, KnownLevels, NewDirectory, new_directory
from persist.replica.follower import STALE_AFTER_S, Follower
from persist.replica.log_queries import LAST, last_moved, log_table, say_whose
from persist.replica.past import fate_of
from persist.replica.pinned import PinnedFollower
from persist.replica.state_objects import StateObject
