"""What makes reads cheap and destroys what was deleted: keyframes, merges, and the parts made for them.

Promises: what a collection holds at every time that may be read stays the same; of two compactors that did the same
work one finds that it came second, and throws its work away.
"""

from persist.engine.compact.compactor import CompactionReport, Compactor, give_back
from persist.engine.compact.eraser import ErasedRecords, PartEraser, load_events_schema, without_deletions
from persist.engine.compact.planner import LEVEL_BYTES, must_destroy, next_work
from persist.engine.compact.rewriter import LocalPartMaker, MadeRun, PartMaker, Rewrite, RunPiece
