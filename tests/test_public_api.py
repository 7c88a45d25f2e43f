"""The names that users import are pinned: adding or removing one is a decision."""

import subprocess
import sys

import persist


def test_all_is_sorted_and_complete() -> None:
    assert persist.__all__ == sorted(persist.__all__)
    assert [name for name in persist.__all__ if not hasattr(persist, name)] == []


def test_import_persist_imports_neither_pyspark_nor_boto3_nor_pandas() -> None:
    code = (
        "import persist, sys; print([m for m in ('pyspark', 'boto3', 'pandas', 'polars', 's3fs') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_is_in_one_group_and_says_so() -> None:
    groups = (
        persist.InvalidUsage,
        persist.Conflict,
        persist.Unavailable,
        persist.Indeterminate,
        persist.Corruption,
    )
    errors = [e for e in vars(persist).values() if isinstance(e, type) and issubclass(e, persist.PersistError)]
    for error in errors:
        if error is not persist.PersistError:
            assert sum(issubclass(error, group) for group in groups) == 1, error
    assert issubclass(persist.InvalidUsage, ValueError)
