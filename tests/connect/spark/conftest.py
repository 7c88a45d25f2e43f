"""One Spark session for all tests; nothing registers the data source, because PySpark finds it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persist
import persist.spark
from persist.connect.spark.jar import JAR
from persist.connect.spark.read_functions.deferred import EXTENSIONS
from tests.connect.spark.cluster import JAVA_OPTIONS, environment
from tests.support.stepped import WAIT_S


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads, and a task may fail twice."""
    builder = (
        SparkSession.builder.master("local[2,3]")
        .appName("tests of persist")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.fallback", "false")  # Code that does not compile must be seen.
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.authenticate.socketTimeout", f"{WAIT_S:.0f}s")
        .config("spark.log.level", "OFF")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
    )
    if JAR.exists():  # Where there is a javac.
        builder = builder.config("spark.jars", str(JAR)).config("spark.sql.extensions", EXTENSIONS)
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("PYTHONPATH", str(Path(__file__).parent / "warm"), prepend=os.pathsep)
        session = builder.getOrCreate()  # What the JVM has in its environment, its workers have.
    warm(session, str(tmp_path_factory.mktemp("warm")))
    yield session
    session.stop()


def warm(session: SparkSession, path: str) -> None:
    """Read and write once, so that what the JVM loads for it does not count as the cost of whichever test is first."""
    with persist.open(path) as client:
        rows = client.create_or_load("warm", key={"id": pa.int64()}, value={"v": pa.int64()})
        rows.write([((1, 1), 0, 1), ((2, 2), 0, 1)], seal=1).result()
    frame = persist.spark.snapshot(session, path, "warm", native=False).groupBy("id").count()
    frame.selectExpr("id", "`count` AS v").write.format("persist").option("collection", "warm").option("time", 7).mode(
        "append"
    ).save(path)
    persist.spark.snapshot(session, path, "warm", native=True).join(frame, "id").collect()


@pytest.fixture(scope="session")
def wheel_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the library as its users do, from a wheel, and nothing of the checkout."""
    return environment(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A location with `orders`, in three overlapping batches: some records replaced, one removed, one doubled."""
    path = str(tmp_path / "location")
    with persist.open(path) as client:
        orders = client.create_or_load(
            "orders", key={"id": pa.int64()}, value={"status": pa.string(), "amount": pa.float64()}
        )
        orders.write([((i, ("new", i / 2)), 0, 1) for i in range(2000)])
        orders.seal(10).result()
        replaced = [((i, ("new", i / 2)), 10, -1) for i in range(0, 2000, 3)]
        orders.write(replaced + [((i, ("paid", i / 2)), 10, 1) for i in range(0, 2000, 3)])
        orders.seal(11).result()
        orders.write([((1, ("new", 0.5)), 12, -1), ((2, ("new", 1.0)), 12, 1), ((5000, (None, None)), 12, 1)])
        orders.write([((5001, ("odd", float("nan"))), 12, 1)])
        orders.seal(13).result()
    return path
