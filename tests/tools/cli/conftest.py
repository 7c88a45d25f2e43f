"""The fixture of commands that run in the process of the test."""

import pytest

from persist.tools.cli.main import main
from tests.support.console import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command; it returns the output, or the errors of a command that fails."""

    def run(*arguments: str, status: int = 0) -> str:
        assert main(arguments) == status
        out, err = capsys.readouterr()
        return err if status else out

    return run
