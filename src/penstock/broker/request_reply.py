"""Request-reply messages between clients: request codes 324, 325 and 326.

A reply message names the requester's client id in its properties. The broker pushes the reply to the connection of the
producer with that id (request code 326), and tells the sender whether it arrived. It also stores a copy in the
cluster's reply topic, as a trace that no client reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from penstock.broker.consumers import ClientTable
from penstock.broker.replies import PutReplies, host_text
from penstock.broker.send import SendChecks
from penstock.broker.settings import SettingsInForce
from penstock.errors import PenstockError
from penstock.format.constants import CLUSTER
from penstock.format.properties import encode_properties, split_properties
from penstock.protocol import fields
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.send import PushReply, SendMessage, SendMessageV2
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler
from penstock.store.message import Message
from penstock.store.message_store import MessageStore

REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
_PUSH_S: Final = 10.0


class RequestReply:
    """Forwards reply messages to the clients that sent the requests. Use it from the loop's thread only."""

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
            RequestCode.SEND_REPLY_MESSAGE: lambda connection, command: self._forward(
                connection, command, command.read(SendMessage)
            ),
            RequestCode.SEND_REPLY_MESSAGE_V2: lambda connection, command: self._forward(
                connection, command, command.read(SendMessageV2)
            ),
        }

    async def _forward(self, connection: Connection, command: Command, header: SendMessage) -> Command:
        settings = self._settings.now
        ext = {"MSG_REGION": settings.region_id, "TRACE_ON": str(settings.trace_on).lower()}
        try:
            topic = self._checks.topic_for(header)
            self._checks.check_queue(header, max(topic.read_queue_nums, topic.write_queue_nums))
            properties = split_properties(header.properties)
            failure = await self._push(connection, command, header, properties)
        except Refusal as refusal:
            return command.reply(refusal.code, str(refusal), ext)
        queue_id = max(0, header.queue_id)
        ext |= {"msgId": "0", "queueId": str(queue_id), "queueOffset": "0"}
        if settings.store_reply_message_enable:
            ext |= self._store_copy(connection, command, header, queue_id, properties)
        return command.reply(ResponseCode.SYSTEM_ERROR if failure else ResponseCode.SUCCESS, failure or None, ext)

    async def _push(
        self, connection: Connection, command: Command, header: SendMessage, properties: dict[str, str]
    ) -> str:
        """Pushes the reply to the requester. Returns why that failed; an empty string if it succeeded."""
        client_id = properties.get(REPLY_TO_CLIENT, "")
        if not client_id:
            return f"the reply does not name a client: property {REPLY_TO_CLIENT} is missing"
        requester = self._clients.find_producer(client_id)
        if requester is None:
            return f"the requesting client '{client_id[:80]}' is not connected"
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
            reply = await cast(Connection, requester.client).request(request, _PUSH_S)
        except PenstockError as error:
            return f"the reply did not reach the requesting client: {error}"
        if reply.code != ResponseCode.SUCCESS:
            return f"the requesting client refused the reply with {reply.code}: {reply.remark or 'no reason given'}"
        return ""

    def _store_copy(
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
