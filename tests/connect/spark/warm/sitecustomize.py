"""Found by each Python that starts with this folder on its path: let Spark's workers begin with what they need.

A daemon of Spark forks a worker for each task that cannot have an idle one, and after each error; and every worker
imports anew what a read or a write needs, which takes 0.6 s of processor time. Here the daemon has it already.
"""

import contextlib
import importlib
import sys

NEEDED = ("pandas", "pyarrow.parquet", "pyspark_persist", "persist.spark")

if "pyspark.daemon" in sys.orig_argv:
    for name in (sys.orig_argv[-1], *NEEDED):
        with contextlib.suppress(ImportError):  # A test gives workers a Python that lacks some of it.
            importlib.import_module(name)
