"""What the page about machines shows must run as it stands there."""

import re
from pathlib import Path

from persist.upsert import Event

PAGE = (Path(__file__).parents[3] / "docs" / "machines.md").read_text(encoding="utf-8")


def test_the_block_of_the_page_about_machines_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "docs/machines.md", "exec"), names)
    highest = names["highest"]
    assert callable(highest)
    assert highest(1, [2.0], Event(1.0, 5)) == [2.0]
    assert highest(1, [2.0], Event(None, 5)) == []
