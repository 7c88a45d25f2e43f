"""Metrics of a location over HTTP, in Prometheus' text format, which Grafana reads by way of any scraper.

    GET /metrics

Families, in addition to those of `persist.core.metrics` (dots become underscores, counters end in `_total`):

    persist_up                           1 if the store answered during this scrape.
    persist_seqno                        the last record of the log.
    persist_collections                  the number of collections.
    persist_collection_<rows|bytes|parts|holds|unsealed_updates|since|upper>     by collection.
    persist_collection_failed            by collection: 1 if its last refresh, its source or a sink failed.
    persist_collection_lag_seconds       by collection: from its upper to now, if its times are moments.

A scrape costs one GET of the log, and one for each collection that has changed since the last scrape. With more than
`COLLECTIONS_MAX` collections, it has only the totals. The server requires the token. Without a token, it only answers
requests from this machine that use a name of this machine, so a foreign page in a browser gets nothing.
"""

import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import persist
from persist.core.metrics import Reading, iterate_readings
from persist.engine.collection.failures import load_failures
from persist.services.serve.http import Gate, serve_beside
from persist.services.serve.rights import Tokens
from persist.tools.reports.surveys import FactsCache

COLLECTIONS_MAX = 2000
HELP = {  # Of other families, the name says it.
    "persist.up": "1 if the store answered this time.",
    "persist.seqno": "The last record of the log.",
    "persist.collections": "How many collections there are.",
    "persist.collection.rows": "Rows, as far as they are known without a read.",
    "persist.collection.bytes": "Bytes of the parts, history among them.",
    "persist.collection.parts": "Parts.",
    "persist.collection.holds": "Holds that keep history.",
    "persist.collection.unsealed_updates": "Updates at times that are not sealed yet.",
    "persist.collection.since": "The first time that can be read.",
    "persist.collection.upper": "The first time that is not sealed.",
    "persist.collection.lag_seconds": "How far upper is behind now, if times are moments.",
    "persist.collection.failed": "1 if the last refresh, the source or a sink failed.",
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """A client's metrics for Prometheus. Thread-safe."""

    def __init__(self, client: "persist.Client") -> None:
        self._client = client
        self._known = FactsCache(client)
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    async def make_response(self) -> Response:
        """Return the answer to a scrape."""
        text = await run_in_threadpool(self.text)
        return PlainTextResponse(text, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})

    def text(self) -> str:
        """Return all metrics; only the client's if the store does not answer."""
        return generate_latest(self._registry).decode()

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names of metrics are only known when they are collected."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all metric families."""
        all_readings: list[Reading] = []
        with self._lock:
            try:
                all_readings += self._read_location()
                up = 1
            except persist.PersistError:
                up = 0
        return group_readings(
            [*all_readings, Reading("persist.up", up, False), *iterate_readings(self._client.metrics())]
        )

    def _read_location(self) -> Iterator[Reading]:
        """Yield the location's figures: seqno, collections, and figures of each."""
        seqno = self._client.seqno  # This looks for new records; the rest is about the state as it then is.
        names = self._client.engine.follower.state.list_names()
        yield Reading("persist.seqno", seqno, False)
        yield Reading("persist.collections", len(names), False)
        if len(names) <= COLLECTIONS_MAX:
            now_s = time.time()
            for facts in self._known.of(names):
                hidden = facts.unsealed
                values: dict[str, float | None] = {
                    "rows": facts.rows,
                    "bytes": facts.bytes,
                    "parts": facts.parts,
                    "holds": len(facts.contents.holds),
                    "unsealed_updates": 0 if hidden is None else hidden.updates,
                    "since": facts.since,
                    "upper": facts.upper,
                    "lag_seconds": facts.lag_s(now_s),
                    "failed": int(bool(load_failures(facts.contents))),
                }
                for name, value in values.items():
                    if value is not None:
                        yield Reading(f"persist.collection.{name}", value, False, attributes={"collection": facts.name})


def group_readings(readings: Iterable[Reading]) -> Iterable[Metric]:
    """Return readings as Prometheus metrics, one for each name."""
    families: dict[str, Any] = {}
    for reading in readings:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", reading.name)
        kind = CounterMetricFamily if reading.is_counter else GaugeMetricFamily
        meaning = HELP.get(reading.name, reading.name)
        family = families.get(name) or families.setdefault(name, kind(name, meaning, labels=[*reading.attributes]))
        family.add_metric([*reading.attributes.values()], reading.value)
    return families.values()


@contextmanager
def serve_metrics(
    client: "persist.Client", address: str, *, token: str | None, insecure: bool, write_token: str | None = None
) -> Iterator[str]:
    """Serve metrics at HOST:PORT; yield their URL. Port 0 takes a free one."""
    exposition = Exposition(client)

    def make_app(gate: Gate) -> Starlette:
        async def answer(request: Request) -> Response:
            if refusal := gate.refuse(request, "metrics"):
                return PlainTextResponse(f"{refusal[1]}\n", refusal[0])
            return await exposition.make_response()

        return Starlette(routes=[Route("/metrics", answer, methods=["GET"])])

    with serve_beside(make_app, "--metrics", address, Tokens(token, write_token), insecure=insecure) as url:
        yield f"{url}/metrics"
