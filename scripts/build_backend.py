"""How the library is built: as setuptools does, and an editable install has `pyspark_persist` as files of its own.

Spark finds `format("persist")` by asking `pkgutil.iter_modules()` for packages named `pyspark_*`. Setuptools makes the
packages of an editable install importable through a hook, which that function does not see.
"""

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  # All other hooks of a backend are setuptools' own.

_FOUND_BY_NAME = "pyspark_persist/__init__.py"


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel of an editable install; return its name."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    _add(Path(wheel_directory, name), _FOUND_BY_NAME, Path(_FOUND_BY_NAME).read_bytes())
    return name


def _add(wheel: Path, name: str, content: bytes) -> None:
    """Add a file to a wheel, and its line to the list of files that installers check."""
    with zipfile.ZipFile(wheel) as archive:
        files = {info: archive.read(info) for info in archive.infolist()}
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        for info, stored in files.items():
            is_list = info.filename.endswith(".dist-info/RECORD")
            line = f"{name},sha256={digest},{len(content)}\n".encode() if is_list else b""
            archive.writestr(info, line + stored)
