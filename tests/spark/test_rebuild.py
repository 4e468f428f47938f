"""`penstock pipeline rebuild`: in Spark's workers the same comes out as in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.damage import DamagedHome, derived

from penstock.cli.main import main
from penstock.errors import PenstockError, StoreInUse
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.rebuild import rebuild
from penstock.store import Message

SIZES = ("mappedFileSizeCommitLog=4096", "mappedFileSizeConsumeQueue=400", "maxHashSlotNum=50", "maxIndexNum=40")


@pytest.fixture
def filled(tmp_path: Path) -> DamagedHome:
    home = DamagedHome(tmp_path / "one")
    home.fill()
    return home


def test_several_stores_come_out_as_one_process_builds_them(
    spark: SparkSession, filled: DamagedHome, tmp_path: Path
) -> None:
    due = derived(filled.path)
    damaged = DamagedHome(tmp_path / "two")
    damaged.fill()
    damaged.damage(damaged.record("U", 1, 30))
    with damaged.open_small() as store:
        assert store.delete_topic("T")
        assert store.put_many([Message("T", b"again")] * 2).ok
    (damaged.path / "penstock" / "deleted_topics.json").unlink()
    expected = DamagedHome(damaged.copy_to(tmp_path / "expected").path)
    expected.rebuild()
    where = JobInput(stores=(str(filled.path), str(damaged.path)), settings=SIZES)
    first, second = rebuild(spark, where, range_size=3000)
    assert derived(filled.path) == due
    assert derived(damaged.path) == derived(expected.path)
    assert (first.damaged, second.damaged) == (0, 1)
    assert second.in_log_order == ["T queue 0"]
    assert [each.what for each in first.rebuilt] == ["T queue 0", "U queue 0", "U queue 1", "index"]


def test_the_command_builds_one_topic_and_says_what_it_did(
    spark: SparkSession, filled: DamagedHome, capsys: pytest.CaptureFixture[str]
) -> None:
    due = derived(filled.path)
    for path in filled.queue_files("U", 1):
        filled.write(path, 0, b"\xff" * 400)
    given = ["pipeline", "rebuild", "--store", str(filled.path), *(word for pair in SIZES for word in ("--set", pair))]
    assert main([*given, "--topic", "U", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert [each["what"] for each in report["rebuilt"]] == ["U queue 0", "U queue 1"]
    assert derived(filled.path) == due
    assert main([*given, "--topic", "missing"]) == 1
    assert "no such queue" in capsys.readouterr().err


def test_a_store_in_use_and_what_a_worker_meets_are_said_in_one_sentence(
    spark: SparkSession, filled: DamagedHome, tmp_path: Path
) -> None:
    where = JobInput(stores=(str(filled.path),), settings=SIZES)
    with filled.open_small():
        with pytest.raises(StoreInUse, match=r"build into another folder with .* --into DIR"):
            rebuild(spark, where)
        rebuild(spark, where, into=tmp_path / "new")
    assert derived(tmp_path / "new") == derived(filled.path)
    (tmp_path / "readonly").write_bytes(b"")
    with pytest.raises(PenstockError) as error:
        rebuild(spark, where, into=tmp_path / "readonly")
    assert "\n" not in str(error.value)
