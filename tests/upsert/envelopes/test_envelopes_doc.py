"""What the page about envelopes shows must run as it stands there."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "envelopes.md").read_text(encoding="utf-8")


def test_the_block_of_the_page_about_envelopes_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/envelopes.md", "exec"), {})
