"""Apache RocketMQ's administration tool, `mqadmin` of 4.9.8, against `penstock serve`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
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
