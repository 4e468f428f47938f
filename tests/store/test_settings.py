"""Settings: RocketMQ's names and defaults, where values come from, and what is refused in which words."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadSettings
from penstock.store.settings import TABLE, BrokerRole, FlushDiskType, Settings

ROCKETMQ_DEFAULTS = """
mappedFileSizeCommitLog=1073741824 mappedFileSizeConsumeQueue=6000000 mappedFileSizeConsumeQueueExt=50331648
storePathCommitLog= flushDiskType=ASYNC_FLUSH flushIntervalCommitLog=500 flushCommitLogTimed=true
flushCommitLogLeastPages=4 flushCommitLogThoroughInterval=10000 commitIntervalCommitLog=200
commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200 flushIntervalConsumeQueue=1000
flushConsumeQueueLeastPages=2 flushConsumeQueueThoroughInterval=60000 syncFlushTimeout=5000
maxMessageSize=4194304 osPageCacheBusyTimeOutMills=1000 checkCRCOnRecover=true
transientStorePoolEnable=false transientStorePoolSize=5 fastFailIfNoBufferInStorePool=false
warmMapedFileEnable=false flushLeastPagesWhenWarmMapedFile=4096 maxTransferBytesOnMessageInMemory=262144
maxTransferCountOnMessageInMemory=32 maxTransferBytesOnMessageInDisk=65536 maxTransferCountOnMessageInDisk=8
accessMessageInMemoryMaxRatio=40 messageIndexEnable=true maxHashSlotNum=5000000 maxIndexNum=20000000
maxMsgsNumBatch=64 defaultQueryMaxNum=32 cleanResourceInterval=10000 deleteCommitLogFilesInterval=100
deleteConsumeQueueFilesInterval=100 destroyMapedFileIntervalForcibly=120000
redeleteHangedFileInterval=120000 deleteWhen=04 fileReservedTime=72 diskMaxUsedSpaceRatio=75
cleanFileForciblyEnable=true rocketmq.broker.diskSpaceWarningLevelRatio=0.90
rocketmq.broker.diskSpaceCleanForciblyRatio=0.85 flushDelayOffsetInterval=10000 brokerRole=ASYNC_MASTER
haListenPort=10912 haSendHeartbeatInterval=5000 haHousekeepingInterval=20000 haTransferBatchSize=32768
haMasterAddress= haSlaveFallbehindMax=268435456 offsetCheckInSlave=false enableDLegerCommitLog=false
slaveTimeout=3000 enableLmq=false enableMultiDispatch=false listenPort=10911
"""


@pytest.mark.parametrize("pair", ROCKETMQ_DEFAULTS.split())
def test_the_defaults_are_those_of_rocketmq(pair: str) -> None:
    assert Settings.load(pairs=[pair]) == Settings()


def test_the_delay_levels_are_those_of_rocketmq() -> None:
    levels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert Settings().message_delay_level == levels
    assert Settings().delay_levels[:5] == (1000, 5000, 10_000, 30_000, 60_000)


def test_the_store_lies_in_the_home_folder_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert Settings().store_path_root_dir == Path("/home/someone/store")


def test_the_commitlog_lies_in_the_root_unless_told() -> None:
    settings = Settings.load(pairs=["storePathRootDir=/data/mq"])
    assert settings.commit_log_dir == Path("/data/mq/commitlog")
    assert settings.with_changes(store_path_commit_log="/log").commit_log_dir == Path("/log")


# -- where values come from ----------------------------------------------------------------------------------


def test_pairs_win_over_the_file_and_later_ones_over_earlier_ones(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("flushDiskType = SYNC_FLUSH\nmaxMessageSize : 1000\nmaxMessageSize=2000\n")
    settings = Settings.load(conf, ["maxMessageSize=3000", " syncFlushTimeout = 70 "])
    assert settings == Settings(flush_disk_type=FlushDiskType.SYNC_FLUSH, max_message_size=3000, sync_flush_timeout=70)


def test_a_broker_conf_of_rocketmq_is_read_whole(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
        "fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
        "namesrvAddr = 127.0.0.1:9876\nautoCreateTopicEnable=true\nbrokerIP1=10.1.2.3\nlistenPort=20911\n"
    )
    settings = Settings.load(conf)
    assert settings.broker == {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "namesrvAddr": "127.0.0.1:9876",
        "autoCreateTopicEnable": "true",
    }
    assert settings.store_host == "10.1.2.3:20911"
    assert settings.file_reserved_time == 48


def test_both_spellings_of_a_misspelt_name_are_taken() -> None:
    assert Settings.load(pairs=["warmMapedFileEnable=true"]).warm_mapped_file_enable
    assert Settings.load(pairs=["warmMappedFileEnable=true"]).warm_mapped_file_enable
    assert Settings.load(pairs=["diskSpaceWarningLevelRatio=0.5"]) == Settings.load(
        pairs=["rocketmq.broker.diskSpaceWarningLevelRatio=0.5"]
    )


def test_a_base_is_changed_only_where_asked() -> None:
    settings = Settings.load(pairs=["maxIndexNum=40"], base=Settings.dev(broker={"brokerId": "1"}))
    assert settings == Settings.dev(max_index_num=40, broker={"brokerId": "1"})


def test_an_ipv6_host_is_in_brackets() -> None:
    assert Settings(broker_ip1="1050::5:600:300c:326b").store_host == "[1050::5:600:300c:326b]:10911"


def test_text_stands_for_an_enum_in_python_too() -> None:
    settings = Settings().with_changes(broker_role="SLAVE")
    assert settings.broker_role is BrokerRole.SLAVE


# -- what is adjusted ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "used"), [(20, 20), (21, 40), (5_999_981, 6_000_000)])
def test_a_consume_queue_file_holds_whole_units(given: int, used: int) -> None:
    assert Settings(mapped_file_size_consume_queue=given).mapped_file_size_consume_queue == used


@pytest.mark.parametrize(("given", "used"), [(-5, 10), (9, 10), (50, 50), (96, 95)])
def test_the_disk_ratio_is_kept_within_10_and_95(given: int, used: int) -> None:
    assert Settings(disk_max_used_space_ratio=given).disk_max_used_space_ratio == used


def test_a_record_may_have_64_kib_more_than_the_largest_body() -> None:
    assert Settings(max_message_size=1000).max_record_size == 1000 + 65536


def test_a_record_must_fit_into_a_commitlog_file_and_a_note_says_so() -> None:
    small = Settings(mapped_file_size_commit_log=4096, max_message_size=4000)
    assert small.max_record_size == 4088
    (note,) = small.notes()
    assert note == (
        "maxMessageSize=4000 is cut: records have at most 4088 bytes, because each must fit into a commitlog "
        "file of 4096."
    )


@pytest.mark.parametrize(("file_size", "body"), [(65536, 4000), (4096, 3996), (1000 + 65536 + 8, 1000)])
def test_no_note_speaks_of_bodies_that_fit(file_size: int, body: int) -> None:
    settings = Settings.dev(mapped_file_size_commit_log=file_size, max_message_size=body)
    assert settings.notes() == []


def test_the_pool_works_with_asynchronous_flush_on_a_master_only() -> None:
    pooled = Settings(transient_store_pool_enable=True)
    assert pooled.transient_pool_active
    for change in ({"flush_disk_type": "SYNC_FLUSH"}, {"broker_role": "SLAVE"}):
        idle = pooled.with_changes(**change)
        assert not idle.transient_pool_active
        assert any(note.startswith("transientStorePoolEnable=true has no effect with") for note in idle.notes())


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("flushDiskTyp=SYNC_FLUSH", "unknown setting 'flushDiskTyp'; did you mean 'flushDiskType'?"),
        ("brokername=a", "unknown setting 'brokername'; did you mean 'brokerName'?"),
        ("xyzzy=1", "unknown setting 'xyzzy'; no known setting has a similar name"),
        ("flushDiskType", "'flushDiskType' is not a setting; write name=value"),
        ("=1", "'=1' is not a setting; write name=value"),
        ("flushDiskType=SYNC", "setting flushDiskType is 'SYNC'; it must be ASYNC_FLUSH or SYNC_FLUSH"),
        ("messageIndexEnable=yes", "setting messageIndexEnable is 'yes'; it must be true or false"),
        ("messageIndexEnable=", "setting messageIndexEnable is ''; it must be true or false"),
        (
            "maxMessageSize=4M",
            "setting maxMessageSize is '4M'; it must be a whole number from 1 to 2147483647",
        ),
        ("maxMessageSize=0", "setting maxMessageSize is '0'; it must be a whole number from 1 to 2147483647"),
        (
            "maxMessageSize=1_000",
            "setting maxMessageSize is '1_000'; it must be a whole number from 1 to 2147483647",
        ),
        ("listenPort=65536", "setting listenPort is '65536'; it must be a whole number from 0 to 65535"),
        (
            "accessMessageInMemoryMaxRatio=101",
            "setting accessMessageInMemoryMaxRatio is '101'; it must be a whole number from 0 to 100",
        ),
        (
            "diskSpaceWarningLevelRatio=90",
            "setting rocketmq.broker.diskSpaceWarningLevelRatio is '90.0'; it must be a number from 0 to 1",
        ),
        ("brokerIP1=localhost", "setting brokerIP1 is 'localhost'; it must be an IPv4 or IPv6 address"),
        (
            "storePathCommitLog=/a,/b",
            "setting storePathCommitLog is '/a,/b'; it must be one folder: a store has one commitlog folder",
        ),
        ("storePathRootDir=", "setting storePathRootDir is ''; it must be a path"),
        (
            "enableDLegerCommitLog=true",
            "setting enableDLegerCommitLog is 'true'; it must be false: there is no DLedger commit log",
        ),
        ("enableLmq=true", "setting enableLmq is 'true'; it must be false: there are no light queues"),
        (
            "deleteWhen=24",
            "setting deleteWhen is '24'; it must be hours of the day joined by ';', as in '04;16'",
        ),
        ("messageDelayLevel=", "setting messageDelayLevel is ''; it must be delays such as '1s 5s 1m 2h'"),
    ],
)
def test_a_bad_setting_is_refused_in_one_sentence(pair: str, sentence: str) -> None:
    with pytest.raises(BadSettings) as refusal:
        Settings.load(pairs=[pair])
    assert str(refusal.value) == sentence


def test_a_bad_delay_is_named() -> None:
    with pytest.raises(BadSettings, match=r"messageDelayLevel.*'5x'"):
        Settings(message_delay_level="1s 5x")


def test_an_index_larger_than_a_file_may_be_is_refused() -> None:
    with pytest.raises(BadSettings, match="maxHashSlotNum 5000000 and maxIndexNum 200000000 make index files of"):
        Settings(max_index_num=200_000_000)


def test_a_bad_line_of_a_file_is_named_with_path_and_number(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# settings\nflushDiskType=SYNC\n")
    with pytest.raises(BadSettings) as refusal:
        Settings.load(conf)
    assert str(refusal.value) == (
        f"{conf}: line 2: setting flushDiskType is 'SYNC'; it must be ASYNC_FLUSH or SYNC_FLUSH"
    )


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as refusal:
        Settings.load(tmp_path / "none.conf")
    said = "cannot read the settings: No such file or directory; check the path and its permissions"
    assert str(refusal.value) == f"{tmp_path / 'none.conf'}: {said}"
    broken = tmp_path / "broken.conf"
    broken.write_text("brokerName=\\u12")
    with pytest.raises(BadSettings, match=r"broken\.conf: line 1: a \\u escape"):
        Settings.load(broken)


@pytest.mark.parametrize(
    "change", [{"max_message_size": "1000"}, {"max_message_size": True}, {"message_index_enable": 1}]
)
def test_a_value_of_the_wrong_type_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        Settings(**change)


# -- what is said --------------------------------------------------------------------------------------------


def test_defaults_and_the_dev_profile_need_no_notes() -> None:
    assert Settings().notes() == []
    assert Settings.dev().notes() == []


def test_settings_without_effect_are_named_in_one_sentence_and_kept() -> None:
    settings = Settings.load(pairs=["messageIndexSafe=true", "duplicationEnable=false", "maxMsgsNumBatch=10"])
    assert settings.notes() == ["duplicationEnable, messageIndexSafe have no effect here."]
    assert settings.broker == {"messageIndexSafe": "true", "duplicationEnable": "false"}


def test_what_is_refused_when_true_is_silent_when_false() -> None:
    assert Settings.load(pairs=["enableDLegerCommitLog=false", "enableLmq=false"]).notes() == []


def test_what_was_given_is_remembered_but_is_no_part_of_equality() -> None:
    asked = Settings.load(pairs=["maxHashSlotNum=5000000"])
    assert asked.given == {"max_hash_slot_num"}
    assert asked == Settings()
    assert hash(asked) == hash(Settings())


# -- the object ----------------------------------------------------------------------------------------------


def test_the_dev_profile_is_small() -> None:
    dev = Settings.dev()
    assert dev.mapped_file_size_commit_log == 1 << 20
    assert dev.mapped_file_size_consume_queue == 20_000
    assert dev.index_geometry.file_size == 420_040
    assert not dev.pre_allocate_files
    assert dev.max_record_size == 512 * 1024 + 65536
    assert Settings.dev(max_message_size=10).max_message_size == 10


def test_settings_cannot_be_changed_but_copied_with_changes() -> None:
    settings = Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_message_size = 1  # type: ignore[misc]
    assert dataclasses.replace(settings, max_message_size=1) == settings.with_changes(max_message_size=1)
    with pytest.raises(BadSettings):
        dataclasses.replace(settings, max_message_size=0)


def test_settings_survive_pickling() -> None:
    settings = Settings.load(pairs=["brokerName=a", "fileReservedTime=1"])
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.notes() == settings.notes()


def test_the_repr_shows_what_is_not_the_default() -> None:
    assert repr(Settings()) == "Settings()"
    assert repr(Settings(max_message_size=7)) == "Settings(max_message_size=7)"


def test_no_name_belongs_to_two_settings() -> None:
    names = [name for setting in TABLE for name in (setting.name, *setting.aliases)]
    assert len(names) == len(set(names))
