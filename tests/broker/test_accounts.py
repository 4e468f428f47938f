"""The access file: what it grants, and how what is wrong with it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.access_file import ANY, PUB, SUB, Accounts, matcher
from penstock.errors import BadSettings

FILE = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.7
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC = SUB
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""


def loaded(tmp_path: Path, text: str) -> Accounts:
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    return Accounts.load(path)


def test_rocketmqs_own_example_is_understood(tmp_path: Path) -> None:
    accounts = loaded(tmp_path, FILE)
    assert accounts.is_white("10.10.103.9")
    assert not accounts.is_white("10.10.104.9")
    plain, admin = accounts.by_key["RocketMQ"], accounts.by_key["rocketmq2"]
    assert plain.secret_key == "12345678"
    assert not plain.may(ANY, topic="topicA")
    assert plain.may(PUB, topic="topicB")
    assert plain.may(SUB, topic="topicC")
    assert not plain.may(PUB, topic="topicC")
    assert not plain.may(ANY, topic="another")
    assert not plain.may(SUB, group="groupA")
    assert plain.may(SUB, group="another")
    assert not plain.is_white("192.168.1.1")
    assert admin.admin
    assert admin.is_white("192.168.1.1")
    assert admin.may(PUB, topic="anything")


def test_a_secret_is_not_printed(tmp_path: Path) -> None:
    account = loaded(tmp_path, FILE).by_key["RocketMQ"]
    assert "12345678" not in repr(account) + str(account)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "neither accounts nor addresses"),
        ("- a", "neither accounts nor addresses"),
        ("accounts: yes", "accounts is not a list"),
        ("accounts: [x]", "account 1 has no accessKey"),
        ("accounts: [{accessKey: longenough}]", "account 1: secretKey is missing"),
        ("accounts: [{accessKey: short, secretKey: longenough}]", "at least 7 characters"),
        ("accounts: [{accessKey: longenough, secretKey: longenough, admin: maybe}]", "admin must be true or false"),
        ("accounts: [{accessKey: longenough, secretKey: longenough, topicPerms: [t]}]", "'t' is not a permission"),
        ("accounts: [{accessKey: longenough, secretKey: longenough, topicPerms: [t=ALL]}]", "'ALL' is not a right"),
        ("accounts: [{accessKey: longenough, secretKey: longenough, defaultTopicPerm: X}]", "'X' is not a right"),
        ("accounts: [{accessKey: longenough, secretKey: longenough, whiteRemoteAddress: 1.2}]", "not text"),
        ("globalWhiteRemoteAddresses: [1.2.3]", "four numbers"),
        ("accounts:\n  - {accessKey: twice-there, secretKey: longenough}\nx: [", "is not valid YAML in line"),
        ("accounts: [{accessKey: same-key, secretKey: s123456}, {accessKey: same-key, secretKey: s123456}]", "twice"),
        ("!!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("accounts:\n  - accessKey: someone\n    secretKey: *longenough", "is not valid YAML in line 3"),
        ("accounts:\n  - accessKey: someone\n    secretKey: !longenough x", "is not valid YAML in line 3"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence_without_secrets(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadSettings) as refused:
        loaded(tmp_path, text)
    assert words in str(refused.value)
    assert "longenough" not in str(refused.value).replace("account longenough", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cannot be read"):
        Accounts.load(tmp_path / "none.yml")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "::1"]),
        ("10.1.*.*", ["10.1.0.0", "10.1.255.9"], ["10.2.0.0"]),
        ("10.1.2.3-60", ["10.1.2.3", "10.1.2.60"], ["10.1.2.2", "10.1.2.61"]),
        ("10.1.2.{3,7}", ["10.1.2.3", "10.1.2.7"], ["10.1.2.5"]),
        ("10.1.2.3,10.1.2.9", ["10.1.2.3", "10.1.2.9"], ["10.1.2.5"]),
        ("10.1.0.0/16", ["10.1.9.9"], ["10.2.0.0"]),
        ("fe80::/10", ["fe80::1"], ["::1", "10.1.2.3"]),
        ("*", ["10.1.2.3", "::1"], []),
        ("*.*.*.*", ["10.1.2.3"], []),
        ("", [], ["127.0.0.1"]),
    ],
)
def test_patterns_of_addresses(pattern: str, yes: list[str], no: list[str]) -> None:
    matches = matcher(pattern)
    assert [matches(address) for address in yes] == [True] * len(yes)
    assert [matches(address) for address in no] == [False] * len(no)


@pytest.mark.parametrize("pattern", ["1.2.3", "1.2.3.4.5", "1.2.3.x", "1.2.3.9-3", "1.2.3.300", "1.2.3.{4", "host"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"not an address"):
        matcher(pattern)
