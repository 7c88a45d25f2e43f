"""The examination of a location: everything is read, replayed and compared, and nothing is believed.

Promises: an examination changes nothing; a repair touches only what the log implies.
"""

from persist.services.fsck.examination import examine, fsck
from persist.services.fsck.report import Checked, FsckReport, Problem, Repair, Unreferenced
