"""How data comes and goes: sources, sinks, messages of change data capture, and Spark.

`__init__.pyi` lists the types that `persist.ingest` and `persist.egress` take and return, for sources and sinks of your
own. Each one is loaded when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
