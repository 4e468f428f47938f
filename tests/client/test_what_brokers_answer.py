"""Answers that a healthy broker seldom gives, and what a client sends: with a scripted broker."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.clients import FakeCluster
from support.loopback import make_authority, make_certificate

from penstock.client import (
    ClientConfig,
    Credentials,
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushOptions,
    SendStatus,
    assigned_queues,
)
from penstock.errors import BadSettings, NoAnswer, Refused, Unreachable
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import is_signed_with
from penstock.remoting.connection import Connection
from penstock.testing import broker

if TYPE_CHECKING:
    from client.conftest import Run

STORED = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"}
BOUNDS = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}


def answers(*codes: int) -> dict[int, object]:
    """A broker that answers sends with these codes, one after the other, the last one for ever."""
    left = list(codes)

    def send(connection: Connection, command: Command) -> Command:
        code = left.pop(0) if len(left) > 1 else left[0]
        return command.reply(code, "so it is", STORED)

    return {RequestCode.SEND_MESSAGE_V2: send, RequestCode.SEND_BATCH_MESSAGE: send}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.SEND_OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_a_message_that_is_stored_less_safely_is_a_result_and_no_error(run: Run, code: int, status: SendStatus) -> None:
    async def main() -> None:
        async with FakeCluster(answers(code)).running() as fake, Producer("PID", fake.namesrv) as producer:  # type: ignore[arg-type]
            result = await producer.send(Message("T", b"x"))
            assert (result.status, result.ok, result.queue_offset) == (status, code == 0, 5)

    run(main())


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE])
def test_a_broker_that_is_busy_is_asked_again_with_the_same_message(run: Run, code: int) -> None:
    async def main() -> None:
        async with FakeCluster(answers(code, code, 0)).running() as fake, Producer("PID", fake.namesrv) as producer:  # type: ignore[arg-type]
            assert (await producer.send(Message("T", b"x"))).ok
            sent = fake.of(RequestCode.SEND_MESSAGE_V2)
            assert len(sent) == 3
            assert len({command.ext["i"] for command in sent}) == 1  # UNIQ_KEY among them

    run(main())


def test_an_answer_that_will_not_change_is_raised_at_once(run: Run) -> None:
    async def main() -> None:
        async with FakeCluster(answers(13)).running() as fake, Producer("PID", fake.namesrv) as producer:  # type: ignore[arg-type]
            with pytest.raises(Refused, match=r"so it is \(MESSAGE_ILLEGAL from") as caught:
                await producer.send(Message("T", b"x"))
            assert (caught.value.code, caught.value.remark) == (13, "so it is")
            assert len(fake.of(RequestCode.SEND_MESSAGE_V2)) == 1

    run(main())


def test_a_broker_that_does_not_answer_is_no_answer(run: Run) -> None:
    async def main() -> None:
        silent = {RequestCode.SEND_MESSAGE_V2: lambda connection, command: None}
        options = ProducerOptions(timeout_s=0.2)
        async with (
            FakeCluster(silent).running() as fake,
            Producer("PID", fake.namesrv, options=options) as producer,
        ):
            with pytest.raises(NoAnswer):
                await producer.send(Message("T", b"x"))

    run(main())


def test_what_is_sent_is_the_v2_form_with_every_field(run: Run) -> None:
    async def main() -> None:
        async with FakeCluster(answers(0)).running() as fake, Producer("PID", fake.namesrv) as producer:  # type: ignore[arg-type]
            await producer.send(Message("T", b"x", tags="A", flag=3))
            (sent,) = fake.of(RequestCode.SEND_MESSAGE_V2)
            assert {name: sent.ext[name] for name in "abcdefhjkm"} == {
                "a": "PID",
                "b": "T",
                "c": "TBW102",
                "d": "4",
                "e": "0",
                "f": "0",
                "h": "3",
                "j": "0",
                "k": "false",
                "m": "false",
            }
            assert not sent.binary
            assert sent.language.name == "PYTHON"
            assert dict(piece.split("\x01") for piece in sent.ext["i"].split("\x02")).keys() == {"TAGS", "UNIQ_KEY"}

    run(main())


def test_every_request_is_signed_with_the_account(run: Run) -> None:
    async def main() -> None:
        credentials = Credentials("app", "secret key", "token")
        assert "secret" not in repr(ClientConfig("h:1", credentials=credentials))
        async with FakeCluster(answers(0)).running() as fake:  # type: ignore[arg-type]
            config = ClientConfig(fake.namesrv, credentials=credentials)
            async with Producer("PID", config) as producer:
                await producer.send(Message("T", b"x"))
            codes = {command.code for command in fake.asked}
            assert codes == {105, RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2, RequestCode.UNREGISTER_CLIENT}
            for command in fake.asked:
                assert (command.ext["AccessKey"], command.ext["SecurityToken"]) == ("app", "token")
                assert is_signed_with(command, "secret key")
                assert not is_signed_with(command, "another key")

    run(main())


def test_the_next_pull_goes_where_the_broker_suggests_and_commits_nothing_at_a_slave(run: Run) -> None:
    async def main() -> None:
        def pull(connection: Connection, command: Command) -> Command:
            return command.reply(19, "NO_NEW_MSG", {**BOUNDS, "suggestWhichBrokerId": "1"})

        fake = FakeCluster({RequestCode.PULL_MESSAGE: pull}, broker_ids=(0, 1))
        async with fake.running(), PullConsumer("CID", fake.namesrv) as consumer:
            (queue,) = await consumer.queues("T")
            assert (await consumer.pull(queue, 1)).status is PullStatus.NO_NEW_MSG
            assert consumer._fetcher._suggested[queue] == 1
            assert (await consumer.pull(queue, 1)).next_offset == 1

    run(main())


def test_clients_speak_tls_and_trust_only_whom_they_are_told_to(run: Run, tmp_path: Path) -> None:
    authority, stranger = make_authority(tmp_path, "authority"), make_authority(tmp_path, "stranger")
    own = make_certificate(tmp_path, "broker", authority)
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.certificate,
        "tls.server.keyPath": own.key,
    }

    async def main(namesrv: str) -> None:
        trusting = {"tls.enable": "true", "tls.client.trustCertPath": str(authority.certificate)}
        async with Producer("PID", ClientConfig(namesrv, tls=trusting)) as producer:
            assert (await producer.send(Message("orders", b"x"))).ok
        context = ssl.create_default_context(cafile=str(stranger.certificate))
        context.check_hostname = False
        async with Producer("PID", ClientConfig(namesrv, tls=context)) as producer:
            with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
                await producer.send(Message("orders", b"x"))
        async with Producer("PID", namesrv) as producer:
            with pytest.raises(Unreachable):
                await producer.send(Message("orders", b"x"))

    with broker(["orders"], settings=settings) as b:
        run(main(b.namesrv))
    with pytest.raises(BadSettings, match="trusted certificates cannot be read"):
        ClientConfig("h:1", tls={"tls.enable": "true", "tls.client.trustCertPath": "no such file"})


def test_the_first_commit_of_a_group_goes_alone_because_java_loses_one_of_two(run: Run) -> None:
    events: list[str] = []

    def commit(connection: Connection, command: Command) -> None:
        def answer() -> None:
            events.append("answered")
            connection.send(command.reply(ResponseCode.SUCCESS))

        events.append("asked")
        asyncio.get_running_loop().call_later(0.2, answer)

    async def main() -> None:
        async with (
            FakeCluster({RequestCode.UPDATE_CONSUMER_OFFSET: commit}).running() as fake,
            PullConsumer("CID", fake.namesrv) as consumer,
        ):
            queues = [MessageQueue(broker_name="fake", queue_id=number, topic="T") for number in range(3)]
            for _ in range(2):
                await asyncio.gather(*(consumer.offsets.commit("CID", queue, 5) for queue in queues))

    run(main())
    one, three = ["asked", "answered"], ["asked"] * 3 + ["answered"] * 3
    assert events == [*one, "asked", "asked", "answered", "answered", *three]


def test_after_a_pull_that_fails_at_a_slave_the_next_one_goes_to_the_master(run: Run) -> None:
    refuses = [False, True, False]

    def pull(connection: Connection, command: Command) -> Command:
        if refuses.pop(0):
            return command.reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "the slave does not know the group")
        return command.reply(19, "NO_NEW_MSG", {**BOUNDS, "suggestWhichBrokerId": "1"})

    async def main() -> None:
        fake = FakeCluster({RequestCode.PULL_MESSAGE: pull}, broker_ids=(0, 1))
        async with fake.running(), PullConsumer("CID", fake.namesrv) as consumer:
            (queue,) = await consumer.queues("T")
            await consumer.pull(queue, 1)
            assert consumer._fetcher._choose_broker(queue)[0] == 1
            with pytest.raises(Refused):
                await consumer.pull(queue, 1)
            assert consumer._fetcher._choose_broker(queue)[0] == 0

    run(main())


@pytest.mark.parametrize("code", [ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED])
def test_a_consumer_pauses_where_a_broker_has_neither_messages_nor_another_offset(
    run: Run, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As a slave answers that lags behind the group's offset, while its master is down."""
    monkeypatch.setattr(assigned_queues, "_MIN_PAUSE_S", 1000.0)
    asked = asyncio.Event()

    def pull(connection: Connection, command: Command) -> Command:
        asked.set()
        return command.reply(code, "not here", {**BOUNDS, "nextBeginOffset": "7", "suggestWhichBrokerId": "0"})

    async def main() -> None:
        handlers = {
            RequestCode.GET_MAX_OFFSET: lambda connection, command: command.reply(0, None, {"offset": "7"}),
            RequestCode.PULL_MESSAGE: pull,
        }
        options = PushOptions(broadcast=True)
        async with (
            FakeCluster(handlers).running() as fake,
            PushConsumer("CID", print, fake.namesrv, subscriptions={"T": "*"}, options=options),
        ):
            await asked.wait()
            await asyncio.sleep(0.1)  # time for hundreds of pulls
            assert len(fake.of(RequestCode.PULL_MESSAGE)) == 1

    run(main())
