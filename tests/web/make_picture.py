"""Makes docs/page.png: `python -m tests.web.make_picture`, with a Chromium on the machine."""

import tempfile
from pathlib import Path

from tests.web.browser import browser, find_chromium
from tests.web.places import fill, shown

PICTURE = Path(__file__).parents[2] / "docs" / "page.png"


def main() -> None:
    """Make the picture anew."""
    chromium = find_chromium()
    assert chromium is not None, "no Chromium was found"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as profile:
        fill(Path(folder) / "shop")
        with shown(Path(folder) / "shop") as url, browser(chromium, Path(profile)) as page:
            page.look(width=1100, height=980)
            page.open(f"{url}#/orders?at=53")
            page.evaluate("document.getElementById('location').textContent = 's3://bucket/shop'")
            page.screenshot(PICTURE, whole=False)


if __name__ == "__main__":
    main()
