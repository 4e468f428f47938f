"""Connected clients, and requests that are forwarded to a consumer.

If a consumer does not answer in time, its running info and what it consumes directly are errors; the status of a group
leaves that consumer out. No other request waits for it.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

from penstock.broker.consumers import ConsumerGroup, GroupMember
from penstock.broker.operations_as_plain_calls import Answer, Client, ClientRequests, Operation, administration
from penstock.broker.table_persistence import BrokerState
from penstock.errors import BadMessage, NoAnswer, PenstockError
from penstock.format.message_id import decode_message_id
from penstock.protocol.bodies.clients import ClientConnection as ConnectionBody
from penstock.protocol.bodies.clients import ConsumerConnection, ProducerConnection, ProducerInfo, ProducerTableInfo
from penstock.protocol.bodies.stats import GetConsumerStatusBody
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.headers.groups import (
    ConsumeDirectly,
    ConsumerGroupRequest,
    GetConsumerRunningInfo,
    ProducerGroup,
)
from penstock.protocol.headers.offsets import GetConsumerStatus
from penstock.protocol.versions import V3_0_7_SNAPSHOT, V3_1_8

_CLIENT_S: Final = 10.0
_STATUS_S: Final = 5.0


class AdminClients:
    """Answers from the client table, or forwards a request to clients."""

    def __init__(self, state: BrokerState, requests: ClientRequests) -> None:
        self._state = state
        self._requests = requests

    def operations(self) -> tuple[Operation, ...]:
        return (
            administration("consumer connections", self.consumers),
            administration("producer connections", self.producers),
            administration("all producers", self.all_producers),
            administration("consumer status", self.status),
            administration("running info", self.running_info),
            administration("consume directly", self.consume_directly, changes=True),
        )

    # -- connections -----------------------------------------------------------------------------------------

    def consumers(self, client: Client, request: ConsumerGroupRequest) -> ConsumerConnection:
        group = self._online(request.consumer_group)
        return ConsumerConnection(
            connection_set=[_connection_body(member) for member in group.clients.values()],
            subscription_table=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )

    def producers(self, client: Client, request: ProducerGroup) -> ProducerConnection:
        members = self._state.clients.producers(request.producer_group)
        if not members:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no producer of group '{request.producer_group}' is connected")
        return ProducerConnection(connection_set=[_connection_body(member) for member in members])

    def all_producers(self, client: Client) -> ProducerTableInfo:
        clients = self._state.clients
        data = {group: list(map(self._info, clients.producers(group))) for group in clients.producer_groups()}
        return ProducerTableInfo(data=data)

    def _info(self, member: GroupMember) -> ProducerInfo:
        silent_ms = int((time.monotonic() - member.seen_at) * 1000)
        return ProducerInfo(
            client_id=member.client_id,
            remote_ip=f"/{member.address}",  # as Java writes an address
            language=member.language.name,
            version=member.version,
            last_update_timestamp=self._state.clock() - silent_ms,
        )

    # -- forwarded requests ----------------------------------------------------------------------------------

    async def running_info(self, client: Client, request: GetConsumerRunningInfo) -> Answer:
        member = self._member(request.consumer_group, request.client_id)
        return await self._forward(member, request)

    async def consume_directly(self, client: Client, request: ConsumeDirectly) -> Answer:
        member = self._member(request.consumer_group, request.client_id)
        request.client_id = member.client_id
        request.broker_name = self._state.settings.now.broker_name
        read = partial(self._record, request.msg_id or "")
        record = await asyncio.wrap_future(self._state.store.read_cold(read, client))
        return await self._forward(member, request, record)

    def _record(self, msg_id: str) -> bytes:
        """Returns the encoded record with this message id. Raises Refusal."""
        try:
            data = self._state.store.look_up_encoded(decode_message_id(msg_id)[1])
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if data is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no message has the id {msg_id[:64]}")
        return data

    async def _forward(
        self, member: GroupMember, request: GetConsumerRunningInfo | ConsumeDirectly, body: bytes = b""
    ) -> Answer:
        if member.version < V3_1_8:
            why = f"the client '{member.client_id}' is too old for this request: its version is {member.version}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        try:
            return await self._requests.ask(member.client, request, body, _CLIENT_S)
        except NoAnswer as error:
            raise Refusal(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer '{member.client_id}': {error}") from None
        except PenstockError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"consumer '{member.client_id}': {error}") from None

    async def status(self, client: Client, request: GetConsumerStatus) -> GetConsumerStatusBody:
        """Returns the offsets that a group's clients report: all clients, or the one that the request names."""
        group = self._state.clients.consumers(request.group)
        wanted = [] if group is None else list(group.clients.values())
        if request.client_addr:
            wanted = [member for member in wanted if member.client_id == request.client_addr]
        if not wanted:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"no such consumer of group '{request.group}' is connected")
        old = [member.client_id for member in wanted if member.version < V3_0_7_SNAPSHOT]
        if old:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"the client '{old[0]}' is too old to report its offsets")
        forwarded = GetConsumerStatus(topic=request.topic, group=request.group)
        answers = await asyncio.gather(*(self._ask_status(member, forwarded) for member in wanted))
        return GetConsumerStatusBody(
            consumer_table={
                member.client_id: answer.message_queue_table
                for member, answer in zip(wanted, answers, strict=True)
                if answer is not None
            }
        )

    async def _ask_status(self, member: GroupMember, request: GetConsumerStatus) -> GetConsumerStatusBody | None:
        try:
            answer = await self._requests.ask(member.client, request, b"", _STATUS_S)
            return GetConsumerStatusBody.from_bytes(answer.body) if answer.code == ResponseCode.SUCCESS else None
        except PenstockError:
            return None

    # -- lookup ----------------------------------------------------------------------------------------------

    def _online(self, name: str) -> ConsumerGroup:
        group = self._state.clients.consumers(name)
        if group is None:
            raise Refusal(ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of group '{name}' is connected")
        return group

    def _member(self, name: str, client_id: str | None) -> GroupMember:
        """Returns the client of group `name` with this id; without an id, any client of the group. Raises Refusal."""
        group = self._state.clients.consumers(name)
        member = None
        if group is not None:
            member = group.find_client(client_id) if client_id else next(iter(group.clients.values()))
        if member is None:
            why = f"the consumer '{client_id or ''}' of group '{name}' is not online"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        return member


def _connection_body(member: GroupMember) -> ConnectionBody:
    return ConnectionBody(
        client_id=member.client_id,
        client_addr=member.address,
        language=member.language.name,
        version=member.version,
    )
