"""Collections whose schema has changed at random, read by both ways of Spark and held against the model of Python's."""

import tempfile
from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from pyspark.sql import DataFrame, SparkSession

import persist
import persist.spark
from persist.blob.stores.file import FileBlob
from tests.engine.test_evolve_model import Evolving
from tests.support.tiers import examples


def counted(frame: DataFrame) -> Counter[tuple[int, tuple[Any, ...]]]:
    found: Counter[tuple[int, tuple[Any, ...]]] = Counter()
    for key, *values, diff in frame.collect():
        found[key, tuple(values)] += diff
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("inline_max", [0, 1 << 20])
def test_both_ways_read_what_the_model_holds_whatever_has_changed(
    spark: SparkSession, inline_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all parts in blobs, which Spark's own scan reads, and with small ones in the log, which it is given."""
    monkeypatch.setattr("persist.engine.write.part_writer.INLINE_TOTAL_MAX", inline_max)

    class EvolvingForSpark(Evolving):
        def teardown(self) -> None:
            super().teardown()
            with tempfile.TemporaryDirectory() as path:
                folder = FileBlob(path, fsync=False)
                for entry in self.blob.list(""):
                    folder.set(entry.key, self.blob.get(entry.key) or b"")
                for as_of in sorted({self.since, self.upper - 1} if self.upper > self.since else ()):
                    expected = self.contents(self.newest, as_of)
                    for native in (True, False):
                        found = persist.spark.snapshot(spark, path, "c", as_of=as_of, form="diff", native=native)
                        assert counted(found) == expected, (as_of, native)
                if self.upper > self.since + 1:
                    later = self.contents(self.newest, self.upper - 1, self.since)
                    frame = persist.spark.changes(spark, path, "c", self.since + 1, self.upper)
                    assert counted(frame.drop("_time")) == later

    # To make a failing example smaller would take as many reads by Spark as to find it, many times over.
    found_only = (Phase.explicit, Phase.reuse, Phase.generate)
    wanted = settings(max_examples=examples(12), stateful_step_count=20, deadline=None, phases=found_only)
    run_state_machine_as_test(EvolvingForSpark, settings=wanted)
