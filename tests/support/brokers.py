"""Brokers for tests: in this process with a client that sends any request, or `penstock serve` as a process.

The process keeps its ports when it is killed and started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.format.batch import encode_batch_body
from penstock.format.message_id import decode_message_id
from penstock.format.record import Record, decode_record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.versions import V4_9_8, Language
from penstock.remoting.connection import Connection, connect
from penstock.remoting.limits import ConnectionLimits
from penstock.store import FlushDiskType, MessageStore, Settings
from penstock.store.files.file_io import Files
from support.loopback import free_port

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
            connection = Connection(handlers, ConnectionLimits())
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: connection, *self.address, local_addr=(host, 0))
        made = RawClient(connection, asked, signer)
        made.settle = self.store.catch_up
        self.clients.append(made)
        return made


HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
SYSTEM_GROUP = "CID_RMQ_SYS_TRANS"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
AT_ONCE: dict[str, Any] = {"transaction_time_out": 0, "transaction_check_interval": 3_600_000}
"""Old enough to be asked about as soon as it is there; tests make the rounds themselves."""


async def send_half(client: RawClient, body: bytes = b"paid", topic: str = "orders", **changes: Any) -> Command:
    properties = {"TRAN_MSG": "true", "PGROUP": "PID_test", "UNIQ_KEY": "U1", "TAGS": "t"}
    properties |= changes.pop("properties", {})
    return ok(await client.send(topic, body, properties=properties, sysFlag=4, **changes))


def ending(half: Command, outcome: int, **changes: object) -> dict[str, object]:
    """The arguments that end the transaction of a half message, as a producer takes them from the reply to its send."""
    return {
        "producerGroup": "PID_test",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": decode_message_id(half.ext["msgId"])[1],
        "commitOrRollback": outcome,
        "fromTransactionCheck": False,
        "msgId": "U1",
        **changes,
    }


async def end(client: RawClient, half: Command, outcome: int, **changes: object) -> Command:
    return await client.ask(RequestCode.END_TRANSACTION, **ending(half, outcome, **changes))


async def asked(client: RawClient) -> Command:
    """The broker's question about a transaction."""
    question = await client.notice()
    assert question.code == RequestCode.CHECK_TRANSACTION_STATE
    assert question.is_oneway
    return question


async def answer(client: RawClient, question: Command, outcome: int) -> None:
    arguments = {
        "producerGroup": "PID_test",
        "tranStateTableOffset": question.ext["tranStateTableOffset"],
        "commitLogOffset": question.ext["commitLogOffset"],
        "commitOrRollback": outcome,
        "fromTransactionCheck": True,
        "msgId": question.ext["msgId"],
    }
    ok(await client.ask(RequestCode.END_TRANSACTION, **arguments))


def half_messages(broker: RunningBroker, topic: str, queue_id: int = 0) -> list[Record]:
    return broker.store.get(topic, queue_id, 0).messages


async def pulled(broker: RunningBroker, client: RawClient, topic: str, offset: int = 0, **changes: Any) -> Command:
    """What a pull gives once all that was stored is in its queue."""
    broker.store.catch_up()
    return await client.pull(topic, offset, **changes)


async def make_round(broker: RunningBroker) -> int:
    return await broker.broker.transaction_check.round()


_UP_WITHIN_S = 90


class Served:
    """A broker with its name server. Use it in a `with` block."""

    def __init__(self, folder: Path, *settings: str, host: str = "127.0.0.1", within: Sequence[str] = ()) -> None:
        """`within` is a command that runs others, in a network of their own, say."""
        self.folder = folder
        self._host = host
        self._within = within
        self.port, self.namesrv_port = free_port(), free_port()
        self._settings = settings
        self._log = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def namesrv(self) -> str:
        return f"{self._host}:{self.namesrv_port}"

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """All that it printed and logged so far."""
        return self._log.read_text()

    def start(self) -> None:
        self.launch()
        self.wait_until_up()

    def launch(self) -> None:
        """Starts the process, and does not wait until it answers."""
        command = [*self._within, sys.executable, "-m", "penstock.cli.main", "serve", "--store", str(self.folder)]
        command += ["--profile", "dev"]
        command += ["--listen", self.address, "--namesrv", self.namesrv, "--console", "off"]
        if not any(each.startswith("observePort=") for each in self._settings):
            # Of several brokers with free ports one might take the port of another for its metrics.
            command += ["--observe-port", "off"]
        for setting in self._settings:
            command += ["--set", setting]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + _UP_WITHIN_S
        while not self._answers():
            assert self.is_running, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        for port in (self.port, self.namesrv_port):
            try:
                socket.create_connection((self._host, port), 1).close()
            except OSError:
                return False
        return True

    def kill(self) -> None:
        """As a crash would end it."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> int:
        """Ends it cleanly; returns its exit status."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(30)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
