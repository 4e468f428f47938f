"""One Spark session for all tests of this folder: starting one takes longer than most of them run."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.stores.conftest import java, java_class_path  # noqa: F401
from support.stores import StoreHome

import penstock
from penstock.pipeline.session import LIGHT_JAVA

pyspark = pytest.importorskip("pyspark", reason="these tests need the extra `spark`")

QUIET = Path(penstock.__file__).parent / "pipeline" / "spark_conf"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` runs what is marked `smoke`, and `make test-rest` the others."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.rest)


@pytest.fixture(scope="session", autouse=True)
def spark_environment() -> Iterator[None]:
    """What a session and what it starts find in their environment."""
    before = dict(os.environ)
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", SPARK_CONF_DIR=str(QUIET), PYSPARK_PYTHON=sys.executable)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def spark(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyspark.sql.SparkSession]:
    """`local[2]`, as `penstock pipeline` starts it, with one retry of a task, in the time zone of what is compared."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2,2]")
            .appName("penstock tests")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.extraJavaOptions", LIGHT_JAVA)
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(spark_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a standalone cluster's master, one for all tests."""
    from support.spark import standalone_cluster

    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as master:
        yield master


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    """The folder of a store."""
    made = StoreHome(tmp_path / "store")
    yield made
    made.close_all()
