"""A client that says exactly what a test wants: requests by code and arguments, replies as they come.

`BrokerHome` is a real broker on a free port, with a real store in a temporary folder; tests run within its loop.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.format.batch import encode_batch_body
from penstock.format.record import Record, decode_record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.languages import Language
from penstock.protocol.versions import V4_9_8
from penstock.remoting.connection import Connection
from penstock.remoting.dial import connect
from penstock.remoting.limits import Limits
from penstock.store import FlushDiskType, MessageStore, Settings
from penstock.store.files import Files

WAIT_S = 60.0
Signer = Callable[[Command], None]


class RawClient:
    """One connection to a broker."""

    def __init__(self, connection: Connection, asked: asyncio.Queue[Command], signer: Signer | None = None) -> None:
        self.connection = connection
        self._signer = signer
        self.asked = asked
        """What the broker asks or tells us."""
        self.settle: Callable[[], object] = bool
        """Has the broker dispatch what it was sent: a pull right behind a send may come too early otherwise."""

    async def ask(
        self,
        code: int,
        body: bytes = b"",
        /,
        *,
        version: int = V4_9_8,
        language: Language = Language.JAVA,
        wait_s: float = WAIT_S,
        **arguments: object,
    ) -> Command:
        """The reply to a request; arguments are given as the protocol names them."""
        ext = {name: _text(value) for name, value in arguments.items()}
        command = Command(code, ext, body, language=language, version=version)
        if self._signer is not None:
            self._signer(command)
        return await self.connection.request(command, wait_s)

    def tell(self, code: int, body: bytes = b"", /, **arguments: object) -> None:
        """A one-way request."""
        ext = {name: _text(value) for name, value in arguments.items()}
        self.connection.request_oneway(Command(code, ext, body))

    # -- producing -------------------------------------------------------------------------------------------

    async def send(self, topic: str, body: bytes = b"x", /, *, version: int = V4_9_8, **changes: object) -> Command:
        """Code 310; `changes` are given by the long names, properties as text or as a dict."""
        short = {_SHORT[name]: value for name, value in send_arguments(topic, **changes).items()}
        return await self.ask(RequestCode.SEND_MESSAGE_V2, body, version=version, **short)

    async def send_batch(self, topic: str, items: list[tuple[bytes, str]], /, **changes: object) -> Command:
        """Code 320: bodies and their properties."""
        body = encode_batch_body([(0, content, properties.encode()) for content, properties in items])
        arguments = send_arguments(topic, **{"batch": True, **changes})
        short = {_SHORT[name]: value for name, value in arguments.items()}
        return await self.ask(RequestCode.SEND_BATCH_MESSAGE, body, **short)

    # -- consuming -------------------------------------------------------------------------------------------

    async def pull(self, topic: str, offset: int = 0, /, *, wait_s: float = WAIT_S, **changes: object) -> Command:
        """Code 11, with its subscription and without waiting unless `changes` say otherwise."""
        self.settle()
        return await self.ask(RequestCode.PULL_MESSAGE, wait_s=wait_s, **pull_arguments(topic, offset, **changes))

    def hold(
        self, topic: str, offset: int = 0, /, *, hold_ms: int = 30_000, **changes: object
    ) -> asyncio.Task[Command]:
        """A pull that waits for a message."""
        arguments = {"sysFlag": 2 | 4, "suspendTimeoutMillis": hold_ms, **changes}
        return asyncio.create_task(self.pull(topic, offset, wait_s=60, **arguments))

    async def heartbeat(
        self,
        client_id: str,
        *,
        consumes: Mapping[str, Mapping[str, str]] = {},
        produces: tuple[str, ...] = (),
        **more: Any,
    ) -> Command:
        """Code 34: for each consumer group its topics with their expressions, and the producer groups."""
        body = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": group} for group in produces],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": expression, "subVersion": more.get("version", 1)}
                        | ({"expressionType": more["expression_type"]} if "expression_type" in more else {})
                        for topic, expression in topics.items()
                    ],
                }
                | more.get("group", {})
                for group, topics in consumes.items()
            ],
        }
        language = more.get("language", Language.JAVA)
        return await self.ask(RequestCode.HEART_BEAT, json.dumps(body).encode(), language=language)

    async def notice(self) -> Command:
        """The next thing that the broker asks or tells us."""
        return await asyncio.wait_for(self.asked.get(), WAIT_S)

    def close(self) -> None:
        self.connection.close()


_LONG = (
    "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
    "reconsumeTimes unitMode maxReconsumeTimes batch brokerName"
)
_SHORT = dict(zip(_LONG.split(), "abcdefghijklmn", strict=True))


def send_arguments(topic: str, /, **changes: object) -> dict[str, object]:
    """The arguments of a send, by their long names."""
    properties = changes.pop("properties", "")
    if isinstance(properties, Mapping):
        properties = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return {
        "producerGroup": "PID_test",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": time.time_ns() // 1_000_000,
        "flag": 0,
        "properties": properties,
        **changes,
    }


def pull_arguments(topic: str, offset: int, **changes: object) -> dict[str, object]:
    return {
        "consumerGroup": "CID_test",
        "topic": topic,
        "queueId": 0,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 1,
        **changes,
    }


def records(reply: Command) -> list[Record]:
    """The messages in a pull's answer."""
    assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
    found, at = [], 0
    while at < len(reply.body):
        record = decode_record(reply.body, at)
        found.append(record)
        at += record.size
    return found


def bodies(reply: Command) -> list[bytes]:
    return [record.body for record in records(reply)]


def ok(reply: Command) -> Command:
    assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
    return reply


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class BrokerHome:
    """A broker's folder, in which it may be started again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @asynccontextmanager
    async def running(
        self,
        *,
        sync: bool = False,
        files: Files | None = None,
        store: Mapping[str, Any] = {},
        options: Mapping[str, Any] = {},
        **settings: Any,
    ) -> AsyncIterator[RunningBroker]:
        """A broker that serves; `store` and `settings` are changes of the two kinds of settings.

        `options` are further arguments of the broker.
        """
        patient = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout": 60_000}
        changes = {**patient, **store} if sync else dict(store)
        opened = MessageStore.open(self.path, Settings.dev(**changes), files=files)
        try:
            broker = Broker(opened, BrokerSettings(**settings), **options)
        except BaseException:
            opened.close()
            raise
        running = RunningBroker(broker, await broker.start("127.0.0.1", 0))
        try:
            yield running
        finally:
            for client in running.clients:
                client.close()
            assert await broker.stop(WAIT_S), "the broker did not stop in time"


class RunningBroker:
    """A broker, and the clients that a test connects to it."""

    def __init__(self, broker: Broker, address: tuple[str, int]) -> None:
        self.broker = broker
        self.state = broker.state
        self.store = broker.store
        self.address = address
        self.clients: list[RawClient] = []

    async def client(
        self,
        *,
        answers: Mapping[int, int] = {},
        bodies: Mapping[int, bytes] = {},
        host: str = "127.0.0.1",
        signer: Signer | None = None,
    ) -> RawClient:
        """A new connection, from `host`, whose requests are signed by `signer`.

        `answers` and `bodies` are the codes and bodies with which it answers what the broker asks.
        """
        asked: asyncio.Queue[Command] = asyncio.Queue()

        def take(connection: Connection, command: Command) -> Command:
            asked.put_nowait(command)
            code = answers.get(command.code, ResponseCode.SUCCESS)
            return command.reply(code, body=bodies.get(command.code, b""))

        handlers = dict.fromkeys(RequestCode, take)
        if host == "127.0.0.1":
            connection = await connect(self.address, handlers=handlers)
        else:
            connection = Connection(handlers, Limits())
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, *self.address, local_addr=(host, 0))
        made = RawClient(connection, asked, signer)
        made.settle = self.store.catch_up
        self.clients.append(made)
        return made
