"""Definite, time-varying collections on object storage; see `persist.open`.

`__init__.pyi` lists the public names. Each one is loaded when it is first used, because Arrow and NumPy take longer to
load than the help of the command line takes in all. A new public name is added there and nowhere else.
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
    """Load a public name. Threads take turns: two that import parts of the library at once can meet in a circle."""
    with _loading:
        return _load(name)
