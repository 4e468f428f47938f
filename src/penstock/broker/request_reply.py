"""Request and reply between clients: an answer is pushed to the client that asked, and stored. Codes 324, 325, 326.

The one who asked is a producer that is connected here; its id stands in the answer's properties. The sender of the
answer hears whether it arrived. What is stored, in the cluster's reply topic, is a trace and is read by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.consumers import ClientTable
from penstock.broker.replies import PutReplies, host_text
from penstock.broker.send import SendChecks
from penstock.broker.settings import SettingsInForce
from penstock.errors import PenstockError
from penstock.format.constants import CLUSTER
from penstock.format.properties import encode_properties, split_properties
from penstock.protocol import fields
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.send import PushReply, SendMessage, SendMessageV2
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler, Refusal
from penstock.store.message import Message
from penstock.store.store import MessageStore

REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
_PUSH_S: Final = 10.0


class Answers:
    """Forwards answers."""

    def __init__(
        self,
        store: MessageStore,
        clients: ClientTable,
        checks: SendChecks,
        settings: SettingsInForce,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._clients = clients
        self._checks = checks
        self._settings = settings
        self._clock = clock
        self._replies = PutReplies(store)

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: lambda connection, command: self._answer(
                connection, command, command.read(SendMessage)
            ),
            RequestCode.SEND_REPLY_MESSAGE_V2: lambda connection, command: self._answer(
                connection, command, command.read(SendMessageV2)
            ),
        }

    async def _answer(self, connection: Connection, command: Command, header: SendMessage) -> Command:
        settings = self._settings.now
        told = {"MSG_REGION": settings.region_id, "TRACE_ON": str(settings.trace_on).lower()}
        try:
            topic = self._checks.topic_for(header)
            self._checks.queue_of(header, max(topic.read_queue_nums, topic.write_queue_nums))
            properties = split_properties(header.properties)
            failure = await self._push(connection, command, header, properties)
        except Refusal as refusal:
            return command.reply(refusal.code, str(refusal), told)
        queue_id = max(0, header.queue_id)
        told |= {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        if settings.store_reply_message_enable:
            told |= self._stored(connection, command, header, queue_id, properties)
        return command.reply(ResponseCode.SYSTEM_ERROR if failure else ResponseCode.SUCCESS, failure or None, told)

    async def _push(
        self, connection: Connection, command: Command, header: SendMessage, properties: dict[str, str]
    ) -> str:
        """Why the answer did not reach the client that asked; empty if it did."""
        client_id = properties.get(REPLY_TO_CLIENT, "")
        if not client_id:
            return f"the answer names no client: its property {REPLY_TO_CLIENT} is missing"
        asker = self._clients.find_producer(client_id)
        if asker is None:
            return f"the client '{client_id[:80]}' that asked is not connected"
        properties[PUSH_REPLY_TIME] = str(self._clock())
        pushed = PushReply(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            properties=encode_properties(properties).decode("utf-8", "surrogateescape"),
            born_host=host_text(*connection.peer),
            store_host=self._store.settings.store_host,
            store_timestamp=self._clock(),
        )
        request = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields.write(pushed), command.body)
        try:
            reply = await asker.connection.request(request, _PUSH_S)
        except PenstockError as error:
            return f"the answer did not reach the client that asked: {error}"
        if reply.code != ResponseCode.SUCCESS:
            return f"the client that asked refused the answer with {reply.code}: {reply.remark or 'no reason given'}"
        return ""

    def _stored(
        self, connection: Connection, command: Command, header: SendMessage, queue_id: int, properties: dict[str, str]
    ) -> dict[str, str]:
        result = self._store.append(
            Message(
                header.topic,
                bytes(command.body),
                properties={**properties, CLUSTER: self._settings.now.broker_cluster_name},
                queue_id=queue_id,
                flag=header.flag,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=host_text(*connection.peer),
                reconsume_times=header.reconsume_times,
            )
        )
        if not result.stored:
            return {}
        return {
            "msgId": self._replies.msg_id(result.physical_offset),
            "queueId": str(result.queue_id),
            "queueOffset": str(result.queue_offset),
        }
