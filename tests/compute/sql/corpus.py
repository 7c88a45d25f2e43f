"""The queries of `queries.sql`, and those of `refused.sql`, one a line."""

from pathlib import Path


def _queries(name: str) -> list[str]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [line.rstrip(";") for line in lines if line and not line.startswith("--")]


QUERIES = _queries("queries.sql")
REFUSED = _queries("refused.sql")
