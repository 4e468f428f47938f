"""Config files and a checkpoint that cannot be read, and offsets that are out of bounds."""

from __future__ import annotations

import pytest
from support.damage import DamagedHome
from support.disks import UnsyncedFiles

from penstock.format.checkpoint import Checkpoint
from penstock.format.config_tables import ConsumerOffsets, DelayOffsets, TopicConfig, TopicConfigs
from penstock.store.config_files import ConfigFiles

GARBAGE = [b"\0" * 50, b'{"offsetTable":', b"\xff\xfe", b"[1, 2]"]


@pytest.fixture
def config(home: DamagedHome) -> ConfigFiles:
    """The config of a filled store; each file has a backup that is a little older."""
    home.fill(20)
    files = ConfigFiles(UnsyncedFiles(), home.path / "config")
    files.topics.write(TopicConfigs(topics={"T": TopicConfig(name="T")}))
    for offset in (3, 5):
        files.consumer_offsets.write(ConsumerOffsets(offsets={("T", "group"): {0: offset}}))
        files.delay_offsets.write(DelayOffsets(offsets={1: 0}))
    return files


@pytest.mark.parametrize("garbage", [*GARBAGE, b"", b"  \n"])
def test_a_config_file_that_cannot_be_read_is_replaced_by_its_backup(
    home: DamagedHome, config: ConfigFiles, garbage: bytes
) -> None:
    config.consumer_offsets.path.write_bytes(garbage)
    (change,) = home.repair().changes
    assert change.path == "config/consumerOffset.json"
    assert (home.path / change.saved).read_bytes() == garbage
    assert config.consumer_offsets.path.read_bytes() == config.consumer_offsets.backup.read_bytes()
    assert config.consumer_offsets.read().table.offsets == {("T", "group"): {0: 3}}
    assert config.consumer_offsets.read().note == ""
    home.assert_whole()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_without_a_good_backup_the_table_starts_empty_and_both_are_kept(
    home: DamagedHome, config: ConfigFiles, garbage: bytes
) -> None:
    config.consumer_offsets.path.write_bytes(garbage)
    config.consumer_offsets.backup.write_bytes(garbage)
    changes = home.repair().changes
    assert [each.path for each in changes] == ["config/consumerOffset.json", "config/consumerOffset.json.bak"]
    assert all((home.path / each.saved).read_bytes() == garbage for each in changes)
    assert config.consumer_offsets.read().table.offsets == {}
    home.assert_whole()


def test_an_empty_config_file_without_a_backup_is_set_aside(home: DamagedHome, config: ConfigFiles) -> None:
    config.topics.path.write_bytes(b"")
    (change,) = home.repair().changes
    assert change.path == "config/topics.json"
    assert not config.topics.path.exists()
    home.assert_whole()


def test_config_files_that_are_missing_or_sound_are_left_alone(home: DamagedHome, config: ConfigFiles) -> None:
    config.delay_offsets.path.unlink()
    before = {path.name: path.read_bytes() for path in (home.path / "config").iterdir()}
    assert home.repair().found_nothing
    assert {path.name: path.read_bytes() for path in (home.path / "config").iterdir()} == before


def test_an_offset_past_its_queues_end_is_taken_from_the_backup(home: DamagedHome, config: ConfigFiles) -> None:
    text = config.consumer_offsets.path.read_bytes()
    config.consumer_offsets.path.write_bytes(text.replace(b"0:5", b"0:955"))
    (change,) = home.repair().changes
    assert "955" in change.what
    assert "backup" in change.what
    assert b"955" in (home.path / change.saved).read_bytes()
    assert config.consumer_offsets.read().table.offsets == {("T", "group"): {0: 3}}
    home.assert_whole()


def test_an_offset_without_a_good_backup_becomes_the_queues_end(home: DamagedHome, config: ConfigFiles) -> None:
    table = ConsumerOffsets(offsets={("T", "group"): {0: 955}, ("U", "group"): {0: -3, 1: 7}, ("nobody", "x"): {0: 1}})
    for _ in range(2):
        config.consumer_offsets.write(table)
    (change,) = home.repair().changes
    assert "nobody" in change.what
    assert config.consumer_offsets.read().table.offsets == {("T", "group"): {0: 20}, ("U", "group"): {0: 0, 1: 7}}
    home.assert_whole()


def test_delay_offsets_past_their_queue_or_of_no_level_are_corrected(home: DamagedHome, config: ConfigFiles) -> None:
    for _ in range(2):
        config.delay_offsets.write(DelayOffsets(offsets={1: 77, 3: 0, 99: 1}))
    home.repair()
    assert config.delay_offsets.read().table.offsets == {1: 0, 3: 0}
    home.assert_whole()


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(8192)], ids=["empty", "short", "long"])
def test_a_checkpoint_of_the_wrong_size_is_saved_and_written_again(home: DamagedHome, content: bytes) -> None:
    home.fill(20)
    (home.path / "checkpoint").write_bytes(content)
    (change,) = home.repair().changes
    assert (home.path / change.saved).read_bytes() == content
    page = Checkpoint.unpack((home.path / "checkpoint").read_bytes())
    assert page.physic == page.logics == home.clock.now
    home.assert_whole()


@pytest.mark.parametrize("said", [2**62, -1])
def test_a_checkpoint_with_times_that_no_record_has_is_written_again(home: DamagedHome, said: int) -> None:
    home.fill(20)
    page = Checkpoint.unpack((home.path / "checkpoint").read_bytes())
    (home.path / "checkpoint").write_bytes(Checkpoint(page.physic, page.logics, said).pack())
    (change,) = home.repair().changes
    assert change.path == "checkpoint"
    assert 0 <= Checkpoint.unpack((home.path / "checkpoint").read_bytes()).index <= home.clock.now
    home.assert_whole()


def test_a_store_without_any_log_is_left_to_its_start(home: DamagedHome) -> None:
    home.fill(5)
    for path in home.log_files():
        path.unlink()
    report = home.repair()
    assert report.ranges == []
    assert report.problems == []
    assert "no commit log" in " ".join(report.start)
