"""A slave proves that it may follow where access is controlled; the log goes through TLS where that is wanted."""

from __future__ import annotations

from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from broker.conftest import Run
from support.brokers import ok
from support.clusters import ScriptedSlave, caught_up, master, same_log, slave
from support.loopback import make_authority, make_certificate, until

from penstock.broker.core import Denied
from penstock.broker.replication import slave as slave_module
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.store import Message

COPIED = (
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


@pytest.fixture
def controlled(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "accounts:\n- {accessKey: the-slave, secretKey: very-secret, admin: true}\n"
        "- {accessKey: producer, secretKey: very-secret, topicPerms: [orders=PUB]}\n"
    )
    path.chmod(0o600)
    return {"acl_enable": True, "acl_file": path}


def account(tmp_path: Path, key: str) -> Path:
    path = tmp_path / "account.yml"
    path.write_text(f"accessKey: {key}\nsecretKey: very-secret\n")
    path.chmod(0o600)
    return path


def test_a_slave_with_an_administrators_account_follows(run: Run, tmp_path: Path, controlled: dict[str, Any]) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", **controlled) as m:
            m.store.put(Message("orders", b"one"))
            async with slave(tmp_path / "s", m, ha_account_file=account(tmp_path, "the-slave")) as s:
                await caught_up(m, s)
                same_log(m.store, s.store)
                copy = s.broker.replication._copy
                assert copy is not None
                await until(lambda: copy.copies > 0)

    run(go())


@pytest.mark.parametrize("key", ["producer", "nobody"])
def test_a_slave_without_such_an_account_gets_nothing(
    run: Run, tmp_path: Path, controlled: dict[str, Any], caplog: pytest.LogCaptureFixture, key: str
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", **controlled) as m:
            m.store.put(Message("orders", b"one"))
            async with slave(tmp_path / "s", m, ha_account_file=account(tmp_path, key)) as s:
                await until(lambda: "cannot follow the master" in caplog.text)
                assert s.store.log.queue.files == ()

    run(go())


def test_a_connection_without_proof_is_cut_off(
    run: Run, tmp_path: Path, controlled: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", **controlled) as m:
            m.store.put(Message("orders", b"one"))
            stranger = await ScriptedSlave.open(m)
            stranger.report(0)
            assert await stranger.until_closed() == b""
            assert "must first send a request signed by an administrator" in caplog.text

    run(go())


class FarClient(SimpleNamespace):
    """A client of another host. Hashed by identity, as connections are."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def test_a_slave_on_another_machine_may_ask_for_what_slaves_copy_and_for_nothing_else(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", ha_allow_from="10.1.0.0/16") as m:
            for host, is_slave in (("10.1.2.3", True), ("10.2.2.3", False)):
                caller = cast(Connection, FarClient(peer=(host, 1), is_loopback=False))
                for code in (*COPIED, RequestCode.GET_BROKER_CONFIG):
                    handler = m.broker.handlers[code]
                    if is_slave and code in COPIED:
                        reply = handler(caller, Command(code))
                        ok(cast(Command, await reply if isawaitable(reply) else reply))
                        continue
                    with pytest.raises(Denied) as denied:
                        handler(caller, Command(code))
                    assert denied.value.code == ResponseCode.NO_PERMISSION, (host, code)

    run(go())


def test_an_address_that_the_access_file_names_white_may_follow_without(
    run: Run, tmp_path: Path, controlled: dict[str, Any]
) -> None:
    path: Path = controlled["acl_file"]
    path.write_text("globalWhiteRemoteAddresses: [127.0.0.1]\n" + path.read_text())

    async def go() -> None:
        async with master(tmp_path / "m", **controlled) as m:
            m.store.put(Message("orders", b"one"))
            java = await ScriptedSlave.open(m)
            java.report(0)
            assert (await java.frame())[0] == 0
            await java.close()

    run(go())


def test_the_log_goes_through_tls(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "_FIRST_RETRY_S", 0.05)
    authority = make_authority(tmp_path, "authority")
    own = make_certificate(tmp_path, "master", authority)
    theirs = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(own.certificate),
        "tls.server.keyPath": str(own.key),
    }
    trusting = {"tls.enable": "true", "tls.client.trustCertPath": str(authority.certificate)}

    async def go() -> None:
        async with master(tmp_path / "m", store={"broker": theirs}) as m:
            for number in range(50):  # more than the loop sends by itself
                m.store.put(Message("orders", b"%d" % number + bytes(50_000)))
            async with slave(tmp_path / "s", m, store={"broker": trusting}) as s:
                await caught_up(m, s)
                same_log(m.store, s.store)
            async with slave(tmp_path / "plain", m) as s:
                await until(lambda: "cannot follow the master" in caplog.text)
                assert s.store.log.queue.files == ()

    run(go())
