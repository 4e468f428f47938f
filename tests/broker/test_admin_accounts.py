"""Accounts are shown to administrators, without secrets, and changed in their file alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, Signer, ok
from support.loopback import until

from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.signing import sign

if TYPE_CHECKING:
    from broker.conftest import Run

SECRET = "very-secret"
FILE = f"""
globalWhiteRemoteAddresses: [10.0.0.*, 192.168.1.7]
accounts:
- {{accessKey: the-admin, secretKey: {SECRET}, admin: true}}
- accessKey: reporting
  secretKey: {SECRET}
  whiteRemoteAddress: 10.1.1.1
  defaultGroupPerm: SUB
  topicPerms: [orders=SUB, audit=SUB|PUB]
  groupPerms: [CID_reports=DENY]
"""


def by(account: str) -> Signer:
    return lambda command: sign(command, account, SECRET)


@pytest.fixture
def controlled(tmp_path: Path) -> dict[str, Any]:
    """Settings of a broker with access control."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    path.chmod(0o600)
    return {"acl_enable": True, "acl_file": path}


def test_an_administrator_sees_the_accounts_and_no_secret(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            client = await broker.client(signer=by("the-admin"))
            reply = ok(await client.ask(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG))
            assert SECRET.encode() not in bytes(reply.body)
            found = json.loads(reply.body)
            assert found["globalWhiteAddrs"] == ["10.0.0.*", "192.168.1.7"]
            assert [each["accessKey"] for each in found["plainAccessConfigs"]] == ["the-admin", "reporting"]
            assert found["plainAccessConfigs"][1] == {
                "accessKey": "reporting",
                "secretKey": "******",
                "whiteRemoteAddress": "10.1.1.1",
                "admin": False,
                "defaultTopicPerm": "DENY",
                "defaultGroupPerm": "SUB",
                "topicPerms": ["orders=SUB", "audit=PUB|SUB"],
                "groupPerms": ["CID_reports=DENY"],
            }

    run(check())


def test_the_version_moves_on_when_the_file_was_read_again(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            client = await broker.client(signer=by("the-admin"))
            path: Path = controlled["acl_file"]
            for counter, written_at in ((1, None), (2, 1_700_000_000)):
                if written_at is not None:
                    os.utime(path, (written_at, written_at))
                    access = broker.broker.access
                    assert access is not None
                    await until(lambda access=access: access.reads == 2)
                reply = ok(await client.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO))
                version = {"counter": counter, "timestamp": path.stat().st_mtime_ns // 1_000_000}
                assert json.loads(reply.ext["version"]) == version
                assert json.loads(reply.ext["allAclFileVersion"]) == {"plain_acl.yml": version}
                assert reply.ext["brokerName"] == "broker-a"
                assert reply.ext["clusterName"] == "DefaultCluster"
                assert reply.ext["brokerAddr"] == broker.store.settings.store_host

    run(check())


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    ],
)
def test_accounts_are_not_changed_over_the_network(
    home: BrokerHome, run: Run, controlled: Any, code: RequestCode
) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            client = await broker.client(signer=by("the-admin"))
            arguments = {"accessKey": "reporting", "secretKey": "another-one", "globalWhiteAddrs": "*"}
            reply = await client.ask(code, **arguments)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "access file" in (reply.remark or "")
            assert controlled["acl_file"].read_text() == FILE

    run(check())


@pytest.mark.parametrize("code", [RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, RequestCode.GET_BROKER_CLUSTER_ACL_INFO])
def test_nobody_else_sees_them(home: BrokerHome, run: Run, controlled: Any, code: RequestCode) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            reply = await (await broker.client(signer=by("reporting"))).ask(code)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "for administrators" in (reply.remark or "")
            assert reply.body == b""
        async with home.running() as broker:  # without access control
            reply = await (await broker.client()).ask(code)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "aclEnable" in (reply.remark or "")

    run(check())
