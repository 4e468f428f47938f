"""Hooks around sends and consumption."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.brokers import BrokerHome, ok

from penstock.broker.user_hooks_for_send_and_pull import ConsumeContext, SendContext
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run


class Watcher:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, SendContext | ConsumeContext]] = []

    def before_send(self, context: SendContext) -> None:
        self.seen.append(("before send", context))
        if context.topic == "forbidden":
            raise Refusal(ResponseCode.NO_PERMISSION, "a hook forbids this topic")

    def after_send(self, context: SendContext) -> None:
        self.seen.append(("after send", context))

    def before_consume(self, context: ConsumeContext) -> None:
        self.seen.append(("before consume", context))

    def after_consume(self, context: ConsumeContext) -> None:
        self.seen.append(("after consume", context))


class Broken(Watcher):
    """Fails whenever it is called."""

    def before_send(self, context: SendContext) -> None:
        raise RuntimeError("broken")

    after_send = before_send


def test_a_hook_sees_a_send_before_and_after(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            watcher = Watcher()
            broker.state.hooks.send.append(watcher)
            client = await broker.client()
            for _ in range(2):
                reply = ok(await client.send("orders", b"abc", properties={"TAGS": "t"}, queueId=1))
            assert [name for name, _ in watcher.seen] == ["before send", "after send"] * 2
            context = watcher.seen[-1][1]
            assert isinstance(context, SendContext)
            assert (context.producer_group, context.topic, context.queue_id) == ("PID_test", "orders", 1)
            assert (context.body_size, context.property_text) == (3, "TAGS\x01t")
            assert (context.code, context.msg_id, context.queue_offset) == (0, reply.ext["msgId"], 1)
            assert context.region == "DefaultRegion"
            assert context.took_ms > 0

    run(check())


def test_a_hook_may_refuse_a_send(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            watcher = Watcher()
            broker.state.hooks.send.append(watcher)
            client = await broker.client()
            reply = await client.send("forbidden")
            assert reply.code == ResponseCode.NO_PERMISSION
            assert reply.remark == "a hook forbids this topic"
            context = watcher.seen[-1][1]
            assert isinstance(context, SendContext)
            assert (context.code, context.msg_id) == (ResponseCode.NO_PERMISSION, "")
            assert broker.store.log.max_offset == 0

    run(check())


def test_a_hook_that_fails_changes_nothing(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            broker.state.hooks.send.append(Broken())
            ok(await (await broker.client()).send("orders"))

    run(check())


def test_hooks_see_what_is_pulled_and_what_comes_back(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            watcher = Watcher()
            broker.state.hooks.consume.append(watcher)
            client = await broker.client()
            for _ in range(3):
                reply = ok(await client.send("orders", b"abc"))
            await client.pull("orders", 3)
            ok(await client.pull("orders"))
            record = broker.store.look_up_id(reply.ext["msgId"])
            assert record is not None
            back = {"offset": record.physical_offset, "group": "CID", "delayLevel": 1}
            ok(await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back))
            (_, pulled), (_, returned) = watcher.seen
            assert isinstance(pulled, ConsumeContext)
            assert (pulled.consumer_group, pulled.topic, pulled.count) == ("CID_test", "orders", 3)
            assert pulled.next_begin_offset == 3
            assert isinstance(returned, ConsumeContext)
            assert (returned.consumer_group, returned.success) == ("CID", False)
            assert returned.origin_msg_id == record.msg_id

    run(check())
