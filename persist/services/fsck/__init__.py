"""Examines a location: reads, replays and compares everything, and trusts nothing that it has not checked.

Promises: an examination changes nothing; a repair only restores what follows from the log.
"""

from persist.services.fsck.examination import examine, fsck
from persist.services.fsck.report import Checked, FsckReport, Problem, Repair, Unreferenced
