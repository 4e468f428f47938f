"""An export without Spark: what it does after a kill, with more partitions than open files, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from support.stores import StoreHome

from penstock.errors import BadSettings
from penstock.pipeline.decode import Decode
from penstock.pipeline.jobs.export import Export, export_here, in_process, needs_spark
from penstock.pipeline.jobs.export import job as export_job
from penstock.pipeline.jobs.export import spec as spec_module
from penstock.pipeline.jobs.job_input import JobInput
from penstock.store import Message


class Killed(Exception):
    """Stands for a process that ends here."""


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    return StoreHome(tmp_path / "store")


def fill(home: StoreHome, topics: int) -> None:
    with home.open() as store:
        for number in range(4 * topics):
            assert store.put(Message(f"T{number % topics}", b"%d" % number, queue_id=number // topics % 2)).ok


def bodies(spec: Export) -> list[int]:
    rows = ds.dataset(spec.to, format="parquet", partitioning="hive", exclude_invalid_files=False).to_table()
    return sorted(int(body) for body in rows.column("body").to_pylist())


@pytest.mark.parametrize("step", ["written", "moved"])
def test_after_a_kill_the_same_export_goes_on(
    home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fill(home, 3)
    spec, where = Export(to=str(tmp_path / "lake"), once=True), JobInput(stores=(str(home.path),))

    def move(root: Path, files: Any) -> None:
        spec_module.move(root, files[:1])
        raise Killed

    def stage(*given: Any) -> Any:
        in_process.stage_here(*given)
        raise Killed

    with monkeypatch.context() as patched:
        if step == "written":
            patched.setattr(export_job, "stage_here", stage)
        else:
            patched.setattr(export_job, "move", move)
        with pytest.raises(Killed):
            export_here(spec, where)
    done = export_here(spec, where)
    assert bodies(spec) == list(range(12))
    assert (done.rows, done.all_rows, done.by_topic) == (12, 12, {"T0": 4, "T1": 4, "T2": 4})
    assert not list((tmp_path / "lake" / "_penstock" / "staged").iterdir())
    with pytest.raises(BadSettings, match="there is an export already"):
        export_here(spec, where)


def test_more_partitions_than_files_may_be_open(
    home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "_MAX_OPEN", 2)
    fill(home, 7)
    spec = Export(to=str(tmp_path / "lake"), once=True)
    assert export_here(spec, JobInput(stores=(str(home.path),))).rows == 28
    assert bodies(spec) == list(range(28))


def test_the_name_of_a_topic_cannot_leave_the_folder() -> None:
    assert in_process._folder_name("../x=%a") == "..%2Fx%3D%25a"
    assert in_process._folder_name("") == "__HIVE_DEFAULT_PARTITION__"


def test_what_needs_spark_is_refused_with_its_reason(home: StoreHome, tmp_path: Path) -> None:
    fill(home, 1)
    spec = Export(to=str(tmp_path / "lake"))
    with pytest.raises(BadSettings, match="needs Spark, because the next run goes on where this one ends"):
        export_here(spec, JobInput(stores=(str(home.path),)))
    assert not (tmp_path / "lake").exists()
    columns = Decode(kind="json", schema=b"id bigint")
    assert "columns of --schema" in needs_spark(Export(to="x", once=True, decode=columns))
    assert needs_spark(Export(to="x", once=True, decode=Decode(kind="json"))) == ""
