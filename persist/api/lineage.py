"""Lineage: events for OpenLineage about the collections that a client writes, and the inputs that they come from.

A client whose process has `OPENLINEAGE_URL` (or another of the settings that the package openlineage-python knows)
sends an event for each record that it commits. An event is read from the record after it is durable. So it is exact,
and failed writes have no events.

- A view is a job with its query. Its output is the view at its new upper, and its inputs are at the same upper. A view
  that is sealed to a time shows its inputs up to that time.
- A clone is a job with its source as input, at the same upper.
- A write is a job of the collection. It has no inputs, because the log does not know where rows come from.

The run's id comes from the location, the seqno and the job, so an event that is sent twice is the same event. The
version of a dataset is its upper: all that it holds before that time is complete and never changes.

One thread reads records and sends events. While it is behind, it queues seqnos, at most `BEHIND_MAX`. Further records
are only counted, because lineage must not delay a write. Closing waits `CLOSE_S` for what is left.

The form of events: the OpenLineage specification, version 2 (openlineage.io/docs/spec).
"""

import logging
import os
import threading
import uuid
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from queue import Full, Queue
from typing import Any

from persist import __version__
from persist.blob.protocol import Blob
from persist.core.errors import CollectionNotFound
from persist.core.log import kinds
from persist.core.log.records import Record, read_record
from persist.core.state_rules.contents import CollectionState
from persist.engine.follow.follower import Follower
from persist.engine.location.engine import Engine

BEHIND_MAX = 10_000  # Records.
CLOSE_S = 5.0
PRODUCER = f"urn:persist:{__version__}"
WROTE = (kinds.Clone, kinds.Append, kinds.Pend, kinds.Resolve, kinds.Seal)

logger = logging.getLogger(__name__)


def has_target() -> bool:
    """Return whether openlineage-python is configured to send events."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").lower() == "true":
        return False
    return any(os.environ.get(f"OPENLINEAGE_{name}") for name in ("URL", "CONFIG", "_TRANSPORT__TYPE"))


def start_lineage(engine: Engine) -> "Lineage | None":
    """Start to send lineage events of a client's commits; return None, with a warning, without the package."""
    try:
        from openlineage.client import OpenLineageClient
    except ImportError:
        warnings.warn(
            "OPENLINEAGE_URL is set, and no events are sent: pip install openlineage-python, or take the variable away",
            stacklevel=4,
        )
        return None
    lineage = Lineage(engine.follower, engine.blob, engine.url, OpenLineageClient())
    weakref.finalize(engine, lineage.request_stop).atexit = False
    engine.when_committed = lineage.committed
    engine.count_also("lineage", lineage.counts)
    return lineage


class Lineage:
    """Sends the events of one client; close it.

    Args:
        follower, blob: the client's copy of the state, and its store. The engine is not referenced, so that it can be
            freed.
        url: the URL of the location, which is the namespace of its datasets and jobs.
        sender: an `OpenLineageClient`, or whatever has its `emit` and `close`.
    """

    def __init__(self, follower: Follower, blob: Blob, url: str, sender: Any) -> None:
        self._follower = follower
        self._blob = blob
        self._url = url
        self._sender = sender
        self._left: Queue[int | None] = Queue(BEHIND_MAX)
        self._counts = {"sent": 0, "failed": 0, "left_out": 0}
        self._last = -1
        self._thread = threading.Thread(target=self._run, name="persist-lineage", daemon=True)
        self._thread.start()

    def counts(self) -> Mapping[str, float]:
        """Return the numbers of sent, failed and dropped events."""
        return dict(self._counts)

    def committed(self, future: "Future[int]") -> None:
        """Send the events of a record once its commit is durable."""
        future.add_done_callback(self._emit_commit)

    def request_stop(self) -> None:
        """Let the thread end after pending events; do not wait."""
        with suppress(Full):
            self._left.put_nowait(None)

    def close(self) -> None:
        """Send pending events, for at most `CLOSE_S` seconds."""
        self.request_stop()
        self._thread.join(CLOSE_S)
        self._sender.close(CLOSE_S)

    def _emit_commit(self, future: "Future[int]") -> None:
        """Queue the seqno of a successful commit for the sending thread."""
        # Not future.exception(): that marks the error as seen, and close() raises unseen errors only.
        if Future.exception(future, 0) is not None:
            return
        try:
            self._left.put_nowait(Future.result(future, 0))
        except Full:
            self._counts["left_out"] += 1

    def _run(self) -> None:
        """Send the events of queued commits until `close`."""
        while (seqno := self._left.get()) is not None:
            if seqno <= self._last:  # Many operations can be one record, and futures are resolved in order.
                continue
            self._last = seqno
            try:
                record = self._follower.get_recent_records()[1].get(seqno) or read_record(self._blob, seqno)
                for event in () if record is None else self._make_events(record):
                    self._sender.emit(event)
                    self._counts["sent"] += 1
            except Exception as error:  # No answer of the server of lineage may end the thread.
                self._counts["failed"] += 1
                if self._counts["failed"] == 1:
                    logger.warning("an event of lineage could not be sent (this is said once): %s", error)

    def _make_events(self, record: Record) -> Iterator[Any]:
        """Yield an event for each job that a record completes."""
        by_collection: dict[str, list[Any]] = {}
        for mutation in record.mutations:
            if isinstance(mutation, WROTE):
                by_collection.setdefault(mutation.collection, []).append(mutation)
        for id_, mutations in by_collection.items():
            contents = self._load_contents(id_)
            if contents is not None:  # Else it was dropped meanwhile.
                yield self._make_run_event(record, contents, mutations)

    def _load_contents(self, id_: str) -> CollectionState | None:
        """Return the known state of a collection; None if it was dropped."""
        try:
            return self._follower.require(id_, id_)
        except CollectionNotFound:
            return None

    def _make_run_event(self, record: Record, contents: CollectionState, mutations: Sequence[Any]) -> Any:
        """Return the event for one collection that a record wrote."""
        from openlineage.client import event_v2 as events
        from openlineage.client import facet_v2 as facets

        upper = _find_new_upper(mutations)
        read, about, verb = [], {}, "write"
        if isinstance(mutations[0], kinds.Clone):
            verb, read = "clone", [self._load_contents(mutations[0].source)]
        elif contents.view is not None:
            from persist.compute.sql import Definition  # Here: the dataflow takes long to load.

            definition = Definition.from_json(contents.view)
            about["sql"] = facets.sql_job.SQLJobFacet(query=definition.sql)
            verb, read = "refresh", [self._load_contents(id_) for id_ in definition.reads.values()]
        inputs = [
            events.InputDataset(self._url, input_.name, facets=_make_dataset_facets(facets, input_, upper))
            for input_ in read
            if input_ is not None
        ]
        parts = [part for mutation in mutations for part in getattr(mutation, "parts", ())]
        size = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(part.rows for part in parts), size=sum(part.bytes for part in parts)
        )
        output = events.OutputDataset(
            self._url,
            contents.name,
            facets=_make_dataset_facets(facets, contents, upper),
            outputFacets={"outputStatistics": size},
        )
        job = f"{verb} {contents.name}"
        kind = facets.job_type_job.JobTypeJobFacet(processingType="BATCH", integration="PERSIST", jobType="COMMIT")
        return events.RunEvent(
            eventType=events.RunState.COMPLETE,
            eventTime=datetime.fromtimestamp(record.written_ms / 1000, UTC).isoformat(),
            run=events.Run(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{self._url} {record.location} {record.seqno} {job}"))),
            job=events.Job(self._url, job, facets={"jobType": kind, **about}),
            inputs=inputs,
            outputs=[output],
            producer=PRODUCER,
        )


def _find_new_upper(mutations: Sequence[Any]) -> int | None:
    """Return the upper that mutations set; None without a seal, or if complete."""
    uppers = [mutation.upper for mutation in mutations if isinstance(mutation, kinds.Seal)]
    uppers += [mutation.end for mutation in mutations if isinstance(mutation, kinds.Resolve)]
    uppers += [(mutation.as_of + 1,) for mutation in mutations if isinstance(mutation, kinds.Clone)]
    return uppers[-1][0] if uppers and uppers[-1] else None


def _make_dataset_facets(facets: Any, contents: CollectionState, upper: int | None) -> dict[str, Any]:
    """Return the schema and the sealed time of a collection as facets."""
    fields = [
        facets.schema_dataset.SchemaDatasetFacetFields(name=field.name, type=str(field.type))
        for field in list(contents.schema.arrow)[:-2]
    ]
    dataset_facets = {"schema": facets.schema_dataset.SchemaDatasetFacet(fields=fields)}
    if upper is not None:
        dataset_facets["version"] = facets.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(upper))
    return dataset_facets
