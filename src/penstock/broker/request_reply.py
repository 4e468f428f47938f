"""Request-reply messages between clients.

A reply message names the requester's client id in its properties. The broker pushes the reply to the connection of the
producer with that id, and tells the sender whether it arrived. It also stores a copy in the
cluster's reply topic, as a trace that no client reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.broker.consumers import ClientTable
from penstock.broker.operations_as_plain_calls import Client, ClientRequests, Operation, WriteGuard, host_text
from penstock.broker.send import SendChecks
from penstock.broker.send_and_pull_results import PutOutcomes, SendOutcome
from penstock.broker.settings import SettingsInForce
from penstock.errors import PenstockError
from penstock.format.constants import CLUSTER
from penstock.format.properties import encode_properties, split_properties
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers.send import PushReply, SendMessage
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
        requests: ClientRequests,
        checks: SendChecks,
        settings: SettingsInForce,
        clock: Callable[[], int],
        guard: WriteGuard,
    ) -> None:
        self._store = store
        self._guard = guard
        self._clients = clients
        self._requests = requests
        self._checks = checks
        self._settings = settings
        self._clock = clock
        self._outcomes = PutOutcomes(store)

    def operations(self) -> tuple[Operation, ...]:
        return (Operation("send reply", self.forward, writes=True),)

    async def forward(self, client: Client, request: SendMessage, body: bytes) -> SendOutcome:
        """Forwards a reply message. The code of the outcome says whether it arrived. Raises Refusal."""
        topic = self._checks.topic_for(client, request)
        self._checks.check_queue(request, max(topic.read_queue_nums, topic.write_queue_nums))
        properties = split_properties(request.properties)
        failure = await self._push(client, request, body, properties)
        code = ResponseCode.SYSTEM_ERROR if failure else ResponseCode.SUCCESS
        outcome = SendOutcome(code, failure or None, "0", max(0, request.queue_id), 0)
        if self._settings.now.store_reply_message_enable and not self._guard.why_not:
            self._store_copy(client, request, body, properties, outcome)
        return outcome

    async def _push(self, client: Client, request: SendMessage, body: bytes, properties: dict[str, str]) -> str:
        """Pushes the reply to the requester. Returns why that failed; an empty string if it succeeded."""
        client_id = properties.get(REPLY_TO_CLIENT, "")
        if not client_id:
            return f"the reply does not name a client: property {REPLY_TO_CLIENT} is missing"
        requester = self._clients.find_producer(client_id)
        if requester is None:
            return f"the requesting client '{client_id[:80]}' is not connected"
        properties[PUSH_REPLY_TIME] = str(self._clock())
        pushed = PushReply(
            producer_group=request.producer_group,
            topic=request.topic,
            default_topic=request.default_topic,
            default_topic_queue_nums=request.default_topic_queue_nums,
            queue_id=request.queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            flag=request.flag,
            reconsume_times=request.reconsume_times,
            unit_mode=request.unit_mode,
            properties=encode_properties(properties).decode("utf-8", "surrogateescape"),
            born_host=host_text(*client.peer),
            store_host=self._store.settings.store_host,
            store_timestamp=self._clock(),
        )
        try:
            answer = await self._requests.ask(requester.client, pushed, body, _PUSH_S)
        except PenstockError as error:
            return f"the reply did not reach the requesting client: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"the requesting client refused the reply with {answer.code}: {answer.remark or 'no reason given'}"
        return ""

    def _store_copy(
        self, client: Client, request: SendMessage, body: bytes, properties: dict[str, str], outcome: SendOutcome
    ) -> None:
        """Stores the copy, if that is possible, and puts its id and place into the outcome."""
        result = self._store.append(
            Message(
                request.topic,
                body,
                properties={**properties, CLUSTER: self._settings.now.broker_cluster_name},
                queue_id=outcome.queue_id,
                flag=request.flag,
                sys_flag=request.sys_flag,
                born_timestamp=request.born_timestamp,
                born_host=host_text(*client.peer),
                reconsume_times=request.reconsume_times,
            )
        )
        if result.stored:
            outcome.msg_id = self._outcomes.msg_id(result.physical_offset)
            outcome.queue_id, outcome.queue_offset = result.queue_id, result.queue_offset
