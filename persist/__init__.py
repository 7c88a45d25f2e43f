"""Definite, time-varying collections on object storage; see `persist.open`.

`__init__.pyi` lists the public names. The first use of a name loads it, because Arrow and NumPy take longer to load
than the whole help of the command line. Add a new public name to that file and nowhere else.
"""

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
