"""Makes the pictures of the page in the documents: `python -m tests.tools.web.make_pictures`, with a Chromium."""

import tempfile
from pathlib import Path

from tests.support.paths import ROOT
from tests.tools.web.browser import browser, find_chromium
from tests.tools.web.places import add_views, fill, shown

FOLDER = ROOT / "docs"
QUERY = "SELECT+status%2C+count(*)+AS+n%2C+sum(amount)+AS+total+FROM+orders+GROUP+BY+status&x=as+of&y=n"
# The name of a file, what is shown in it, and how high it is.
PICTURES = (
    ("page.png", "#/orders?at=53", 980),
    ("page-sql.png", f"#sql?q={QUERY}", 940),
    ("page-health.png", "#health", 760),
)


def main() -> None:
    """Make the pictures anew."""
    chromium = find_chromium()
    assert chromium is not None, "no Chromium was found"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as profile:
        fill(Path(folder) / "shop")
        add_views(Path(folder) / "shop")
        with shown(Path(folder) / "shop") as url, browser(chromium, Path(profile)) as page:
            for name, view, height in PICTURES:
                page.look(width=1100, height=height)
                page.call("Page.navigate", url="about:blank")
                page.open(f"{url}{view}")
                page.evaluate("document.getElementById('location').textContent = 's3://bucket/shop'")
                page.evaluate("window.scrollTo(0, 0)")
                page.screenshot(FOLDER / name, whole=False)


if __name__ == "__main__":
    main()
