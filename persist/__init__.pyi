from . import errors as errors
from .api.client import Client as Client
from .api.client import open as open
from .api.collection import Collection as Collection
from .api.follow import Following as Following
from .api.multi_write import MultiWrite as MultiWrite
from .api.view import View as View
from .blob.errors import (
    Conflict as Conflict,
)
from .blob.errors import (
    Corruption as Corruption,
)
from .blob.errors import (
    Indeterminate as Indeterminate,
)
from .blob.errors import (
    InvalidUsage as InvalidUsage,
)
from .blob.errors import (
    PersistError as PersistError,
)
from .blob.errors import (
    Unavailable as Unavailable,
)
from .blob.protocol import Blob as Blob
from .blob.protocol import MemoryBlob as MemoryBlob
from .blob.stores.file import FileBlob as FileBlob
from .blob.stores.fsspec import FsspecBlob as FsspecBlob
from .blob.stores.s3 import S3Blob as S3Blob
from .codecs.types.arrow_types import JSON as JSON
from .codecs.types.codec import (
    Binary as Binary,
)
from .codecs.types.codec import (
    Codec as Codec,
)
from .codecs.types.codec import (
    Int64 as Int64,
)
from .codecs.types.codec import (
    Json as Json,
)
from .codecs.types.codec import (
    Unit as Unit,
)
from .codecs.types.codec import (
    Utf8 as Utf8,
)
from .connect.egress.driver import egress as egress
from .connect.ingest.driver import ingest as ingest
from .core.antichain import Antichain as Antichain
from .core.keyed.form import Behind as Behind
from .core.keyed.form import Keyed as Keyed
from .core.metrics import Metrics as Metrics
from .core.progress import Work as Work
from .core.progress import progress as progress
from .core.settings import Settings as Settings
from .core.state_rules.contents import Unsealed as Unsealed
from .core.timeline import Timeline as Timeline
from .engine.collection.descriptions import About as About
from .engine.collection.descriptions import Retained as Retained
from .engine.compact.compactor import CompactionReport as CompactionReport
from .engine.hold.holds import Hold as Hold
from .engine.hold.holds import HoldInfo as HoldInfo
from .engine.location.opening import UpgradeReport as UpgradeReport
from .engine.read.following.changes import Changes as Changes
from .engine.read.following.listen import (
    JointListen as JointListen,
)
from .engine.read.following.listen import (
    JointProgress as JointProgress,
)
from .engine.read.following.listen import (
    Listen as Listen,
)
from .engine.read.following.listen import (
    Progress as Progress,
)
from .engine.read.planning.snapshot_plan import Explanation as Explanation
from .engine.read.results.snapshot import Snapshot as Snapshot
from .engine.upkeep.garbage import GarbageReport as GarbageReport
from .engine.write.commit_future import CommitFuture as CommitFuture
from .services.backup.copying import Copied as Copied
from .services.backup.copying import backup as backup
from .services.backup.copying import copy as copy
from .services.backup.proof import Verified as Verified
from .services.backup.proof import verify as verify
from .services.fsck.examination import fsck as fsck
from .services.fsck.report import (
    Checked as Checked,
)
from .services.fsck.report import (
    FsckReport as FsckReport,
)
from .services.fsck.report import (
    Problem as Problem,
)
from .services.fsck.report import (
    Repair as Repair,
)
from .services.fsck.report import (
    Unreferenced as Unreferenced,
)
from .services.serve.messages import Notify as Notify
from .tools.web.slider import load_ipython_extension as load_ipython_extension
from .tools.web.slider import slider as slider

__version__: str
__all__: list[str]
