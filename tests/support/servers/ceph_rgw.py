"""A real S3 server that is not AWS's: Ceph's object gateway, two of them over one cluster in memory, on loopback.

It needs Debian's packages `ceph-mon ceph-osd ceph-common radosgw`, and root. A monitor, one OSD in memory (2 GiB at
most) and the gateways start in about 20 s; all are ended by their process ids. One monitor and one OSD make no
cluster to trust data to; what is tested is how the gateways answer.
"""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
ACCESS_KEY_ID = "AKIDFORTESTSONLY"
SECRET_ACCESS_KEY = "secret-for-tests-only"
READY_S = 300.0

_CONFIG = """
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]
public_network = 127.0.0.0/8
cluster_network = 127.0.0.0/8
ms_bind_ipv6 = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pgp_num = 4
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 2147483648
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data_avail_crit = 1
run_dir = {folder}
admin_socket = {folder}/$name.$pid.asok
log_file = {folder}/$name.log
mon_cluster_log_file = {folder}/cluster.log
pid_file = {folder}/$name.pid
mon_data = {folder}/mon
osd_data = {folder}/osd
[client]
keyring = {folder}/admin.keyring
"""
_GATEWAY = """
[client.rgw.{name}]
rgw_frontends = beast endpoint=127.0.0.1:{port}
rgw_dns_name = 127.0.0.1
rgw_data = {folder}/rgw.{name}
"""


def why_not() -> str:
    """Return why it cannot run here, '' if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return (
            f"Ceph RGW is not installed ({', '.join(missing)}): apt-get install ceph-mon ceph-osd ceph-common radosgw"
        )
    return "" if os.geteuid() == 0 else "Ceph's daemons want to be started by root"


@dataclass
class CephRgw:
    """A running cluster.

    Attributes:
        gateways: the port of each gateway, by name.
    """

    folder: Path
    gateways: dict[str, int]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def url(self, name: str) -> str:
        """Return the endpoint of a gateway."""
        return f"http://127.0.0.1:{self.gateways[name]}"

    def options(self, name: str) -> dict[str, Any]:
        """Return `storage_options` of S3Blob for a gateway."""
        return {
            "endpoint_url": self.url(name),
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
        }

    def start(self, name: str) -> None:
        """Start a gateway, and wait until it answers."""
        self.daemon(f"rgw.{name}", "radosgw", "-n", f"client.rgw.{name}", "--keyring", f"{self.folder}/{name}.keyring")
        self.wait(name)

    def wait(self, name: str) -> None:
        """Wait until a gateway answers."""
        ends_s = time.monotonic() + READY_S
        while not _answers(self.url(name)):
            assert self.processes[f"rgw.{name}"].poll() is None, f"the gateway ended; see {self.folder}"
            assert time.monotonic() < ends_s, f"the gateway did not start in {READY_S:g} s; see {self.folder}"
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """End a gateway at once, as SIGKILL does."""
        process = self.processes.pop(f"rgw.{name}")
        process.kill()
        process.wait()

    def daemon(self, name: str, *command: str) -> None:
        """Start a daemon of Ceph in the foreground."""
        with open(self.folder / f"{name}.out", "ab") as output:
            self.processes[name] = subprocess.Popen(
                [*command, "-c", f"{self.folder}/ceph.conf", "-f"],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def call(self, *command: str) -> str:
        """Run a program of Ceph; return what it printed."""
        done = subprocess.run(
            [command[0], "-c", f"{self.folder}/ceph.conf", *command[1:]], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{' '.join(command)} failed: {done.stderr}"
        return done.stdout

    def close(self) -> None:
        """End all daemons that were started here."""
        for process in reversed(self.processes.values()):
            process.kill()
            process.wait()


@contextmanager
def running_rgw(folder: Path, names: tuple[str, ...] = ("a", "b")) -> Iterator[CephRgw]:
    """Run a cluster with a gateway of each name; its data, keys and logs are in folder."""
    mon_v2, mon_v1, *ports = _free_ports(2 + len(names))
    rgw = CephRgw(folder, dict(zip(names, ports, strict=True)))
    config = _CONFIG.format(fsid=uuid.uuid4(), mon_v2=mon_v2, mon_v1=mon_v1, folder=folder)
    for name, port in rgw.gateways.items():
        config += _GATEWAY.format(name=name, port=port, folder=folder)
    (folder / "ceph.conf").write_text(config)
    for sub in ("mon", "osd", *(f"rgw.{name}" for name in names)):
        (folder / sub).mkdir()
    with ExitStack() as stack:
        stack.callback(rgw.close)
        _start_monitor(rgw, f"[v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]")
        _start_osd(rgw)
        for name in names:
            rights = rgw.call("ceph", "auth", "get-or-create", f"client.rgw.{name}", "mon", "allow *", "osd", "allow *")
            (folder / f"{name}.keyring").write_text(rights)
            rgw.start(name)
        rgw.call(
            *("radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests"),
            *(f"--access-key={ACCESS_KEY_ID}", f"--secret={SECRET_ACCESS_KEY}"),
        )
        yield rgw


def _start_monitor(rgw: CephRgw, address: str) -> None:
    at = rgw.folder
    fsid = next(line.split(" = ")[1] for line in (at / "ceph.conf").read_text().splitlines() if line.startswith("fsid"))
    everything = [text for kind in ("mon", "osd", "mgr") for text in ("--cap", kind, "allow *")]
    for command in (
        [
            "ceph-authtool",
            "--create-keyring",
            f"{at}/mon.keyring",
            "--gen-key",
            "-n",
            "mon.",
            "--cap",
            "mon",
            "allow *",
        ],
        ["ceph-authtool", "--create-keyring", f"{at}/admin.keyring", "--gen-key", "-n", "client.admin", *everything],
        ["ceph-authtool", f"{at}/mon.keyring", "--import-keyring", f"{at}/admin.keyring"],
        ["monmaptool", "--create", "--clobber", "--fsid", fsid, "--addv", "a", address, f"{at}/monmap"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    rgw.call("ceph-mon", "--mkfs", "-i", "a", "--monmap", f"{at}/monmap", "--keyring", f"{at}/mon.keyring")
    rgw.daemon("mon", "ceph-mon", "-i", "a")


def _start_osd(rgw: CephRgw) -> None:
    osd = str(uuid.uuid4())
    number = rgw.call("ceph", "osd", "new", osd).strip()  # Waits for the monitor.
    key = rgw.call("ceph", "auth", "get-or-create", f"osd.{number}", "mon", "allow profile osd", "osd", "allow *")
    (rgw.folder / "osd" / "keyring").write_text(key)
    rgw.call("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", osd)
    rgw.daemon("osd", "ceph-osd", "-i", number)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
