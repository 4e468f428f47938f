"""What the pages tell to type for a cluster, typed: on a standalone cluster, and at a Connect server, of this machine.

/stores is a folder of the test and the addresses are those of the cluster here; everything else is as printed. Programs
are those of the environment of the tests, which are first in the path.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from support.documents import to_run
from support.loopback import free_port

from penstock.pipeline.session import LIGHT_JAVA
from penstock.store import Message, MessageStore, Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
HERE = f"""
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.executor.extraJavaOptions {LIGHT_JAVA}
"""
"""What a reader's own machine may need and the pages leave to him; memory is as the page says, but less of it."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    with MessageStore.open(tmp_path / "stores" / "broker-a", Settings.dev()) as store:
        for number in range(20):
            assert store.put(Message("orders", b"two shirts", keys=(f"order_{number}",))).ok
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(HERE, encoding="utf-8")
    (conf / "log4j2.properties").write_bytes((Path(os.environ["SPARK_CONF_DIR"]) / "log4j2.properties").read_bytes())
    programs = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SPARK_CONF_DIR": str(conf)}


def typed(text: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, text + done.stdout + done.stderr[-4000:]
    return done.stdout + done.stderr


def here(text: str, folder: Path, master: str, connect: str) -> str:
    """The commands, for the cluster and the folders of this test."""
    text = text.replace("/stores/", f"{folder}/stores/").replace("/opt/penstock/bin/python", sys.executable)
    text = re.sub(r"spark://10\.0\.0\.1:\d+", master, text)
    text = re.sub(r"sc://10\.0\.0\.1:\d+", connect, text)
    return text.replace("memory=2g", "memory=512m")


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until something listens there."""
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)


@contextmanager
def connect_server(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A Connect server as PySpark has it; its address."""
    port = free_port()
    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    order = [launcher, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]"]
    order += ["--driver-java-options", LIGHT_JAVA, "--driver-memory", "768m"]
    order += [
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "--conf",
        "spark.connect.grpc.binding.address=127.0.0.1",
    ]
    with (folder / "connect.log").open("wb") as log:
        process = subprocess.Popen([*order, "spark-internal"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        _wait_for(port, process, folder / "connect.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@contextmanager
def cluster_of_the_page(text: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Master and worker, started by the lines that the page has for it, on a free port; the master's address."""
    port = free_port()
    text = text.replace("7077", str(port)).replace("-m 2g", "-m 1g --host 127.0.0.1 --webui-port 0")
    text = text.replace(f"--port {port}", f"--port {port} --webui-port 0") + "\nwait\n"
    with (folder / "cluster.log").open("wb") as log:
        shell = subprocess.Popen(
            ["bash", "-c", text], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait_for(port, shell, folder / "cluster.log")
        yield f"spark://127.0.0.1:{port}"
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(60)


def test_the_commands_of_a_page_run_on_a_cluster(tmp_path: Path, environment: dict[str, str]) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    blocks = [block.text for block in to_run("docs/how-to/cluster.md", "bash")]
    verify, script, start, connect = (text for text in blocks if "penstock-env" not in text)
    assert "spark-submit" in script
    with cluster_of_the_page(start, tmp_path, environment) as master:
        assert ": 0 errors" in typed(here(verify, tmp_path, master, ""), tmp_path, environment)
        assert '"messages": 20' in typed(here(script, tmp_path, master, ""), tmp_path, environment)
        assert len(list((tmp_path / "work").iterdir())) == 2, "both ran on the cluster"
        (usage,) = to_run("docs/how-to/find-who-fills-the-disk.md", "bash")
        assert "orders" in typed(here(usage.text, tmp_path, master, ""), tmp_path, environment)
    assert (tmp_path / "usage.html").exists()
    with connect_server(tmp_path, environment) as address:
        assert "orders" in typed(here(connect, tmp_path, "", address), tmp_path, environment)
