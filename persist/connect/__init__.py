"""Connections to other systems: sources, sinks, messages of change data capture, and Spark.

`__init__.pyi` lists the types of `persist.ingest` and `persist.egress`, with which users write their own sources and
sinks. Each type is loaded at its first use.
"""

import lazy_loader

try:
    __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
except ValueError:  # Within a zip file, as from Spark's --py-files, the stub has no path.
    from importlib.resources import as_file, files

    with as_file(files(__name__) / "__init__.pyi") as stub:
        __getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, str(stub))
