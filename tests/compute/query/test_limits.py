"""Queries that are ended by somebody else, at any moment."""

import random
import threading
import time

import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.compute.query import Queries, QueryLimits
from persist.errors import InvalidUsage, Unavailable

ENDLESS = "SELECT sum(a.range + b.range) FROM range(1000000) a, range(1000000) b"
LIMITS = QueryLimits(64 << 20, 600.0, 1000)


def test_a_query_ends_when_it_is_interrupted_at_whatever_moment() -> None:
    chance = random.Random(5)
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        queries = Queries(client.engine, LIMITS)
        for _ in range(40):
            answer = queries.run(ENDLESS)
            began = threading.Event()

            def end(answer: object = answer, began: threading.Event = began) -> None:
                began.wait()
                time.sleep(chance.choice([0.0, 1e-5, 1e-4, 1e-3]))
                answer.interrupt("enough")  # type: ignore[attr-defined]

            thread = threading.Thread(target=end)
            thread.start()
            began.set()
            with pytest.raises(InvalidUsage, match="the query was ended: enough"):
                answer.to_arrow()
            thread.join()
            answer.close()
            answer.close()


def test_an_answer_that_is_closed_while_it_is_read_ends_the_reading() -> None:
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        answer = Queries(client.engine, LIMITS).run(ENDLESS)
        closing = threading.Timer(0.05, answer.close)
        closing.start()
        with pytest.raises(InvalidUsage, match="its answer was closed"):
            answer.to_arrow()
        closing.join()


def test_only_so_many_queries_have_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persist.compute.query.result.QUERIES_MAX", 2)
    monkeypatch.setattr("persist.compute.query.result.TURN_S", 0.01)
    with persist.open(MemoryBlob()) as client:
        queries = Queries(client.engine, QueryLimits())
        refused = pytest.raises(Unavailable, match=r"2 queries have been running for 0\.01 s")
        with queries.wait_for_turn(), queries.wait_for_turn(), refused, queries.wait_for_turn():
            pass
        with queries.wait_for_turn(), queries.wait_for_turn():
            pass


def test_an_error_in_a_later_batch_is_refused_like_one_in_the_first() -> None:
    query = "SELECT (CASE range WHEN 299999 THEN 'late' ELSE '1' END)::INT FROM range(300000)"
    with persist.open(MemoryBlob(), settings=persist.Settings(background=False)) as client:
        for answer in (client.sql(query), Queries(client.engine, QueryLimits(64 << 20, 600.0, 10**6)).run(query)):
            with pytest.raises(InvalidUsage, match=r"^DuckDB refuses the query: .*'late' to INT32.* collections are"):
                answer.to_arrow()
