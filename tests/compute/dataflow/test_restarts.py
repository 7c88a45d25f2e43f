"""Random programs over persisted collections, started again and again, hold what recomputing from scratch gives."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import persist
from persist.dataflow import Program, Stream
from tests.compute.dataflow import programs
from tests.compute.dataflow.oracle import at, updates_of
from tests.compute.dataflow.programs import OPERATORS, build
from tests.support.tiers import examples

TIMES = 6
RECORDS = st.tuples(st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.integers(0, 3)))
UPDATES = st.lists(st.tuples(RECORDS, st.integers(0, TIMES - 1), st.sampled_from([1, 1, 1, -1])), max_size=8)
DELAYED = [operator.__name__ for _, operator in OPERATORS].index("delayed")  # The one that tells times apart.
CHOICE = st.tuples(
    st.one_of(st.integers(0, len(OPERATORS) - 1), st.just(DELAYED)), st.lists(st.integers(0, 5), min_size=3, max_size=3)
)


class OfSources(Program):
    """A program whose inputs are collections."""

    def input(self, name: str, *, key: Any, value: Any = None) -> Stream:
        return self.source(name, schema={**key, **value})


def counted(records: Counter[Any]) -> Counter[Any]:
    found = Counter[Any]()
    for record, diff in records.items():
        found[record[0]] += diff
    return Counter((key, n) for key, n in found.items() if n)


OUTPUTS: dict[str, Callable[[Counter[Any]], Counter[Any]]] = {
    "out": lambda records: records,
    "counts": counted,
    "histogram": lambda records: counted(Counter((n, key) for key, n in counted(records))),
}


def persist_all(stream: Stream, outputs: Sequence[str]) -> None:
    """Persist a stream, what its records are counted to by key, and how often there are such counts; or some of it."""
    counts = stream.group_by("k").count("n")
    every = {"out": stream, "counts": counts, "histogram": counts.group_by("n").count("m")}
    for name in outputs:
        every[name].persist(name, key=every[name].columns)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), choices=st.lists(CHOICE, min_size=1, max_size=3))
def test_programs_that_are_started_again_go_on_exactly(
    monkeypatch: pytest.MonkeyPatch, data: Any, choices: list[tuple[int, list[int]]]
) -> None:
    monkeypatch.setattr(programs, "Program", OfSources)
    outputs = data.draw(st.lists(st.sampled_from(list(OUTPUTS)), min_size=1, unique=True), label="outputs")
    inputs = [data.draw(UPDATES, label=f"in{number}") for number in range(2)]
    kinds = {"k": pa.int64(), "v": pa.int64()}
    with persist.open(f"memory://{uuid4()}", settings=persist.Settings(background=False)) as client:
        sources = [client.create_or_load(f"in{number}", key=kinds) for number in range(2)]
        done = 0
        while done < TIMES:
            until = data.draw(st.integers(done + 1, TIMES)) if done else 1
            for source, updates in zip(sources, inputs, strict=True):
                source.write([((record, None), time, diff) for record, time, diff in updates if done <= time < until])
                source.seal(until).result()
            done = until
            program, streams = build(1, 2, choices)
            persist_all(streams[-1].stream, outputs)
            with program.open(client, optimise=data.draw(st.booleans())) as running:
                running.step(times=data.draw(st.sampled_from([1, None])))
            if data.draw(st.booleans()):
                for source in sources:
                    source.allow_compaction(done - 1).result()
                    source.compact()
        program, streams = build(1, 2, choices)
        persist_all(streams[-1].stream, outputs)
        with program.open(client) as running:
            running.run()
        expected = streams[-1].of([updates_of((r, (t,), d) for r, t, d in each) for each in inputs])
        for name in outputs:
            out = client.load(name)
            assert out.upper == persist.Antichain(TIMES)
            for time in range(TIMES):
                rows = out.snapshot(time, form="diff").to_arrow().to_pylist()
                found = Counter({tuple(r.values())[:-1]: r["_diff"] for r in rows})
                assert found == OUTPUTS[name](Counter(at(expected, (time,)))), (name, time)
