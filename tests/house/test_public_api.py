"""The names that users import are pinned: adding or removing one is a decision."""

import subprocess
import sys
import textwrap
from typing import Any

import pytest

import persist
from tests.support.forks import forked_python


def test_all_is_sorted_and_complete() -> None:
    assert persist.__all__ == sorted(persist.__all__)
    assert [name for name in persist.__all__ if not hasattr(persist, name)] == []


def run(code: str) -> str:
    """Run code in a process of its own, which must succeed; return what it printed."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


OPTIONAL = {
    "pyspark",
    "boto3",
    "obstore",
    "pandas",
    "polars",
    "s3fs",
    "duckdb",
    "typer",
    "rich",
    "starlette",
    "uvicorn",
    "prometheus_client",
}


TOP = "{name.split('.')[0] for name in sys.modules}"


def test_import_persist_loads_nothing_that_takes_long() -> None:
    """Nor does the first use of a public name load asyncio, or switch the collection of garbage off."""
    code = f"import gc, sys, persist; print(*{TOP}); persist.open; import persist.core.metrics; "
    code += "print(*({'asyncio', 'opentelemetry'} & {*sys.modules}), gc.isenabled())"
    loaded, last = run(code).splitlines()
    assert {*loaded.split()} & {"pyarrow", "numpy", "msgspec", "fsspec", *OPTIONAL} == set()
    assert last == "True"


def test_small_steps_load_no_optional_package() -> None:
    code = f"""
import gc, numpy, pyarrow, sys; gc.disable()
import persist
with persist.open("memory://there") as client:
    orders = client.create_or_load("orders", key={{"id": int}}, value={{"status": str}})
    listen = orders.listen()
    orders.write([((1, "new"), 0, 1)], seal=1).result()
    assert len(next(listen).updates) == 1
    assert orders.snapshot().to_arrow().num_rows == 1
    column = pyarrow.Array.from_buffers(pyarrow.int64(), 2, [None, pyarrow.py_buffer(numpy.array([1, 3]))])
    assert orders.get(pyarrow.table({{"id": column}})).to_pylist() == [{{"id": 1, "status": "new"}}]
    assert orders.snapshot().head() and client.collections()
assert "pyarrow.dataset" not in sys.modules and not gc.isenabled()
print(*{TOP})
"""
    assert {*run(code).split()} & OPTIONAL == set()


@pytest.mark.thorough(except_every=4)
@pytest.mark.parametrize(
    "first", ["persist.api.client", "persist.connect.ingest.driver", "persist.services.fsck.examination", "persist"]
)
def test_a_public_name_is_not_hidden_by_a_room_of_the_same_name(first: str) -> None:
    code = f"import {first}, persist; assert callable(persist.fsck) and callable(persist.ingest)"
    run(code)


def test_the_guide_that_help_of_persist_begins_with_runs() -> None:
    guide = textwrap.dedent(str(persist.__doc__).split("::\n\n")[1].split("\n\nEach write")[0])
    names: dict[str, Any] = {}
    exec(guide.replace("client.close()", "rows = orders.to_pylist()\nclient.close()"), names)
    assert names["rows"] == [{"id": 1, "status": "paid"}]


def test_a_star_import_and_dir_show_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from persist import *", names)
    assert names["Client"] is persist.Client
    assert dir(persist) == sorted(persist.__all__)


def test_threads_that_use_persist_first_at_the_same_time_all_find_it() -> None:
    code = """if True:
        import persist, threading
        found, ready = [], threading.Barrier(8)
        def use(name):
            ready.wait()
            found.append(getattr(persist, name))
        names = ["open", "fsck", "Client", "Antichain", "Settings", "Timeline", "Blob", "InvalidUsage"]
        threads = [threading.Thread(target=use, args=(name,)) for name in names]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(found) == 8
    """
    run(code)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="opne"):
        persist.opne  # type: ignore[attr-defined]  # noqa: B018


def test_the_root_has_sixty_six_names_at_most_and_of_errors_only_their_groups() -> None:
    assert len(persist.__all__) <= 66
    shown = {name for name in persist.__all__ if name in persist.errors.__all__}
    assert shown == {"Conflict", "Corruption", "Indeterminate", "InvalidUsage", "PersistError", "Unavailable"}


def test_every_error_is_in_one_group_and_says_so() -> None:
    groups = (persist.InvalidUsage, persist.Conflict, persist.Unavailable, persist.Indeterminate, persist.Corruption)
    for error in (getattr(persist.errors, name) for name in persist.errors.__all__):
        assert issubclass(error, persist.PersistError)
        if error is not persist.PersistError:
            assert sum(issubclass(error, group) for group in groups) == 1, error
    assert issubclass(persist.InvalidUsage, ValueError)


def test_every_error_that_users_can_meet_is_imported_from_one_place_and_shown_under_its_name_there() -> None:
    code = """if True:
        import importlib, pkgutil, persist
        from persist import PersistError
        for found in pkgutil.walk_packages(persist.__path__, "persist."):
            if "spark" not in found.name and not found.name.startswith(("persist.tools.cli", "persist.__main__")):
                importlib.import_module(found.name)
        kinds = [PersistError]
        for kind in kinds:
            kinds += kind.__subclasses__()
        inside = {"Superseded", "Unchanged", "SourceMoved", "SlotInUse"}
        inside |= {"SourceUnavailable", "SourceBusy", "_Moved", "_Gone"}
        print(*(k.__name__ for k in kinds if k.__module__ != "persist.errors" and k.__name__ not in inside))
    """
    done = subprocess.run([*forked_python(), "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_function_that_mentions_the_package_can_be_sent_to_workers() -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(lambda: persist))() is persist
