"""The pure rules: what a record does to the state of a location, and which records are refused.

Promises: the state is a function of the log alone. Nothing here writes, reads a clock or draws a random number;
every rule about what may be committed is checked here and nowhere else.
"""

from persist.state.collection_rules import (
    Condition,
    ExpectDefinition,
    ExpectDerived,
    ExpectErasures,
    ExpectNothingBeyondUpper,
    ExpectParts,
    ExpectRuns,
    ExpectUpper,
    PlannedAppend,
    after_step,
    check_contents,
    derived_holds,
)
from persist.state.contents import (
    CollectionState,
    Erasure,
    Publication,
    PublishedFile,
    Unsealed,
    appended,
    check_changes_readable,
    check_readable,
    definition_number,
    last_sealed,
    unsealed,
    with_replaced,
)
from persist.state.draft import Draft, DraftStep
from persist.state.erasures import check_reason, erasure_number, left_by_erasure
from persist.state.frozen import FrozenMap, merged
from persist.state.keyed_rules import (
    RESERVED,
    WATERMARK_OF_NULL,
    PlannedPend,
    due,
    form_in,
    keyed_form,
    pending_after,
    since_max,
    unused_after,
)
from persist.state.location import Dropped, LocationState, TakenOver, check_uploaded, is_waited_for
from persist.state.publications import left_unused, resolved_numbers
from persist.state.remembered import About, Remembered, archiving_step, check_note, is_repeated, plan_archiving
from persist.state.schemas import (
    among_versions,
    check_follows,
    check_written,
    moved,
    newest_like,
    reconciled,
    version_of,
)
from persist.state.state import PENDING_MAX, CollectionEntry, DoesNotFollow, State, apply, format_after
