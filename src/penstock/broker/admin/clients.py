"""Connected clients (request codes 203, 204, 328), and requests that are forwarded to a consumer (223, 307, 309).

If a consumer does not answer in time, the reply to 307 and 309 is an error; the reply to 223 leaves that consumer out.
No other request waits for it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from penstock.broker.broker_state import BrokerState
from penstock.broker.consumers import ConsumerGroup, GroupMember
from penstock.errors import BadMessage, NoAnswer, PenstockError
from penstock.format.message_id import decode_message_id
from penstock.protocol import fields
from penstock.protocol.bodies.clients import ClientConnection as ConnectionBody
from penstock.protocol.bodies.clients import ConsumerConnection, ProducerConnection, ProducerInfo, ProducerTableInfo
from penstock.protocol.bodies.stats import GetConsumerStatusBody
from penstock.protocol.codes import Refusal, RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.headers.groups import ConsumeDirectly, GetConsumerRunningInfo, ProducerGroup
from penstock.protocol.headers.groups import ConsumerGroupRequest as GroupHeader
from penstock.protocol.headers.offsets import GetConsumerStatus
from penstock.protocol.versions import V3_0_7_SNAPSHOT, V3_1_8
from penstock.remoting.connection import Connection
from penstock.remoting.handlers import Handler

_CLIENT_S: Final = 10.0
_STATUS_S: Final = 5.0


class AdminClients:
    """Answers from the client table, or forwards a request to clients."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[RequestCode, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    # -- connections -----------------------------------------------------------------------------------------

    def _consumers(self, connection: Connection, command: Command) -> Command:
        group = self._online(command.read(GroupHeader).consumer_group)
        body = ConsumerConnection(
            connection_set=[_connection_body(client) for client in group.clients.values()],
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())

    def _producers(self, connection: Connection, command: Command) -> Command:
        group = command.read(ProducerGroup).producer_group
        clients = self._state.clients.producers(group)
        if not clients:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no producer of group '{group}' is connected")
        body = ProducerConnection(connection_set=[_connection_body(client) for client in clients])
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())

    def _all_producers(self, connection: Connection, command: Command) -> Command:
        clients = self._state.clients
        data = {group: list(map(self._info, clients.producers(group))) for group in clients.producer_groups()}
        return command.reply(ResponseCode.SUCCESS, body=ProducerTableInfo(data=data).to_bytes())

    def _info(self, client: GroupMember) -> ProducerInfo:
        silent_ms = int((time.monotonic() - client.seen_at) * 1000)
        return ProducerInfo(
            client_id=client.client_id,
            remote_ip=client.address,
            language=client.language.name,
            version=client.version,
            last_update_timestamp=self._state.clock() - silent_ms,
        )

    # -- forwarded requests ----------------------------------------------------------------------------------

    async def _running_info(self, connection: Connection, command: Command) -> Command:
        header = command.read(GetConsumerRunningInfo)
        client = self._client(header.consumer_group, header.client_id)
        return await self._forward(command, client, header, b"")

    async def _consume_directly(self, connection: Connection, command: Command) -> Command:
        header = command.read(ConsumeDirectly)
        client = self._client(header.consumer_group, header.client_id)
        header.client_id = client.client_id
        header.broker_name = self._state.settings.now.broker_name
        return await self._forward(command, client, header, self._record(header.msg_id or ""))

    def _record(self, msg_id: str) -> bytes:
        """Returns the encoded record with this message id. Raises Refusal."""
        store = self._state.store
        try:
            offset = decode_message_id(msg_id)[1]
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = store.look_up(offset)
        data = None if record is None else store.records.raw(offset, record.size)[0]
        if data is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message has the id {msg_id[:64]}")
        return data

    async def _forward(self, command: Command, client: GroupMember, header: fields.Fields, body: bytes) -> Command:
        if client.version < V3_1_8:
            why = f"the client '{client.client_id}' is too old for this request: its version is {client.version}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        request = Command(command.code, fields.write(header), body)
        try:
            answer = await client.connection.request(request, _CLIENT_S)
        except NoAnswer as error:
            raise Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer '{client.client_id}': {error}") from None
        except PenstockError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"consumer '{client.client_id}': {error}") from None
        return command.reply(answer.code, answer.remark, answer.ext, answer.body)

    async def _status(self, connection: Connection, command: Command) -> Command:
        """Replies with the offsets that a group's clients report: all clients, or the one that the request names."""
        header = command.read(GetConsumerStatus)
        group = self._state.clients.consumers(header.group)
        wanted = [] if group is None else list(group.clients.values())
        if header.client_addr:
            wanted = [client for client in wanted if client.client_id == header.client_addr]
        if not wanted:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no such consumer of group '{header.group}' is connected")
        old = [client.client_id for client in wanted if client.version < V3_0_7_SNAPSHOT]
        if old:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the client '{old[0]}' is too old to report its offsets")
        forwarded = GetConsumerStatus(topic=header.topic, group=header.group)
        answers = await asyncio.gather(*(self._ask_status(client, forwarded) for client in wanted))
        table = {
            client.client_id: answer.message_queue_table
            for client, answer in zip(wanted, answers, strict=True)
            if answer is not None
        }
        body = GetConsumerStatusBody(consumer_table=table)
        return command.reply(ResponseCode.SUCCESS, body=body.to_bytes())

    async def _ask_status(self, client: GroupMember, header: GetConsumerStatus) -> GetConsumerStatusBody | None:
        request = Command(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields.write(header))
        try:
            answer = await client.connection.request(request, _STATUS_S)
            return GetConsumerStatusBody.from_bytes(answer.body) if answer.code == ResponseCode.SUCCESS else None
        except PenstockError:
            return None

    # -- lookup ----------------------------------------------------------------------------------------------

    def _online(self, name: str) -> ConsumerGroup:
        group = self._state.clients.consumers(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group '{name}' is connected")
        return group

    def _client(self, name: str, client_id: str | None) -> GroupMember:
        """Returns the client of group `name` with this id; without an id, any client of the group. Raises Refusal."""
        group = self._state.clients.consumers(name)
        client = None
        if group is not None:
            client = group.find_client(client_id) if client_id else next(iter(group.clients.values()))
        if client is None:
            why = f"the consumer '{client_id or ''}' of group '{name}' is not online"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        return client


def _connection_body(client: GroupMember) -> ConnectionBody:
    return ConnectionBody(
        client_id=client.client_id,
        client_addr=client.address,
        language=client.language.name,
        version=client.version,
    )
