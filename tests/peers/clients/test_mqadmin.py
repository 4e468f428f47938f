"""Apache RocketMQ's administration tool, `mqadmin` of 4.9.8, against `penstock serve`."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from peers.clients.conftest import Connect, bodies, message, wait_for_count
from support.brokers import Served
from support.peers import Talker

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]


class Admin:
    """One client, some messages, and the tool."""

    def __init__(self, served: Served, client: Talker) -> None:
        self.client = client
        self._served = served
        sent = [message("orders", f"order {i}", keys=f"k{i}", tags="paid") for i in range(12)]
        self.sent = client.ask("send", group="p", how="sync", messages=sent)
        client.ask("consume", name="c", group="readers", topic="orders")
        wait_for_count(client, "c", 12)

    def run(self, *arguments: str) -> str:
        answer = self.client.ask("mqadmin", arguments=[*arguments, "-n", self._served.namesrv])
        said: str = answer["said"]
        return said


@pytest.fixture
def admin(served: Served, java: Connect) -> Admin:
    return Admin(served, java(served.namesrv))


def test_the_cluster_and_its_topics_are_listed(served: Served, admin: Admin) -> None:
    clusters = admin.run("clusterList")
    assert "DefaultCluster" in clusters
    assert "broker-a" in clusters
    assert served.address in clusters
    topics = admin.run("topicList").split()
    assert {"orders", "TBW102", "%RETRY%readers"} <= set(topics)


def test_the_offsets_of_a_topic_are_shown(admin: Admin) -> None:
    lines = [line.split() for line in admin.run("topicStatus", "-t", "orders").splitlines() if "broker-a" in line]
    assert sum(int(line[3]) for line in lines) == 12
    assert {line[2] for line in lines} == {"0"}


def progress(admin: Admin) -> tuple[str, list[list[str]]]:
    """What `consumerProgress` says once the client has committed its offsets, which it does every five seconds."""
    deadline = time.monotonic() + 30
    while True:
        said = admin.run("consumerProgress", "-g", "readers")
        rows = [line.split() for line in said.splitlines() if line.startswith("orders")]
        if sum(int(row[4]) for row in rows) == 12 or time.monotonic() > deadline:
            return said, rows
        time.sleep(1)


def test_the_progress_of_a_group_is_shown(admin: Admin) -> None:
    said, rows = progress(admin)
    assert sum(int(row[3]) for row in rows) == 12
    assert sum(int(row[4]) for row in rows) == 12
    assert "Diff Total: 0" in said


def test_a_message_is_found_by_its_id_and_by_its_key(admin: Admin) -> None:
    by_id = admin.run("queryMsgById", "-i", admin.sent[3]["offset_msg_id"])
    assert "orders" in by_id
    assert "k3" in by_id
    by_key = admin.run("queryMsgByKey", "-t", "orders", "-k", "k5")
    assert admin.sent[5]["msg_id"] in by_key


def test_a_topic_is_made_and_changed(served: Served, admin: Admin) -> None:
    assert "success" in admin.run("updateTopic", "-b", served.address, "-t", "made", "-r", "3", "-w", "3")
    assert "made" in admin.run("topicList").split()
    assert admin.run("topicRoute", "-t", "made").count('"readQueueNums":3') == 1


def test_a_group_is_set_back_in_time(admin: Admin) -> None:
    progress(admin)  # a group without offsets cannot be set back
    said = admin.run("resetOffsetByTime", "-g", "readers", "-t", "orders", "-s", "0", "-f", "true")
    assert "orders" in said or "broker-a" in said, said
    found = wait_for_count(admin.client, "c", 24)
    assert sorted(bodies(found)) == sorted([f"order {i}" for i in range(12)] * 2)


def test_settings_are_changed_while_the_broker_runs(served: Served, admin: Admin) -> None:
    def change(name: str, value: str) -> str:
        return admin.run("updateBrokerConfig", "-b", served.address, "-k", name, "-v", value)

    for name, value in (
        ("fileReservedTime", "5"),
        ("deleteWhen", "03;15"),
        ("diskMaxUsedSpaceRatio", "60"),
        ("slaveReadEnable", "true"),
        ("maxMessageSize", "1000"),
        ("traceTopicEnable", "true"),
        ("defaultTopicQueueNums", "3"),
    ):
        assert "success" in change(name, value), name
        shown = admin.run("getBrokerConfig", "-b", served.address).splitlines()
        assert [line.split()[-1] for line in shown if line.split()[:1] == [name]] == [value]
    for name, value in (("fileReservdTime", "5"), ("flushDiskType", "SYNC_FLUSH"), ("deleteWhen", "25")):
        assert "success" not in change(name, value), "the tool prints the reason as a stack trace"


def test_settings_and_metrics_are_exported(admin: Admin, tmp_path: Path) -> None:
    delayed = [message("later", "x", delay=18) for _ in range(3)]
    admin.client.ask("send", group="p", how="sync", messages=delayed)
    for verb in ("exportConfigs", "exportMetrics"):
        assert "success" in admin.run(verb, "-c", "DefaultCluster", "-f", str(tmp_path))
    configs = json.loads((tmp_path / "configs.json").read_text())
    assert configs["clusterScale"]["masterBrokerSize"] == 1
    assert configs["brokerConfigs"]["broker-a"]["maxMessageSize"]
    assert configs["brokerConfigs"]["broker-a"]["useTLS"] == "false"
    metrics = json.loads((tmp_path / "metrics.json").read_text())["evaluateReport"]["broker-a"]
    assert int(metrics["runtimeEnv"]["cpuNum"]) >= 1
    assert metrics["runtimeQuota"]["oneDayNum"]["scheduleOneDayInNum"] == 3


def test_what_is_shown_is_what_java_shows(served: Served, admin: Admin) -> None:
    line = next(line for line in admin.run("clusterList").splitlines() if served.address in line)
    assert line.count("(0,0ms)") == 2, "a consumer that waits for messages is no load"
    assert re.search(rf"listenPort\s+=\s+{served.namesrv_port}\b", admin.run("getNamesrvConfig"))
    units = ("queryCq", "-t", "orders", "-q", "0", "-i", "0", "-b", served.address)
    assert "eval=false" in admin.run(*units)
    said = admin.run(*units, "-g", "readers")
    assert "eval=true" in said
    assert "Filter data" in said
    status = admin.run("brokerStatus", "-b", served.address)
    assert "[0~10ms]" in status
    assert re.search(r"EndTransactionQueueSize\s*:\s*0", status)


def test_accounts_are_changed_where_the_broker_allows_it(tmp_path: Path, java: Connect) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("globalWhiteRemoteAddresses: [127.0.0.1]\naccounts: []\n")
    with Served(tmp_path / "store", "aclEnable=true", f"aclFile={file}", "aclChangeEnable=true") as served:
        client = java(served.namesrv)

        def run(*arguments: str) -> str:
            where = ("-b", served.address, "-n", served.namesrv)
            said: str = client.ask("mqadmin", arguments=[*arguments, *where])["said"]
            return said

        change = ("-a", "the-shop", "-s", "another-secret", "-m", "true", "-t", "orders=PUB,audit=DENY")
        assert "success" in run("updateAclConfig", *change)
        assert yaml.safe_load(file.read_text())["accounts"] == [
            {
                "accessKey": "the-shop",
                "secretKey": "another-secret",
                "topicPerms": ["orders=PUB", "audit=DENY"],
                "admin": True,
            }
        ]
        assert str(file) in run("clusterAclConfigVersion")
        assert "success" in run("updateGlobalWhiteAddr", "-g", "127.0.0.1,10.0.0.*")
        assert yaml.safe_load(file.read_text())["globalWhiteRemoteAddresses"] == ["127.0.0.1", "10.0.0.*"]
        assert "success" in run("updateAclConfig", "-a", "the-other", "-s", "another-secret", "-m", "true")
        assert "success" in run("deleteAclConfig", "-a", "the-shop")
        assert [each["accessKey"] for each in yaml.safe_load(file.read_text())["accounts"]] == ["the-other"]


def test_the_version_of_the_accounts_is_shown_and_they_are_not_changed(tmp_path: Path, java: Connect) -> None:
    file = tmp_path / "plain_acl.yml"
    account = "{accessKey: reporting, secretKey: very-secret, topicPerms: [orders=PUB|SUB]}"
    file.write_text(f"globalWhiteRemoteAddresses: [127.0.0.1]\naccounts:\n- {account}\n")
    file.chmod(0o600)
    with Served(tmp_path / "store", "aclEnable=true", f"aclFile={file}") as served:
        client = java(served.namesrv)

        def run(*arguments: str) -> str:
            where = ("-b", served.address, "-n", served.namesrv)
            said: str = client.ask("mqadmin", arguments=[*arguments, *where])["said"]
            return said

        version = run("clusterAclConfigVersion")
        assert "broker-a" in version
        assert "plain_acl.yml" in version
        change = ("updateAclConfig", "-a", "reporting", "-s", "another-secret", "-m", "true")
        assert "success" not in run(*change)
        assert "another-secret" not in file.read_text()
