"""`penstock store info` and `conf` say how a store is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.format.checkpoint import Checkpoint
from penstock.store import Message, MessageStore, Settings
from penstock.store.external_dispatch.queue_and_index_builder import Builder

if TYPE_CHECKING:
    from cli.conftest import Filled, Run

T0 = 1_600_000_000_000


def test_info_has_everything_about_a_store(run: Run, filled: Filled) -> None:
    found = run("store", "info", filled.path, "--json").done().json
    end = filled.acks[-1].end_offset
    assert found["path"] == str(filled.path)
    assert (found["last_exit"], found["in_use_by"]) == ("clean", None)
    assert found["commit_log"] == {
        "path": str(filled.path / "commitlog"),
        "file_size": 1 << 20,
        "files": ["0" * 20],
        "min_offset": 0,
        "max_offset": end,
        "earliest_store_timestamp": T0,
        "latest_store_timestamp": T0 + 7000,
    }
    assert (found["dispatch_behind_bytes"], found["dispatch_behind_messages"]) == (0, 0)
    assert [(topic["topic"], topic["count"]) for topic in found["topics"]] == [
        ("Alerts", 1),
        ("SCHEDULE_TOPIC_XXXX", 1),
        ("orders", 4),
    ]
    assert found["topics"][2]["queues"] == [
        {
            "queue_id": 0,
            "min_offset": 0,
            "max_offset": 3,
            "count": 3,
            "earliest_store_timestamp": T0,
            "latest_store_timestamp": T0 + 7000,
        },
        {
            "queue_id": 1,
            "min_offset": 0,
            "max_offset": 1,
            "count": 1,
            "earliest_store_timestamp": T0 + 1000,
            "latest_store_timestamp": T0 + 1000,
        },
    ]
    assert (found["config"], found["quarantine"]) == ([], [])
    assert found["recovery"]["damage"] == found["recovery"]["notes"] == []


def test_info_says_how_full_the_index_is(run: Run, filled: Filled) -> None:
    found = run("store", "info", filled.path, "--json").done().json["index"]
    assert (found["readable"], found["slots"], found["items"]) == (True, 5000, 20_000)
    (file,) = found["files"]
    assert file["name"] == next((filled.path / "index").iterdir()).name
    assert (file["items_used"], file["items_capacity"]) == (10, 19_999)  # 4 with two keys, 2 with one
    assert (file["begin_timestamp"], file["end_timestamp"]) == (T0, T0 + 7000)
    assert file["end_physical_offset"] == filled.acks[-1].physical_offset


def test_info_shows_the_checkpoint_as_it_is_on_disk(run: Run, filled: Filled) -> None:
    path = filled.path / "checkpoint"
    path.write_bytes(Checkpoint(11, 22, 33).pack())
    assert run("store", "info", filled.path, "--json").done().json["checkpoint"] == {
        "physic": 11,
        "logics": 22,
        "index": 33,
    }
    path.write_bytes(b"short")
    assert run("store", "info", filled.path, "--json").done().json["checkpoint"] is None


def test_info_counts_bytes_as_the_disk_does(run: Run, filled: Filled) -> None:
    files = [path.stat() for path in filled.path.rglob("*") if path.is_file()]
    found = run("store", "info", filled.path, "--json").done().json
    assert found["apparent_bytes"] == sum(file.st_size for file in files)
    assert found["allocated_bytes"] == sum(file.st_blocks * 512 for file in files)


def test_info_lists_what_an_earlier_start_kept_aside(run: Run, filled: Filled) -> None:
    log = filled.path / "commitlog" / ("0" * 20)
    with log.open("r+b") as data:
        data.seek(filled.acks[-1].end_offset)
        data.write(b"torn!")
    (filled.path / "abort").write_bytes(b"")
    MessageStore.open(filled.path, Settings.dev()).close()
    (kept,) = run("store", "info", filled.path, "--json").done().json["quarantine"]
    assert (filled.path / kept["path"]).read_bytes() == b"torn!"
    assert kept["size"] == 5
    assert kept["path"] in run("store", "info", filled.path).done().out


def test_info_reports_damage(run: Run, filled: Filled) -> None:
    log, ack = filled.path / "commitlog" / ("0" * 20), filled.acks[1]
    data = bytearray(log.read_bytes())
    data[ack.physical_offset + 4] ^= 0xFF
    log.write_bytes(data)
    ran = run("store", "info", filled.path, "--json").done()
    assert ran.json["recovery"]["damage"] == [
        {"physical_offset": ack.physical_offset, "size": ack.size, "reason": "BAD_MAGIC"}
    ]
    assert f"no valid record in {ack.size} bytes at {ack.physical_offset}" in ran.err
    assert "BAD_MAGIC" in run("store", "info", filled.path).done().out


def test_info_of_an_empty_store(run: Run, tmp_path: Path) -> None:
    MessageStore.open(tmp_path / "s", Settings.dev()).close()
    found = run("store", "info", tmp_path / "s", "--json").done().json
    assert (found["topics"], found["commit_log"]["files"], found["commit_log"]["max_offset"]) == ([], [], 0)
    assert (found["last_exit"], found["commit_log"]["earliest_store_timestamp"]) == ("clean", -1)
    assert "last exit" in run("store", "info", tmp_path / "s").done().out


def test_info_for_people_names_the_essentials(run: Run, filled: Filled) -> None:
    text = run("store", "info", filled.path).done().out
    for words in (
        "last exit   clean",
        "SCHEDULE_TOPIC_XXXX",
        "dispatch    0 messages, 0 bytes behind",
        "5000 slots",
    ):
        assert words in text
    assert "\x1b" not in text


def test_conf_is_what_a_java_broker_needs(run: Run, filled: Filled) -> None:
    text = run("store", "conf", filled.path, "--set", "brokerName=broker-a").done().out
    for line in (
        f"storePathRootDir={filled.path}",
        f"storePathCommitLog={filled.path / 'commitlog'}",
        "mappedFileSizeCommitLog=1048576",
        "mappedFileSizeConsumeQueue=20000",
        "maxHashSlotNum=5000",
        "maxIndexNum=20000",
        "maxMessageSize=524288",
        "brokerName=broker-a",
    ):
        assert line in text.splitlines()
    as_json = run("store", "conf", filled.path, "--set", "brokerName=broker-a", "--json").done().json
    assert [f"{name}={value}" for name, value in as_json.items()] == [
        line for line in text.splitlines() if not line.startswith("#")
    ]


def test_conf_does_not_touch_the_largest_message_where_files_are_large(run: Run, tmp_path: Path) -> None:
    settings = Settings.dev(mapped_file_size_commit_log=16 << 20)
    with MessageStore.open(tmp_path / "s", settings) as store:
        store.put(Message("orders", b"x"))
    assert "maxMessageSize" not in run("store", "conf", tmp_path / "s").done().out


def test_info_says_whether_a_dispatch_job_runs_and_how_far_it_is(run: Run, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "s", Settings.dev(dispatch="external")) as store:
        for number in range(3):
            store.put(Message("T", b"%d" % number))
    found = run("store", "info", tmp_path / "s", "--json").done().json
    assert (found["dispatch"], found["dispatch_job"], found["dispatch_behind_messages"]) == ("external", None, 3)
    assert found["dispatch_behind_bytes"] == found["commit_log"]["max_offset"]
    assert found["dispatch_behind_ms"] > 0
    text = run("store", "info", tmp_path / "s").done().out
    assert "external, and no job runs: start `penstock pipeline dispatch`; 3 messages, " in text
    assert "queues, with messages that wait for the dispatch job" in text
    with Builder.open(tmp_path / "s") as builder:
        builder.build(builder.published)
        text = run("store", "info", tmp_path / "s").done().out
        assert f"external, by process {os.getpid()}; 0 messages, 0 bytes behind" in text
        assert "that wait for" not in text
