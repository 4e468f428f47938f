"""The log lines about acts of administrators: what, with which values, by whom; never a secret."""

from __future__ import annotations

import logging

import pytest

from penstock.observation.administrators_log import describe, is_secret, log_act
from penstock.protocol.headers.admin import UpdateAccount
from penstock.protocol.headers.groups import DeleteGroup

log = logging.getLogger("penstock.test")


def test_a_request_is_described_by_what_it_asks_for() -> None:
    assert describe(DeleteGroup(group_name="g")) == "group_name=g"
    assert describe({"namespace": "n", "key": "k"}) == "namespace=n, key=k"
    assert describe(b"maxMessageSize=7\nbrokerPermission=4\n") == "maxMessageSize=7, brokerPermission=4"
    assert describe(b"\\u00zz=1") == ""
    assert describe() == ""


def test_secrets_are_hidden_and_long_values_cut() -> None:
    account = UpdateAccount(access_key="operations", secret_key="hard-to-guess")
    assert describe(account) == "access_key=operations, secret_key=***"
    assert "hush" not in describe(b"tls.server.keyPassword=hush")
    assert not is_secret("groupName")
    assert len(describe({"name": "x" * 100_000})) < 300
    assert len(describe({f"name{number}": "x" * 100 for number in range(1000)})) < 1100


def test_a_line_says_who_from_where_and_why_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_act(log, "delete topic", "topic=orders", ("10.0.0.7", 5000), "operations")
        log_act(log, "clean queues", "", ("::1", 5000), None, "not now")
    assert caplog.messages == [
        "administration: delete topic topic=orders by=10.0.0.7:5000 account=operations",
        "administration refused: clean queues by=[::1]:5000: not now",
    ]
