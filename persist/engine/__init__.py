"""The seam: what one client does with one location, as operations for the rest of the package.

Promises: whoever stands on it (`Client`, `Collection`, `MultiWrite`, upserts, dataflow, Spark, the command line) needs
no other way into the log, the store or the threads of a client. Every operation raises ClientClosed after `close`, and
ReadOnly where a client of mode "read" would write.
"""

from persist.engine.cloning import clone
from persist.engine.collection_handle import LATEST, CollectionHandle
from persist.engine.commit import Commit
from persist.engine.engine import Engine
from persist.engine.evolving import WantedEvolution, evolve
from persist.engine.failures import failures_of, failures_told, tell_failure, tell_success
from persist.engine.keyed import (
    AskedEvents,
    check_upserts,
    keyed_form,
    seal,
    submit,
    taken_events,
)
from persist.engine.moments import MOMENT, MOMENT_TYPE, MOMENTS, TIME
from persist.engine.opening import (
    OnEngine,
    UpgradeReport,
    create_target_of_rows,
    created_or_loaded,
    drop,
    engine_of,
    handle_on,
    loaded,
    loaded_by_id,
    loaded_together,
    open_engine,
    read_engine,
    target_of_rows,
    upgrade,
)
from persist.engine.overwriting import (
    NewContents,
    asked_to_delete,
    delete,
    delete_steps,
    deletion,
    overwrite,
    overwrite_steps,
    plain_events,
    refused_beside,
    restore,
    rewrite,
    upsert,
)
from persist.engine.reading import (
    READ_TIMEOUT_S,
    WantedListen,
    as_of_join,
    begun_listen,
    begun_subscription,
    changes,
    difference,
    listens_together,
    snapshot,
    snapshots_together,
    upserts,
)
from persist.engine.requests import REQUEST_KINDS, releases_told, requests_told
from persist.engine.resolver import REASON, Late, split_late
from persist.engine.telling import (
    About,
    Retained,
    about_collection,
    about_location,
    allow_compaction,
    describe_step,
    hold_with_schema,
    list_holds,
    retained,
    retention_step,
    set_tag,
    take_hold,
    untag,
    version_of,
    words,
)
from persist.engine.unsealed import UnsealedUpdates
from persist.engine.writer import Mode, OpenOptions
