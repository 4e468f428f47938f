"""A cluster whose workers have neither Penstock nor the store's folder: its packages travel in an archive.

The commands of the page are typed as printed; what they name is here the wheel of this clone and its own Python.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from build_wheels import build_wheel
from support import NO_INDEX, ROOT
from support.documents import to_run
from support.pipeline import send
from support.spark import LIGHT_JAVA, may_mount, standalone_cluster
from support.stores import StoreHome

from penstock.client.message import Message
from penstock.testing import broker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_HERE = f"""
spark.driver.host 127.0.0.1
spark.driver.bindAddress 127.0.0.1
spark.driver.extraJavaOptions {LIGHT_JAVA}
spark.executor.extraJavaOptions {LIGHT_JAVA}
spark.executor.memory 512m
spark.ui.enabled false
"""
"""What the machines of the tests need beside the page's settings."""
_DRIVER = """
import json, os, sys
from pyspark.sql import SparkSession
from penstock.pipeline.errors import one_sentence

master, namesrv, *hidden = sys.argv[1:]
settings = {"spark.archives": "penstock-env.tar.gz#env", "spark.executorEnv.PYTHONPATH": "./env"}
spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()

def look(number):
    import penstock
    from penstock.format import kernels
    return penstock.__file__, [os.listdir(each) for each in hidden], kernels.active

found = {"workers": spark.sparkContext.parallelize(range(4), 4).map(look).collect()}
by_namesrv = spark.read.format("rocketmq").options(subscribe="orders", namesrv=namesrv, minPartitions="4")
found["rows"] = by_namesrv.load().count()
try:
    found["by path"] = spark.read.format("rocketmq").option("subscribe", "orders").load(hidden[0]).count()
except Exception as error:
    found["by path"] = one_sentence(str(error))
print(json.dumps(found))
"""


def packing_blocks() -> tuple[str, str]:
    """What the page has for packing: the archive is made, and used."""
    pack, use = (block.text for block in to_run("docs/how-to/cluster.md", "bash") if "penstock-env" in block.text)
    return pack, use


def packed(folder: Path) -> Path:
    """The archive that the page tells to make, with the wheel of this clone."""
    sdist = [sys.executable, "-m", "build", "-q", "--sdist", "--no-isolation", "--outdir", str(folder / "sdist")]
    subprocess.run(sdist, cwd=ROOT, check=True, capture_output=True)
    wheel = build_wheel(sys.executable, next((folder / "sdist").iterdir()), folder)
    pack, _ = packing_blocks()
    pack = pack.replace(
        "python3.11 -m pip install", f"'{sys.executable}' -m pip install -q -c '{ROOT}/constraints.txt'"
    )
    pack = pack.replace("'penstock[", f"'{wheel}[")
    done = subprocess.run(["bash", "-ec", pack], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode and NO_INDEX.search(done.stderr):
        pytest.skip("there is no index of packages")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "penstock-env.tar.gz"


@pytest.mark.skipif(not may_mount(), reason="it hides folders in a mount namespace of its own, as root")
def test_an_archive_without_pyspark_is_all_that_workers_need_to_read_a_cluster(home: StoreHome, tmp_path: Path) -> None:
    archive = packed(tmp_path)
    assert archive.stat().st_size < 150_000_000
    listed = subprocess.run(["tar", "-tzf", str(archive)], capture_output=True, text=True, check=True).stdout
    assert "./pyspark/" not in listed
    with home.open() as store:
        home.put_numbered(store, 100, topic="orders")
    _, use = packing_blocks()
    hidden = [home.path, ROOT / "src", Path(sys.prefix)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment["SPARK_CONF_DIR"] = str(tmp_path / "conf")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(_HERE, encoding="utf-8")
    with broker({"orders": 4}) as running, standalone_cluster(tmp_path, hidden=hidden, hidden_from=0) as master:
        send(running, [Message("orders", b"%d" % number) for number in range(200)])
        use = use.replace("python3.11", sys._base_executable).replace("10.0.0.1:9876", running.namesrv)
        use = use.replace("spark://10.0.0.1:7077", master)
        (tmp_path / "driver.py").write_text(_DRIVER, encoding="utf-8")
        own = shlex.join([sys.executable, "driver.py", master, running.namesrv, *map(str, hidden)])
        typed = ["bash", "-ec", f"{use}\n{own}"]
        ran = subprocess.run(typed, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4000:]
    assert '"topic": "orders"' in ran.stdout.splitlines()[0]
    found = json.loads(ran.stdout.splitlines()[-1])
    for file, seen, kernels in found["workers"]:
        assert file.startswith(str(tmp_path / "work")), "the package of the archive, unpacked"
        assert seen == [[]] * len(hidden), "neither the store nor the environment of the driver"
        assert kernels == "compiled"
    assert found["rows"] == 200
    assert f"the host {socket.gethostname()} does not see the log's files" in found["by path"]
    assert str(home.path / "commitlog") in found["by path"]
