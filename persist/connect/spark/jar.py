"""Finds the jar of the Spark catalog, and builds it from its Java sources.

    python -m persist.connect.spark.jar        build it for the PySpark that is installed

The sources use classes of Spark that are not part of its public interface. So a jar fits one minor version of Spark,
and its manifest names that version. Building needs `javac` 17 or later, and nothing but the jars of PySpark.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

from persist.core.errors import InvalidUsage

SOURCES = Path(__file__).parent / "jvm"
JAR = SOURCES / "persist-spark.jar"
_VERSION = "Spark-Version"
_MANIFEST = "META-INF/MANIFEST.MF"


def spark_version() -> str:
    """Return the minor version of PySpark, such as "4.3"."""
    return ".".join(pyspark.__version__.split(".")[:2])


def find_jar() -> Path:
    """Return the path of the jar."""
    build = f"build it with {sys.executable} -m persist.connect.spark.jar, which needs javac (openjdk-17-jdk-headless)"
    if not JAR.exists():
        raise InvalidUsage(f"the jar of the Spark catalog is not at {JAR}: {build}")
    with zipfile.ZipFile(JAR) as jar:
        lines = jar.read(_MANIFEST).decode().splitlines()
    version = next((line.partition(": ")[2] for line in lines if line.startswith(_VERSION)), "unknown")
    if version != spark_version():
        raise InvalidUsage(f"the jar at {JAR} is for Spark {version}, and PySpark is {pyspark.__version__}: {build}")
    return JAR


def build_jar() -> Path:
    """Compile the sources against PySpark's jars, and put the jar in its place; return its path."""
    javac = shutil.which("javac") or shutil.which("javac", path=os.path.join(os.environ.get("JAVA_HOME", ""), "bin"))
    if javac is None:
        raise InvalidUsage("there is no javac: install a JDK, such as openjdk-17-jdk-headless, or set JAVA_HOME")
    jars = os.path.join(os.path.dirname(pyspark.__file__), "jars", "*")
    with tempfile.TemporaryDirectory() as folder:
        sources = [str(path) for path in sorted(SOURCES.glob("*.java"))]
        command = [javac, "--release", "17", "-proc:none", "-nowarn", "-cp", jars, "-d", folder, *sources]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise InvalidUsage(f"javac failed: {run.stderr.strip()}")
        built = Path(folder, JAR.name)
        with zipfile.ZipFile(built, "w", zipfile.ZIP_DEFLATED) as jar:
            jar.writestr(_MANIFEST, f"Manifest-Version: 1.0\r\n{_VERSION}: {spark_version()}\r\n\r\n")
            for path in sorted(Path(folder).rglob("*.class")):
                jar.write(path, path.relative_to(folder).as_posix())
        beside = JAR.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, beside)
        beside.replace(JAR)
    return JAR


if __name__ == "__main__":
    try:
        print(build_jar())
    except InvalidUsage as error:
        sys.exit(str(error))
