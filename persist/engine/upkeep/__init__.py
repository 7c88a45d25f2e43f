"""Background work: renews leases, compacts history, deletes garbage.

Promises: a blob is deleted only after the log forbids all later references to it; in doubt, it stays.
"""

from persist.engine.upkeep.ages import Ages, list_checkpoint_marks
from persist.engine.upkeep.background import CompactionSchedule, Upkeep
from persist.engine.upkeep.garbage import Deleted, Garbage, GarbageReport
from persist.engine.upkeep.references import OBJECTS, Names, find_sharers, list_named, parse_object_seqno
