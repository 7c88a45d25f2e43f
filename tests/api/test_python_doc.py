"""What the page about Python shows must run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "use" / "python.md").read_text(encoding="utf-8")


def test_all_blocks_of_the_page_about_python_run_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 5
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2026-11-21 18:00:00+00:00" in done.stdout
    assert "Antichain(11)" in done.stdout


def test_all_blocks_of_the_page_about_schemas_run_one_after_the_other(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "use" / "schemas.md").read_text(encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
