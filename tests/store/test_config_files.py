"""The JSON files under config/: what RocketMQ wrote is read and written to the byte, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import BadStore, StoreFailed
from penstock.format.config_tables import (
    ConsumerFilters,
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    SubscriptionGroup,
    SubscriptionGroups,
    TopicConfig,
    TopicConfigs,
)
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.files.file_io import Files

TOPICS = """{
	"dataVersion":{
		"counter":2,
		"timestamp":1600000000000
	},
	"topicConfigTable":{
		"TopicTest":{
			"order":false,
			"perm":6,
			"readQueueNums":4,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"TopicTest",
			"topicSysFlag":0,
			"writeQueueNums":4
		}
	}
}"""
CONSUMER_OFFSETS = """{
	"offsetTable":{
		"%RETRY%group_a@group_a":{0:3
		},
		"TopicTest@group_a":{0:250,1:249
		}
	}
}"""
DELAY_OFFSETS = """{
	"offsetTable":{1:10,3:7
	}
}"""
GARBAGE = [b"\0\0\0\0", b"{", b"[1]", b'{"offsetTable":[]}', b'{"offsetTable":{"a@b":{"x":1}}}', b"\xff\xfe"]


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """The folder `config` of a store."""
    (tmp_path / "config").mkdir()
    return tmp_path / "config"


@pytest.fixture
def config(tmp_path: Path) -> ConfigFiles:
    return ConfigFiles(Files(), tmp_path)


def offsets(value: int) -> ConsumerOffsets:
    return ConsumerOffsets(offsets={("TopicTest", "group_a"): {0: value}})


# -- what RocketMQ wrote -------------------------------------------------------------------------------------


def test_topics_are_read(tmp_path: Path, config: ConfigFiles) -> None:
    (tmp_path / "topics.json").write_text(TOPICS)
    loaded = config.topics.read()
    assert loaded.table == TopicConfigs(
        topics={"TopicTest": TopicConfig(name="TopicTest", read_queue_nums=4, write_queue_nums=4)},
        version=DataVersion(counter=2, timestamp=1600000000000),
    )
    assert loaded.note == ""


def test_consumer_offsets_are_read_by_topic_and_group(tmp_path: Path, config: ConfigFiles) -> None:
    (tmp_path / "consumerOffset.json").write_text(CONSUMER_OFFSETS)
    assert config.consumer_offsets.read().table.offsets == {
        ("%RETRY%group_a", "group_a"): {0: 3},
        ("TopicTest", "group_a"): {0: 250, 1: 249},
    }


def test_delay_offsets_are_read_by_level(tmp_path: Path, config: ConfigFiles) -> None:
    (tmp_path / "delayOffset.json").write_text(DELAY_OFFSETS)
    assert config.delay_offsets.read().table == DelayOffsets(offsets={1: 10, 3: 7})


def test_keys_in_quotes_mean_the_same(tmp_path: Path, config: ConfigFiles) -> None:
    (tmp_path / "delayOffset.json").write_text('{"offsetTable": {"1": 10, "3": 7}}')
    assert config.delay_offsets.read().table == DelayOffsets(offsets={1: 10, 3: 7})


def test_files_are_written_back_to_the_byte(tmp_path: Path, config: ConfigFiles) -> None:
    (tmp_path / "topics.json").write_text(TOPICS)
    (tmp_path / "consumerOffset.json").write_text(CONSUMER_OFFSETS)
    (tmp_path / "delayOffset.json").write_text(DELAY_OFFSETS)
    config.topics.write(config.topics.read().table)
    config.consumer_offsets.write(config.consumer_offsets.read().table)
    config.delay_offsets.write(config.delay_offsets.read().table)
    assert (tmp_path / "topics.json").read_text() == TOPICS
    assert (tmp_path / "consumerOffset.json").read_text() == CONSUMER_OFFSETS
    assert (tmp_path / "delayOffset.json").read_text() == DELAY_OFFSETS


def test_fields_of_5_x_are_kept(tmp_path: Path, config: ConfigFiles) -> None:
    newer = TOPICS.replace('\n\t\t\t"order"', '\n\t\t\t"attributes":{\n\t\t\t\t"+a":"b"\n\t\t\t},\n\t\t\t"order"')
    newer = newer.replace('"counter":2,', '"counter":2,\n\t\t"stateVersion":7,')
    (tmp_path / "topics.json").write_text(newer)
    (tmp_path / "consumerOffset.json").write_text(
        CONSUMER_OFFSETS.replace('{\n\t"off', '{\n\t"dataVersion":{\n\t\t"counter":1\n\t},\n\t"off', 1)
    )
    topics, consumers = config.topics.read().table, config.consumer_offsets.read().table
    before = (tmp_path / "consumerOffset.json").read_bytes()
    config.topics.write(topics)
    config.consumer_offsets.write(consumers)
    assert (tmp_path / "topics.json").read_text() == newer
    assert (tmp_path / "consumerOffset.json").read_bytes() == before


def test_groups_and_filters_are_written_and_read(config: ConfigFiles) -> None:
    version = DataVersion().next(5)
    groups = SubscriptionGroups(groups={"g": SubscriptionGroup(name="g", retry_max_times=3)}, version=version)
    filters = ConsumerFilters(topics={"T": {"topic": "T", "groupFilterData": {}}})
    config.subscription_groups.write(groups)
    config.consumer_filters.write(filters)
    assert config.subscription_groups.read().table == groups
    assert config.consumer_filters.read().table == filters


def test_a_topic_without_its_name_gets_the_one_it_is_filed_under(tmp_path: Path, config: ConfigFiles) -> None:
    (tmp_path / "topics.json").write_text('{"topicConfigTable": {"T": {"perm": 4}}}')
    assert config.topics.read().table.topics == {"T": TopicConfig(name="T", perm=4)}


# -- a file that cannot be read ------------------------------------------------------------------------------


def test_without_any_file_the_table_is_empty(config: ConfigFiles) -> None:
    loaded = config.consumer_offsets.read()
    assert loaded.table == ConsumerOffsets()
    assert loaded.note == ""


@pytest.mark.parametrize("content", [*GARBAGE, b"", b" \n", None])
def test_the_backup_is_read_instead_of_a_bad_file_and_a_note_says_so(
    tmp_path: Path, config: ConfigFiles, content: bytes | None
) -> None:
    path = tmp_path / "consumerOffset.json"
    (tmp_path / "consumerOffset.json.bak").write_text(CONSUMER_OFFSETS)
    if content is not None:
        path.write_bytes(content)
    loaded = config.consumer_offsets.read()
    assert loaded.table.offsets["TopicTest", "group_a"] == {0: 250, 1: 249}
    assert loaded.note.startswith(f"{path} is ")
    assert loaded.note.endswith("; its backup consumerOffset.json.bak was read instead.")


@pytest.mark.parametrize("content", GARBAGE)
@pytest.mark.parametrize("backup", [b"garbage", b"", None])
def test_garbage_without_a_good_backup_is_an_error_that_names_both(
    tmp_path: Path, config: ConfigFiles, content: bytes, backup: bytes | None
) -> None:
    (tmp_path / "consumerOffset.json").write_bytes(content)
    if backup is not None:
        (tmp_path / "consumerOffset.json.bak").write_bytes(backup)
    with pytest.raises(BadStore) as refusal:
        config.consumer_offsets.read()
    sentence = str(refusal.value)
    assert f"{tmp_path / 'consumerOffset.json'}: neither the file nor its backup can be read" in sentence
    found = {b"garbage": "not a config file", b"": "empty", None: "missing"}[backup]
    assert f"{tmp_path / 'consumerOffset.json.bak'} is {found}" in sentence


def test_an_empty_file_without_backup_is_an_empty_table_and_a_note_says_so(tmp_path: Path, config: ConfigFiles) -> None:
    path = tmp_path / "topics.json"
    path.touch()
    loaded = config.topics.read()
    assert loaded.table == TopicConfigs()
    assert loaded.note == f"{path} is empty; it was read as an empty table."


# -- writing -------------------------------------------------------------------------------------------------


def test_the_previous_file_becomes_the_backup(tmp_path: Path, config: ConfigFiles) -> None:
    for value in (1, 2, 3):
        config.consumer_offsets.write(offsets(value))
    assert config.consumer_offsets.read().table == offsets(3)
    (tmp_path / "consumerOffset.json").unlink()
    assert config.consumer_offsets.read().table == offsets(2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["consumerOffset.json.bak"]


@pytest.mark.parametrize("read_first", [True, False])
def test_garbage_never_becomes_the_backup_and_is_set_aside(
    tmp_path: Path, config: ConfigFiles, read_first: bool
) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b"{garbage")
    (tmp_path / "consumerOffset.json.bak").write_text(CONSUMER_OFFSETS)
    if read_first:
        config.consumer_offsets.read()
    config.consumer_offsets.write(offsets(9))
    assert config.consumer_offsets.read().table == offsets(9)
    assert (tmp_path / "consumerOffset.json.bak").read_text() == CONSUMER_OFFSETS
    quarantine = tmp_path.parent / "penstock" / "quarantine"
    (kept,) = (path for path in quarantine.rglob("*") if path.is_file())
    assert (kept.name, kept.read_bytes()) == ("config-consumerOffset.json", b"{garbage")


def test_garbage_of_a_config_file_outside_a_store_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(bytes(20))
    ConfigFile(Files(), path, ConsumerOffsets).write(offsets(9))
    assert (tmp_path / "offsets.json.damaged").read_bytes() == bytes(20)


def test_a_good_file_that_was_never_read_becomes_the_backup(tmp_path: Path, config: ConfigFiles) -> None:
    (tmp_path / "consumerOffset.json").write_text(CONSUMER_OFFSETS)
    config.consumer_offsets.write(offsets(9))
    assert (tmp_path / "consumerOffset.json.bak").read_text() == CONSUMER_OFFSETS


class Crash(BaseException):
    """The process is gone."""


class CrashingFiles(Files):
    """Crashes before or after the n-th step that changes the disk."""

    def __init__(self, step: int, after: bool) -> None:
        self.left = step
        self.after = after

    def _step(self, act: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        act()
        if self.left == 0:
            raise Crash

    def _write_synced(self, path: Path, data: bytes) -> None:
        half = data[: len(data) // 2] if self.left == 1 and not self.after else data
        if half is not data:
            path.write_bytes(half)
        self._step(lambda: super(CrashingFiles, self)._write_synced(path, data))

    def rename(self, source: Path, target: Path) -> None:
        self._step(lambda: super(CrashingFiles, self).rename(source, target))

    def sync_folder(self, folder: Path) -> None:
        self._step(lambda: super(CrashingFiles, self).sync_folder(folder))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_crash_at_any_step_leaves_the_old_table_or_the_new(tmp_path: Path, damaged: bool, after: bool) -> None:
    step = 0
    crashed = True
    while crashed:
        step += 1
        folder = tmp_path / str(step) / "config"
        good = ConfigFiles(Files(), folder).consumer_offsets
        good.write(offsets(1))
        good.write(offsets(2))
        if damaged:
            good.path.write_bytes(b"{garbage")
        try:
            ConfigFiles(CrashingFiles(step, after), folder).consumer_offsets.write(offsets(3))
            crashed = False
        except Crash:
            pass
        survived = ConfigFiles(Files(), folder).consumer_offsets.read().table
        assert survived in (offsets(1) if damaged else offsets(2), offsets(3))
    assert survived == offsets(3)
    assert step > 4


def test_a_refused_write_leaves_the_old_file(tmp_path: Path, config: ConfigFiles) -> None:
    config.consumer_offsets.write(offsets(1))
    (tmp_path / "consumerOffset.json.tmp").mkdir()
    with pytest.raises(StoreFailed):
        config.consumer_offsets.write(offsets(2))
    assert config.consumer_offsets.read().table == offsets(1)
