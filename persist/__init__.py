"""Tables on object storage, with their whole history and without a server.

A short guide; `docs/index.md` has the pages::

    import persist

    client = persist.open("memory://guide")  # or a folder, or s3://bucket/prefix
    rows = [{"id": 1, "status": "new"}, {"id": 2, "status": "new"}]
    client.write("orders", rows, key=["id"]).result()  # creates it; rows replace those of their keys
    orders = client["orders"]
    first = orders.snapshot()  # the contents as of a time; they stay as they are
    orders.update([{"id": 1, "status": "paid"}]).result()
    orders.delete([2]).result()
    orders.to_pandas()  # the newest contents; to_arrow(), to_polars(), get([1])
    orders.snapshot(as_of=first.as_of).to_pylist()  # an earlier time, "latest", "yesterday", "-1d", or a tag
    orders.diff(first.as_of, "latest").to_arrow()  # what changed; changes(), listen(), follow("name")
    client.sql("SELECT status, count(*) AS n FROM orders GROUP BY status").to_arrow()
    client.close()

Each write returns a future: `result()` waits until it is durable, and raises its error. All errors are in
`persist.errors`. Read on with `help(persist.Client)`, `help(persist.Collection)` and `help(persist.Snapshot)`; the
command line has `persist --help`.
"""

# `__init__.pyi` lists the public names, and no other place does: add a new one there. The first use of a name loads it,
# because Arrow and NumPy take longer to load than the whole help of the command line.

import threading
from typing import Any

import lazy_loader

__version__ = "0.1.0"  # A test compares it with pyproject.toml.

try:
    _load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
except ValueError:  # Within a zip file, as from Spark's --py-files, the stub has no path.
    from importlib.resources import as_file, files

    with as_file(files(__name__) / "__init__.pyi") as stub:
        _load, __dir__, __all__ = lazy_loader.attach_stub(__name__, str(stub))
_loading = threading.RLock()


def __getattr__(name: str) -> Any:
    """Load a public name. Threads take turns, because concurrent imports of the library can deadlock."""
    with _loading:
        return _load(name)
