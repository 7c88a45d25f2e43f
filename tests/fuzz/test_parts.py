"""Parts from an attacker are decoded in a child process: it must not crash, hang, take too much memory or misbehave.

What counts as the input is the bytes and what the descriptor declares as `memory`: decoding may take four times that.
`PERSIST_FUZZ` (default 1) multiplies the number of cases, and `PERSIST_FUZZ_SEED` (default 0) says with which to begin.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests.fuzz.part_cases import MAKERS

SCALE = int(os.environ.get("PERSIST_FUZZ", "1"))
SEED = int(os.environ.get("PERSIST_FUZZ_SEED", "0"))
CASES = 13 * 12
CASE_S_MAX = 20.0


def decoded(first: int, count: int) -> list[dict[str, Any]]:
    """Return what became of each case."""
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.part_child", str(first), str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode()
        raise AssertionError(f"the case of {output.splitlines()[-1:]} hangs") from error
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"the case of {lines[-1:]} ended the process: {done.stderr[-3000:]}"
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.sampled(0.2, group="fuzz")
@pytest.mark.parametrize("step", range(SCALE))
def test_no_part_crashes_hangs_bloats_or_escapes(step: int) -> None:
    """Repeat one with `python -m tests.fuzz.part_child SEED 1`."""
    results = decoded(SEED + step * CASES, CASES)
    assert len(results) == CASES
    for result in results:
        assert not result["too_much"], result
        assert result["took_s"] < CASE_S_MAX, result
        if result["must"] == "read":
            assert result["outcome"] == "read", result
        elif result["must"] == "refused":
            assert result["outcome"] == "CorruptBlob", result
        else:
            assert result["outcome"] in ("read", "CorruptBlob"), result
    outcomes = Counter((result["kind"], result["outcome"]) for result in results)
    # Or else the cases would not come near what they are to test.
    assert {kind for kind, _ in outcomes} == {kind for kind, _ in MAKERS}
    assert outcomes["metadata", "read"] > 0
    assert outcomes["bytes", "read"] > 0
