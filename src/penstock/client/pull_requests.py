"""Subscriptions, and pulls (request code 11) of one page: up to `max_messages` consecutive messages of one queue.

`pull_records` pulls from one broker and leaves the records encoded. A `Fetcher` decodes the records and filters them by
tag. Each reply suggests the id of the broker for the next pull, and a `Fetcher` follows that advice until a pull fails
there. It is not thread-safe: use it from the event loop's thread only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.client.client_instance import ClientInstance
from penstock.client.message import ReceivedMessage, decode_page
from penstock.clock import now_ms
from penstock.errors import BadMessage, BadRequest, BadSettings, NoRoute, PenstockError
from penstock.format.topics import check_topic
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.routes import MASTER
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.compression import MAX_SIZE
from penstock.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullMessage, PullMessageReply
from penstock.protocol.subscription import SQL92, TAG, SubscriptionData, subscribe

_SLACK_S: Final = 15.0
"""Seconds added to the timeout of a long poll, because Java brokers check held pulls only every five seconds."""


_NOT_TAGS: Final = re.compile(r"\s(?:[|<>=,]|<>|<=|>=|and|or|in|is|between)\s|,\s", re.IGNORECASE)
"""What stands between words of a condition or a list, and not within a tag."""


# -- subscriptions ---------------------------------------------------------------------------------------------------


class Sql92(str):
    """An SQL92 filter over properties, such as `Sql92("price > 10 AND colour = 'red'")`. A plain string lists tags."""

    __slots__ = ()


def make_subscription(topic: str, expression: str) -> SubscriptionData:
    """Returns a subscription whose version is the current time. Raises BadSettings for an invalid topic, and for an
    expression that is not text, has no tag, or is SQL or a list written as tags, which would match nothing.
    """
    if not isinstance(expression, str):
        raise BadSettings(
            f"the filter of topic {topic!r} is {expression!r}; write '*', tags as in 'A || B', or Sql92(...)"
        )
    if isinstance(expression, Sql92) and not expression.strip():
        raise BadSettings(f"the SQL92 filter of topic {topic!r} is empty; write '*' for all messages")
    if not isinstance(expression, Sql92) and _NOT_TAGS.search(expression):
        raise BadSettings(
            f"the filter {str(expression)!r} of topic {topic!r} lists no tags; "
            "write 'A || B' for several tags, and Sql92(...) for a condition"
        )
    try:
        check_topic(topic)
    except BadMessage as error:
        raise BadSettings(f"cannot subscribe: {error}; give a legal topic") from None
    kind = SQL92 if isinstance(expression, Sql92) else TAG
    try:
        return subscribe(topic, str(expression), now_ms(), kind)
    except BadRequest as error:
        raise BadSettings(str(error)) from None


def matches(subscription: SubscriptionData, tags: str) -> bool:
    """Whether a message's tag matches the subscription. Brokers compare only hash codes, which can collide."""
    return subscription.expression_type != TAG or not subscription.tags_set or tags in subscription.tags_set


# -- pulls -----------------------------------------------------------------------------------------------------------


class PullStatus(StrEnum):
    """The result of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    """There is no message at the offset yet: it is the end of the queue."""
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    """No message of the page matches the filter; continue at `next_offset`."""
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The offset is before the start or beyond the end of the queue; continue at `next_offset`."""


STATUSES: Final = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """One page of a queue."""

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class PulledRecords:
    """One page of a queue with its records still encoded."""

    status: PullStatus
    body: bytes | memoryview
    """Concatenated records."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """The parameters of a pull."""

    group: str
    queue: MessageQueue
    offset: int
    subscription: SubscriptionData
    max_messages: int = 32
    wait_s: float = 0.0
    """Long polling: for how long the broker may hold the request if there is no new message."""
    commit_offset: int = -1
    """The group's offset, to be committed by this pull; negative to commit nothing."""
    is_subscribed: bool = False
    """Whether the client's heartbeats contain the subscription. If not, the request contains it."""


class Fetcher:
    """Pulls and decodes pages. `body_limit` is the limit of a decompressed body, in bytes."""

    def __init__(self, instance: ClientInstance, body_limit: int = MAX_SIZE) -> None:
        self._instance = instance
        self._body_limit = body_limit
        self._suggested: dict[MessageQueue, int] = {}

    async def fetch(self, pull: Pull) -> PullResult:
        """Pulls one page from the best broker. Raises NoRoute, Unreachable, NoAnswer or Refused."""
        broker_id, address = self._choose_broker(pull.queue)
        try:
            page = await pull_records(self._instance, pull, address, broker_id)
        except PenstockError:
            self._suggested.pop(pull.queue, None)  # a slave that is down or refuses must not hold up the queue
            raise
        self._suggested[pull.queue] = page.suggested_broker_id
        messages = self._messages(page.body, pull)
        return PullResult(page.status, messages, page.next_offset, page.min_offset, page.max_offset)

    def _choose_broker(self, queue: MessageQueue) -> tuple[int, str]:
        """Returns the id and address of the broker to pull from: the id suggested by the last reply, else the master,
        else the lowest id of that broker name. Raises NoRoute.
        """
        ids = self._instance.routes.brokers().get(queue.broker_name, {})
        for broker_id in (self._suggested.get(queue, MASTER), MASTER, *sorted(ids)):
            if broker_id in ids:
                return broker_id, ids[broker_id]
        raise NoRoute(f"no known route has broker '{queue.broker_name}'; start it, or fetch the queues again")

    def _messages(self, body: bytes | memoryview, pull: Pull) -> list[ReceivedMessage]:
        messages = decode_page(body, pull.queue.broker_name, self._body_limit)
        subscription = pull.subscription
        if subscription.expression_type != TAG or not subscription.tags_set:
            return messages
        return [message for message in messages if matches(subscription, message.tags)]


async def pull_records(instance: ClientInstance, pull: Pull, address: str, broker_id: int = MASTER) -> PulledRecords:
    """Pulls one page from one broker. Raises Unreachable, NoAnswer or Refused."""
    reply = await instance.request(
        address,
        RequestCode.PULL_MESSAGE,
        _header(pull, broker_id),
        timeout_s=pull.wait_s + _SLACK_S if pull.wait_s else None,
        good=STATUSES,
    )
    header = reply.read(PullMessageReply)
    return PulledRecords(
        STATUSES[ResponseCode(reply.code)],
        reply.body,
        header.next_begin_offset,
        header.min_offset,
        header.max_offset,
        header.suggest_which_broker_id,
    )


def _header(pull: Pull, broker_id: int) -> PullMessage:
    flag = 0
    if pull.wait_s > 0:
        flag |= SUSPEND
    if pull.commit_offset >= 0 and broker_id == MASTER:
        flag |= COMMIT_OFFSET
    subscription = pull.subscription
    if not pull.is_subscribed:
        flag |= SUBSCRIPTION
    return PullMessage(
        consumer_group=pull.group,
        topic=pull.queue.topic,
        queue_id=pull.queue.queue_id,
        queue_offset=pull.offset,
        max_msg_nums=pull.max_messages,
        sys_flag=flag,
        commit_offset=max(pull.commit_offset, 0),
        suspend_timeout_millis=int(pull.wait_s * 1000),
        subscription=None if pull.is_subscribed else subscription.sub_string,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
    )
