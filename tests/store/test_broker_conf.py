"""The broker.conf that `penstock store conf` prints: what a Java broker needs to open the store."""

from __future__ import annotations

from pathlib import Path

from penstock.config.java_properties import parse_properties
from penstock.store.settings import FlushDiskType, Settings, to_broker_conf


def test_paths_sizes_and_geometry_are_always_written() -> None:
    assert to_broker_conf(Settings(store_path_root_dir=Path("/data/store"))) == (
        "# The files of this store: keep these as they are.\n"
        "storePathRootDir=/data/store\n"
        "storePathCommitLog=/data/store/commitlog\n"
        "mappedFileSizeCommitLog=1073741824\n"
        "mappedFileSizeConsumeQueue=6000000\n"
        "maxHashSlotNum=5000000\n"
        "maxIndexNum=20000000\n"
    )


def test_a_relative_path_is_made_absolute() -> None:
    lines = to_broker_conf(Settings(store_path_root_dir=Path("data"))).splitlines()
    assert f"storePathRootDir={Path.cwd() / 'data'}" in lines
    assert f"storePathCommitLog={Path.cwd() / 'data' / 'commitlog'}" in lines


def test_what_differs_from_rocketmqs_default_is_written_under_rocketmqs_name() -> None:
    settings = Settings.dev(warm_mapped_file_enable=True, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    lines = to_broker_conf(settings).splitlines()
    assert {"warmMapedFileEnable=true", "flushDiskType=SYNC_FLUSH", "maxMessageSize=524288"} <= set(lines)
    assert not any(line.startswith("syncFlushTimeout") for line in lines)


def test_names_that_java_does_not_read_from_the_file_are_not_entries() -> None:
    settings = Settings(pre_allocate_files=False, disk_space_warning_level_ratio=0.95)
    text = to_broker_conf(settings)
    assert {entry.name for entry in parse_properties(text.encode())}.isdisjoint(
        {"preAllocateFiles", "rocketmq.broker.diskSpaceWarningLevelRatio"}
    )
    assert "# Start Java with -Drocketmq.broker.diskSpaceWarningLevelRatio=0.95\n" in text


def test_the_file_reads_back_as_the_same_settings(tmp_path: Path) -> None:
    settings = Settings.load(
        pairs=["brokerName=broker-ä", "listenPort=20911", "maxIndexNum=40", "messageDelayLevel=1s 2m"],
        base=Settings(store_path_root_dir=tmp_path / "ein Ordner = é\\"),
    )
    conf = tmp_path / "broker.conf"
    conf.write_text(to_broker_conf(settings), encoding="ascii")
    expected = settings.with_changes(store_path_commit_log=settings.commit_log_dir)
    assert Settings.load(conf) == expected
