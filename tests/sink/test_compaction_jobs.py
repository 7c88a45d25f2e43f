"""How the work of a compaction is cut into jobs."""

from persist.sink import grouped


def test_groups_are_of_neighbours_and_of_about_equal_size() -> None:
    sizes = [5, 1, 1, 1, 7, 3, 3, 3, 20, 1]
    groups = grouped(range(10), sizes, 11)
    assert [each for group in groups for each in group] == [*range(10)]
    assert len(groups) == 4
    assert grouped([1, 2], [0, 0], 100) == [[1, 2]]
    assert grouped([], [], 100) == []
