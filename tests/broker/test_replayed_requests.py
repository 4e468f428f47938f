"""A sealed request is refused if it is sent again, or as another request; and administration from afar needs TLS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, ok
from support.core_clients import PlainClient

from penstock.broker.access import Access
from penstock.broker.operations_as_plain_calls import Client, Denied, Operation
from penstock.broker.replay_protection import MAX_AGE_MS, WINDOW, ReplayGuard
from penstock.client import Credentials
from penstock.errors import BadRequest
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import SEAL, RequestSigner, is_signed_with, seal_of, sign

if TYPE_CHECKING:
    from broker.conftest import Run

ADMIN = "the-admin", "very-secret"


@pytest.fixture
def controlled(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n- {accessKey: the-admin, secretKey: very-secret, admin: true}\n")
    path.chmod(0o600)
    return {"acl_enable": True, "acl_file": path}


async def send_again(client: RawClient, recorded: dict[str, str], code: RequestCode) -> Command:
    """Sends recorded arguments, with their signature, as a request with this code."""
    return await client.connection.request(Command(code, dict(recorded)), 60.0)


# -- over the network ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rename", [False, True])
def test_a_recorded_read_is_not_accepted_as_a_deletion(
    home: BrokerHome, run: Run, controlled: dict[str, Any], rename: bool
) -> None:
    """With `rename`, the attacker gives the seal's argument another name: names are not signed."""

    async def check() -> None:
        async with home.running(**controlled) as broker:
            client = await broker.client()
            broker.state.topics.create_for_send_back("orders", 1)
            read = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
            RequestSigner(*ADMIN).sign(read)
            recorded = dict(read.ext)
            if rename:
                seal = recorded.pop(SEAL)
                recorded |= {"0": seal[:5], "1": seal[5:]}
            reply = await send_again(client, recorded, RequestCode.DELETE_TOPIC_IN_BROKER)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "signed as another request" in (reply.remark or "")
            assert broker.state.topics.find("orders") is not None

    run(check())


def test_a_request_of_a_penstock_client_is_accepted_once(
    home: BrokerHome, run: Run, controlled: dict[str, Any]
) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            client = await broker.client()
            signer = Credentials(*ADMIN).signer()
            for _ in range(3):
                read = Command(RequestCode.GET_BROKER_RUNTIME_INFO)
                signer.sign(read)
                recorded = dict(read.ext)
                ok(await send_again(client, recorded, RequestCode.GET_BROKER_RUNTIME_INFO))
                reply = await send_again(client, recorded, RequestCode.GET_BROKER_RUNTIME_INFO)
                assert reply.code == ResponseCode.SYSTEM_ERROR
                assert "sent again" in (reply.remark or "")

    run(check())


def test_what_a_java_client_signs_is_accepted_as_before(home: BrokerHome, run: Run, controlled: dict[str, Any]) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            client = await broker.client(signer=lambda command: sign(command, *ADMIN))
            for _ in range(2):
                ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO))

    run(check())


# -- the guard -----------------------------------------------------------------------------------------------


def test_each_number_of_a_session_is_accepted_once_in_any_order() -> None:
    guard = ReplayGuard(lambda: 0)
    order = [5, 3, 4, 1, 9, 2, 9 + WINDOW, 10]
    for number in order:
        assert guard.refusal("a", "s", number, 0) == ""
    for number in order:
        assert "sent again" in guard.refusal("a", "s", number, 0)
    assert "sent again" in guard.refusal("a", "s", 6, 0)  # too far behind to know
    assert guard.refusal("a", "other", 5, 0) == ""
    assert guard.refusal("b", "s", 5, 0) == ""


def test_a_request_is_accepted_only_near_its_time_and_old_sessions_are_forgotten() -> None:
    now = 10 * MAX_AGE_MS
    guard = ReplayGuard(lambda: now)
    assert guard.refusal("a", "s", 1, now - MAX_AGE_MS) == ""
    assert guard.refusal("a", "s", 2, now + MAX_AGE_MS) == ""
    for wrong in (now - MAX_AGE_MS - 1, now + MAX_AGE_MS + 1):
        assert "clock" in guard.refusal("a", "s", 3, wrong)
    once = guard.budget.used
    now += 3 * MAX_AGE_MS
    assert guard.refusal("a", "t", 1, now) == ""
    assert guard.budget.used == once
    assert "clock" in guard.refusal("a", "s", 2, now - 2 * MAX_AGE_MS)


def test_sessions_have_a_budget_for_each_account() -> None:
    guard = ReplayGuard(lambda: 0)
    guard.budget.per_client = 10_000
    with pytest.raises(Refusal, match="sessions of sealed requests of one account"):
        [guard.refusal("a", f"session {number}", 1, 0) for number in range(1000)]
    assert guard.refusal("b", "s", 1, 0) == ""
    assert guard.refusal("a", "session 0", 2, 0) == ""


def test_a_seal_is_read_from_the_signed_text() -> None:
    command = Command(215, {"topic": "orders", "AccessKey": "early"})
    RequestSigner("ak", "sk", clock=lambda: 1234).sign(command)
    seal = seal_of(command)
    assert seal is not None
    assert (seal.code, seal.time_ms, seal.number) == (215, 1234, 1)
    assert is_signed_with(command, "sk")
    plain = Command(215, {"topic": "orders"})
    sign(plain, "ak", "sk")
    assert seal_of(plain) is None
    cut = Command(215, {"0": command.ext[SEAL][:30]})
    with pytest.raises(BadRequest):
        seal_of(cut)


# -- administration from afar --------------------------------------------------------------------------------


def admit_of(access: Access, is_slave: Callable[[Client], bool], *, for_slaves: bool) -> Callable[[Client], None]:
    operation = Operation("show", lambda client: None, is_administration=True, for_slaves=for_slaves)
    admit = access.admission(is_slave)(operation)
    assert admit is not None
    return admit


def test_administration_from_another_host_needs_tls_or_a_setting(controlled: dict[str, Any]) -> None:
    access = Access(controlled["acl_file"])
    near, far, far_with_tls = (PlainClient(host, account="the-admin") for host in ("127.0.0.1", "10.0.0.1", "10.0.0.2"))
    far_with_tls.secure = True
    admit = admit_of(access, lambda client: False, for_slaves=True)
    admit(near)
    admit(far_with_tls)
    with pytest.raises(Denied, match="needs TLS"):
        admit(far)
    admit_of(access, lambda client: True, for_slaves=True)(far)
    with pytest.raises(Denied, match="needs TLS"):
        admit_of(access, lambda client: True, for_slaves=False)(far)
    allowing = Access(controlled["acl_file"], plain_administration=True)
    admit_of(allowing, lambda client: False, for_slaves=False)(far)
