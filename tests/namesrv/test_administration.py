"""KV, permissions, deletion and settings, and who is allowed to change them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from namesrv.conftest import name_server, peer, topics

from penstock.errors import BadSettings, BadStore
from penstock.namesrv import NameServer, NamesrvSettings, RegisteredBroker
from penstock.namesrv.access import ADMINISTRATION, REGISTRATION, LocalRule
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.event_loop import run

A = RegisteredBroker(name="broker-a", address="127.0.0.1:10911")


def test_texts_are_put_got_listed_and_deleted() -> None:
    async def main() -> None:
        async with name_server() as (_, address), peer(address) as admin:
            here = {"namespace": "N", "key": "k"}
            missing = await admin.ask(RequestCode.GET_KV_CONFIG, here)
            assert (missing.code, missing.remark) == (22, "No config item, Namespace: N Key: k")
            await admin.ok(RequestCode.PUT_KV_CONFIG, here | {"value": "grün"})
            await admin.ok(RequestCode.PUT_KV_CONFIG, here | {"key": "j", "value": ""})
            assert (await admin.ok(RequestCode.GET_KV_CONFIG, here)).ext == {"value": "grün"}
            listed = await admin.ok(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
            assert msgspec.json.decode(listed.body) == {"table": {"j": "", "k": "grün"}}
            for key in ("k", "k", "j"):
                await admin.ok(RequestCode.DELETE_KV_CONFIG, here | {"key": key})
            gone = await admin.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
            assert gone.code == ResponseCode.QUERY_NOT_FOUND
            empty = await admin.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "", "key": "k", "value": "v"})
            assert empty.code == ResponseCode.SYSTEM_ERROR

    run(main())


def test_what_an_administrator_changes_is_logged_with_who_did_it(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> str:
        async with name_server() as (_, address), peer(address) as admin:
            await admin.ok(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
            await admin.ask(RequestCode.PUT_KV_CONFIG, {"namespace": "", "key": "k", "value": "v"})
            await admin.ok(RequestCode.GET_NAMESRV_CONFIG)
            await admin.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"noSuchSetting=1")
            await admin.ok(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
            host, port = admin.connection.local
            return f"{host}:{port}"

    with caplog.at_level(logging.INFO, "penstock.namesrv"):
        who = run(check())
    acts = [line for line in caplog.messages if line.startswith("administration")]
    assert acts[0] == f"administration: put KV namespace=n, key=k, value=v by={who}"
    assert acts[1].startswith(f"administration refused: put KV namespace=, key=k, value=v by={who}: the namespace or")
    assert acts[2].startswith(f"administration refused: change settings noSuchSetting=1 by={who}: unknown setting")
    assert acts[3] == f"administration: remove write permission brokerName=broker-a by={who}"
    assert len(acts) == 4


def test_texts_survive_a_restart_in_rocketmqs_file(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"

    async def write() -> None:
        async with name_server(kv_config_path=path) as (_, address), peer(address) as admin:
            for number in range(20):
                here = {"namespace": "N", "key": f"k{number % 3}", "value": str(number)}
                await admin.ok(RequestCode.PUT_KV_CONFIG, here)
            await admin.ok(RequestCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "k0"})

    async def read() -> None:
        async with name_server(kv_config_path=path) as (_, address), peer(address) as client:
            listed = await client.ok(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
            assert msgspec.json.decode(listed.body) == {"table": {"k1": "19", "k2": "17"}}

    run(write())
    assert json.loads(path.read_text()) == {"configTable": {"N": {"k1": "19", "k2": "17"}}}
    run(read())


def test_a_file_that_cannot_be_read_is_an_error_not_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable": 7}')
    with pytest.raises(BadStore, match="neither the file nor its backup can be read"):
        NameServer(NamesrvSettings(kv_config_path=path))


def test_a_brokers_write_permission_is_wiped_and_given_back() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as admin:
            server.register_local(A, topics("T", "U"))
            for code, count, perm in (
                (RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount", 4),
                (RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount", 6),
            ):
                reply = await admin.ok(code, {"brokerName": "broker-a"})
                assert reply.ext == {count: "2"}
                route = await admin.route("T")
                assert route is not None
                assert route.queue_datas[0].perm == perm

    run(main())


def test_a_topic_is_deleted_until_it_is_registered_anew() -> None:
    async def main() -> None:
        async with name_server() as (_, address), peer(address) as admin:
            await admin.register("broker-a", topics("T", "U"))
            await admin.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "Other"})
            assert await admin.brokers_of("T") == ["broker-a"]
            await admin.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
            await admin.register("broker-a", topics("T", "U"))
            assert await admin.brokers_of("T") == []
            await admin.register("broker-a", topics("T", "U", counter=2))
            assert await admin.brokers_of("T") == ["broker-a"]

    run(main())


def test_settings_are_shown_and_some_are_changed() -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as admin:
            shown = bytes((await admin.ok(RequestCode.GET_NAMESRV_CONFIG)).body).decode()
            assert "autoCreateTopicEnable=true\n" in shown
            assert f"listenPort={address[1]}\n" in shown
            await admin.ok(
                RequestCode.UPDATE_NAMESRV_CONFIG, body=b"autoCreateTopicEnable=false\nbrokerExpireSeconds=5"
            )
            assert (server.settings.auto_create_topic_enable, server.settings.broker_expire_seconds) == (False, 5)
            shown = bytes((await admin.ok(RequestCode.GET_NAMESRV_CONFIG)).body).decode()
            assert "autoCreateTopicEnable=false\n" in shown

    run(main())


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"brokerExpireSeconds=7\nkvConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION),
        (b"registerBrokerFrom=any", ResponseCode.NO_PERMISSION),
        (b"tls.server.keyPath=a", ResponseCode.NO_PERMISSION),
        (b"listenPort=1", ResponseCode.NO_PERMISSION),
        (b"nonsense=1", ResponseCode.SYSTEM_ERROR),
        (b"brokerExpireSeconds=never", ResponseCode.SYSTEM_ERROR),
        (b"brokerExpireSeconds=0", ResponseCode.SYSTEM_ERROR),
        (b"a=\\u00", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_nothing_that_is_not_on_the_list_is_changed_and_nothing_by_half(body: bytes, code: int) -> None:
    async def main() -> None:
        async with name_server() as (server, address), peer(address) as admin:
            before = server.settings
            reply = await admin.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
            assert reply.code == code
            assert ("unknown setting 'nonsense'" in (reply.remark or "")) is (body == b"nonsense=1")
            assert server.settings == before

    run(main())


def from_host(host: str) -> Connection:
    return cast(Connection, SimpleNamespace(is_loopback=host == "127.0.0.1", peer=(host, 1)))


@pytest.mark.parametrize("code", sorted(ADMINISTRATION | REGISTRATION))
def test_strangers_neither_administrate_nor_register(code: int) -> None:
    rule = LocalRule()
    assert rule(from_host("127.0.0.1"), Command(code)) is None
    refused = rule(from_host("192.0.2.1"), Command(code, opaque=3))
    assert refused is not None
    assert (refused.code, refused.opaque) == (ResponseCode.NO_PERMISSION, 3)


@pytest.mark.parametrize("code", [105, 106, 206, 224, 304, 101, 219])
def test_strangers_may_ask(code: int) -> None:
    assert LocalRule()(from_host("192.0.2.1"), Command(code)) is None


def test_brokers_may_be_let_in_from_elsewhere() -> None:
    register, put = Command(RequestCode.REGISTER_BROKER), Command(RequestCode.PUT_KV_CONFIG)
    some = LocalRule("10.0.0.0/8, 192.0.2.7")
    for host, welcome in (("10.1.2.3", True), ("192.0.2.7", True), ("192.0.2.8", False), ("2001:db8::1", False)):
        assert (some(from_host(host), register) is None) == welcome
        assert (LocalRule("any")(from_host(host), register) is None) is True
        assert LocalRule("any")(from_host(host), put) is not None
    with pytest.raises(BadSettings, match="registerBrokerFrom"):
        NamesrvSettings(register_broker_from="everywhere")


def test_another_rule_can_take_its_place() -> None:
    seen: list[int] = []

    def before(connection: Connection, command: Command) -> Command | None:
        seen.append(command.code)
        return command.reply(ResponseCode.NO_PERMISSION, "no") if command.code == 106 else None

    async def main() -> None:
        server = NameServer(before=before)
        address: Any = await server.start("127.0.0.1", 0)
        async with peer(address) as client:
            assert (await client.ask(106)).remark == "no"
            assert (await client.ask(206)).code == ResponseCode.SUCCESS
        await server.stop(1)

    run(main())
    assert seen == [106, 206]
