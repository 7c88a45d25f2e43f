"""The Python of Spark's workers, and the errors, logs and number of tasks.

Without `PYSPARK_PYTHON`, workers run the first `python3` on the path, which may differ from the driver's and lack this
library. PySpark then reports a data source that it cannot find, or an error of pickle. Workers of a local master run on
this machine, so this module makes them run the driver's Python, unless the user has chosen another one. Once for each
session it checks the Python of the workers: locally by running it, and on a cluster by a job of one task. Spark Connect
allows neither.

Spark formats an exception of a Python worker, with its traceback, into one of its own. The class is lost, and our
message ends up below our frames and Spark's. A user has no use for these frames, so a variable makes the worker leave
them out. The name of the error and its message remain. The worker process ends right after it has reported an error, so
the variable affects nothing else.

A Python data source has no metrics of its own in Spark 4.3. With `spark.sql.pyspark.worker.logging.enabled`, Spark
keeps what its Python workers log, to be seen by `spark.tvf.python_worker_logs()`. Without it, tasks log nothing,
because a line for each slice of each read would flood executors' logs.
"""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FunctionType
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from persist import __version__
from persist.core.errors import CollectionNotFound, InvalidUsage, PersistError

_ASKED = "import sys; print(*sys.version_info[:2], sep='.'); from persist import __version__ as v; print(v)"
_TIMEOUT_S = 60
_WORKERS, _DRIVER = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"
_BY_DEFAULT = "python3"  # PySpark's default for workers.


def name_driver() -> None:
    """Let JVMs that start later use the driver's Python, unless a variable names one.

    The JVM searches for Python data sources with the Python that this variable names.
    """
    if not {_WORKERS, _DRIVER} & os.environ.keys():
        os.environ[_DRIVER] = sys.executable


def choose_local_workers(context: SparkContext) -> None:
    """Let workers on this machine run the driver's Python, unless the user chose another one."""
    is_chosen = context.pythonExec != _BY_DEFAULT or _WORKERS in os.environ
    if context.master.startswith("local") and not is_chosen:
        context.pythonExec = sys.executable


def check_workers(spark: SparkSession) -> None:
    """Raise InvalidUsage if workers run another Python or another version of this library."""
    try:
        context = spark.sparkContext
    except (PySparkException, AttributeError):  # Spark Connect has none.
        return
    choose_local_workers(context)
    if context.master.startswith("local"):
        check_python(context.pythonExec, sys.executable)
    else:
        _check_worker(context)


@lru_cache(maxsize=16)
def check_python(command: str, ours: str) -> None:
    """Raise InvalidUsage if the command of local workers runs another Python or library version."""
    python = shutil.which(command)
    if python is None:
        raise InvalidUsage(_describe_mismatch(f"{command}, which there is not"))
    if os.path.dirname(os.path.abspath(python)) == os.path.dirname(os.path.abspath(ours)):
        return
    result = subprocess.run([python, "-c", _ASKED], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    version, library = [*result.stdout.split(), "", ""][:2]
    _check_versions(python, version, library)


@lru_cache(maxsize=16)
def _check_worker(context: Any) -> None:
    """Raise InvalidUsage if a worker of the cluster runs another Python or library version."""
    # Workers that lack this module must be able to load it all the same: as a value, not by its name.
    asking = FunctionType(_report_versions.__code__, {"__name__": "__main__"}, "answered")
    asking.__module__ = "__main__"
    try:
        [(python, version, library)] = context.parallelize([0], 1).mapPartitions(asking).collect()
    except PySparkException as error:
        if "PYTHON_VERSION_MISMATCH" in str(error):
            raise InvalidUsage(_describe_mismatch("another version of Python")) from error
        return  # The next call of Spark reports any other error better.
    _check_versions(python, version, library)


def _report_versions(_: Iterable[int]) -> "Iterator[tuple[str, str, str]]":
    """Yield the path and version of a worker's Python, and of this library there."""
    import sys

    try:
        from persist import __version__ as library
    except ImportError:
        library = ""
    yield sys.executable, f"{sys.version_info[0]}.{sys.version_info[1]}", library


def _check_versions(python: str, version: str, library: str) -> None:
    """Raise InvalidUsage if versions differ from the driver's."""
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version != ours:
        raise InvalidUsage(_describe_mismatch(f"{python} (Python {version or 'unknown'}, and the driver's is {ours})"))
    if library != __version__:
        has = f"persist {library}" if library else "no persist"
        raise InvalidUsage(_describe_mismatch(f"{python} (which has {has}, and the driver has {__version__})"))


def _describe_mismatch(what: str) -> str:
    """Return the message for workers with a wrong Python, and its remedy."""
    return (
        f"Spark's workers run {what}: set PYSPARK_PYTHON={sys.executable}, or where workers have this library, before "
        "the session is made."
    )


PARALLEL_DEFAULT = 8  # For remote sessions, which hide their number of slots.
_KEPT = "PYSPARK_SPARK_SESSION_UUID"  # Set by Spark in workers whose log it keeps.

logger = logging.getLogger(__name__)


@contextmanager
def surface_errors() -> Iterator[None]:
    """Make Spark show a PersistError by its class and message, without a traceback."""
    try:
        yield
    except PersistError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def explain_missing_collection(collection: str) -> Iterator[None]:
    """Add to CollectionNotFound how a write can create the collection."""
    try:
        yield
    except CollectionNotFound as error:
        error.remedy = (
            f"persist.spark.write(df, location, {collection!r}, key=[…]) creates it with the columns of df, as "
            'option("key", …) of df.write does, and client.create_or_load with any others, or keyed.'
        )
        raise


def log(message: str, *arguments: object) -> None:
    """Log a message in a worker, if Spark keeps the logs of workers."""
    if _KEPT in os.environ:
        logger.setLevel(logging.INFO)
        logger.info(message, *arguments)


def get_parallelism(spark: SparkSession) -> int:
    """Return how many tasks can run at a time; a default if Spark hides it."""
    context: Any = None
    try:
        context = spark.sparkContext
    except Exception:  # Spark Connect has none, and raises an error of its own.
        return PARALLEL_DEFAULT
    return max(1, int(context.defaultParallelism))
