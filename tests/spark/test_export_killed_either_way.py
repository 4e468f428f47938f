"""An export that was killed in one way, in a process of its own or on Spark, is finished in the other way: each message
is in it once.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.spark import LAKE_SETTINGS, bad_rows, files_of, fill_days, held
from support.stores import StoreHome

from penstock.errors import BadSettings
from penstock.pipeline.decode import Decode
from penstock.pipeline.jobs.export import Export, export, export_here
from penstock.pipeline.jobs.export import job as export_job
from penstock.pipeline.jobs.export import spec as spec_module
from penstock.pipeline.jobs.job_input import JobInput
from penstock.store import Message

DIES = """
# written: a part of the files is staged. logged: all of them are in the batch log. moved: one of them is moved.
# committed: all of them are moved, and committed to the table if there is one.
import os, signal, sys
from penstock.cli.main import main
from penstock.pipeline.jobs.export import in_process, job, spec

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

def written(*given, write=in_process._Files.write, **more):
    write(*given, **more)
    die()

def moved(root, files):
    spec.move(root, files[:1])
    die()

step = sys.argv[1]
if step == "written":
    in_process._Files.write = written
elif step == "logged":
    job.ExportBatch.publish = die
elif step == "moved":
    job.move = moved
elif step == "committed":
    job.clear = lambda folder: die() if not list(folder.rglob("part-*")) and folder.exists() else spec.clear(folder)
sys.exit(main(sys.argv[2:]))
"""


class Killed(Exception):
    """Stands for a process that ends here."""


def die(step: str, to: Path, *arguments: object) -> None:
    """Runs `penstock export --once` in a process that is killed at a step."""
    command = [sys.executable, "-c", DIES, step, "export", *map(str, arguments), "--once", "--to", str(to)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == -signal.SIGKILL, (step, ended.stdout, ended.stderr)
    assert (to / "_penstock" / "export.json").exists()


def check(spark: SparkSession, spec: Export, put: list[Any], done: Any) -> None:
    assert held(spark, spec) == sorted(put)
    assert (done.rows, done.unread, done.undecoded, done.all_rows, done.batches) == (len(put), 0, 1, len(put), 1)
    assert [row["body"] for row in bad_rows(spark, spec)] in ([b"{broken"], [bytearray(b"{broken")], ["e2Jyb2tlbg=="])
    assert len(files_of(spec.to)) == done.files
    assert not list((Path(spec.to) / "_penstock" / "staged").iterdir())


def fill(home: StoreHome) -> list[Any]:
    """Messages of several topics and days, one of which is not JSON. Returns those that are."""
    put = fill_days(home, 0, 20)
    with home.open() as store:
        assert store.put(Message("orders", b"{broken")).ok
    return put


def spec_of(to: Path, form: str) -> Export:
    return Export(to=str(to), format=form, decode=Decode.of("json"), once=True)


@pytest.mark.parametrize(
    ("form", "step"),
    [
        ("json", "written"),
        ("parquet", "logged"),
        ("parquet", "moved"),
        ("delta", "committed"),
        ("iceberg", "committed"),
    ],
)
def test_spark_finishes_what_a_process_left(
    form: str, step: str, spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    put, lake, where = fill(home), tmp_path / "lake", JobInput(stores=(str(home.path),))
    die(step, lake, home.path, "--format", form, "--decode", "json")
    spec = spec_of(lake, form)
    check(spark, spec, put, export(spark, spec, where))
    with pytest.raises(BadSettings, match="there is an export already"):
        export_here(spec, where)


@pytest.mark.parametrize(
    ("form", "step"), [("delta", "moved"), ("iceberg", "committed"), ("json", "logged"), ("parquet", "staged")]
)
def test_a_process_finishes_what_spark_left(
    form: str, step: str, spark: SparkSession, home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, where, spec = fill(home), JobInput(stores=(str(home.path),)), spec_of(tmp_path / "lake", form)

    def killed(*given: Any, **more: Any) -> Any:
        raise Killed

    def move(root: Path, files: Any) -> None:
        spec_module.move(root, files[:1])
        raise Killed

    def clear(folder: Path) -> None:
        if folder.exists() and not list(folder.rglob("part-*")):
            raise Killed
        spec_module.clear(folder)

    with monkeypatch.context() as patched:
        if step == "staged":
            patched.setattr(export_job, "staged_files", killed)
        elif step == "logged":
            patched.setattr(export_job.ExportBatch, "publish", killed)
        elif step == "moved":
            patched.setattr(export_job, "move", move)
        else:
            patched.setattr(export_job, "clear", clear)
        with pytest.raises(Killed):
            export(spark, spec, where)
    check(spark, spec, put, export_here(spec, where))
    with pytest.raises(BadSettings, match="there is an export already"):
        export(spark, spec, where)


def test_a_process_finishes_what_a_killed_spark_left(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    put, lake = fill(home), tmp_path / "lake"
    die("moved", lake, home.path, "--decode", "json", *LAKE_SETTINGS)
    spec = spec_of(lake, "parquet")
    check(spark, spec, put, export_here(spec, JobInput(stores=(str(home.path),))))
