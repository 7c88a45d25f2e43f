"""What goes on beside the calls of users: leases are renewed, history is compacted, garbage is collected.

Promises: a blob is deleted only when the log says that nobody may refer to it any more; when in doubt it stays.
"""

from persist.upkeep.ages import void_floor
from persist.upkeep.background import CompactionSchedule, Upkeep
from persist.upkeep.garbage import Deleted, Garbage, GarbageReport
from persist.upkeep.names import OBJECTS, Names, named_in, sharers
