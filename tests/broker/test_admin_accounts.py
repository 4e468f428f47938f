"""Accounts are shown to administrators, without secrets, and changed by them where a setting allows it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.brokers import BrokerHome, Signer, ok
from support.loopback import until

from penstock.broker import access_file
from penstock.broker.access_file import change_access_file, set_account
from penstock.errors import BadSettings
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
                assert json.loads(reply.ext["allAclFileVersion"]) == {str(path): version}
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
def test_accounts_are_not_changed_over_the_network_by_default(
    home: BrokerHome, run: Run, controlled: Any, code: RequestCode
) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            client = await broker.client(signer=by("the-admin"))
            arguments = {"accessKey": "reporting", "secretKey": "another-one", "globalWhiteAddrs": "*"}
            reply = await client.ask(code, **arguments)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "access file" in (reply.remark or "")
            assert "aclChangeEnable" in (reply.remark or "")
            assert controlled["acl_file"].read_text() == FILE

    run(check())


UPDATE = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
DELETE = RequestCode.DELETE_ACL_CONFIG
ADDRESSES = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG


@pytest.fixture
def changeable(controlled: dict[str, Any]) -> dict[str, Any]:
    return {**controlled, "acl_change_enable": True}


def test_an_administrator_changes_accounts_where_that_is_allowed(home: BrokerHome, run: Run, changeable: Any) -> None:
    path: Path = changeable["acl_file"]

    async def check() -> None:
        async with home.running(**changeable) as broker:
            admin = await broker.client(signer=by("the-admin"))
            new = {"accessKey": "the-shop", "secretKey": "another-secret", "topicPerms": "orders=PUB,audit=DENY"}
            ok(await admin.ask(UPDATE, **new, admin=False, defaultGroupPerm="SUB", whiteRemoteAddress="10.9.9.9"))
            shop = await broker.client(signer=lambda command: sign(command, "the-shop", "another-secret"))
            ok(await shop.send("orders"))
            assert (await shop.send("audit")).code != ResponseCode.SUCCESS
            ok(await admin.ask(UPDATE, accessKey="the-shop", topicPerms="orders=DENY"))
            assert (await shop.send("orders")).code != ResponseCode.SUCCESS
            written = yaml.safe_load(path.read_text())["accounts"][-1]
            assert written == {
                "accessKey": "the-shop",
                "secretKey": "another-secret",
                "whiteRemoteAddress": "10.9.9.9",
                "defaultGroupPerm": "SUB",
                "topicPerms": ["orders=DENY"],
                "admin": False,
            }
            ok(await admin.ask(DELETE, accessKey="the-shop"))
            assert "the-shop" not in path.read_text()
            reply = await shop.send("orders")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            ok(await admin.ask(ADDRESSES, globalWhiteAddrs="10.0.0.{1,2},192.168.*.*", aclFileFullPath="/etc/passwd"))
            access = broker.broker.access
            assert access is not None
            assert access.accounts.white == ("10.0.0.{1,2}", "192.168.*.*")
            assert (access.accounts.is_white("10.0.0.2"), access.accounts.is_white("10.0.0.3")) == (True, False)
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.with_name("plain_acl.yml.bak").read_text() != path.read_text()
            assert {each.name for each in path.parent.iterdir() if "acl" in each.name} == {
                "plain_acl.yml",
                "plain_acl.yml.bak",
            }

    run(check())


def test_what_was_edited_by_hand_stays(home: BrokerHome, run: Run, changeable: Any) -> None:
    path: Path = changeable["acl_file"]

    async def check() -> None:
        async with home.running(**changeable) as broker:
            admin = await broker.client(signer=by("the-admin"))
            path.write_text(f"{FILE}- {{accessKey: 12345678, secretKey: {SECRET}}}\nnoneOfOurs: 7\n")
            ok(await admin.ask(UPDATE, accessKey="12345678", defaultTopicPerm="PUB"))
            written = yaml.safe_load(path.read_text())
            assert written["noneOfOurs"] == 7
            assert [each["accessKey"] for each in written["accounts"]] == ["the-admin", "reporting", 12345678]
            assert written["accounts"][1] == yaml.safe_load(FILE)["accounts"][1]

    run(check())


@pytest.mark.parametrize(
    ("code", "arguments", "why"),
    [
        (UPDATE, {"accessKey": ""}, "no accessKey given"),
        (UPDATE, {"accessKey": "short", "secretKey": "another-secret"}, "at least 7 characters"),
        (UPDATE, {"accessKey": "new-account"}, "secretKey is missing"),
        (UPDATE, {"accessKey": "reporting", "secretKey": "short"}, "at least 7 characters"),
        (UPDATE, {"accessKey": "reporting", "topicPerms": "orders"}, "is not a permission"),
        (UPDATE, {"accessKey": "reporting", "topicPerms": "orders=ALL"}, "is not a right"),
        (UPDATE, {"accessKey": "reporting", "whiteRemoteAddress": "10.0.0"}, "is not an address"),
        (UPDATE, {"accessKey": "the-admin", "admin": False}, "no account would be an administrator any more"),
        (DELETE, {"accessKey": "the-admin"}, "no account would be an administrator any more"),
        (DELETE, {"accessKey": "nobody"}, "there is no account nobody"),
        (ADDRESSES, {"globalWhiteAddrs": "10.0.0.*,here"}, "is not an address"),
    ],
)
def test_a_change_that_cannot_be_used_leaves_the_file(
    home: BrokerHome, run: Run, changeable: Any, code: int, arguments: dict[str, object], why: str
) -> None:
    async def check() -> None:
        async with home.running(**changeable) as broker:
            admin = await broker.client(signer=by("the-admin"))
            reply = await admin.ask(code, **arguments)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert why in (reply.remark or "")
            assert "another-secret" not in (reply.remark or "")
            assert changeable["acl_file"].read_text() == FILE
            assert [each.name for each in changeable["acl_file"].parent.glob("plain_acl*")] == ["plain_acl.yml"]

    run(check())


def test_the_file_does_not_grow_above_what_a_start_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    monkeypatch.setattr(access_file, "_MAX_BYTES", len(FILE) + 1000)
    with pytest.raises(BadSettings, match="the access file would be larger"):
        change_access_file(path, set_account("reporting", {"secretKey": "s" * 2000}))
    assert path.read_text() == FILE


def test_changes_at_the_same_time_are_all_made(home: BrokerHome, run: Run, changeable: Any) -> None:
    async def check() -> None:
        async with home.running(**changeable) as broker:
            admin = await broker.client(signer=by("the-admin"))
            keys = [f"account-{number}" for number in range(20)]
            asked = (admin.ask(UPDATE, accessKey=key, secretKey="another-secret") for key in keys)
            for reply in await asyncio.gather(*asked):
                ok(reply)
            access = broker.broker.access
            assert access is not None
            assert set(keys) < access.accounts.by_key.keys()

    run(check())


@pytest.mark.parametrize("code", [UPDATE, DELETE, ADDRESSES])
def test_only_administrators_change_them(home: BrokerHome, run: Run, changeable: Any, code: int) -> None:
    arguments = {"accessKey": "reporting", "secretKey": "another-one", "admin": True, "globalWhiteAddrs": "*"}

    async def check() -> None:
        async with home.running(**changeable) as broker:
            reply = await (await broker.client(signer=by("reporting"))).ask(code, **arguments)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "for administrators" in (reply.remark or "")
            assert changeable["acl_file"].read_text() == FILE
        async with home.running(acl_change_enable=True) as broker:  # without access control
            reply = await (await broker.client()).ask(code, **arguments)
            assert "aclEnable" in (reply.remark or "")

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
