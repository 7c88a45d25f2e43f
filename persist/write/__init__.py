"""From what callers ask to records of the log: operations, groups of them, uploads, and the futures that answer.

Promises: operations of a client are applied in call order; what a future says has happened is durable; a rejected
operation fails alone, and whatever is uncertain is resolved from the log before anybody is told. What a retry may
assume is in `persist.state.remembered`.
"""

from persist.write.committer import Committer
from persist.write.future import CommitFuture, Committed
from persist.write.operations import (
    Asked,
    AtCommit,
    Commit,
    Operation,
    Renew,
    Step,
    Submission,
    Write,
    check_token,
    delete_digest,
    filter_text,
    note_steps,
    overwrite_digest,
    times_together,
    with_token,
)
from persist.write.part_writer import MEMORY_BUDGET, PartWriter, group_bytes_max
from persist.write.relay import (
    REQUEST_BYTES_MAX,
    Answer,
    Asking,
    Request,
    answers_bytes,
    answers_from,
    request_bytes,
    request_from,
    steps_from,
)
from persist.write.unclosed import Unclosed
