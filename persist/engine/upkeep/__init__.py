"""What goes on beside the calls of users: leases are renewed, history is compacted, garbage is collected.

Promises: a blob is deleted only when the log says that nobody may refer to it any more; when in doubt it stays.
"""

from persist.engine.upkeep.ages import Ages, checkpoint_marks
from persist.engine.upkeep.background import CompactionSchedule, Upkeep
from persist.engine.upkeep.garbage import Deleted, Garbage, GarbageReport
from persist.engine.upkeep.references import OBJECTS, Names, named_in, object_seqno, sharers
