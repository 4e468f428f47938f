"""`verify` on Spark finds what `penstock store verify` finds: many stores at once, and large ones."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from peers.stores.test_store_interchange import SIZES, corpus, fill_with_java
from pyspark.sql import SparkSession
from support.damage import OPTIONS, SoundStore
from support.faults import ALL
from support.peers import Peer, message_json
from support.pipeline import PAIRS, audit_here

from penstock.cli.main import main
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.jobs.verify import verify, verify_frame
from penstock.store import Message, MessageStore, Settings
from penstock.store.audit.findings import Finding

PLANTED = (
    "a_body_with_another_crc",
    "a_missing_log_file",
    "a_unit_of_another_topic",
    "an_item_that_points_to_itself",
    "a_consumer_offset_past_the_end",
)


def fill_many(folder: Path, count: int) -> None:
    with MessageStore.open(folder, Settings.dev()) as store:
        for first in range(0, count, 500):
            some = range(first, first + 500)
            batch = [Message(f"T{each % 7}", b"%d" % each, keys=(f"k{each}",), queue_id=each % 3) for each in some]
            assert store.put_many(batch).ok


def row(store: str, finding: Finding) -> tuple[object, ...]:
    return (
        store,
        finding.severity,
        finding.kind,
        finding.path,
        finding.offset,
        finding.what,
        finding.messages,
        finding.remedy,
    )


def test_sound_damaged_empty_and_missing_stores_are_checked_together(spark: SparkSession, tmp_path: Path) -> None:
    sound = SoundStore.make(tmp_path / "sound").folder
    for name in PLANTED:
        ALL[name](SoundStore(Path(shutil.copytree(sound, tmp_path / name))))
    with MessageStore.open(tmp_path / "empty", Settings.dev()):
        pass
    where = JobInput(stores=(f"{tmp_path}/*", str(tmp_path / "nowhere")), settings=PAIRS)
    found = verify(spark, where)
    assert list(found) == sorted(["sound", "empty", "nowhere", *PLANTED])
    gone = found.pop("nowhere")
    said = f"{tmp_path}/nowhere: there is no store here: no such folder; check the path"
    assert (gone.report, gone.problem) == (None, said)
    for name, each in found.items():
        assert each.problem == ""
        assert each.report == audit_here(tmp_path / name), name
    assert found["sound"].report is not None
    assert found["sound"].report.findings == []
    frame = verify_frame(spark, found)
    expected = [row(name, finding) for name, each in found.items() if each.report for finding in each.report.findings]
    assert [tuple(each) for each in frame.collect()] == expected
    bad = frame.where("severity = 'error'").select("store").distinct().collect()
    assert sorted(each.store for each in bad) == sorted(PLANTED)
    nothing = verify_frame(spark, {"sound": found["sound"]})
    assert (nothing.count(), nothing.columns) == (0, frame.columns)


@pytest.mark.parametrize("count", [200_000, pytest.param(5_000_000, marks=pytest.mark.torture)])
def test_many_messages_in_many_files_give_nothing(spark: SparkSession, tmp_path: Path, count: int) -> None:
    fill_many(tmp_path / "store", count)
    (found,) = verify(spark, JobInput(stores=(str(tmp_path / "store"),))).values()
    assert found.report is not None
    assert {finding.kind for finding in found.report.findings} <= {"config-missing"}
    figures = found.report.figures
    assert figures.records == figures.units == figures.keys == count


def test_the_command_says_what_the_local_one_says_and_ends_alike(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = SoundStore.make(tmp_path / "sound").folder
    bad = SoundStore(Path(shutil.copytree(sound, tmp_path / "bad"))).folder
    ALL["a_body_with_another_crc"](SoundStore(bad))

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main([str(each) for each in arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    local = {path: run("store", "verify", path, *OPTIONS) for path in (sound, bad)}
    here = run("pipeline", "verify", "--store", sound, *OPTIONS)
    assert here[:2] == local[sound][:2]
    assert f"`penstock verify {sound}` prints the same at once" in here[2], "the instant twin is named"
    both = run("pipeline", "verify", "--store", sound, "--store", bad, *OPTIONS)
    assert both[:2] == (1, local[bad][1] + local[sound][1])
    status, out, err = run("pipeline", "verify", "--store", tmp_path / "nowhere", "--store", bad, *OPTIONS)
    assert (status, out) == (2, local[bad][1])
    assert f"penstock: {tmp_path}/nowhere: there is no store here: no such folder; check the path\n" in err
    status, out, err = run("pipeline", "verify", "--store", bad, "--no-crc", *OPTIONS)
    assert status == 0
    assert out.endswith(", without CRC.\n")
    status, out, _ = run("pipeline", "verify", "--store", sound, "--store", bad, "--json", *OPTIONS)
    document = json.loads(out)
    assert (status, document["errors"], document["notes"]) == (1, 1, 0)
    alone = json.loads(run("store", "verify", bad, "--json", *OPTIONS)[1])
    assert document["stores"][0] == {"store": "bad", **alone}
    assert document["stores"][1]["findings"] == []
    assert spark.range(3).count() == 3, "a session that was there before is left alone"


@pytest.mark.java
def test_stores_that_java_wrote_and_is_writing_to_are_sound(spark: SparkSession, java: Peer, tmp_path: Path) -> None:
    closed, open_ = tmp_path / "closed", tmp_path / "open"
    closed.mkdir()
    fill_with_java(java, closed)
    java.open(open_, SIZES)
    for fields in corpus():
        assert java.ask("put", message=message_json(**fields))["status"] == "PUT_OK"
    settings = tuple(f"{name}={value}" for name, value in SIZES.items())
    for _ in range(20):  # an audit of an open store ends where its owner has dispatched to, and Java takes its time
        found = verify(spark, JobInput(stores=(str(closed), str(open_)), settings=settings))
        if all(each.report is not None and each.report.figures.records > 500 for each in found.values()):
            break
        time.sleep(0.5)
    java.ask("close")
    for name, each in found.items():
        assert each.report is not None, each.problem
        assert each.report.errors == []
        assert each.report.figures.in_use == (name == "open")
        assert each.report.figures.records > 500
