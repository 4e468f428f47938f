"""The broker's settings: every name of RocketMQ's is known, and a wrong value is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.errors import BadSettings
from penstock.remoting.sockets import parse_address
from penstock.store import Settings
from penstock.store.settings import to_broker_conf


def test_a_broker_conf_feeds_the_store_and_the_broker(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName = b-7\nflushDiskType=SYNC_FLUSH\nautoCreateTopicEnable=false\nlongPollingEnable=TRUE\n")
    store = Settings.load(conf, ["brokerPermission=4", "namesrvAddr=10.0.0.1:9876; 10.0.0.2:9876"])
    settings = BrokerSettings.of(store)
    assert settings.broker_name == "b-7"
    assert not settings.auto_create_topic_enable
    assert settings.long_polling_enable
    assert settings.name_servers == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert settings.is_readable
    assert not settings.is_writable
    assert store.flush_disk_type == "SYNC_FLUSH"


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("brokerPermission=9", "brokerPermission is '9'; it must be a whole number from 0 to 7"),
        ("autoCreateTopicEnable=maybe", "autoCreateTopicEnable is 'maybe'; it must be true or false"),
        ("brokerName=two words", "brokerName is 'two words'"),
        ("namesrvAddr=nowhere", "namesrvAddr is 'nowhere'; it must be HOST:PORT"),
        ("flushConsumerOffsetInterval=0", "flushConsumerOffsetInterval is '0'"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(pair: str, words: str) -> None:
    with pytest.raises(BadSettings) as refused:
        BrokerSettings.of(Settings.load(None, [pair]))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_registration_period_is_kept_within_its_bounds() -> None:
    assert BrokerSettings(register_name_server_period=1).register_name_server_period == 10_000
    assert BrokerSettings(register_name_server_period=10**6).register_name_server_period == 60_000


def test_a_change_reaches_whoever_listens_and_a_wrong_one_changes_nothing() -> None:
    force, seen = SettingsInForce(BrokerSettings()), []
    force.on_change.append(lambda settings: seen.append(settings.broker_permission))
    force.change(broker_permission=4)
    with pytest.raises(BadSettings):
        force.change(broker_permission=99)
    assert seen == [4]
    assert force.now.broker_permission == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:9876", ("127.0.0.1", 9876)), ("[::1]:0", ("::1", 0)), (" host:1 ", ("host", 1))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text, "--listen") == expected


@pytest.mark.parametrize("text", ["", "host", ":9876", "host:", "host:x", "host:70000", "host:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadSettings, match="--listen"):
        parse_address(text, "--listen")


def test_a_java_broker_is_not_told_our_own_settings() -> None:
    text = to_broker_conf(Settings.load(None, ["maxTopics=5", "brokerName=b"]))
    assert "maxTopics" not in text
    assert "brokerName=b" in text
