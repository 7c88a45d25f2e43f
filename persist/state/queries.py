"""What a collection remembers of the streaming queries that write to it: the last batch of each, and who runs it.

A query numbers its batches, and runs the last one again if it does not know whether it was committed. The record that
adds a batch therefore says so, under the query's id, and:

    batch > last        it is new
    batch == last       it was done; a run that is new says by a record of its own that it goes on here
    batch < last        a query never goes back: this is another one with the same id, or an old checkpoint
    run displaced       another run has taken over since, so two are running with one id

Unlike tokens, these are kept however much others write: `QUERIES_KEPT` queries for each collection, those that
committed last.
"""

from collections.abc import Mapping

import msgspec

from persist.errors import QueryMismatch
from persist.log import Batch

QUERIES_KEPT = 1024
RUNS_KEPT = 4


class LastBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last batch that was committed, and the runs that committed, the present one last."""

    batch: int
    runs: tuple[str, ...]


def is_repeated(queries: Mapping[str, LastBatch], step: Batch) -> bool:
    """Return whether a batch was committed before.

    Raises:
        QueryMismatch: it is none that its query may commit now.
    """
    last = queries.get(step.query)
    if last is None:
        if step.again:
            raise QueryMismatch(step.query, step.batch, None, None)
        return False
    if step.run in last.runs[:-1]:
        raise QueryMismatch(step.query, step.batch, last.batch, last.runs[-1])
    if step.batch < last.batch or (step.again and step.batch != last.batch):
        raise QueryMismatch(step.query, step.batch, last.batch, None)
    return step.batch == last.batch


def with_batch(queries: Mapping[str, LastBatch], step: Batch) -> dict[str, LastBatch]:
    """Return queries after a batch.

    Raises:
        QueryMismatch: as `is_repeated`; or it is not to be done again and was done.
    """
    if is_repeated(queries, step) != step.again:
        raise QueryMismatch(step.query, step.batch, step.batch, None)
    last = queries.get(step.query)
    runs = () if last is None else last.runs
    if step.run not in runs:
        runs = (*runs, step.run)[-RUNS_KEPT:]
    after = {query: each for query, each in queries.items() if query != step.query}
    after[step.query] = LastBatch(step.batch, runs)
    while len(after) > QUERIES_KEPT:
        del after[next(iter(after))]
    return after
