"""Fixtures for all tests."""

import os
import sys

pytest_plugins = ["tests.servers.fixtures"]

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
