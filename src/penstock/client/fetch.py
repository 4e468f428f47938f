"""What a consumer wants of a topic: all of it, some tags, or what an SQL92 expression selects.

Pulls one page of a queue: the request (11), its answer, and the messages in it.

`pull_records` asks one broker and leaves the records as they came. A Fetcher makes messages of them and heeds what
brokers suggest: the next pull of a queue goes to the broker id of the last answer. Belongs to the loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.client.instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.clock import now_ms
from penstock.errors import BadRequest, BadSettings, NoRoute
from penstock.format.record import decode_record
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.routes import MASTER
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.compression import MAX_SIZE
from penstock.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullMessage, PullMessageReply
from penstock.protocol.subscription import SQL92, TAG, SubscriptionData, subscribe


class Sql92(str):
    """An SQL92 expression over properties, as in `Sql92("price > 10 AND colour = 'red'")`; a plain text names tags."""

    __slots__ = ()


def make_subscription(topic: str, expression: str) -> SubscriptionData:
    """A subscription of now. Raises BadSettings for one that names no tag at all."""
    kind = SQL92 if isinstance(expression, Sql92) else TAG
    try:
        return subscribe(topic, str(expression), now_ms(), kind)
    except BadRequest as error:
        raise BadSettings(str(error)) from None


def wants(subscription: SubscriptionData, tags: str) -> bool:
    """Whether a message with these tags is meant: brokers may compare hashes only, and those can collide."""
    return subscription.expression_type != TAG or not subscription.tags_set or tags in subscription.tags_set


_SLACK_S: Final = 15.0
"""How much longer than a broker may hold a pull its answer is waited for: stock brokers look every five seconds."""


class PullStatus(StrEnum):
    """What a pull found."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    """The queue ends here."""
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    """There are messages, none of which is wanted; go on at `next_offset`."""
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The queue does not reach from here: too old, or beyond its end; `next_offset` is where it does."""


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
    """One page of a queue as the broker sent it."""

    status: PullStatus
    body: bytes | memoryview
    """Whole records, one after the other."""
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """What to pull."""

    group: str
    queue: MessageQueue
    offset: int
    subscription: SubscriptionData
    max_messages: int = 32
    wait_s: float = 0.0
    """How long the broker may hold the request if there is nothing."""
    commit_offset: int = -1
    """The group's offset, to be stored on the way; none if negative."""
    is_subscribed: bool = False
    """Whether a heartbeat has told the broker of the subscription, so that it need not be in the request."""


class Fetcher:
    """Pulls for one client. `body_limit` is for bodies once they are inflated."""

    def __init__(self, instance: ClientInstance, body_limit: int = MAX_SIZE) -> None:
        self._instance = instance
        self._body_limit = body_limit
        self._suggested: dict[MessageQueue, int] = {}

    async def fetch(self, pull: Pull) -> PullResult:
        """Raises NoRoute, Unreachable, NoAnswer or Refused."""
        broker_id, address = self._place(pull.queue)
        page = await pull_records(self._instance, pull, address, broker_id)
        self._suggested[pull.queue] = page.suggested_broker_id
        messages = self._messages(page.body, pull)
        return PullResult(page.status, messages, page.next_offset, page.min_offset, page.max_offset)

    def _place(self, queue: MessageQueue) -> tuple[int, str]:
        """The broker that was suggested, or the master, or any of that name."""
        ids = self._instance.routes.brokers().get(queue.broker_name, {})
        for broker_id in (self._suggested.get(queue, MASTER), MASTER, *sorted(ids)):
            if broker_id in ids:
                return broker_id, ids[broker_id]
        raise NoRoute(
            f"broker '{queue.broker_name}' is in no route that is known; start it, or ask for the queues again"
        )

    def _messages(self, body: bytes | memoryview, pull: Pull) -> list[ReceivedMessage]:
        found, at = [], 0
        while at < len(body):
            record = decode_record(body, at)
            at += record.size
            if wants(pull.subscription, record.tags):
                found.append(ReceivedMessage(record, pull.queue.broker_name, limit=self._body_limit))
        return found


async def pull_records(instance: ClientInstance, pull: Pull, address: str, broker_id: int = MASTER) -> PulledRecords:
    """A page from one broker, its messages not yet looked at. Raises Unreachable, NoAnswer or Refused."""
    reply = await instance.ask(
        address,
        RequestCode.PULL_MESSAGE,
        _header(pull, broker_id),
        timeout_s=pull.wait_s + _SLACK_S if pull.wait_s else None,
        good=STATUSES,
    )
    told = reply.read(PullMessageReply)
    return PulledRecords(
        STATUSES[ResponseCode(reply.code)],
        reply.body,
        told.next_begin_offset,
        told.min_offset,
        told.max_offset,
        told.suggest_which_broker_id,
    )


def _header(pull: Pull, broker_id: int) -> PullMessage:
    flag = 0
    if pull.wait_s > 0:
        flag |= SUSPEND
    if pull.commit_offset >= 0 and broker_id == MASTER:
        flag |= COMMIT_OFFSET
    told = pull.subscription
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
        subscription=None if pull.is_subscribed else told.sub_string,
        sub_version=told.sub_version,
        expression_type=told.expression_type,
    )
