"""Steps of dataflow programs, and so of views, by the tasks of Spark.

Promise: what a step writes is what the embedded one writes, all outputs of it in one record. A plan without a form for
Spark, and a step that is too small for it, run embedded, and say so.
"""

from persist.spark.step.refreshing import Refreshed, explain_refresh, refresh, run_program

__all__ = ["Refreshed", "explain_refresh", "refresh", "run_program"]
