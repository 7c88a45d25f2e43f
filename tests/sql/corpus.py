"""The queries of `queries.sql`, one a line."""

from pathlib import Path

_LINES = (Path(__file__).parent / "queries.sql").read_text(encoding="utf-8").splitlines()
QUERIES = [line.rstrip(";") for line in _LINES if line and not line.startswith("--")]
