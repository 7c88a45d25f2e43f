"""The page of `persist ui`: what a location holds, and held at any readable time, to look at in a browser.

Promises: it only reads, and reads pages, never a whole collection; nothing that is stored is interpreted as markup;
nothing is asked of any other server; without the token of its address, it answers nothing.
"""

from typing import TYPE_CHECKING

from persist.late_names import late_names

if TYPE_CHECKING:
    from persist.web.app import MEMORY_BUDGET, served
    from persist.web.shown import slider

__all__ = ["slider"]

# Each needs a package of its own: the slider anywidget, and the page uvicorn.
__getattr__ = late_names(__name__, {"shown": ["slider"], "app": ["MEMORY_BUDGET", "served"]})
