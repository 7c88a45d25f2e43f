"""The page of `persist ui`: what a location holds, and held at any readable time, to look at in a browser.

Promises: it only reads, and reads pages, never a whole collection; nothing that is stored is interpreted as markup;
nothing is asked of any other server; without the token of its address, it answers nothing.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names

if TYPE_CHECKING:
    from persist.web.app import MEMORY_BUDGET, served
    from persist.web.shown import load_ipython_extension, slider

__all__ = ["load_ipython_extension", "slider"]

# Each needs a package of its own: the slider anywidget, and the page uvicorn.
__getattr__ = late_names(__name__, {"shown": ["load_ipython_extension", "slider"], "app": ["MEMORY_BUDGET", "served"]})
