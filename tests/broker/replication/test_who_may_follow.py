"""A slave proves that it may follow where access is controlled, and its master that it may be followed; the log goes
through TLS where that is wanted."""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from broker.conftest import Run
from support.brokers import ok
from support.clusters import ScriptedSlave, caught_up, master, same_log, slave
from support.core_clients import PlainClient
from support.loopback import make_authority, make_certificate, until

from penstock.broker.operations_as_plain_calls import Denied, host_text
from penstock.broker.replication import slave as slave_module
from penstock.broker.replication.config_sync import MasterLink
from penstock.broker.replication.replication_authentication import (
    MAX_TICKETS,
    TICKET_S,
    FollowTickets,
    NoMasterProof,
    check_proof,
    proof_of,
)
from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.admin import Follow, FollowReply
from penstock.protocol.signing import sign
from penstock.remoting.connection import Connection
from penstock.store import Message, Settings

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
            assert "must first ask for a ticket" in caplog.text

    run(go())


def test_a_ticket_is_for_one_port_and_no_other_process_of_the_host(
    run: Run, tmp_path: Path, controlled: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """An administrator, as the console on the broker's own host, asks something; another process connects."""

    async def go() -> None:
        async with master(tmp_path / "m", **controlled) as m:
            m.store.put(Message("orders", b"one"))
            admin = await m.client(signer=lambda command: sign(command, "the-slave", "very-secret"))
            ok(await admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO))
            ok(await admin.ask(RequestCode.PENSTOCK_FOLLOW, nonce="n", port=1))
            stranger = await ScriptedSlave.open(m)
            stranger.report(0)
            assert await stranger.until_closed() == b""
            assert "must first ask for a ticket" in caplog.text

    run(go())


def test_a_ticket_is_used_once_and_ends_soon() -> None:
    now = 0.0
    tickets = FollowTickets(None, lambda: now)
    slave = PlainClient("10.0.0.8")
    for port in (1000, 1001):
        tickets.give(slave, Follow(nonce="n", port=port))
    tickets.give(slave, Follow(nonce="n"))
    assert not tickets.take("10.0.0.9", 1000)
    assert not tickets.take("10.0.0.8", 1002)
    assert not tickets.take("10.0.0.8", 0)
    assert tickets.take("10.0.0.8", 1000)
    assert not tickets.take("10.0.0.8", 1000)
    now = TICKET_S + 1
    assert not tickets.take("10.0.0.8", 1001)
    for port in range(MAX_TICKETS):
        tickets.give(slave, Follow(nonce="n", port=port + 1))
    with pytest.raises(Refusal):
        tickets.give(slave, Follow(nonce="n", port=60_000))


# -- who may be followed -------------------------------------------------------------------------------------


def test_a_slave_with_access_control_follows_a_master_that_proves_itself(
    run: Run, tmp_path: Path, controlled: dict[str, Any]
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", **controlled) as m:
            m.store.put(Message("orders", b"one"))
            own = {**controlled, "ha_account_file": account(tmp_path, "the-slave")}
            async with slave(tmp_path / "s", m, **own) as s:
                await caught_up(m, s)
                same_log(m.store, s.store)

    run(go())


@pytest.mark.parametrize("proof", ["auto", "required", "off"])
def test_a_slave_follows_a_master_that_proves_nothing_only_if_told_so(
    run: Run, tmp_path: Path, controlled: dict[str, Any], caplog: pytest.LogCaptureFixture, proof: str
) -> None:
    """An impostor answers every request and sends a log, but does not know the secret."""

    async def go() -> None:
        async with master(tmp_path / "m") as impostor:
            impostor.store.put(Message("orders", b"one"))
            impostor.broker.state.topics.create_for_send_back("evil", 1)
            own = {**controlled, "ha_account_file": account(tmp_path, "the-slave"), "ha_master_proof": proof}
            async with slave(tmp_path / "s", impostor, **own) as s:
                if proof == "off":
                    await caught_up(impostor, s)
                    return
                await until(lambda: "did not prove that it knows the secret" in caplog.text)
                assert s.store.log.queue.files == ()
                assert s.broker.state.topics.find("evil") is None

    run(go())


def test_a_slave_with_access_control_needs_an_account_or_has_to_be_told(
    run: Run, tmp_path: Path, controlled: dict[str, Any]
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            with pytest.raises(BadSettings, match="haMasterProof=off"):
                async with slave(tmp_path / "s", m, **controlled):
                    pass
            with pytest.raises(BadSettings, match="auto, required or off"):
                async with slave(tmp_path / "s", m, ha_master_proof="perhaps"):
                    pass

    run(go())


def test_a_proof_is_for_one_question_and_one_address() -> None:
    asked, here = Follow(nonce="mine", port=7), ("10.0.0.7", 10911)
    answer = FollowReply(nonce="theirs", ha_address="10.0.0.7:10912")
    answer.proof = proof_of("very-secret", asked, answer, here)
    check_proof("very-secret", asked, answer, here)
    moved = FollowReply(nonce="theirs", ha_address="10.6.6.6:10912", proof=answer.proof)
    nothing = FollowReply(nonce="theirs", ha_address="10.0.0.7:10912", proof="\u00e9")
    for secret, question, reply, address in (
        ("other-secret", asked, answer, here),
        ("very-secret", Follow(nonce="another", port=7), answer, here),
        ("very-secret", Follow(nonce="mine", port=8), answer, here),
        ("very-secret", asked, answer, ("10.6.6.6", 10911)),  # who passed the question on
        ("very-secret", asked, moved, here),
        ("very-secret", asked, nothing, here),
    ):
        with pytest.raises(NoMasterProof):
            check_proof(secret, question, reply, address)


def test_a_name_server_cannot_send_a_slave_to_another_log(run: Run, tmp_path: Path, controlled: dict[str, Any]) -> None:
    async def go() -> None:
        own = {"ha_account_file": account(tmp_path, "the-slave"), "ha_master_proof": "required"}
        async with master(tmp_path / "m", **controlled) as m:
            link = MasterLink(Settings.dev(), BrokerSettings(**own))
            clients, log = host_text(*m.address), host_text(*cast(Any, m.broker.replication.listens_at))
            link.set_addresses(log, clients)
            await link.ask_for_ticket(1)
            link.set_addresses("10.6.6.6:10912", clients)
            with pytest.raises(NoMasterProof, match=r"a name server says .* from 10\.6\.6\.6:10912"):
                await link.ask_for_ticket(1)
            link.close()

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
            assert m.broker.replication.listens_at is not None
            for _ in range(40):  # whose handshakes fail
                _, stranger = await asyncio.open_connection(*m.broker.replication.listens_at)
                stranger.write(b"no handshake at all")
                stranger.close()
                await stranger.wait_closed()
            async with slave(tmp_path / "again", m, store={"broker": trusting}) as s:
                await caught_up(m, s)
            async with slave(tmp_path / "plain", m) as s:
                await until(lambda: "cannot follow the master" in caplog.text)
                assert s.store.log.queue.files == ()

    run(go())
