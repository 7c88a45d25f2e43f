"""Fixtures for all tests, and the Java for those that need one."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import persist
from persist.blob.protocol import MemoryBlob
from persist.engine.write.unclosed_clients import forget

pytest_plugins = ["tests.support.tiers", "tests.support.costs", "tests.support.queue", "tests.support.servers.fixtures"]

ROOT = Path(__file__).parent.parent

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def pytest_configure() -> None:
    """Let what tests start heed an interruption. A shell has programs in its background ignore it, and all below."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Keep clients that tests let crash from being reported, and from failing the process."""
    forget()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the fixture `spark`; let Spark have its Java, or skip all that need one and say why."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    in_need = [item for item in items if item.get_closest_marker("spark") is not None]
    if not in_need:
        return
    java = subprocess.run([str(ROOT / "scripts" / "java")], capture_output=True, text=True)
    if java.returncode == 0:
        os.environ["JAVA_HOME"] = java.stdout.strip()
        return
    for item in in_need:
        item.add_marker(pytest.mark.skip(reason=java.stderr.strip()))


def pytest_collection_finish() -> None:
    """Let garbage collection pass over modules and tests, which stay. Otherwise it takes a twelfth of all time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def blob() -> MemoryBlob:
    return MemoryBlob()


@pytest.fixture
def client(blob: MemoryBlob) -> Iterator[persist.Client]:
    with persist.open(blob) as client:
        yield client


@pytest.fixture
def orders(client: persist.Client) -> persist.Collection:
    """A collection of one integer and one text."""
    return client.create_or_load("orders", key={"k": pa.int64()}, value={"v": pa.string()})
