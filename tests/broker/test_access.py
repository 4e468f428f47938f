"""Access control: signed requests, rights by topic and group, and a file that is read again."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from support.brokers import (
    AT_ONCE,
    WAIT_S,
    BrokerHome,
    RawClient,
    RunningBroker,
    Signer,
    asked,
    make_round,
    ok,
    pull_arguments,
    send_arguments,
    send_half,
)
from support.loopback import until

from penstock.broker.access import Access
from penstock.broker.remoting.signatures import Signatures
from penstock.broker.topics import CHECK_MAX_TIME_TOPIC
from penstock.errors import BadSettings
from penstock.format.constants import HALF_TOPIC, SCHEDULE_TOPIC
from penstock.format.message_id import decode_message_id
from penstock.namesrv import NameServer
from penstock.namesrv.access import LocalRule
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import sign
from penstock.remoting.connection import connect
from penstock.store import Message

if TYPE_CHECKING:
    from broker.conftest import Run

SECRET = "very-secret"
WAITING = (HALF_TOPIC, SCHEDULE_TOPIC, CHECK_MAX_TIME_TOPIC)
FILE = f"""
accounts:
- {{accessKey: the-admin, secretKey: {SECRET}, admin: true}}
- {{accessKey: producer, secretKey: {SECRET}, topicPerms: [orders=PUB]}}
- {{accessKey: consumer, secretKey: {SECRET}, topicPerms: [orders=SUB], groupPerms: [CID_test=SUB]}}
- {{accessKey: groupless, secretKey: {SECRET}, topicPerms: [orders=SUB]}}
- {{accessKey: nothing, secretKey: {SECRET}}}
- {{accessKey: by-address, secretKey: {SECRET}, whiteRemoteAddress: 127.0.0.9}}
"""
WHITE = "globalWhiteRemoteAddresses: [127.0.0.8]" + FILE


def by(account: str, secret: str = SECRET) -> Signer:
    return lambda command: sign(command, account, secret)


@pytest.fixture
def controlled(tmp_path: Path) -> dict[str, Any]:
    """Settings of a broker with access control."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(WHITE)
    path.chmod(0o600)
    return {"acl_enable": True, "acl_file": path}


async def client_of(broker: RunningBroker, account: str) -> RawClient:
    return await broker.client(signer=by(account))


def refused(reply: Command, words: str = "") -> None:
    assert reply.code == ResponseCode.SYSTEM_ERROR, (reply.code, reply.remark)
    assert words in (reply.remark or "")
    assert SECRET not in (reply.remark or "")
    assert reply.body == b""


def test_only_who_signs_with_the_right_secret_is_let_in(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            ok(await (await client_of(broker, "producer")).send("orders"))
            refused(await (await broker.client()).send("orders"), "has no accessKey")
            for account, secret in (("producer", "wrong-secret"), ("nobody", SECRET)):
                stranger = await broker.client(signer=by(account, secret))
                refused(await stranger.send("orders"), f"no account '{account}', or")
            empty = await broker.client(signer=by("", ""))
            refused(await empty.send("orders"), "has no accessKey")

    run(check())


def test_what_was_changed_on_the_way_is_refused(home: BrokerHome, run: Run, controlled: Any) -> None:
    def meddle(command: Command) -> None:
        sign(command, "producer", SECRET)
        command.body = b"something else"

    async def check() -> None:
        async with home.running(**controlled) as broker:
            refused(await (await broker.client(signer=meddle)).send("orders"), "did not sign")
            assert broker.store.max_offset("orders", 0) == 0

    run(check())


def test_sending_needs_pub_on_the_topic(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            producer = await client_of(broker, "producer")
            ok(await producer.send("orders"))
            ok(await producer.send_batch("orders", [(b"x", "")]))
            ok(await producer.ask(RequestCode.SEND_MESSAGE, b"x", **send_arguments("orders")))
            refused(await producer.send("other"), "PUB on topic 'other'")
            refused(await producer.send("%RETRY%CID_test"), "SUB on group 'CID_test'")
            refused(await producer.pull("orders"), "SUB on topic 'orders'")
            refused(await (await client_of(broker, "consumer")).send("orders"), "PUB on topic 'orders'")
            reply = await producer.ask(RequestCode.SEND_REPLY_MESSAGE, b"x", **send_arguments("other"))
            refused(reply, "PUB on topic 'other'")

    run(check())


def test_consuming_needs_sub_on_topic_and_group(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            ok(await (await client_of(broker, "producer")).send("orders"))
            broker.store.catch_up()
            consumer, groupless = await client_of(broker, "consumer"), await client_of(broker, "groupless")
            ok(await consumer.pull("orders"))
            ok(await consumer.heartbeat("me", consumes={"CID_test": {"orders": "*", "%RETRY%CID_test": "*"}}))
            refused(await consumer.heartbeat("me", consumes={"CID_test": {"other": "*"}}), "topic 'other'")
            refused(await groupless.heartbeat("me", consumes={"CID_test": {"orders": "*"}}), "group 'CID_test'")
            refused(await groupless.pull("orders"), "group 'CID_test'")
            ok(await groupless.heartbeat("me", produces=("PID",)))

    run(check())


def test_what_groups_do_besides_pulling_needs_the_group(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            sent = ok(await (await client_of(broker, "producer")).send("orders"))
            offset = decode_message_id(sent.ext["msgId"])[1]
            broker.store.catch_up()
            queue = {"topic": "orders", "queueId": 0}
            lock = {"consumerGroup": "CID_test", "clientId": "me", "mqSet": []}
            subscription = {"clientId": "me", "group": "CID_test", "subscriptionData": {"topic": "orders"}}
            requests: list[tuple[RequestCode, bytes, dict[str, object]]] = [
                (RequestCode.LITE_PULL_MESSAGE, b"", pull_arguments("orders", 0)),
                (RequestCode.QUERY_CONSUMER_OFFSET, b"", {**queue, "consumerGroup": "CID_test"}),
                (RequestCode.UPDATE_CONSUMER_OFFSET, b"", {**queue, "consumerGroup": "CID_test", "commitOffset": 1}),
                (RequestCode.CONSUMER_SEND_MSG_BACK, b"", {"offset": offset, "group": "CID_test", "delayLevel": 0}),
                (RequestCode.LOCK_BATCH_MQ, json.dumps(lock).encode(), {}),
                (RequestCode.UNLOCK_BATCH_MQ, json.dumps(lock).encode(), {}),
                (RequestCode.CHECK_CLIENT_CONFIG, json.dumps(subscription).encode(), {}),
                (RequestCode.UNREGISTER_CLIENT, b"", {"clientID": "me", "consumerGroup": "CID_test"}),
            ]
            consumer, groupless = await client_of(broker, "consumer"), await client_of(broker, "groupless")
            for code, body, arguments in requests:
                refused(await groupless.ask(code, body, **arguments), "SUB on group 'CID_test'")
                ok(await consumer.ask(code, body, **arguments))
            refused(await groupless.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="CID_test"), "group")

    run(check())


def test_looking_messages_up_needs_their_topic(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            sent = ok(await (await client_of(broker, "producer")).send("orders", properties={"KEYS": "k"}))
            offset = decode_message_id(sent.ext["msgId"])[1]
            query = {"topic": "orders", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 2**62}
            requests: list[tuple[RequestCode, dict[str, object]]] = [
                (RequestCode.QUERY_MESSAGE, query),
                (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset}),
                (RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0}),
                (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "orders", "queueId": 0, "timestamp": 1}),
            ]
            consumer, nothing = await client_of(broker, "consumer"), await client_of(broker, "nothing")
            for code, arguments in requests:
                ok(await consumer.ask(code, **arguments))
                refused(await nothing.ask(code, **arguments), "topic 'orders'")

    run(check())


def test_default_rights_do_not_show_messages_that_wait_for_other_topics(
    home: BrokerHome, run: Run, controlled: Any
) -> None:
    """A half message, a delayed one, and one whose transaction was never ended lie in topics of the broker."""
    named = ", ".join(f"{topic}=SUB" for topic in WAITING)
    by_default_rights = "defaultTopicPerm: SUB, defaultGroupPerm: SUB, topicPerms: [orders=DENY]"
    by_name = f"groupPerms: [CID_test=SUB], topicPerms: [{named}]"
    accounts = {"by-default": by_default_rights, "operator": by_name}
    path = controlled["acl_file"]
    lines = [f"- {{accessKey: {name}, secretKey: {SECRET}, {rights}}}\n" for name, rights in accounts.items()]
    path.write_text(WHITE + "".join(lines))

    async def check() -> None:
        async with home.running(**controlled) as broker:
            store = broker.store
            by_default, operator = await client_of(broker, "by-default"), await client_of(broker, "operator")
            broker.state.topics.create_for_send_back(CHECK_MAX_TIME_TOPIC, 1)
            for topic in WAITING:
                waits = Message(topic, b"x", keys=("k",), properties={"REAL_TOPIC": "orders", "REAL_QID": "0"})
                offset = store.put(waits).physical_offset
                store.catch_up()
                query = {"topic": topic, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 2**62}
                refused(await by_default.pull(topic), f"SUB on topic '{topic}'")
                refused(await by_default.ask(RequestCode.QUERY_MESSAGE, **query), f"SUB on topic '{topic}'")
                refused(await by_default.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset), "SUB on topic 'orders'")
                ok(await operator.pull(topic))
                ok(await operator.ask(RequestCode.QUERY_MESSAGE, **query))
            ok(await (await client_of(broker, "producer")).send("orders"))
            refused(await by_default.pull("orders"), "SUB on topic 'orders'")

    run(check())


@pytest.mark.parametrize("topic", ["%DLQ%CID_other", "DefaultCluster_REPLY_TOPIC"])
def test_default_rights_do_not_show_dead_letters_and_replies(
    home: BrokerHome, run: Run, controlled: Any, topic: str
) -> None:
    accounts = {
        "by-default": "defaultTopicPerm: SUB, defaultGroupPerm: SUB",
        "by-name": f"groupPerms: [CID_test=SUB], topicPerms: ['{topic}=SUB']",
    }
    lines = [f"- {{accessKey: {name}, secretKey: {SECRET}, {rights}}}\n" for name, rights in accounts.items()]
    controlled["acl_file"].write_text(WHITE + "".join(lines))

    async def check() -> None:
        async with home.running(**controlled) as broker:
            broker.state.topics.create_for_send_back(topic, 1)
            offset = broker.store.put(Message(topic, b"of another topic")).physical_offset
            broker.store.catch_up()
            by_default, by_name = await client_of(broker, "by-default"), await client_of(broker, "by-name")
            refused(await by_default.pull(topic), f"SUB on topic '{topic}'")
            refused(await by_default.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset), f"SUB on topic '{topic}'")
            ok(await by_name.pull(topic))
            ok(await by_name.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset))

    run(check())


def test_a_transaction_is_ended_by_who_may_send_to_its_topic(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            producer, nothing = await client_of(broker, "producer"), await client_of(broker, "nothing")
            half = ok(await producer.send("orders", properties={"TRAN_MSG": "true", "PGROUP": "PID_test"}))
            ending = {
                "producerGroup": "PID_test",
                "tranStateTableOffset": half.ext["queueOffset"],
                "commitLogOffset": decode_message_id(half.ext["msgId"])[1],
                "commitOrRollback": 8,
                "msgId": "",
            }
            refused(await nothing.ask(RequestCode.END_TRANSACTION, **ending), "PUB on topic 'orders'")
            ok(await producer.ask(RequestCode.END_TRANSACTION, **ending))

    run(check())


def test_a_half_message_is_shown_only_to_who_may_send_to_its_topic(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled, **AT_ONCE) as broker:
            nothing, producer = await client_of(broker, "nothing"), await client_of(broker, "producer")
            await send_half(producer)
            ok(await nothing.heartbeat("thief", produces=("PID_test",)))
            broker.store.catch_up()
            assert await make_round(broker) == 1  # nobody may be asked
            broker.store.catch_up()
            ok(await producer.heartbeat("p", produces=("PID_test",)))
            assert await make_round(broker) == 1
            assert b"paid" in (await asked(producer)).body
            ok(await nothing.heartbeat("thief"))
            assert nothing.asked.empty()

    run(check())


def test_only_the_clusters_own_reply_topic_is_open_to_all(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            nothing = await client_of(broker, "nothing")
            for topic in ("other_REPLY_TOPIC", "_REPLY_TOPIC"):
                reply = await nothing.ask(RequestCode.SEND_REPLY_MESSAGE, b"x", **send_arguments(topic))
                refused(reply, f"PUB on topic '{topic}'")
            own = send_arguments("DefaultCluster_REPLY_TOPIC")
            refused(await nothing.ask(RequestCode.SEND_REPLY_MESSAGE, b"x", **own), "does not name a client")

    run(check())


def test_every_administrative_request_needs_an_administrator(home: BrokerHome, run: Run, controlled: Any) -> None:
    """Also of callers on this machine, which all of these are."""

    async def check() -> None:
        async with home.running(**controlled) as broker:
            admin, consumer = await client_of(broker, "the-admin"), await client_of(broker, "consumer")
            nobody = await broker.client()
            codes = [code for code in broker.broker.handlers if code not in (10, 310, 320)]
            for code in codes:
                refused(await nobody.ask(code, b"{}", topic="orders", group="g"), "has no accessKey")
            ok(await admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO))
            ok(await admin.send("anything"))
            for code in (17, 25, 26, 28, 43, 200, 207, 208, 215, 222, 307, 309, 314, 323, 329, 351):
                refused(await consumer.ask(code, b"{}", topic="orders", group="g"), "is for administrators")

    run(check())


def test_white_addresses_are_not_asked_for_more(home: BrokerHome, run: Run, controlled: Any) -> None:
    async def check() -> None:
        async with home.running(**controlled) as broker:
            ok(await (await broker.client(host="127.0.0.8")).send("orders"))
            anonymous = await broker.client(host="127.0.0.9")
            refused(await anonymous.send("orders"), "has no accessKey")
            named = await broker.client(host="127.0.0.9", signer=by("by-address", "not-its-secret"))
            ok(await named.send("orders"))

    run(check())


def test_the_file_is_read_again_when_it_changes(
    home: BrokerHome, run: Run, controlled: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path: Path = controlled["acl_file"]

    async def check() -> None:
        async with home.running(**controlled) as broker:
            access = broker.broker.access
            assert access is not None
            nothing = await client_of(broker, "nothing")
            refused(await nothing.send("orders"))
            path.write_text(WHITE.replace("accessKey: nothing,", "accessKey: nothing, defaultTopicPerm: PUB,"))
            access.reload_if_changed()
            ok(await nothing.send("orders"))
            path.write_text("accounts: [{accessKey: nothing, secretKey: " + SECRET)
            access.reload_if_changed()
            ok(await nothing.send("orders"))
            path.unlink()
            access.reload_if_changed()
            ok(await nothing.send("orders"))

    with caplog.at_level(logging.INFO):
        run(check())
    assert caplog.text.count("the accounts are unchanged") == 2
    assert "reloaded the access file" in caplog.text
    assert SECRET not in caplog.text


def test_a_changed_file_that_cannot_be_read_for_a_moment_is_read_later(
    home: BrokerHome, run: Run, controlled: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path: Path = controlled["acl_file"]

    async def check() -> None:
        async with home.running(**controlled) as broker:
            access = broker.broker.access
            assert access is not None
            path.write_text("accounts: [{accessKey: newcomer, secretKey: secret-of-newcomer}]")
            with monkeypatch.context() as no_descriptor:
                no_descriptor.setattr(Path, "open", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
                access.reload_if_changed()
                access.reload_if_changed()
            assert "newcomer" not in access.accounts.by_key
            access.reload_if_changed()
            assert list(access.accounts.by_key) == ["newcomer"]

    run(check())
    assert caplog.text.count("Too many open files") == 1


def test_a_change_is_noticed_by_itself(home: BrokerHome, run: Run, controlled: Any) -> None:
    path: Path = controlled["acl_file"]

    async def check() -> None:
        async with home.running(**controlled) as broker:
            access = broker.broker.access
            assert access is not None
            path.write_text(f"accounts: [{{accessKey: newcomer, secretKey: {SECRET}}}]")
            os.utime(path, (1, 1))
            await until(lambda: "newcomer" in access.accounts.by_key)

    run(check())


def test_a_file_that_others_can_read_is_said(controlled: Any, caplog: pytest.LogCaptureFixture) -> None:
    path: Path = controlled["acl_file"]
    path.chmod(0o644)
    Access(path)
    assert "mode 0600" in caplog.text


@pytest.mark.parametrize("text", [None, "", "accounts: nonsense"])
def test_a_broker_does_not_start_without_a_usable_file(
    home: BrokerHome, run: Run, tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "acl.yml"
    if text is not None:
        path.write_text(text)

    async def check() -> None:
        with pytest.raises(BadSettings):
            async with home.running(acl_enable=True, acl_file=path):
                pass
        with pytest.raises(BadSettings, match="aclFile"):
            async with home.running(acl_enable=True):
                pass

    run(check())


def test_without_access_control_nothing_is_asked_before_a_request(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            assert broker.broker.server._before is None
            signed = await broker.client(signer=by("", ""))
            ok(await signed.send("orders"))

    run(check())


def test_a_name_servers_administrators_have_accounts_too(run: Run, controlled: Any) -> None:
    async def check() -> None:
        access = Access(controlled["acl_file"])
        server = NameServer(before=Signatures(access).for_name_server(LocalRule()))
        address = await server.start("127.0.0.1", 0)
        try:
            connection = await connect(address)
            arguments = {"namespace": "n", "key": "k", "value": "v"}
            refused(await connection.request(Command(RequestCode.PUT_KV_CONFIG, dict(arguments)), WAIT_S), "accessKey")
            for account, code in (("the-admin", ResponseCode.SUCCESS), ("consumer", ResponseCode.SYSTEM_ERROR)):
                command = Command(RequestCode.PUT_KV_CONFIG, dict(arguments))
                sign(command, account, SECRET)
                assert (await connection.request(command, WAIT_S)).code == code
            ok(await connection.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO), WAIT_S))
            connection.close()
        finally:
            await server.stop(1)

    run(check())
