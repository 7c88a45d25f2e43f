"""Where micro-batches end."""

import pyarrow as pa

from persist.compute.tasks.stream_source import TimeCounts


def test_counts_of_times_add_up() -> None:
    def counts(given: dict[int, int]) -> TimeCounts:
        return TimeCounts(pa.array(list(given)).to_numpy(), pa.array(list(given.values())).to_numpy())

    total = counts({1: 2, 5: 1}) + counts({0: 4, 5: 7, 9: 1})
    assert dict(zip(total.times.tolist(), total.counts.tolist(), strict=True)) == {0: 4, 1: 2, 5: 8, 9: 1}
    assert total.within(1, 9).counts.tolist() == [2, 8]
